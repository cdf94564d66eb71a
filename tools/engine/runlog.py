"""Where a run tells what it does: console, train.log, metrics.jsonl, VisualDL, a live bar on a terminal."""

import contextlib
import json
import math
import os
import struct
import sys
import time
from pathlib import Path

from errors import UserError

_CURVES = "vdl/vdlrecords.run.log"
FILES = ("train.log", "metrics.jsonl", _CURVES)


def clock(seconds):
    """Seconds as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


class RunLog:
    """Lines, metrics and curves of one process. With enabled=False (any process but the first) all of it is silent.

    folder: run folder, which gets train.log, metrics.jsonl and vdl/; None: console only. positions: what `positions()`
    gave when the state was saved that the run goes on from; the files are cut back to it, so that nothing is in them
    twice. {} empties them, None appends to them as they are.
    """

    def __init__(self, folder=None, *, enabled=True, stream=None, positions=None):
        self.enabled = enabled
        self.stream = stream or sys.stdout
        self._live = enabled and self.stream.isatty()
        self._bar = ""
        self._shown = 0.0
        self._text = self._metrics = self._curves = None
        if folder is not None and enabled:
            self._folder = Path(folder)
            with self._told():
                self._open(positions)

    def _open(self, positions):
        (self._folder / "vdl").mkdir(exist_ok=True)
        paths, lost = [self._folder / name for name in FILES], []
        if positions is not None:
            for name, path in zip(FILES, paths):
                size = path.stat().st_size if path.exists() else 0
                if size > positions.get(name, 0):
                    os.truncate(path, positions.get(name, 0))
                elif size < positions.get(name, 0):
                    lost.append(name)
        # Closed by close().
        self._text = open(paths[0], "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._metrics = open(paths[1], "a", encoding="utf-8")  # noqa: SIM115
        # One file for all parts of a run, since VisualDL shows the newest file of a folder only.
        self._curves = _Curves(paths[2])
        if lost:
            self.line(f"{', '.join(lost)}: shorter than when the state was saved; what was removed stays lost")

    def line(self, text):
        """Print one line and append it to train.log."""
        if not self.enabled:
            return
        self._clear()
        print(text, file=self.stream, flush=True)
        if self._text:
            with self._told():
                self._text.write(text + "\n")
                self._text.flush()

    def metrics(self, **values):
        """Append one JSON object to metrics.jsonl; what is not finite becomes null, which JSON can tell."""
        if self._metrics:
            with self._told():
                self._metrics.write(json.dumps({name: _finite(value) for name, value in values.items()}) + "\n")
                self._metrics.flush()

    def curves(self, step, **values):
        """Add one point at `step` to each named VisualDL curve; `train_loss` becomes the tag train/loss.

        Values that are not finite are left out: VisualDL cannot show a curve that holds one.
        """
        if self._curves:
            with self._told():
                self._curves.add(step, {k.replace("_", "/", 1): v for k, v in values.items() if math.isfinite(v)})

    def positions(self):
        """The sizes of the files, which are on the disk when this returns; see __init__."""
        sizes = {}
        if self._text:
            with self._told():
                for name, file in zip(FILES, (self._text, self._metrics, self._curves.file)):
                    file.flush()
                    os.fsync(file.fileno())
                    sizes[name] = os.fstat(file.fileno()).st_size
        return sizes

    @contextlib.contextmanager
    def _told(self):
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write the logs in {self._folder}: {error.strerror}; free some space and start again"
            ) from error

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
        for file in (self._text, self._metrics, self._curves and self._curves.file):
            if file:
                # Every line has been written out; what a full disk has refused was told then.
                with contextlib.suppress(OSError):
                    file.close()
        self._text = self._metrics = self._curves = None


class _Curves:
    """A record file of VisualDL: for each record its length, 8 bytes, and a protocol buffer.

    VisualDL's own LogWriter writes from a thread, whenever it comes to it, so that at no time it is certain which
    points are in the file.
    """

    def __init__(self, path):
        # Imported here: it takes seconds and val and predict have no curves.
        from visualdl.component.base_component import meta_data, scalar

        self._scalar = scalar
        self.file = open(path, "ab")  # noqa: SIM115  closed by RunLog.close()
        if not self.file.tell():
            self._write([meta_data(display_name="", step=0, walltime=_milliseconds())])

    def add(self, step, values):
        """Add a point at `step` to the curve of each tag, and write them out."""
        now = _milliseconds()
        self._write([self._scalar(tag=tag, value=value, step=step, walltime=now) for tag, value in values.items()])

    def _write(self, records):
        texts = [record.SerializeToString() for record in records]
        self.file.write(b"".join(struct.pack("<Q", len(text)) + text for text in texts))
        self.file.flush()


def _milliseconds():
    return round(time.time() * 1000)


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
