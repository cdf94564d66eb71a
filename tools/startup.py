"""What must happen before Paddle is imported, and the import itself. Commands call `import_paddle` first."""

import contextlib
import ctypes
import io
import os
import signal
import sys
import warnings

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

# Option of Linux's prctl: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1

# Notices that Paddle prints at every start, to everybody: about its own default flags, a compiler cache, one process
# not being a parallel environment, and more than one thread; and in every training with BatchNorm.
_NOISE = ("Modified FLAGS", "FLAGS(name=", "=====", "OMP_NUM_THREADS", "ccache", "warnings.warn(")


def import_paddle():
    """Set the environment, import Paddle without its standing notices and return the module."""
    if "PADDLE_LOCAL_RANK" in os.environ:
        obey_launcher()
    prepare_environment()
    for text in ("No ccache found", "Currently not a parallel execution environment", "Current global rank",
                 "When training, we now always track global mean"):  # fmt: skip
        warnings.filterwarnings("ignore", message=f".*{text}")
    with without_noise():
        # First, so that Pillow gets its own zlib: Paddle 2.6 brings one that breaks every PNG for a later Pillow.
        from PIL import Image  # noqa: F401, I001

        import paddle
    return paddle


def prepare_environment():
    """Set thread count, matrix kernels and log levels, unless the user has set them.

    Under the launcher the processes of this machine share its cores.
    """
    local_processes = max(int(os.environ.get("PADDLE_LOCAL_SIZE", 1)), 1)
    # Paddle takes one thread when the variable is not set.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(_cores() // local_processes, 1)))
    if _amd_with_avx2():
        # The MKL inside Paddle's CPU wheel uses SSE kernels on processors other than Intel's; this selects the AVX2
        # ones. Matrix products run 3 times as fast on an EPYC.
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    os.environ.setdefault("GLOG_minloglevel", "2")
    _keep_memory()
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        # Set but empty it breaks the gloo backend; no card is what an unset variable means on a machine without one.
        del os.environ["CUDA_VISIBLE_DEVICES"]


def obey_launcher():
    """Tie the life of this process to that of Paddle's launcher, which started it, and let SIGTERM reach it.

    A killed launcher would leave its processes behind, computing for nobody. tools/launch.py blocks SIGTERM in the
    launcher, and what is blocked is inherited.
    """
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    supervisor = os.environ.get("T2T_LAUNCH_PID")
    if supervisor and _parent(os.getppid()) != int(supervisor):
        # The launcher died before this process could hear of it.
        os._exit(1)


def end_with_parent():
    """Have the system kill this process when its parent dies. Only Linux can do this."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _parent(number):
    try:
        with open(f"/proc/{number}/stat", encoding="ascii", errors="replace") as file:
            # The name, in brackets, may hold anything.
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


@contextlib.contextmanager
def without_noise():
    """Hold back what is written to sys.stderr meanwhile and pass on all lines but the known notices."""
    held = io.StringIO()
    try:
        with contextlib.redirect_stderr(held):
            yield
    finally:
        lines = held.getvalue().splitlines(keepends=True)
        sys.stderr.writelines(line for line in lines if not any(noise in line for noise in _NOISE))


def _keep_memory():
    """Have glibc reuse large blocks instead of returning them to the system after every operator.

    Fresh pages cost more than the arithmetic on them: squaring 29 MB took 16 ms with them and 2 ms without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _amd_with_avx2():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return False
    return "AuthenticAMD" in text and " avx2" in text
