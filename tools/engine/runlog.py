"""Where a run tells what it does: console, train.log, metrics.jsonl, VisualDL, a live bar on a terminal."""

import contextlib
import io
import json
import sys
import time
from pathlib import Path


def clock(seconds):
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class RunLog:
    """Lines, metrics and curves of one process. With enabled=False (any process but the first) all of it is silent.

    folder: run folder, which gets train.log, metrics.jsonl and vdl/ (appended to, never emptied); None: console only.
    """

    def __init__(self, folder=None, *, enabled=True, stream=None):
        self.enabled = enabled
        self.stream = stream or sys.stdout
        self._live = enabled and self.stream.isatty()
        self._bar = ""
        self._shown = 0.0
        self._text = self._metrics = self._curves = None
        if folder is not None and enabled:
            self._open(Path(folder))

    def _open(self, folder):
        # Imported here: it takes seconds and val and predict have no curves.
        from visualdl import LogWriter

        # Closed by close().
        self._text = open(folder / "train.log", "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._metrics = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        # One file for all parts of a run, since VisualDL shows the newest file of a folder only. It prints that it
        # appends.
        with contextlib.redirect_stdout(io.StringIO()):
            self._curves = LogWriter(logdir=str(folder / "vdl"), file_name="vdlrecords.run.log")

    def line(self, text):
        """Print one line and append it to train.log."""
        if not self.enabled:
            return
        self._clear()
        print(text, file=self.stream, flush=True)
        if self._text:
            self._text.write(text + "\n")
            self._text.flush()

    def metrics(self, **values):
        """Append one JSON object to metrics.jsonl."""
        if self._metrics:
            self._metrics.write(json.dumps(values) + "\n")
            self._metrics.flush()

    def curves(self, step, **values):
        """Add one point at `step` to each named VisualDL curve; `train_loss` becomes the tag train/loss."""
        if self._curves:
            for name, value in values.items():
                self._curves.add_scalar(tag=name.replace("_", "/", 1), step=step, value=value)

    def progress(self, text, fraction):
        """Redraw the live bar, at most ten times a second; nothing where the output is not a terminal."""
        if not self._live or time.monotonic() - self._shown < 0.1:
            return
        self._clear()
        filled = round(30 * fraction)
        self._bar = f"[{'#' * filled}{'.' * (30 - filled)}] {text}"
        self._shown = time.monotonic()
        self.stream.write(self._bar)
        self.stream.flush()

    def _clear(self):
        if self._bar:
            self.stream.write("\r" + " " * len(self._bar) + "\r")
            self._bar = ""

    def close(self):
        """Remove the bar and close the files."""
        if self.enabled:
            self._clear()
        for file in (self._text, self._metrics, self._curves):
            if file:
                file.close()
        self._text = self._metrics = self._curves = None
