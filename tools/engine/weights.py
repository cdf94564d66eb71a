"""Weights on disk (`.pdparams`) to arrays and back, and arrays into a network.

`.pdparams` is a pickle, and unpickling runs whatever code the file names; `paddle.load` does so too. Weights come
from strangers, so `safe_pickle` reads the file as data. Loading is strict: all tensors fit, or none is loaded.
"""

import contextlib
import math
import os
import pickle
from pathlib import Path

import numpy as np
from errors import UserError

from engine.safe_pickle import Refused, printable, read_pickle

SUFFIX = ".pdparams"
ADVICE = (
    "train first (the run folder then holds best.pdparams), or name a .pdparams file or a run folder; README.md, "
    "'Where weights come from', names sources"
)
# paddle.save adds this table to a state dict: structured names to the names of Paddle's parameters.
NAME_TABLE = "StructuredToParameterName@@"
# paddle.save with protocol 2 or 3 cuts arrays of more than a gigabyte into slices listed here.
SLICE_TABLE = "UnpackBigParamInfor@@"
LARGEST_FILE = 4 << 30
# The first pickle of a PyTorch file of the older kind is this number alone.
PYTORCH_MAGIC = 0x1950A86A20F9469CFC6C


class WeightsError(UserError):
    """Weights that are missing, damaged, hostile or made for another network."""


# ---------------------------------------------------------------- which file


def resolve_weights(path) -> Path:
    """The file meant by a path: a file with or without `.pdparams`, or a run folder's best, else last, weights.

    Relative paths start at the working directory. Raises WeightsError.
    """
    if not str(path):
        raise WeightsError(f"no weights given (--weights or val.weights): {ADVICE}")
    given = Path(os.path.expanduser(path)).absolute()
    file = next((item for item in (given, Path(f"{given}{SUFFIX}")) if item.is_file()), None)
    if not given.is_dir():
        if file is None:
            also = "" if given.suffix == SUFFIX else f" (nor {given.name}{SUFFIX} beside it)"
            run = given.with_suffix("")
            near = f"; the run folder {run} is there, name that" if (run / "best.pdparams").is_file() else ""
            raise WeightsError(f"weights not found: {given}{also}{near}; {ADVICE}")
        return file
    inner = next((given / name for name in ("best.pdparams", "last.pdparams") if (given / name).is_file()), None)
    if inner and file and not str(path).endswith(("/", os.sep)):
        raise WeightsError(f"weights {given}: both {file} and {inner} are meant by this; write one of them in full")
    if not (inner or file):
        raise WeightsError(f"no best.pdparams or last.pdparams in {given}; {ADVICE}")
    return inner or file


# ---------------------------------------------------------------- reading


def read_weights(path) -> dict:
    """Read a file of paddle.save (Paddle 2.x, 3.x) or `save_weights`: dict name -> read-only np.ndarray.

    Arrays keep the file's shape, dtype (bool, integer or float; bfloat16 is stored as uint16) and byte order.
    `path` as in `resolve_weights`. Raises WeightsError; nothing in the file is ever executed.
    """
    path = resolve_weights(path)
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            _check_start(path, stream.read(4), size)
            stream.seek(0)
            data = stream.read()
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror}") from error
    try:
        content = read_pickle(data)
    except Refused as refusal:
        if str(refusal).startswith("torch"):
            raise _pytorch(path) from refusal
        raise WeightsError(
            f"weights {path} refused: the file asks for {refusal}, which weights never need; get it from a safe source"
        ) from refusal
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise WeightsError(f"weights {path} are damaged or cut short ({size} bytes); copy the file again") from error
    return _named_arrays(path, content)


def _check_start(path, start, size):
    if size == 0:
        raise WeightsError(f"weights {path} are empty (0 bytes); copy the file again")
    if size > LARGEST_FILE:
        raise WeightsError(f"{path} has {size} bytes, more than any weights of this project; name a .pdparams file")
    if start == b"PK\x03\x04":
        raise _pytorch(path)
    if start[0] != 0x80 or (len(start) > 1 and start[1] not in (2, 3, 4, 5)):
        raise WeightsError(f"{path} is not a weights file of Paddle; name a .pdparams file")


def _pytorch(path):
    if path.suffix == ".npz":
        return WeightsError(f"{path} is a checkpoint, not plain weights; name its run folder or best.pdparams in it")
    return WeightsError(f"{path} is a PyTorch file, not Paddle's; convert it to .pdparams first")


def _named_arrays(path, content):
    if content == PYTORCH_MAGIC:
        raise _pytorch(path)
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, not named weights; name a .pdparams file")
    if SLICE_TABLE in content:
        raise WeightsError(f"{path}: arrays cut in slices ({SLICE_TABLE}) are not supported; save with protocol=4")
    arrays = {}
    for name, value in content.items():
        if name == NAME_TABLE:
            continue
        if isinstance(value, tuple) and len(value) == 2:
            # Paddle pickles a tensor outside a plain state dict as (name of the parameter, array).
            value = value[1]
        if not isinstance(value, np.ndarray):
            raise WeightsError(f"{path}: '{printable(name)}' is not a tensor; give plain weights such as best.pdparams")
        arrays[name] = value
    if not arrays:
        raise WeightsError(f"{path} holds no weights; name another .pdparams file")
    return arrays


