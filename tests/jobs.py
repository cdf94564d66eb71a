"""Commands of several processes in the background, for tests that kill them or tell them to stop."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

TIMEOUT = 240


class Running:
    """A command of scripts/ in the background. Its words are in `out` and `err`."""

    def __init__(self, command, output, **environment):
        drop = ("PADDLE_", "FLAGS_", "CUDA_VISIBLE", "T2T_LAUNCH")
        env = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
        env.update({"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment})
        self.output = Path(output)
        self.files = [self.output.with_name(f"{self.output.name}.{time.monotonic_ns()}.{n}") for n in ("out", "err")]
        with open(self.files[0], "w") as out, open(self.files[1], "w") as err:
            self.process = subprocess.Popen(
                command, env=env, stdout=out, stderr=err, start_new_session=True,
                # Whoever runs the tests in the background has them ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip

    out = property(lambda self: self.files[0].read_text(encoding="utf-8"))
    err = property(lambda self: self.files[1].read_text(encoding="utf-8"))

    def wait_for(self, condition):
        """Wait until condition() is true; its value."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, f"{self.out[-2000:]}\n{self.err[-4000:]}"
            time.sleep(0.05)
        return condition()

    def wait_for_steps(self, count=1):
        self.wait_for(lambda: self.out.count("Loss:") >= count)

    def launcher(self):
        """Number of the process of Paddle's launcher."""
        (pid,) = children(self.process.pid)
        return pid

    def ranks(self):
        """Numbers of the workers, by their ranks on this machine."""
        found = {}
        for pid in children(self.launcher()):
            match = re.search(rb"PADDLE_LOCAL_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
            found[int(match[1])] = pid
        return [found[rank] for rank in sorted(found)]

    def end(self):
        """(exit code, seconds); no process of the job is left."""
        begun = time.monotonic()
        self.process.wait(TIMEOUT)
        seconds = time.monotonic() - begun
        end = begun + TIMEOUT
        while processes_about(self.output) and time.monotonic() < end:
            time.sleep(0.05)
        assert not processes_about(self.output)
        return self.process.returncode, seconds


def children(pid):
    """Numbers of the children of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        if int(text[text.rindex(")") + 2:].split()[1]) == pid:
            found.append(int(entry.name))
    return found


def processes_about(text):
    """Numbers of the processes with `text` in their command line, except this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(text).encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
