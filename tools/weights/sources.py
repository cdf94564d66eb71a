"""Weights files of any framework: which format, which dictionary inside, which tensors of it. Nothing is executed."""

import fnmatch
import math
import os
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from weights.files import WeightsError, resolve_weights
from weights.names import Naming, official_names
from weights.paddle_file import NAME_TABLE, PYTORCH_MAGIC, array_in, read_tree
from weights.pickles import printable
from weights.safetensors_file import read_safetensors
from weights.torch_file import read_torch

# Whose layout the Linear weights of a file have: Paddle [in, out], PyTorch [out, in].
PADDLE, PYTORCH = "Paddle", "PyTorch"
BARE = "the file itself"
AVERAGED = "state_dict_ema"
# Where training programs put the weights, in the order in which they are looked for.
KEYS = (AVERAGED, "state_dict", "model", "net")
_SNIFFED = 512
# dtypes that are converted -> bytes of an element
_FLOATS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
# Honest files share a little.
SHARED = 16 << 20


class Source(NamedTuple):
    """A weights file that was read.

    path: of the file. kind: its format, for the log. layout: PADDLE, PYTORCH, or None where the format does not tell.
    tree: what it holds, tensors at the leaves; a tensor has .shape, .dtype (a word) and .array(). model: the network
    as the file names it, or None.
    """

    path: Path
    kind: str
    layout: Optional[str]
    tree: object
    model: Optional[str]


class Choice(NamedTuple):
    """The tensors to convert.

    dictionary: its name in the file. found: dict name -> number of tensors of all dictionaries of tensors in the file.
    naming: names.Naming of the tensors. tensors: dict official name -> tensor. dropped: names in the file.
    """

    dictionary: str
    found: dict
    naming: Naming
    tensors: dict
    dropped: list


class PaddleTensor:
    """An array of a Paddle file as a tensor of a `Source`; 16-bit words there are bfloat16."""

    def __init__(self, array):
        self._array = array
        self.shape = tuple(array.shape)
        self.dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name

    def array(self):
        """The values, C-contiguous in native byte order; float16 and bfloat16 as float32."""
        if self.dtype == "bfloat16":
            return (self._array.astype(np.uint32) << 16).view(np.float32)
        dtype = np.dtype(np.float32) if self.dtype == "float16" else self._array.dtype.newbyteorder("=")
        return np.ascontiguousarray(self._array, dtype).reshape(self.shape)


# ---------------------------------------------------------------- the file


def read_source(path) -> Source:
    """Read a weights file, whose format its content tells, or the best weights of a run folder. Raises WeightsError."""
    path = resolve_weights(path)
    start = _start_of(path)
    if start.startswith(b"PK") or PYTORCH_MAGIC.to_bytes(10, "little") in start[:20] or start[257:262] == b"ustar":
        if path.suffix == ".npz":
            raise WeightsError(f"{path} holds arrays of NumPy, such as a checkpoint; name its run folder instead")
        content = read_torch(path)
        return Source(path, content.kind, PYTORCH, content.tree, _named_model(content.tree))
    if start[8:9] == b"{" and (start[:1] != b"\x80" or not any(start[5:8])):
        content = read_safetensors(path)
        return Source(path, content.kind, None, content.tree, content.metadata.get("model"))
    if start.startswith(b"\x80"):
        return Source(path, PADDLE, PADDLE, _with_tensors(read_tree(path)), None)
    raise WeightsError(f"{path} is not a weights file of PyTorch, Paddle or safetensors{_looks_like(start)}")


def _with_tensors(tree):
    """A tree of a Paddle file with tensors in the place of arrays."""
    if isinstance(tree, dict):
        return {name: _with_tensors(value) for name, value in tree.items() if name != NAME_TABLE}
    array = array_in(tree)
    return tree if array is None else PaddleTensor(array)


def _start_of(path):
    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise WeightsError(f"weights {path} are empty (0 bytes); copy the file again")
            return stream.read(_SNIFFED)
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror}; check the file") from error


def _looks_like(start):
    if start.startswith(b"\x1f\x8b"):
        return ": it is packed by gzip; unpack it"
    if start.lstrip()[:1] == b"<":
        return ": it is a web page, as failed downloads leave; download it again"
    if start.startswith(b"version https://git-lfs"):
        return ": it is a pointer of Git LFS; fetch the file itself with git lfs pull"
    return "; name one of these"


def _named_model(tree):
    """The network that the training program noted beside the weights: `arch`, or `model` among its arguments."""
    if not isinstance(tree, dict):
        return None
    arguments = getattr(tree.get("args"), "values", None)
    named = tree.get("arch") or (arguments.get("model") if isinstance(arguments, dict) else None)
    return named if isinstance(named, str) else None


# ---------------------------------------------------------------- the dictionary


