"""Arrays to PyTorch's zip format, without PyTorch: `torch.load(path, weights_only=True)` gives a state dict."""

import struct
import zipfile
from pathlib import Path

import numpy as np

from weights.atomic import whole_file
from weights.files import WeightsError
from weights.pickles import printable

_STORAGES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
# The storages start at multiples of this, as torch.save has them, so that the file can be mapped into memory.
ALIGNMENT = 64
_FOLDER = "archive"


def write_torch(arrays, path) -> Path:
    """Write `arrays` (dict name -> np.ndarray of bool, integer or float) as torch.save writes a state dict.

    The same arrays give the same bytes. The file appears whole or not at all. Returns the path. Raises WeightsError for
    a dtype that PyTorch's older versions lack and where the folder cannot be written.
    """
    path = Path(path)
    for name, array in arrays.items():
        if array.dtype.name not in _STORAGES:
            raise WeightsError(f"cannot write '{printable(name)}' to {path}: PyTorch has no dtype {array.dtype.name}")
    with whole_file(path) as partial, open(partial, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
        _add(archive, stream, "data.pkl", _state_dict(arrays))
        _add(archive, stream, "byteorder", b"little")
        for key, array in enumerate(arrays.values()):
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            _add(archive, stream, f"data/{key}", little.reshape(-1).view(np.uint8))
        _add(archive, stream, "version", b"3\n")
    return path


def _add(archive, stream, name, content):
    # The oldest date that zip knows: the bytes depend on the arrays alone.
    entry = zipfile.ZipInfo(f"{_FOLDER}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
    # The position after the header (30 bytes, name, extra field of at least 4) is brought to a multiple by filling.
    filling = -(stream.tell() + 30 + len(entry.filename) + 4) % ALIGNMENT
    entry.extra = struct.pack("<HH", 0x4246, filling) + b"Z" * filling
    entry.file_size = len(content)
    with archive.open(entry, "w") as member:
        member.write(content)


def _state_dict(arrays):
    """The pickle of an OrderedDict of tensors, protocol 2; each has a storage of its own, numbered in order."""
    ordered_dict = b"ccollections\nOrderedDict\n)R"
    parts = [b"\x80\x02", ordered_dict, b"("]
    for key, (name, array) in enumerate(arrays.items()):
        strides = [int(np.prod(array.shape[axis + 1 :], dtype=np.int64)) for axis in range(array.ndim)]
        kind = _STORAGES[array.dtype.name].encode()
        parts += [_text(name), b"ctorch._utils\n_rebuild_tensor_v2\n(("]
        parts += [_text("storage"), b"ctorch\n%sStorage\n" % kind, _text(str(key)), _text("cpu"), _number(array.size)]
        # Offset 0, shape, strides, needs no gradient, no hooks.
        parts += [b"tQK\x00", _numbers(array.shape), _numbers(strides), b"\x89", ordered_dict, b"tR"]
    return b"".join([*parts, b"u."])


def _text(text):
    encoded = text.encode("utf-8")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _number(number):
    if number < 2**31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def _numbers(numbers):
    return b"(" + b"".join(_number(number) for number in numbers) + b"t"
