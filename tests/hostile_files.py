"""Damaged and hostile weights files: each must end in one line, run nothing, and take little time and memory."""

import argparse
import io
import json
import os
import pickle
import struct
import subprocess
import tarfile
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch_bytes as made
from torch_bytes import Call, Global, Storage

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)
ARRAYS = {"head.weight": WEIGHT, "head.bias": np.ones(3, np.float32)}
CANARY = "canary"


def hostile_files(folder) -> list:
    """Write the files into `folder` and return (name, path) of each. None may be accepted, and `folder`/canary, which
    the hostile ones try to make, must not appear."""
    folder = Path(folder)
    found = []
    for name, content in (
        *_streams(), *_zips(), *_tensors(), *_calls(folder / CANARY), *_pickle_bombs(), *_safetensors(), *_others(),
        *_slow_and_shared(),
    ):  # fmt: skip
        path = folder / name
        if path.exists():
            raise ValueError(f"two files are called {name}")
        path.write_bytes(content)
        found.append((name, path))
    return found


def _slow_and_shared():
    """Files that took minutes, or several times their size, in an earlier version."""
    names = ",".join(f'"{number:x}":0' for number in range(200_000))
    header = f'{{{names},"{199_999:x}":0}}'.encode()
    yield "last_of_many_names_twice.safetensors", len(header).to_bytes(8, "little") + header
    yield from both("tuple_keys", {(number, number * 7919): 0 for number in range(1000)})


def both(name, content):
    """One content in both of PyTorch's formats."""
    yield f"stream_{name}.pth", made.stream_file(content)
    yield f"zip_{name}.pth", made.zip_file(content)


def raw_pickle(name, body):
    """Instructions in the place of the object's pickle, in both formats."""
    start = b"".join(made.stream_parts({})[:3])
    yield f"stream_{name}.pth", start + body + pickle.dumps([], 2)
    yield f"zip_{name}.pth", made.zipped({"a/data.pkl": body, "a/version": b"3\n"})


