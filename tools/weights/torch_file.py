"""PyTorch's files read without PyTorch: the zip format (since 1.6) and the older stream. Nothing in them is executed.

Zip: `NAME/data.pkl` describes the object and `NAME/data/KEY` holds the bytes of one storage. Stream: five pickles
(magic number, version, system, object, storage keys), then for each key the element count and the bytes. Tensors are
windows (offset, shape, strides) on storages.
"""

import mmap
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from weights.content import DTYPES, Budget, Content, Namespace, Tensor, plain_array, size_of
from weights.files import WeightsError
from weights.pickled_arrays import ARRAY_NAMES, MOST_AXES
from weights.pickles import Dialect, Refused, Word, printable, read_pickle
from weights.torch_zip import BadArchive, find_members

__all__ = ["Content", "Namespace", "Tensor", "read_torch"]

STREAM_MAGIC = 0x1950A86A20F9469CFC6C
STREAM_VERSION = 1001
LARGEST_FILE = 16 << 30
# A training state of T2T-ViT-24 (weights, their average, two moments of each) has some 60,000.
MOST_INSTRUCTIONS = 400_000
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
# Known to PyTorch and not to this reader -> what to call them.
_UNSUPPORTED = {
    "torch._utils _rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils _rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch.serialization _get_layout": "a sparse tensor",
    "torch._utils _rebuild_qtensor": "a quantised tensor",
    **{f"torch {scheme}": "a quantised tensor" for scheme in ("per_tensor_affine", "per_channel_affine")},
    "torch._utils _rebuild_nested_tensor": "a nested tensor",
    "torch._utils _rebuild_meta_tensor_no_storage": "a meta tensor",
    "torch ComplexFloatStorage": "a complex tensor",
    "torch ComplexDoubleStorage": "a complex tensor",
    **{f"torch Q{name}Storage": "a quantised tensor" for name in ("Int8", "UInt8", "Int32", "UInt4x2", "UInt2x4")},
}


def read_torch(path) -> Content:
    """Read a file of torch.save, of any version but those before 0.2 (tar archives) and no TorchScript.

    The tree is what was saved: dictionaries, lists, numbers, `Namespace`, and a `Tensor` for each tensor, parameter
    too; their values are read from the file when asked for. Raises WeightsError; nothing in the file is ever executed.
    """
    path = Path(path)
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise WeightsError(f"weights {path} are empty (0 bytes); copy the file again")
            if size > LARGEST_FILE:
                raise WeightsError(f"{path} has {size} bytes, more than any weights of this project")
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WeightsError(f"cannot read weights {path}: {error.strerror or error}") from error
    file = _File(path, data)
    try:
        if data[:4] == b"PK\x03\x04":
            return Content("PyTorch (zip)", _read_zip(file), {})
        if data[:1] == b"\x80":
            return Content("PyTorch (legacy)", _read_stream(file), {})
    except BadArchive as error:
        raise WeightsError(f"weights {path} refused: {error}; get the file as torch.save wrote it") from error
    except Refused as refusal:
        raise WeightsError(
            f"weights {path} refused: the file asks for {refusal}, which weights never need; where the file can be"
            " trusted, save only model.state_dict() with torch and convert that"
        ) from refusal
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error) as error:
        if isinstance(error, WeightsError):
            raise
        raise file.damaged("") from error
    if data[257:262] == b"ustar":
        raise WeightsError(f"{path} is a tar archive, as PyTorch before 0.2 wrote or made with tar: unpack it")
    raise WeightsError(f"{path} is not a PyTorch file; name a .pth, .pt or .pth.tar file of torch.save")


class _Storage:
    """A run of elements of one type in the file; `start` is known once the file's layout is."""

    def __init__(self, dtype, size):
        self.dtype = dtype
        self.size = size
        self.start = None
        self.checksum = 0

    @property
    def nbytes(self):
        return self.size * np.dtype(DTYPES[self.dtype]).itemsize


class _View:
    """The part of a storage that a persistent id of the older format may name."""

    def __init__(self, storage, offset, size):
        self.storage = storage
        self.offset = offset
        self.size = size

    def finished(self, _):
        raise Refused("a storage outside a tensor")


class _StorageType:
    """What a class such as torch.FloatStorage stands for."""

    def __init__(self, dtype):
        self.dtype = dtype


