"""safetensors files to arrays and back, with the safetensors library."""

import json
import os
import struct
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from weights.atomic import whole_file
from weights.content import DTYPES, Content, Tensor, plain_array
from weights.files import WeightsError
from weights.pickles import printable

# The header of the largest published network takes 30 kB; parsing makes objects of many times its size.
LARGEST_HEADER = 4 << 20
_DTYPES = {
    "F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
}  # fmt: skip


def read_safetensors(path) -> Content:
    """Read a safetensors file: the tree is a dict name -> Tensor, the metadata the file's own.

    Raises WeightsError for a file that is damaged, holds a name twice or a dtype that is not supported.
    """
    path = Path(path)
    header, start = _read_header(path)
    for name, entry in header.items() if isinstance(header, dict) else ():
        dtype = entry.get("dtype", "F32") if isinstance(entry, dict) and name != "__metadata__" else "F32"
        # Versions of the library differ in the dtypes they know and in what they say of others.
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            words = printable(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
            raise WeightsError(f"weights {path}: '{printable(name)}' has dtype {words},"
                               " which is not supported; save it as F32")  # fmt: skip
    try:
        # The library checks that sizes, offsets and dtypes agree and cover the file exactly.
        with safe_open(str(path), framework="numpy") as library:
            metadata = library.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    tree = {}
    for name, entry in header.items():
        if name != "__metadata__":
            read = _reader(path, start + entry["data_offsets"][0])
            tree[name] = Tensor(name, tuple(entry["shape"]), _DTYPES[entry["dtype"]], read)
    return Content("safetensors", tree, dict(metadata))


def _read_header(path):
    """The header as the file has it and the position after it."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            if len(start) < 8:
                raise _damaged(path, f"{size} bytes")
            (length,) = struct.unpack("<Q", start)
            if length > min(LARGEST_HEADER, size - 8):
                raise _damaged(path, f"a header of {length} bytes in a file of {size}")
            text = stream.read(length)
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror or error}") from error

    def unique(pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            seen = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))
            raise WeightsError(f"weights {path} refused: the header holds '{printable(twice)}' twice")
        return found

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique), 8 + length
    except (RecursionError, ValueError) as error:
        if isinstance(error, WeightsError):
            raise
        raise _damaged(path, "the header is no JSON") from error


def _damaged(path, what):
    what = printable(" ".join(what.split()).replace("Error while deserializing header: ", ""))
    return WeightsError(f"weights {path} are no safetensors file, damaged or cut short ({what}); copy the file again")


def _reader(path, start):
    def read(tensor):
        try:
            # The library has no bfloat16 for NumPy, and would read the file's header anew for each tensor.
            stored = np.fromfile(path, DTYPES[tensor.dtype], int(np.prod(tensor.shape, dtype=np.int64)), offset=start)
            return plain_array(stored.reshape(tensor.shape), tensor.dtype)
        except (OSError, ValueError) as error:
            raise WeightsError(f"cannot read '{printable(tensor.name)}' from weights {path}: {error}") from error

    return read


def write_safetensors(arrays, path, metadata=None) -> Path:
    """Write `arrays` (dict name -> np.ndarray) and `metadata` (dict str -> str); return the path.

    The file appears whole or not at all. Raises WeightsError where a dtype is not supported or the folder cannot be
    written.
    """
    path = Path(path)
    plain = {}
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES.values():
            raise WeightsError(f"cannot write '{printable(name)}' to {path}: safetensors has no {array.dtype.name}")
        # The library writes the memory as it lies: it has to be in C order and of the machine's byte order.
        plain[name] = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    try:
        with whole_file(path) as partial:
            # Made first, so that it gets the permissions of any new file; the library would make it its owner's alone.
            partial.touch()
            save_file(plain, str(partial), metadata=metadata)
    except (SafetensorError, TypeError) as error:
        raise WeightsError(f"cannot write weights {path.absolute()}: {error}") from error
    return path
