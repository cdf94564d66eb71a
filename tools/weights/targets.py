"""Where converted weights go: the format that a file name asks for; file and record written together or not at all."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weights.files import SUFFIX, WeightsError
from weights.paddle_file import save_weights
from weights.record import record_file, sha256_of, write_record
from weights.safetensors_file import write_safetensors
from weights.sources import PADDLE, PYTORCH
from weights.torch_writer import write_torch


class Target(NamedTuple):
    """A file to be written. path: absolute. kind: its format, for the log. layout: PADDLE or PYTORCH."""

    path: Path
    kind: str
    layout: str


_SAFETENSORS = "safetensors"
# File systems take 255 bytes; the record and files in the making have longer names than the weights.
LONGEST_NAME = 200
_KINDS = {SUFFIX: PADDLE, ".safetensors": _SAFETENSORS, ".pth": PYTORCH, ".pt": PYTORCH, ".pth.tar": PYTORCH}


def target_of(path, *, overwrite=False) -> Target:
    """The target that a file name asks for; `.pdparams` is added to a name without a suffix.

    Raises WeightsError for another suffix, and where the file or its record exists, unless they are to be overwritten.
    """
    given, path = str(path), Path(os.path.expanduser(path)).absolute()
    if not given or given.endswith((os.sep, ".")) or os.path.isdir(path):
        raise WeightsError(f"DST '{given}' is a folder or no name; name the file to write, such as NAME{SUFFIX}")
    bare = path
    path = path if path.suffix else path.with_name(path.name + SUFFIX)
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise WeightsError(f"{path}: the name is longer than {LONGEST_NAME} bytes; choose a shorter one")
    kind = next((kind for suffix, kind in _KINDS.items() if path.name.lower().endswith(suffix)), None)
    if kind is None:
        raise WeightsError(f"{path}: weights are written as {', '.join(_KINDS)}; choose one of these suffixes")
    for file in (bare, path, record_file(path)):
        if os.path.exists(file) and not os.path.isfile(file):
            raise WeightsError(f"{file} is no regular file; choose another name for the weights")
    for file in (path, record_file(path)):
        if os.path.lexists(file) and not overwrite:
            raise WeightsError(f"{file} exists already; choose another name or add --overwrite")
    return Target(path, kind, PADDLE if kind == PADDLE else PYTORCH)


def in_layout(arrays, linear, *, turn):
    """`arrays` (dict name -> np.ndarray), those named in `linear` transposed where `turn` is true, all C-contiguous."""
    return {
        name: np.ascontiguousarray(array.T) if turn and name in linear else array for name, array in arrays.items()
    }


def write(target, arrays, record):
    """Write weights (dict name -> float32 np.ndarray in the target's layout) and their record, and return the record.

    record: weights.record.Record without sha256, which is filled in. Missing folders are made. Both files are complete
    before either gets its name, and a failure leaves nothing behind; it raises WeightsError.
    """
    folder = target.path.parent
    missing = [item for item in (folder, *folder.parents) if not item.exists()]
    # The same name each time, so that what a kill leaves is replaced by the next conversion.
    partial = folder / f".converting-{target.path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_file(target.kind, arrays, partial, record)
        record = record._replace(sha256=sha256_of(partial))
        partial_record = write_record(record, partial)
        os.replace(partial, target.path)
        os.replace(partial_record, record_file(target.path))
        missing = []
    except OSError as error:
        raise WeightsError(f"cannot write {target.path}: {error.strerror}; choose another folder") from error
    except WeightsError as error:
        raise WeightsError(str(error).replace(str(partial), str(target.path))) from error
    finally:
        for file in (partial, record_file(partial)):
            with contextlib.suppress(OSError):
                file.unlink()
        for item in missing:
            with contextlib.suppress(OSError):
                item.rmdir()
    return record


def _write_file(kind, arrays, path, record):
    if kind == PADDLE:
        save_weights(arrays, path)
    elif kind == PYTORCH:
        write_torch(arrays, path)
    else:
        write_safetensors(arrays, path, {"format": "pt", "model": record.model})
