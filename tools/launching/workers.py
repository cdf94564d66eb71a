"""The processes of a job seen from outside: children of Paddle's launcher, known through /proc and their logs."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

# How the last lines of a process tell why it ended. ECHO: another process was gone; that one is the cause.
MISTAKE, STOPPED, CRASH, SILENT, ECHO = "mistake", "stopped", "crash", "silent", "echo"

MISTAKE_LINE = re.compile(r"([a-z_]+\.py: )?error: ")
# A line that opens the report of a failure, on the way to the console.
TROUBLE_LINE = re.compile(rf"Traceback \(most recent|terminate called|-{{20,}}$|FatalError|{MISTAKE_LINE.pattern}")
_STOPPED_LINE = re.compile(r"stopped( by |;)")
_CRASH = re.compile(r"^(Traceback \(most recent|terminate called|FatalError)", re.M)
_ECHO = re.compile(r"gloo|by peer|connection (reset|closed|refused)|broken pipe|tcp_?store|socket|nccl", re.I)
# As engine.meeting words it.
_GONE = re.compile(r"process \d+ has ended; its log tells why")
# Of a log, what is read in search of these, and of a report, what is shown.
_TAIL_BYTES, _SHOWN_LINES = 1 << 16, 30


@dataclass
class Worker:
    """One process. rank: among all machines; local: on this one; died: when it was seen to be dead, None: alive;
    code: exit code, -N after signal N, None while unknown; job: name of this start, the same on all machines."""

    pid: int
    rank: int
    local: int
    log: Path
    died: float = None
    code: int = None
    job: str = ""

    def look(self, now):
        """Note whether the process has ended meanwhile."""
        fields = _stat(self.pid)
        if not fields or fields[0] in "ZX":
            self.died = now
            if fields:
                status = int(fields[-1])
                # As waitpid tells it; gone if the launcher has been quicker.
                self.code = -(status & 0x7F) or status >> 8

    def ending(self):
        """(one of the kinds above, the lines to show)."""
        text = tail(self.log)
        lines = text.splitlines()
        for line in reversed(lines):
            if MISTAKE_LINE.match(line) and self.code != 1:
                return MISTAKE, [line]
            if _STOPPED_LINE.match(line):
                return STOPPED, [line]
        found = [match.start() for match in _CRASH.finditer(text)]
        if not found:
            return SILENT, []
        python = text.rfind("\nTraceback (most recent") + 1
        report = text[python or found[0]:]
        gone = _GONE.search(report)
        if gone:
            return ECHO, [gone[0]]
        return (ECHO if _ECHO.search(report) else CRASH), report.splitlines()[-_SHOWN_LINES:]


def find_workers(launcher, folder):
    """A Worker for every child of the process `launcher` that it gave a rank; folder: of the logs."""
    found = []
    for pid in _children(launcher):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        known = dict(word.split(b"=", 1) for word in words if b"=" in word)
        if b"PADDLE_LOCAL_RANK" in known:
            local = int(known[b"PADDLE_LOCAL_RANK"])
            # Where the processes meet; Paddle's launcher chooses other ports each time.
            job = b" ".join(known.get(name, b"") for name in (b"PADDLE_MASTER", b"PADDLE_TRAINER_ENDPOINTS")).decode()
            log = Path(folder) / f"workerlog.{local}"
            found.append(Worker(pid, int(known[b"PADDLE_TRAINER_ID"]), local, log, job=job))
    return found


def cause(workers):
    """The Worker that the job failed by, with its kind and lines, or None where none is known.

    The launcher ends all processes when it sees that one has ended, and the others fail by themselves when the first is
    gone, so that most often several have failed.
    """
    failed = [(worker, *worker.ending()) for worker in workers if worker.code != 0]
    order = {MISTAKE: 0, STOPPED: 1, CRASH: 2}
    end = float("inf")
    failed.sort(key=lambda item: (order.get(item[1], 3), item[0].died or end, item[1] == ECHO))
    return failed[0] if failed else None


def holds_back_sigterm(pid):
    """Whether SIGTERM was sent to a process that blocks it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    pending = re.search(r"^ShdPnd:\s*([0-9a-f]+)", text, re.M)
    return bool(pending) and bool(int(pending[1], 16) >> (signal.SIGTERM - 1) & 1)


def parent(pid):
    """Number of the parent of a process, None where there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def tail(path):
    """The end of a text file; nothing where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        # Some kernels come without that file.
        numbers = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [number for number in numbers if parent(number) == pid]


def _stat(pid):
    """Fields of /proc/PID/stat from the state on, None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name, in brackets, may hold anything.
    return text[text.rindex(")") + 2:].split()