class _File:
    """The file under way: its bytes, its storages by key, and the tensors made of them."""

    def __init__(self, path, data):
        self.path = path
        self.data = data
        self.storages = {}
        self.budget = Budget(path, len(data))
        self.order = "<"
        self.dialect = Dialect(
            {**_NAMES, **{name: Word(name, call=call) for name, call in self._rebuilders().items()}},
            MOST_INSTRUCTIONS,
            (str, bytes, int, bool, type(None)),
            self.persistent,
        )

    def damaged(self, what):
        return WeightsError(
            f"weights {self.path} are damaged or cut short ({len(self.data)} bytes{what}); copy the file again"
        )

    def persistent(self, identity):
        """The storage a persistent id names: ("storage", type, key, device, elements[, view])."""
        if type(identity) is not tuple or not identity or identity[0] != "storage":
            raise Refused("a persistent id that is no storage")
        kind, key, _, size, *view = identity[1:]
        if type(kind) is not _StorageType:
            raise Refused(kind.name if isinstance(kind, Word) else "a storage of unknown type")
        if type(key) is not str:
            raise TypeError("storage")
        size_of((size,))
        storage = self.storages.setdefault(key, _Storage(kind.dtype, size))
        if (storage.dtype, storage.size) != (kind.dtype, size):
            raise Refused(f"two kinds of storage under the key '{printable(key)}'")
        if view and view[0] is not None:
            _, offset, length = view[0]
            if size_of((offset,)) + size_of((length,)) > size:
                raise Refused("a view beyond its storage")
            return _View(storage, offset, length)
        return _View(storage, 0, size)

    def _rebuilders(self):
        return {
            "torch._utils _rebuild_tensor": lambda given, _: self._tensor(*given),
            "torch._utils _rebuild_tensor_v2": lambda given, _: self._tensor(*given[:4], None, *given[6:]),
            "torch._utils _rebuild_tensor_v3": lambda given, _: self._tensor(*given[:4], given[6], *given[7:]),
            "torch._utils _rebuild_parameter": lambda given, _: _parameter(given[0]),
            "torch._utils _rebuild_parameter_with_state": lambda given, _: _parameter(given[0]),
        }

    def _tensor(self, view, offset, shape, strides, dtype=None, flags=None):
        """A window on a storage, checked to lie within it; all counts are in elements."""
        if type(view) is not _View or type(shape) is not tuple or type(strides) is not tuple:
            raise TypeError("tensor")
        if flags:
            raise Refused("a conjugate or negative view")
        itemsize = np.dtype(DTYPES[view.storage.dtype]).itemsize
        dtype = view.storage.dtype if dtype is None else str(dtype).replace("torch.", "")
        if dtype not in DTYPES:
            raise Refused(f"a tensor of dtype {printable(dtype)}")
        step = np.dtype(DTYPES[dtype]).itemsize
        if len(shape) != len(strides) or len(shape) > MOST_AXES:
            raise ValueError("axes")
        count = size_of(shape)
        if any(type(number) is not int or number < 0 for number in (offset, *strides)):
            raise Refused("a tensor with a negative offset or stride")
        last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides)) + 1 if count else offset
        if last * step > view.size * itemsize:
            raise Refused("a tensor beyond the end of its storage")
        start = view.offset * itemsize + offset * step
        # The stride of an axis of one element means nothing and may be anything.
        strides = tuple(stride * step if side > 1 else 0 for side, stride in zip(shape, strides))

        def read(tensor):
            if count * step > view.size * itemsize:
                raise WeightsError(
                    f"weights {self.path} refused: '{printable(tensor.name)}' is an expanded tensor, {count} elements"
                    f" on a storage of {view.size}; save it as a copy (clone)"
                )
            self.budget.pay(tensor, count * step)
            return self._values(tensor, view.storage, start, strides)

        return Tensor("", shape, dtype, read)

    def _values(self, tensor, storage, start, strides):
        if storage.checksum:
            with memoryview(self.data) as whole, whole[storage.start : storage.start + storage.nbytes] as part:
                if zlib.crc32(part) != storage.checksum:
                    raise self.damaged(f", checksum of '{printable(tensor.name)}'")
            storage.checksum = 0
        stored = np.dtype(DTYPES[tensor.dtype]).newbyteorder(self.order)
        if 0 in tensor.shape:
            return plain_array(np.empty(tensor.shape, stored), tensor.dtype)
        window = np.ndarray(tensor.shape, stored, self.data, storage.start + start, strides)
        return plain_array(window, tensor.dtype)


