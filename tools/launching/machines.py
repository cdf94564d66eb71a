"""What the supervisors of several machines know of each other: who is there, and who has failed why."""

import contextlib
import json
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

# Seconds between two signs of life, and how many times none may come before a machine counts as gone.
_EVERY, _PATIENCE = 1, 30
# Words that are older, in seconds, are of nobody who lives, and are removed by the next job.
_OLD = 600


@dataclass(frozen=True)
class News:
    """The end of the job elsewhere. text: what to show; mistake: of the user's; restart: whether a new start may help;
    heard: time.monotonic of hearing."""

    text: str
    mistake: bool = False
    restart: bool = True
    heard: float = field(default_factory=time.monotonic)


class Machines:
    """Tells the other machines that this one lives or why it has failed, and hears it of them.

    A process that waits for one of another machine would notice only after minutes, over NCCL after half an hour, that
    it has failed or that its machine has gone. The words go through small files in the run folder, which all machines
    share, one for each machine and start; where they do not share it, nothing is heard.

    folder: Path for the files, made when needed; None on a single machine. `news`: the first News heard, None before.
    """

    def __init__(self, folder):
        self.news = None
        self._folder = folder
        self._words = {"host": socket.gethostname(), "beats": 0}
        self._silent = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._file = folder and folder / f"{self._words['host']}-{secrets.token_hex(4)}.json"

    def begin(self, job):
        """Speak and listen from now on to the machines that call their start of the job by the same name."""
        if self._folder and "job" not in self._words:
            self._words["job"] = job
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                for file in self._folder.glob("*.json"):
                    if time.time() - file.stat().st_mtime > _OLD:
                        file.unlink()
            threading.Thread(target=self._live, daemon=True).start()

    def tell(self, text, mistake=False, restart=True):
        """Tell why this machine fails; None: the others know. Only the first call counts."""
        if "over" not in self._words and "text" not in self._words and not self.news and text is not None:
            self._say(text=text, mistake=mistake, restart=restart)

    def listen(self):
        """Hear at once what there is to hear."""
        if not self.news and "job" in self._words:
            with contextlib.suppress(OSError):
                self.news = self._hear()

    def close(self):
        """Leave; where nothing has been told, this machine has done its part."""
        self._closed.set()
        self._say(over=True)

    def others_left(self, counting=False):
        """Whether another machine is still at the start of the job that has ended here. counting: asked every second,
        so that one which says nothing any more is not waited for."""
        try:
            self._hear(counting)
            return any("over" not in words and self._silent[name][1] <= _PATIENCE for name, words in self._others())
        except (OSError, KeyError):
            return False

    def leave_nothing(self):
        """Leave, as `close`, and take back what this machine has said, for an end that nobody needs to hear of."""
        self.close()
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink()
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _live(self):
        while not self._closed.wait(_EVERY) and not self.news:
            # A disk that does not answer says nothing of the other machines, so that only whole rounds count.
            with contextlib.suppress(OSError):
                self._say(beats=self._words["beats"] + 1)
                self.news = self.news or self._hear(counting=True)

    def _say(self, **more):
        with self._lock:
            if "over" in self._words or "job" not in self._words:
                return
            self._words.update(more)
            with contextlib.suppress(OSError):
                # In place: another file under the same name may be seen late on a network disk.
                self._file.write_text(json.dumps(self._words), encoding="utf-8")

    def _others(self):
        """(file name, words) of each other machine at the same start."""
        for file in sorted(self._folder.glob("*.json")) if "job" in self._words else ():
            try:
                words = json.loads(file.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError, RecursionError):
                # Gone, or being written.
                continue
            if file != self._file and isinstance(words, dict) and words.get("job") == self._words["job"]:
                yield file.name, words

    def _hear(self, counting=False):
        """News in the words of the other machines, None where there are none."""
        news = None
        for name, words in self._others():
            beats, rounds = self._silent.get(name, (None, 0))
            rounds = rounds + counting if beats == words.get("beats") else 0
            self._silent[name] = words.get("beats"), rounds
            if "text" in words:
                news = news or News(_printable(words["text"]), bool(words.get("mistake")), bool(words.get("restart")))
            elif rounds > _PATIENCE and "over" not in words:
                news = news or News(_printable(f"launch: machine {words.get('host')} has gone"))
        return news


def _printable(text):
    return "\n".join("".join(c for c in line if c.isprintable()) for line in str(text).splitlines())
