"""PyTorch's files made byte by byte, without PyTorch: both formats, with any part of them changed."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
KINDS = {
    "float32": "Float", "float64": "Double", "float16": "Half", "int64": "Long", "int32": "Int", "int16": "Short",
    "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip


class Global:
    """Pickles as the global `module.name`, which need not exist here."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self):
        raise AssertionError("only pickled, never called")

    def __reduce__(self):
        return self.name


class Call:
    """Pickles as `function(*arguments)`, with an optional state that is set afterwards."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __call__(self):
        raise AssertionError("only pickled, never called")

    def __reduce__(self):
        return self.reduced


class Storage:
    """Pickles as the persistent id of a storage of `size` elements that holds `data`."""

    def __init__(self, kind, key, size, data, view=None, module="torch"):
        self.kind = Global(module, kind if module != "torch" else f"{kind}Storage")
        self.key, self.size, self.data, self.view = key, size, data, view


class _Pickler(pickle._Pickler):  # the one in C does not let save_global be replaced
    def __init__(self, stream, protocol, legacy):
        super().__init__(stream, protocol)
        self.legacy, self.storages = legacy, {}

    def save_global(self, obj, name=None):
        if not isinstance(obj, Global):
            super().save_global(obj, name)
        elif self.proto >= 4:
            self.save(obj.module)
            self.save(obj.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(f"c{obj.module}\n{obj.name}\n".encode())

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        self.storages.setdefault(obj.key, obj)
        identity = ("storage", obj.kind, obj.key, "cpu", obj.size)
        return (*identity, obj.view) if self.legacy else identity


def pickled(content, protocol=2, legacy=False):
    """The pickle of `content` and the storages in it by key."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol, legacy)
    pickler.dump(content)
    return stream.getvalue(), pickler.storages


def storage(array, key):
    """A storage of an array's values in C order."""
    return Storage(KINDS[array.dtype.name], key, array.size, array.tobytes())


def tensor(array, key="0", *, of=None, offset=0, shape=None, strides=None, rebuild="_rebuild_tensor_v2"):
    """A tensor with a storage of its own, or a window on storage `of`; offset and strides count elements."""
    shape = array.shape if shape is None else shape
    if strides is None:
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    window = (storage(array, key) if of is None else of, offset, shape, strides)
    if rebuild == "_rebuild_tensor":
        return Call(Global("torch._utils", rebuild), *window)
    return Call(Global("torch._utils", rebuild), *window, False, OrderedDict())


def state_dict(arrays):
    """An OrderedDict of tensors as Module.state_dict gives it, with its version table."""
    state = OrderedDict((name, tensor(np.asarray(array), str(key))) for key, (name, array) in enumerate(arrays.items()))
    state._metadata = OrderedDict({"": {"version": 1}})
    return state


def stream_parts(content, *, magic=MAGIC, version=VERSION, system=SYSTEM, keys=None, sizes=None, protocol=2):
    """The parts of a file in the older format: five pickles, then a count and the bytes for each storage."""
    body, storages = pickled(content, protocol, legacy=True)
    parts = [pickle.dumps(item, 2) for item in (magic, version, system)] + [body]
    parts.append(pickle.dumps(list(storages) if keys is None else keys, 2))
    for key, item in storages.items():
        parts += [struct.pack("<q", (sizes or {}).get(key, min(item.size, 2**62))), item.data]
    return parts


def stream_file(content, **changes):
    """A file of PyTorch before 1.6."""
    return b"".join(stream_parts(content, **changes))


def zip_members(content, folder="archive", byteorder=b"little", protocol=2):
    """Names and bytes of a zip file of PyTorch, in order."""
    body, storages = pickled(content, protocol)
    members = {f"{folder}/data.pkl": body, f"{folder}/byteorder": byteorder}
    members.update({f"{folder}/data/{key}": item.data for key, item in storages.items()})
    return {**members, f"{folder}/version": b"3\n"}


def zipped(members, compression=zipfile.ZIP_STORED):
    """A zip archive of (name, bytes) pairs."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


def zip_file(content, **changes):
    """A file of PyTorch since 1.6."""
    return zipped(zip_members(content, **changes))