def _parameter(tensor):
    if type(tensor) is not Tensor:
        raise TypeError("parameter")
    return tensor


def _from_type(given, reader):
    """A tensor that carries attributes, and buffers of torch.nn: (how to rebuild, class, arguments, attributes)."""
    rebuild, kind, arguments, _ = given
    if kind is not _TENSOR or not isinstance(rebuild, Word) or rebuild.call is None or type(arguments) is not tuple:
        raise Refused("a tensor of another class")
    return _parameter(rebuild.call(arguments, reader))


def _size(given, _):
    if type(given[0]) is not tuple:
        raise TypeError("size")
    return given[0]


def _device(given, _):
    return ":".join(printable(str(part)) if type(part) in (str, int) else "?" for part in given)


def _refuse(what):
    def refuse(*_):
        raise Refused(what)

    return Word(what, call=refuse)


_TENSOR = Word("torch.Tensor")
_NAMES = {
    **ARRAY_NAMES,
    **dict.fromkeys(("torch Tensor", "torch.nn.parameter Parameter", "torch.nn.parameter Buffer"), _TENSOR),
    "torch._tensor _rebuild_from_type_v2": Word("torch._tensor._rebuild_from_type_v2", call=_from_type),
    **{f"torch {name}Storage": _StorageType(dtype) for name, dtype in _STORAGES.items()},
    "torch.storage UntypedStorage": _StorageType("uint8"),
    **{f"torch {name}": f"torch.{name}" for name in (*DTYPES, "complex64", "complex128", "float8_e4m3fn")},
    "torch Size": Word("torch.Size", call=_size),
    "torch device": Word("torch.device", call=_device),
    "argparse Namespace": Word("argparse.Namespace", new=lambda given, _: Namespace()),
    **{name: _refuse(what) for name, what in _UNSUPPORTED.items()},
}


def _read_stream(file):
    """The object of a file in the older format, every storage found in it."""
    data = file.data
    plain = Dialect({}, 50_000)
    try:
        magic = read_pickle(data, plain)
    except Refused:
        magic = None
    if type(magic) is not int or magic != STREAM_MAGIC:
        raise WeightsError(f"{file.path} is a pickle, but not one of torch.save; name a PyTorch file")
    version, system = read_pickle(data, plain), read_pickle(data, plain)
    if type(version) is not int or version != STREAM_VERSION or type(system) is not dict:
        raise Refused(f"version {printable(str(version))} of PyTorch's format")
    if system.get("little_endian") is not True:
        raise Refused("big-endian numbers")
    tree = read_pickle(data, file.dialect)
    keys = read_pickle(data, plain)
    if type(keys) is not list or any(type(key) is not str for key in keys) or len(set(keys)) != len(keys):
        raise Refused("a list of storages with keys that are no text, or one twice")
    position = data.tell()
    if set(keys) != file.storages.keys():
        raise ValueError("storages")
    for key in keys:
        storage = file.storages[key]
        (size,) = struct.unpack("<q", data[position : position + 8])
        if size != storage.size:
            raise ValueError("size")
        storage.start = position + 8
        position = storage.start + storage.nbytes
        if position > len(data):
            raise file.damaged(f", {position} needed")
    return tree


def _read_zip(file):
    """The object of a zip file, every storage found in it."""
    members = find_members(file.data)
    order = "little"
    if "byteorder" in members:
        order = members["byteorder"].content(file.data).decode("ascii")
    if order not in ("little", "big"):
        raise ValueError("byteorder")
    file.order = "<" if order == "little" else ">"
    # The interpreter keeps no more of this than text and numbers.
    tree = read_pickle(members["data.pkl"].content(file.data), file.dialect)
    for key, storage in file.storages.items():
        member = members[f"data/{key}"]
        if member.size != storage.nbytes:
            raise file.damaged(f", storage {printable(key)} has {member.size} bytes, not {storage.nbytes}")
        storage.start, storage.checksum = member.start, member.checksum
    return tree
