"""One start of Paddle's launcher, from the first process to the exit code. Linux only: it reads /proc."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from errors import UserError
from startup import end_with_parent

from launching.console import Console
from launching.machines import Machines
from launching.workers import (
    CRASH,
    ECHO,
    MISTAKE,
    SILENT,
    STOPPED,
    Worker,
    cause,
    find_workers,
    holds_back_sigterm,
    tail,
)

# Seconds between two looks at the processes.
_TICK = 0.02
# Paddle's launcher ends the others within 15 s of a failure; later this program does.
_PATIENCE = 40
# Other machines, which may have failed for good, are waited for so long when starting anew.
_MEETING = 600
# After a failure on another machine the processes of this one should end by themselves within this time.
_ECHOES = 10
# Where they have ended first, the words of the other machine come within this time.
_NEWS = 5
# What a cluster sets for its own use of the launcher; it would override the options given here.
_FOREIGN = ("MASTER", "DEVICES", "NNODES", "RUN_MODE", "LOG_OVERWRITE", "NPROC_PER_NODE", "RANK", "LOG_DIR", "IPS",
            "TRAINER_ID", "LOCAL_RANK", "JOB_ID")  # fmt: skip
# The launcher writes the whole environment into these, which may hold passwords.
_SECRETS = ("envlog.*", "backup_env.*", "*.*.log")


def say(text):
    """A line of this program's own."""
    sys.stderr.write(f"launch: {text}\n")


