"""Paddle's weights files (`.pdparams`) to arrays and back.

`.pdparams` is a pickle, and unpickling runs whatever code the file names; `paddle.load` does so too. Weights come
from strangers, so `pickles` reads the file as data.
"""

import os
import pickle
from pathlib import Path

import numpy as np

from weights.atomic import whole_file
from weights.files import SUFFIX, WeightsError, resolve_weights
from weights.pickled_arrays import ARRAYS
from weights.pickles import Refused, printable, read_pickle

# paddle.save adds this table to a state dict: structured names to the names of Paddle's parameters.
NAME_TABLE = "StructuredToParameterName@@"
# paddle.save with protocol 2 or 3 cuts arrays of more than a gigabyte into slices listed here.
SLICE_TABLE = "UnpackBigParamInfor@@"
LARGEST_FILE = 4 << 30
CONVERT = "bash scripts/convert.sh {} NAME.pdparams"
# The first pickle of a PyTorch file of the older kind is this number alone.
PYTORCH_MAGIC = 0x1950A86A20F9469CFC6C


def read_weights(path) -> dict:
    """Read a file of paddle.save (Paddle 2.x, 3.x) or `save_weights`: dict name -> read-only np.ndarray.

    Arrays keep the file's shape, dtype (bool, integer or float; bfloat16 is stored as uint16) and byte order.
    `path` as in `resolve_weights`. Raises WeightsError; nothing in the file is ever executed.
    """
    path = resolve_weights(path)
    return _named_arrays(path, read_tree(path))


def read_tree(path) -> dict:
    """Everything in a file of paddle.save: a dict of arrays, or of dicts of them, as training programs save.

    path: of the file itself. Raises WeightsError; nothing in the file is ever executed.
    """
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            _check_start(path, stream.read(4), size)
            stream.seek(0)
            data = stream.read()
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror}") from error
    try:
        content = read_pickle(data, ARRAYS)
    except Refused as refusal:
        if str(refusal).startswith("torch"):
            raise _pytorch(path) from refusal
        raise WeightsError(
            f"weights {path} refused: the file asks for {refusal}, which weights never need; get it from a safe source"
        ) from refusal
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise WeightsError(f"weights {path} are damaged or cut short ({size} bytes); copy the file again") from error
    if type(content) is int and content == PYTORCH_MAGIC:
        raise _pytorch(path)
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not named weights; name a .pdparams file")
    if SLICE_TABLE in content:
        raise WeightsError(f"{path}: arrays cut in slices ({SLICE_TABLE}) are not supported; save with protocol=4")
    return content


def _check_start(path, start, size):
    if size == 0:
        raise WeightsError(f"weights {path} are empty (0 bytes); copy the file again")
    if size > LARGEST_FILE:
        raise WeightsError(f"{path} has {size} bytes, more than any weights of this project; name a .pdparams file")
    if start == b"PK\x03\x04":
        raise _pytorch(path)
    if start[0] != 0x80 or (len(start) > 1 and start[1] not in (2, 3, 4, 5)):
        foreign = f", or convert it first: {CONVERT.format(path)}" if path.suffix == ".safetensors" else ""
        raise WeightsError(f"{path} is not a weights file of Paddle; name a .pdparams file{foreign}")


def _pytorch(path):
    if path.suffix == ".npz":
        return WeightsError(f"{path} is a checkpoint, not plain weights; name its run folder or best.pdparams in it")
    return WeightsError(f"{path} is a PyTorch file, not Paddle's; convert it first: {CONVERT.format(path)}")


def _named_arrays(path, content):
    arrays = {}
    for name, value in content.items():
        if name == NAME_TABLE:
            continue
        arrays[name] = array_in(value)
        if arrays[name] is None:
            raise WeightsError(
                f"{path}: '{printable(name)}' is not a tensor; give plain weights such as best.pdparams, or convert the"
                f" file first: {CONVERT.format(path)}"
            )
    if not arrays:
        raise WeightsError(f"{path} holds no weights; name another .pdparams file")
    return arrays


def array_in(value):
    """The np.ndarray of an entry of a file, or None where it is no tensor."""
    if isinstance(value, tuple) and len(value) == 2:
        # Paddle pickles a tensor outside a plain state dict as (name of the parameter, array).
        value = value[1]
    return value if isinstance(value, np.ndarray) else None


def save_weights(state, path) -> Path:
    """Write `state` (dict name -> Tensor or np.ndarray) as paddle.save does and return the file's path.

    `.pdparams` is added where it lacks. The file appears whole or not at all: it is written and synced under another
    name in the same folder, then renamed. Raises WeightsError where the folder cannot be written.
    """
    path = Path(path) if str(path).endswith(SUFFIX) else Path(f"{path}{SUFFIX}")
    content = {name: np.asarray(value.numpy() if hasattr(value, "numpy") else value) for name, value in state.items()}
    content[NAME_TABLE] = {name: name for name in state}
    with whole_file(path) as partial, open(partial, "wb") as stream:
        pickle.dump(content, stream, protocol=4)
    return path