def _streams():
    state = made.state_dict(ARRAYS)
    parts = made.stream_parts(state)
    names = ("magic", "version", "system", "object", "keys", "count0", "data0", "count1", "data1")
    for index, part in enumerate(parts):
        before = b"".join(parts[:index])
        yield f"stream_cut_in_{names[index]}.pth", before + part[: len(part) // 2]
        if index:
            yield f"stream_cut_before_{names[index]}.pth", before
    yield "stream_wrong_magic.pth", made.stream_file(state, magic=made.MAGIC + 1)
    yield "stream_wrong_version.pth", made.stream_file(state, version=1002)
    yield "stream_big_endian.pth", made.stream_file(state, system={**made.SYSTEM, "little_endian": False})
    yield "stream_huge_count.pth", made.stream_file(state, sizes={"0": 2**60})
    yield "stream_negative_count.pth", made.stream_file(state, sizes={"1": -1})
    again = struct.pack("<q", 12) + WEIGHT.tobytes()
    yield "stream_storage_twice.pth", made.stream_file(state, keys=["0", "1", "0"]) + again
    yield "stream_key_lacking.pth", made.stream_file(state, keys=["0"])
    yield "stream_key_too_many.pth", made.stream_file(state, keys=["0", "1", "2"])
    yield "stream_keys_no_list.pth", made.stream_file(state, keys={"0": 1})
    huge = made.tensor(WEIGHT, of=Storage("Float", "0", 2**39, WEIGHT.tobytes()), shape=(2**39,))
    yield "stream_huge_storage.pth", made.stream_file({"w": huge})
    beyond = made.tensor(WEIGHT, of=Storage("Float", "0", 12, WEIGHT.tobytes(), view=("1", 8, 12)))
    yield "stream_view_beyond.pth", made.stream_file({"w": beyond})


def _zips():
    state = made.state_dict(ARRAYS)
    members = made.zip_members(state)
    whole = made.zipped(members)
    directory, end = whole.index(b"PK\1\2"), whole.index(b"PK\5\6")
    for name, point in {
        "local_header": 20, "object": 100, "storage": whole.index(WEIGHT.tobytes()) + 8, "directory": directory + 50,
        "before_directory": directory, "end": end + 10, "before_end": end,
    }.items():  # fmt: skip
        yield f"zip_cut_in_{name}.pth", whole[:point]
    yield "zip_storage_lacking.pth", made.zipped({k: v for k, v in members.items() if k != "archive/data/1"})
    yield "zip_storage_short.pth", made.zipped({**members, "archive/data/0": WEIGHT.tobytes()[:-4]})
    # Without checksums, which PyTorch can leave out: at 16 in each entry of the directory.
    short = made.zipped({**members, "archive/data/0": WEIGHT.tobytes()[:-4]})
    for place in [place for place in range(len(short)) if short.startswith(b"PK\1\2", place)]:
        short = _patched(short, place + 16, "<I", 0)
    yield "zip_storage_short_unchecked.pth", short
    yield "zip_storage_changed.pth", whole.replace(WEIGHT.tobytes(), WEIGHT[::-1].tobytes())
    yield "zip_object_changed.pth", whole.replace(b"head.weight", b"head_weight")
    yield "zip_no_object.pth", made.zipped({"archive/data/0": b"1234", "archive/version": b"3\n"})
    yield "zip_two_objects.pth", made.zipped({**members, "other/data.pkl": members["archive/data.pkl"]})
    yield "zip_odd_byteorder.pth", made.zip_file(state, byteorder=b"middle")
    yield "zip_compressed.pth", made.zipped(members, zipfile.ZIP_DEFLATED)
    bomb = {**members, "archive/data/0": bytes(50 << 20)}
    yield "zip_bomb.pth", made.zipped(bomb, zipfile.ZIP_DEFLATED)
    yield "zip_torchscript.pth", made.zipped({**members, "archive/constants.pkl": b"N.", "archive/code/m.py": b""})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile sees the double name too
        yield "zip_member_twice.pth", made.zipped([*members.items(), ("archive/data/0", bytes(48))])
    for name, path in {
        "up": "archive/../../canary", "absolute": "/canary", "drive": "C:/canary", "backslash": "archive\\..\\canary",
        "dot": "archive/./data/0", "empty": "archive//data/0", "nul": "archive/data/2",
    }.items():  # fmt: skip
        content = made.zipped({**members, path: b"x"})
        yield f"zip_path_{name}.pth", content.replace(b"archive/data/2", b"archive/data\0002")
    # In the directory: flags at 8, method at 10, sizes at 20 and 24, place of the header at 42, name at 46.
    yield "zip_encrypted.pth", _patched(whole, directory + 8, "<H", 1)
    yield "zip_method.pth", _patched(whole, directory + 10, "<H", zipfile.ZIP_DEFLATED)
    yield "zip_huge_size.pth", _patched(whole, directory + 20, "<II", 2**31, 2**31)
    yield "zip_sizes_differ.pth", _patched(whole, directory + 24, "<I", 2**31)
    yield "zip_overlap.pth", _patched(whole, directory + 20, "<II", 400, 400)
    yield "zip_header_elsewhere.pth", _patched(whole, directory + 42, "<I", 7)
    yield "zip_two_names.pth", whole[: directory + 46] + b"b" + whole[directory + 47 :]
    yield "zip_huge_directory.pth", _patched(whole, end + 12, "<I", 2**32 - 2)
    entry = whole[directory : whole.index(b"PK\1\2", directory + 4)]
    tail = _patched(whole[end:], 12, "<II", len(entry) * 200_000, directory)
    yield "zip_many_members.pth", whole[:directory] + entry * 200_000 + tail


def _patched(data, place, form, *numbers):
    packed = struct.pack(form, *numbers)
    return data[:place] + packed + data[place + len(packed) :]


def _tensors():
    small = {"of": made.storage(WEIGHT, "0")}
    for name, tensor in {
        "negative_offset": made.tensor(WEIGHT, offset=-1, **small),
        "negative_stride": made.tensor(WEIGHT, strides=(-4, 1), offset=8, **small),
        "negative_shape": made.tensor(WEIGHT, shape=(-3, -4), **small),
        "beyond_storage": made.tensor(WEIGHT, offset=1, **small),
        "stride_beyond_storage": made.tensor(WEIGHT, strides=(2**62, 1), **small),
        "offset_beyond_storage": made.tensor(WEIGHT, shape=(0,), offset=13, **small),
        "expanded": made.tensor(WEIGHT, shape=(1000, 1000, 1000), strides=(0, 0, 0), **small),
        "huge_empty": made.tensor(WEIGHT, shape=(0, 2**39, 2**39), **small),
        "many_axes": made.tensor(WEIGHT, shape=(1,) * 70, **small),
        "float_shape": made.tensor(WEIGHT, shape=(3.0, 4.0), strides=(4, 1), **small),
        "axes_differ": made.tensor(WEIGHT, strides=(1,), **small),
        "complex": made.tensor(WEIGHT, of=Storage("ComplexFloat", "0", 6, bytes(48)), shape=(6,)),
        "quantised": Call(Global("torch._utils", "_rebuild_qtensor"), small["of"], 0, (3, 4), (4, 1), (), False, {}),
        "sparse": Call(Global("torch._utils", "_rebuild_sparse_tensor"), Global("torch", "sparse_coo"), ()),
        "unknown_storage": made.tensor(WEIGHT, of=Storage("Secret", "0", 12, WEIGHT.tobytes())),
        "bare_storage": small["of"],
        "conjugate": Call(Global("torch._utils", "_rebuild_tensor_v2"), small["of"], 0, (12,), (1,), False, {},
                          {"conj": True}),
        "huge_storage_size": made.tensor(WEIGHT, of=Storage("Float", "0", 2**70, b""), shape=(1,)),
        "odd_persistent_id": made.tensor(WEIGHT, of=Storage("Float", 7, 12, WEIGHT.tobytes())),
    }.items():  # fmt: skip
        yield from both(name, {"head.weight": tensor})
    two = [made.tensor(WEIGHT, of=Storage(kind, "0", 12, WEIGHT.tobytes())) for kind in ("Float", "Int")]
    yield from both("storage_of_two_types", dict(zip("ab", two)))
    million = np.zeros(1_000_000, np.float32)
    shared = made.storage(million, "0")
    yield from both("many_on_one_storage", {f"w{i}": made.tensor(million, of=shared) for i in range(300)})


def _calls(canary):
    touch = f"touch {canary}"
    write = f"open({str(canary)!r}, 'w')"
    bombs = {
        "os_system": Call(os.system, touch),
        "eval": Call(eval, write),
        "exec": Call(exec, write),
        "open": Call(open, str(canary), "w"),
        "subprocess": Call(subprocess.Popen, touch, -1, None, None, None, None, None, True, True),
        "import": Call(__import__, "os"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "nested": Call(Call(getattr, Call(__import__, "os"), "system"), touch),
        "apply": Call(map, os.system, [touch]),
        "memmap": Call(np.memmap, str(canary), "u1", "w+", 0, (4,)),
        "numpy_load": Call(np.load, str(canary), None, True),
        "torch_load": Call(Global("torch.storage", "_load_from_bytes"), b"cos\nsystem\n(S'touch'\ntR."),
        "module": Call(Global("models.t2t_vit", "T2T_ViT")),
        "reduce_tensor": Call(Global("torch", "FloatStorage"), 10**12),
        "type_call": Call(Global("torch._utils", "_rebuild_parameter"), Call(os.system, touch), False, {}),
    }
    for name, bomb in bombs.items():
        yield from both(name, OrderedDict([*made.state_dict(ARRAYS).items(), ("x", bomb)]))
    yield from both("in_namespace", {"args": argparse.Namespace(run=Call(os.system, touch)), "state_dict": {}})
    yield from both("as_key", {Call(os.system, touch): 1})
    yield "pickle_os_system.pdparams", pickle.dumps({**ARRAYS, "x": Call(os.system, touch)}, 4)
    yield "stream_first_pickle.pth", pickle.dumps(Call(os.system, touch), 2)
    yield "stream_third_pickle.pth", made.stream_file({}, system=Call(os.system, touch))
    yield "stream_keys_pickle.pth", made.stream_file({}, keys=Call(os.system, touch))
    line = touch.encode()
    yield from raw_pickle("inst", b"\x80\x02(S'" + line + b"'\nios\nsystem\n.")
    yield from raw_pickle("stack_global", b"\x80\x04\x8c\x05posix\x8c\x06system\x93X" + struct.pack("<I", len(line))
                          + line + b"\x85R.")  # fmt: skip
    yield from raw_pickle("build", b"\x80\x02cargparse\nNamespace\n)\x81X\x01\0\0\0ab.")
    yield from raw_pickle("build_class", b"\x80\x02cargparse\nNamespace\n}X\x08\0\0\0__call__cos\nsystem\nsb.")
    yield from raw_pickle("extension", b"\x80\x02\x82\x01.")


def _pickle_bombs():
    encode = b"c_codecs\nencode\nh\1X\6\0\0\0latin1\x86R"
    laughs = b"\x80\x02]q\0" + b"".join(b"](" + b"h%c" % i * 10 + b"eq%c" % (i + 1) for i in range(40)) + b"."
    for name, body in {
        "key_twice": b"\x80\x02}(X\1\0\0\0aK\1X\1\0\0\0aK\2u.",
        "key_twice_apart": b"\x80\x02}X\1\0\0\0aK\1sX\1\0\0\0aK\2s.",
        "key_twice_alike": b"\x80\x02}(K\1K\1\x88K\2u.",
        "huge_text": b"\x80\x04X\xff\xff\xff\xfeabc.",
        "huge_text8": b"\x80\x04\x8d" + struct.pack("<Q", 2**45) + b"abc.",
        "huge_bytes8": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
        "huge_long": b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"\1.",
        "encode_bomb": b"\x80\x02(X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\1" + encode * 3000 + b"l.",
        "memo_bomb": laughs,
        "memo_of_itself": b"\x80\x02]q\0h\0a.",
        "dict_in_itself": b"\x80\x02}q\0X\1\0\0\0ah\0s.",
        "namespace_in_itself": b"\x80\x02cargparse\nNamespace\n)\x81q\0}X\1\0\0\0ah\0sb.",
        "deep_lists": b"\x80\x02" + b"]" * 90_000 + b"a" * 89_999 + b".",
        "deep_tuples": b"\x80\x02)" + b"\x85" * 390_000 + b".",
        "deep_key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\1s.",
        "colliding_keys": b"\x80\x02}(" + b"".join(
            b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(1, 60_000)) + b"u.",
        "endless": b"\x80\x02" + b"N" * 3_000_000 + b".",
        "memo_far": b"\x80\x02}r\xff\xff\xff\x7fr\xff\xff\xff\xffh\7.",
        "empty_stack": b"\x80\x02.",
        "no_mark": b"\x80\x02t.",
        "no_end": b"\x80\x02}",
        "unknown_instruction": b"\x80\x02\xff.",
        "text_not_utf8": b"\x80\x02X\2\0\0\0\xff\xfe.",
    }.items():
        yield from raw_pickle(name, body)


def _safetensor(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _entry(dtype="F32", shape=(3, 4), start=0, end=48):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _safetensors():
    data = WEIGHT.tobytes()
    good = _safetensor({"head.weight": _entry()}, data)
    one = json.dumps(_entry()).encode()
    for name, content in {
        "cut_in_length": good[:5], "cut_in_header": good[:40], "cut_before_data": good[:-48], "cut_in_data": good[:-1],
        "too_long": good + b"\0",
        "huge_header": _safetensor({"w": _entry()}, data, length=2**62),
        "long_header": _safetensor(b"[" + b"[]," * 8_000_000 + b"1]"),
        "many_lists": _safetensor(b'{"w":[' + b"[]," * 1_300_000 + b"1]}"),
        "no_json": _safetensor(b"\xff" * 60, data),
        "a_list": _safetensor([1, 2], data),
        "deep_json": _safetensor(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "name_twice": _safetensor(b'{"w":' + one + b',"w":' + one + b"}", data),
        "dtype_twice": _safetensor(b'{"w":' + one[:-1] + b',"dtype":"I32"}}', data),
        "metadata_twice": _safetensor(b'{"__metadata__":{"a":"1","a":"2"},"w":' + one + b"}", data),
        "metadata_number": _safetensor({"__metadata__": {"a": 1}, "w": _entry()}, data),
        "unknown_dtype": _safetensor({"w": _entry("F33")}, data),
        "float8": _safetensor({"w": _entry("F8_E4M3", (48,))}, data),
        "negative_shape": _safetensor({"w": _entry(shape=(-3, -4))}, data),
        "shape_too_large": _safetensor({"w": _entry(shape=(3, 5))}, data),
        "shape_overflow": _safetensor({"w": _entry(shape=(2**62, 2**62))}, data),
        "offsets_beyond": _safetensor({"w": _entry(end=2**40)}, data),
        "offsets_swapped": _safetensor({"w": _entry(start=48, end=0)}, data),
        "overlap": _safetensor({"v": _entry(), "w": _entry()}, data),
        "hole": _safetensor({"v": _entry(), "w": _entry(start=52, end=100)}, data + bytes(52)),
        "entry_lacks_dtype": _safetensor({"w": {"shape": [12], "data_offsets": [0, 48]}}, data),
    }.items():  # fmt: skip
        yield f"{name}.safetensors", content


def _others():
    yield "empty.pth", b""
    yield "empty.pdparams", b""
    yield "empty.safetensors", b""
    yield "noise.pth", np.random.default_rng(0).bytes(5000)
    yield "page.pth", b"<!DOCTYPE html><html>404</html>"
    yield "one_byte.pth", b"\x80"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    yield "tar.pth.tar", stream.getvalue()
    whole = pickle.dumps(ARRAYS, 4)
    yield "cut.pdparams", whole[: len(whole) // 2]
    yield "key_twice.pdparams", b"\x80\x02}(X\1\0\0\0aK\1X\1\0\0\0aK\2u."
