"""What the supervisors of several machines know of each other: who is there, and who has failed why."""

import contextlib
import http.client
import json
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

_PREFIX = "/t2t/"
# Seconds between two signs of life, for an answer, of silence after which a machine counts as gone, and the same where
# it answers that its launcher is not there.
_EVERY, _ANSWER, _SILENCE, _REFUSED = 1, 5, 40, 15
_LONGEST = 1 << 16
# This supervisor among those of its host name; new starts keep it.
_TOKEN = secrets.token_hex(4)


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

    A process that waits for one of another machine would notice only after minutes that it has failed or that its
    machine has gone. The words go through the key-value server that Paddle's launcher runs on the first machine, as
    long as it lives. Anybody in that network can write there, so what is heard is only shown, and ends the job.

    master: "host:port" of that server, None on a single machine. `news`: the first News heard, None before.
    """

    def __init__(self, master):
        self.news = None
        self._host = socket.gethostname()
        self._key = f"{_PREFIX}{self._host}-{_TOKEN}"
        self._beats, self._seen = 0, {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._ended = master is None
        if master:
            host, _, port = master.rpartition(":")
            self._address = host, int(port)

    def begin(self):
        """Speak and listen from now on."""
        if not self._ended:
            threading.Thread(target=self._live, daemon=True).start()

    def still_ending(self):
        """Whether the first machine is still at the start of the job that this one has told the end of."""
        if self._ended:
            return False
        try:
            return self._key in json.loads(self._ask("GET", self._key) or "{}")
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def tell(self, text, mistake=False, restart=True):
        """Tell why this machine fails; None: the others know. Only the first call counts."""
        words = {"host": self._host}
        if text is not None and not self.news:
            words.update(text=text, mistake=mistake, restart=restart)
        self._end("PUT", json.dumps(words))

    def listen(self):
        """Hear at once what there is to hear; the server may be gone before the next time."""
        if not self._ended and not self.news:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.news = self._read(self._ask("GET", _PREFIX), time.monotonic())

    def close(self):
        """Leave; where nothing has been told, this machine has done its part."""
        self._closed.set()
        self._end("DELETE")

    def _end(self, method, body=None):
        with self._lock:
            if not self._ended:
                self._ended = True
                with contextlib.suppress(OSError, http.client.HTTPException):
                    self._ask(method, self._key, body)

    def _ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(*self._address, timeout=_ANSWER)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read(_LONGEST)
        finally:
            connection.close()

    def _live(self):
        answered = None
        while not self._closed.wait(_EVERY) and not self.news:
            try:
                self._beat()
                answer = self._ask("GET", _PREFIX)
                answered = time.monotonic()
                self.news = self._read(answer, answered)
            except (OSError, http.client.HTTPException) as error:
                limit = _REFUSED if isinstance(error, ConnectionRefusedError) else _SILENCE
                # Before the first answer the launcher there has not begun.
                if answered and time.monotonic() - answered > limit:
                    host, port = self._address
                    self.news = News(f"launch: the launcher of the first machine, {host}:{port}, has gone")

    def _beat(self):
        with self._lock:
            if not self._ended:
                self._beats += 1
                self._ask("PUT", self._key, json.dumps({"host": self._host, "beats": self._beats}))

    def _read(self, answer, now):
        """News in the words of the other machines, None where there are none."""
        try:
            words = {key: json.loads(text) for key, text in json.loads(answer or "{}").items() if key != self._key}
            for word in words.values():
                if "text" in word:
                    return News(_printable(word["text"]), bool(word["mistake"]), bool(word["restart"]))
            signs = {(key, word["beats"], word["host"]) for key, word in words.items() if "beats" in word}
            self._seen = {sign: self._seen.get(sign, now) for sign in signs}
            for (_, _, host), since in self._seen.items():
                if now - since > _SILENCE:
                    return News(_printable(f"launch: machine {host} has gone"))
        except (ValueError, KeyError, TypeError, AttributeError):
            # Not the words of such a supervisor.
            pass
        return None


def _printable(text):
    return "\n".join("".join(c for c in line if c.isprintable()) for line in str(text).splitlines())
