"""What a job shows on the console: the words of its first process, as they come."""

import contextlib
import os
import sys
import time

from launching.workers import TROUBLE_LINE

# So many seconds what follows the beginning of an error report waits, to be shown only where this process is the cause.
_HOLD = 20


class Console:
    """Shows the log of the first process as it grows, by whole lines."""

    def __init__(self):
        self._file = None
        self._part = b""
        self._held, self._since = [], None

    def follow(self, path):
        """Show what has been added. Returns False when nobody reads it any more."""
        if self._file is None:
            with contextlib.suppress(OSError):
                self._file = open(path, "rb")  # noqa: SIM115  closed by close()
        if self._file is None:
            return True
        *lines, self._part = (self._part + self._file.read()).split(b"\n")
        for line in lines:
            if self._since is None and TROUBLE_LINE.match(line.decode("utf-8", "replace")):
                self._since = time.monotonic()
            self._held.append(line + b"\n")
        if self._since is not None and time.monotonic() - self._since > _HOLD:
            # The process lives on, so that was no failure.
            self._since = None
        return self._show() if self._since is None else True

    def _show(self):
        lines, self._held = self._held, []
        try:
            if lines:
                sys.stdout.buffer.write(b"".join(lines))
                sys.stdout.buffer.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
        return True

    def close(self, show):
        """Show the rest, or what has been held back as well (show)."""
        if self._file:
            self.follow(None)
            if show:
                self._held.append(self._part)
                self._show()
            self._file.close()