# ---------------------------------------------------------------- into a network


def load_weights(model, state, *, source) -> int:
    """Copy `state` (dict name -> np.ndarray) into a paddle.nn.Layer and return the number of tensors.

    Strict: every name of the model is there, no other one, with the model's shape and the same kind of dtype; values
    are cast to the parameter's dtype. Otherwise raises WeightsError and leaves the model as it was. `source` names
    the weights in messages.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    unlike = {
        name: (tuple(state[name].shape), tuple(own[name].shape))
        for name in own
        if name in state and tuple(state[name].shape) != tuple(own[name].shape)
    }
    retyped = [name for name in own if name in state and not _same_kind(state[name], own[name])]
    settings = [] if missing or unexpected or retyped else _wrong_settings(unlike)
    if settings:
        raise WeightsError(f"weights {source}: " + "; ".join(settings))
    if missing or unexpected or unlike or retyped:
        parts = [_listed("missing", missing), _listed("unexpected", unexpected)]
        parts.append(_listed("of another shape", [f"{n}: file {f}, model {m}" for n, (f, m) in unlike.items()]))
        parts.append(_listed("of another type", [f"{n}: {state[n].dtype}" for n in retyped]))
        facts = ", ".join(part for part in parts if part)
        raise WeightsError(f"weights {source} do not fit the model: {facts}; {_advice(state, own, unlike)}")
    for name, tensor in own.items():
        tensor.set_value(_cast(state[name], _dtype_name(tensor)))
    return len(own)


def _dtype_name(tensor):
    return str(tensor.dtype).rpartition(".")[2]


def _same_kind(array, tensor):
    name = _dtype_name(tensor)
    # NumPy has no bfloat16: Paddle stores its bits as uint16.
    if name.startswith("float"):
        return array.dtype.kind == "f" or array.dtype == np.uint16
    return not name.startswith("bfloat") and array.dtype.kind in "iub"


def _cast(array, name):
    if name.startswith("float") and array.dtype.kind == "u":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(name)


def _wrong_settings(unlike):
    """What to set in the configuration where only the head or the position table differ in length; else nothing."""
    found = []
    for name, (file, model) in unlike.items():
        if name in ("head.weight", "head.bias") and file[:-1] == model[:-1]:
            found.append(
                f"the weights have {file[-1]} classes, the config says model.num_classes={model[-1]};"
                f" set model.num_classes={file[-1]} or use other weights"
            )
        elif name == "pos_embed" and file[-1:] == model[-1:] and _image_size(file) and _image_size(model):
            found.append(
                f"the weights are for images of {_image_size(file)} px ({file[1]} tokens), the config says"
                f" model.img_size={_image_size(model)} ({model[1]} tokens); set model.img_size={_image_size(file)}"
            )
        else:
            return []
    return list(dict.fromkeys(found))


def _image_size(shape):
    """Image side for a position table [1, 1 + (side/16)^2, D], or 0 where the shape is no such table."""
    if len(shape) != 3 or shape[0] != 1 or shape[1] < 2:
        return 0
    side = math.isqrt(shape[1] - 1)
    return side * 16 if side * side == shape[1] - 1 else 0


def _listed(what, items):
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(printable(item) for item in items[:5])}{more})" if items else ""


def _advice(state, own, unlike):
    if unlike and all(file == model[::-1] for file, model in unlike.values()):
        return "the shapes are transposed, as PyTorch stores them: convert the file first"
    file, model = _measure(state), _measure(own)
    if file != model:
        return f"the file is a network of {file}, the model one of {model}: set model.name to the weights' network"
    return "set model.name to the weights' network or use other weights"


def _measure(state):
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    width = state["cls_token"].shape[-1] if "cls_token" in state else "unknown"
    return f"{len(blocks)} blocks of width {width}"


# ---------------------------------------------------------------- writing


def save_weights(state, path) -> Path:
    """Write `state` (dict name -> Tensor or np.ndarray) as paddle.save does and return the file's path.

    `.pdparams` is added where it lacks. The file appears whole or not at all: it is written and synced under another
    name in the same folder, then renamed. Raises WeightsError where the folder cannot be written.
    """
    path = Path(path) if str(path).endswith(SUFFIX) else Path(f"{path}{SUFFIX}")
    content = {name: np.asarray(value.numpy() if hasattr(value, "numpy") else value) for name, value in state.items()}
    content[NAME_TABLE] = {name: name for name in state}
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as stream:
            pickle.dump(content, stream, protocol=4)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise WeightsError(f"cannot write weights {path.absolute()}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return path
