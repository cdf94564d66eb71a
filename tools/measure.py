"""Median times and peak memory, for bench.py and comparisons of speed."""

import contextlib
import resource
import statistics
import time
from pathlib import Path


def time_steps(steps, repeats):
    """Median seconds of each function, called in turn so that a drift of the machine's speed hits all of them."""
    for step in steps:
        step()
    times = [[] for _ in steps]
    for _ in range(repeats):
        for step, taken in zip(steps, times):
            start = time.perf_counter()
            step()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def reset_peak():
    """Start the peak memory anew where the system allows it (Linux, or a GPU)."""
    import paddle

    if "gpu" in paddle.get_device():
        # Paddle 2.6 cannot reset it; the modes are then measured from the lightest to the heaviest.
        if hasattr(paddle.device.cuda, "reset_max_memory_allocated"):
            paddle.device.cuda.reset_max_memory_allocated()
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak():
    """Peak memory in bytes: allocated on the GPU, or resident in this process."""
    import paddle

    if "gpu" in paddle.get_device():
        return paddle.device.cuda.max_memory_allocated()
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
