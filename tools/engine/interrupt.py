"""Asking a training to stop: SIGTERM, Ctrl-C, or its hours are over. It stops after the step under way, saved."""

import os
import signal
import threading
import time

# What `Interrupt.code` gives when the hours are over. Signals have their own numbers; this one is never handled here.
HOURS = 1


class Stopped(Exception):
    """The training ended early as it was asked to; its state is saved. `exit_code` is the command's."""

    def __init__(self, text, exit_code):
        super().__init__(text)
        self.exit_code = exit_code


class Interrupt:
    """Notes the wish to stop instead of ending the process, while it is entered.

    max_hours: hours from now after which the training stops, None: no limit. A Ctrl-C after any first signal ends the
    process at once, by KeyboardInterrupt.
    """

    def __init__(self, max_hours=None):
        self.max_hours = max_hours
        self._end = None if max_hours is None else time.monotonic() + 3600 * max_hours
        self._signal = 0
        self._before = {}

    def __enter__(self):
        self._process = os.getpid()
        # Python refuses handlers in other threads. A job that was started in the background ignores Ctrl-C already.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def code(self):
        """0: go on; else why to stop: the number of a signal or HOURS."""
        if self._signal:
            return self._signal
        return HOURS if self._end is not None and time.monotonic() >= self._end else 0

    def stopped(self, code, file):
        """The Stopped for an agreed `code`, with the state in `file`. A planned end is no failure."""
        hours = code == HOURS
        text = f"stopped by {self.reason(code)}; the state is in {file}: to go on, start the same command again"
        return Stopped(text, 0 if hours else 1)

    def reason(self, code):
        """A code in words."""
        return f"train.max_hours={self.max_hours:g}" if code == HOURS else signal.Signals(code).name

    def _note(self, number, _):
        # Loader workers inherit the handler.
        if os.getpid() != self._process:
            return
        if number == signal.SIGINT and self._signal:
            raise KeyboardInterrupt
        self._signal = self._signal or number
        if number == signal.SIGINT:
            # Not print, which may be under way where the signal came.
            os.write(2, b"\nsaving after this step; Ctrl-C again ends at once\n")