def choose(source, *, key=None, drop=()) -> Choice:
    """The tensors of a `Source`, by their official names.

    key: name of the dictionary to take instead of the first of KEYS, with dots for one inside another. drop: shell
    patterns of names to leave out. Raises WeightsError where no dictionary of tensors is found, for anything else than
    tensors of floating-point numbers in it, and for a pattern that matches nothing.
    """
    found = _dictionaries(source.tree)
    dictionary, content = _dictionary(source, found, key)
    unused = set(drop)
    kept, dropped = _leave_out({name: name for name in content}, drop, unused)
    naming = official_names(kept)
    names, more = _leave_out(naming.names, drop, unused)
    if unused:
        raise WeightsError(f"--drop {min(unused)}: no tensor of {dictionary} in {source.path} has such a name")
    tensors = {official: content[name] for official, name in names.items()}
    _check(source, dictionary, tensors, names)
    return Choice(dictionary, found, naming._replace(names=names), tensors, dropped + more)


def _dictionaries(tree):
    """dict name -> number of tensors of the dictionaries of named tensors in a tree."""
    if not isinstance(tree, dict):
        return {}
    inside = {name: _tensors_in(value) for name, value in tree.items() if isinstance(name, str)}
    found = {name: count for name, count in inside.items() if count}
    # A file may have a tensor for its epoch beside its dictionaries.
    return found if set(found) & set(KEYS) or not _tensors_in(tree) else {BARE: _tensors_in(tree), **found}


def _nested(tree, prefix="", levels=4):
    """Names, with dots between the levels, of all dictionaries of tensors in a tree."""
    for name, value in tree.items() if isinstance(tree, dict) and levels else ():
        if isinstance(name, str):
            if _tensors_in(value):
                yield prefix + name
            yield from _nested(value, f"{prefix}{name}.", levels - 1)


def _tensors_in(value):
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return 0
    return sum(_is_tensor(item) for item in value.values())


def _is_tensor(value):
    return hasattr(value, "shape") and hasattr(value, "array")


def _dictionary(source, found, key):
    """Name and content of the dictionary to convert."""
    listed = ", ".join(printable(name) for name in found) or "none"
    if key is not None:
        content = source.tree
        for part in key.split("."):
            content = content.get(part) if isinstance(content, dict) else None
        if not _tensors_in(content):
            raise WeightsError(f"--key {key}: {source.path} has no such dictionary of tensors; it has: {listed}")
        return key, content
    name = next((name for name in (*KEYS, BARE) if name in found), None)
    if name is None:
        listed = ", ".join(printable(name) for name in _nested(source.tree))
        where = f"name one of these with --key: {listed}" if listed else "name another file"
        raise WeightsError(f"{source.path} has no weights under {', '.join(KEYS)} nor bare ones; {where}")
    return name, source.tree if name == BARE else source.tree[name]


def _leave_out(names, patterns, unused):
    """Split `names` (dict name to match -> name in the file) into kept ones and a list of names in the file."""
    kept, dropped = {}, []
    for name, theirs in names.items():
        matching = {pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)}
        unused -= matching
        if matching:
            dropped.append(theirs)
        else:
            kept[name] = theirs
    return kept, dropped


def _check(source, dictionary, tensors, names):
    for official, tensor in tensors.items():
        where = f"{source.path}, {dictionary}: {printable(names[official])}"
        if not _is_tensor(tensor):
            raise WeightsError(f"{where} is no tensor but a {type(tensor).__name__}; leave it out with --drop")
        if tensor.dtype not in _FLOATS:
            raise WeightsError(f"{where} is {tensor.dtype}, none of {', '.join(_FLOATS)}; leave it out with --drop")
    # Tensors may share their values, and a small file could then ask for any amount of memory.
    stored = sum(math.prod(tensor.shape) * _FLOATS[tensor.dtype] for tensor in tensors.values())
    if stored > source.path.stat().st_size + SHARED:
        raise WeightsError(
            f"{source.path}, {dictionary}: its tensors share their values and would take {stored:,} bytes, more than "
            "the file has; save each one as a copy (clone)"
        )


# ---------------------------------------------------------------- the values


def arrays_of(source, choice):
    """dict official name -> float32 np.ndarray in the file's layout. Raises WeightsError for NaN and infinity."""
    arrays, broken = {}, []
    for name, tensor in choice.tensors.items():
        with np.errstate(over="ignore"):
            # A double beyond the range of float32 becomes infinite and is told below.
            arrays[name] = np.ascontiguousarray(tensor.array(), np.float32).reshape(tensor.shape)
        if not np.isfinite(arrays[name]).all():
            broken.append(printable(choice.naming.names[name]))
    if broken:
        raise WeightsError(
            f"{source.path}, {choice.dictionary}: {broken[0]} holds NaN or infinity ({len(broken)} of "
            f"{len(arrays)} tensors do); such weights predict nothing, use other ones"
        )
    return arrays