class Signals:
    """Collects the signals to stop while it is entered. One that was ignored before, as under nohup, stays so."""

    def __enter__(self):
        self.pending, self._before = [], {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda number, _: self.pending.append(number))
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Job:
    """One start of the launcher.

    options: of the launcher. program, arguments: what each process runs. output: Path of the run folder. signals:
    Signals. again: whether this is a new start after a failure. `may_restart` after `run`: the job failed, neither by a
    mistake of the user's nor because it was asked to stop. Raises UserError where no logs can be written.
    """

    def __init__(self, options, program, arguments, output, signals, again=False):
        self.signals = signals
        self._again, self._started = again, time.monotonic()
        self.may_restart = False
        self.workers, self.asked = [], []
        chosen = dict(zip(options[::2], options[1::2]))
        self.expected = int(chosen.get("--nproc_per_node") or len(chosen["--gpus"].split(",")))
        self._several = "--master" in chosen
        self.machines = Machines(output / "launch" / "machines" if self._several else None)
        self._gone_since = None
        try:
            made = _first_missing(output)
            (output / "launch").mkdir(parents=True, exist_ok=True)
            name = datetime.now().strftime("%Y%m%d-%H%M%S-") + socket.gethostname().split(".")[0] + "-"
            # Readable for the user only, as mkdtemp makes it.
            self.folder = Path(tempfile.mkdtemp(prefix=name, dir=output / "launch"))
        except OSError as error:
            raise UserError(f"output={output}: cannot be made: {error.strerror}; choose another output") from error
        self._made = made
        self.console = Console()
        self.command = [sys.executable, "-m", "paddle.distributed.launch", *options, "--log_dir", str(self.folder),
                        program, *arguments]  # fmt: skip

    def run(self):
        """Start the job, wait for its end, tell about it; returns the exit code."""
        with contextlib.closing(self.machines):
            self._start()
            while True:
                ended = self.launcher.poll() is not None
                self._watch()
                if ended and not self._alive():
                    break
                time.sleep(_TICK)
            return self._finish()

    def wait_for_machines(self):
        """Let the other machines end this start too, before they are asked to a new one."""
        begun = time.monotonic()
        while self.machines.others_left(True) and not self.signals.pending and time.monotonic() - begun < _MEETING:
            time.sleep(1)

    def _start(self):
        environment = {k: v for k, v in os.environ.items() if k not in [f"PADDLE_{name}" for name in _FOREIGN]}
        environment["T2T_LAUNCH_PID"] = str(os.getpid())
        if "--nnodes" in self.command:
            say(f"waiting for the processes of all machines; this one's words go to {self.folder}")
        with open(self.folder / "launcher.log", "w", encoding="utf-8") as log:
            # In a session of its own, so that Ctrl-C reaches this process only. The launcher gives its workers 30 s
            # after SIGTERM and would cut off a long save, so it does not hear that signal; the workers do.
            self.launcher = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=lambda: (end_with_parent(), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})),
            )  # fmt: skip

    def _elapsed(self):
        return time.monotonic() - self._started

    def _alive(self):
        return [worker for worker in self.workers if worker.died is None]

    def _watch(self):
        known = {worker.pid for worker in self.workers}
        if len(self._alive()) < self.expected:
            self.workers += [w for w in find_workers(self.launcher.pid, self.folder) if w.pid not in known]
            if self.workers:
                self.machines.begin(self.workers[0].job)
        now = time.monotonic()
        for worker in self._alive():
            worker.look(now)
            if worker.code:
                self._tell_machines()
        for worker in self.workers:
            if worker.rank == 0 and not self.console.follow(worker.log):
                # Nobody reads on, after which one process would end too.
                self.signals.pending.append(signal.SIGTERM)
        if not self.asked and holds_back_sigterm(self.launcher.pid):
            self.signals.pending.append(signal.SIGTERM)
        while self.signals.pending:
            self._pass_on(self.signals.pending.pop(0))
        self._make_an_end(now)

    def _pass_on(self, number):
        again = bool(self.asked)
        self.asked.append(number)
        starting = len(self.workers) < self.expected or not self._alive()
        if starting or (again and number == signal.SIGINT):
            # There is nothing to save, or the user does not want to wait. The workers die with the launcher.
            self._tell_machines()
            self._kill(self.launcher.pid, *(worker.pid for worker in self._alive()))
            return
        for worker in self._alive():
            _send(worker.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _make_an_end(self, now):
        """Kill what is left long after a failure, or after the launcher."""
        failed = [worker.died for worker in self.workers if worker.died and worker.code]
        waiting = len(self._alive()) < self.expected
        gone = self.launcher.poll() is not None
        if gone and self._gone_since is None:
            self._gone_since = now
        if self._again and not self.workers and not gone and self._elapsed() > _MEETING:
            say(f"no new start: the other machines have not come within {_MEETING} s")
            self._kill(self.launcher.pid)
        late = (failed and waiting and now - max(failed) > _PATIENCE) or (gone and now - self._gone_since > 5)
        if late and self._alive():
            self._kill(*(worker.pid for worker in self._alive()))
        if self.machines.news and now - self.machines.news.heard > _ECHOES:
            self.launcher.kill()
            self._kill(*(worker.pid for worker in self._alive()))

    @staticmethod
    def _kill(*pids):
        for pid in pids:
            _send(pid, signal.SIGKILL)

    # ------------------------------------------------------------------ the end

    def _finish(self):
        code = self.launcher.returncode
        if code == 0:
            self.console.close(show=True)
            self.machines.leave_nothing()
            self._remove()
            return 0
        self._clean()
        self._add_unseen()
        self._tell_machines()
        worker, kind, lines = cause(self.workers) or (None, SILENT, [])
        if kind == ECHO:
            self._await_news()
        self.console.close(show=kind == STOPPED or (kind == SILENT and worker is not None and worker.rank == 0))
        if kind == MISTAKE:
            sys.stderr.write(f"{lines[0]}\n")
            # That line tells all, and a run that never began should leave no folder.
            self._remove()
            return 2
        if kind == STOPPED:
            if not any(worker.rank == 0 for worker in self.workers):
                say("the training was stopped and the first machine has saved it; to go on, start the same command "
                    "again on every machine")  # fmt: skip
            return 1
        if self.asked and (kind != CRASH or signal.SIGINT in self.asked):
            if signal.SIGINT in self.asked:
                sys.stderr.write("interrupted\n")
                return 1
            return 128 + self.asked[0]
        if self.machines.news and kind in (ECHO, SILENT):
            sys.stderr.write(f"{self.machines.news.text}\n")
            self.may_restart = self.machines.news.restart
            if self.machines.news.mistake:
                self._remove()
            return 2 if self.machines.news.mistake else 1
        if kind == SILENT and worker and worker.code is None and 0 < code < 128:
            # The launcher took the exit code first. Its own is that of any process, so none may have failed otherwise.
            worker.code = code if all(one.ending()[0] == SILENT for one in self.workers) else None
        if kind == SILENT and worker and (worker.code or 0) > 0:
            # The program's own verdict, such as a target that was missed; it has said so.
            return worker.code
        if kind == ECHO and self._several:
            lines = ["launch: a process on another machine has ended; the console there tells why"]
        sys.stderr.writelines(f"{line}\n" for line in lines)
        self._tell(worker, kind, code)
        self.may_restart = True
        return 1

    def _await_news(self):
        """Give the machine that failed time to say so."""
        end = time.monotonic() + _NEWS
        while not self.machines.news and time.monotonic() < end and self.machines.others_left():
            self.machines.listen()
            time.sleep(0.1)

    def _add_unseen(self):
        # These were gone before anybody looked.
        for number in set(range(self.expected)) - {worker.local for worker in self.workers}:
            log = self.folder / f"workerlog.{number}"
            if log.exists():
                self.workers.append(Worker(0, number, number, log))

    def _tell_machines(self):
        """Tell the other machines why this one ends, unless they know or it was for their sake."""
        worker, kind, lines = cause([one for one in self.workers if one.died and one.code]) or (None, SILENT, [])
        host = socket.gethostname()
        if kind in (ECHO, STOPPED) or (kind == SILENT and worker and worker.code > 0):
            # The last one is the program's verdict, which all processes come to.
            self.machines.tell(None)
        elif kind == MISTAKE:
            self.machines.tell(f"{lines[0]} (on {host})", mistake=True, restart=False)
        elif self.asked:
            name = signal.Signals(self.asked[0]).name
            self.machines.tell(f"launch: the job was ended on {host} by {name}", restart=False)
        elif worker:
            text = "\n".join([*lines, f"launch: process {worker.rank} {_how(worker, kind)} on {host}"])
            self.machines.tell(text)
        else:
            self.machines.tell(f"launch: the job has ended on {host}")

    def _tell(self, worker, kind, code):
        where = f"the output of each process is in {self.folder}"
        if worker is None:
            sys.stderr.writelines(f"{line}\n" for line in tail(self.folder / "launcher.log").splitlines()[-20:])
            return say(f"Paddle's launcher failed with exit code {code} before any process had started; {where}")
        if code < 0:
            return say(f"Paddle's launcher died by {signal.Signals(-code).name}; {where}")
        return say(f"process {worker.rank} {_how(worker, kind)}; {where}")

    def _clean(self):
        """Remove what the launcher noted of the environment."""
        for pattern in _SECRETS:
            for file in self.folder.glob(pattern):
                file.unlink()
        log = self.folder / "launcher.log"
        with contextlib.suppress(OSError):
            kept = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                    if not line.startswith("env {")]  # fmt: skip
            log.write_text("".join(kept), encoding="utf-8")

    def _remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        # The folders that were made for it, where nothing else has come in.
        folder = self.folder.parent
        with contextlib.suppress(OSError):
            while self._made and self._made in (folder, *folder.parents):
                folder.rmdir()
                folder = folder.parent


def _send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _how(worker, kind):
    """How a process ended, in words."""
    how = "died without a word" if kind == SILENT else "failed"
    return how + (f" by {signal.Signals(-worker.code).name}" if (worker.code or 0) < 0 else "")


def _first_missing(folder):
    """The outermost folder above `folder`/launch that is not there yet, or None."""
    folder = folder / "launch"
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    return missing[-1] if missing else None
