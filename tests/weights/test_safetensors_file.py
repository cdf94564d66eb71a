"""safetensors: what is written comes back, half precisions become float32, and odd files are refused by name."""

import json
import struct

import numpy as np
import pytest
from torch_python import run_torch
from weights import atomic
from weights.files import WeightsError
from weights.safetensors_file import read_safetensors, write_safetensors

ARRAYS = {
    "head.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "strided": np.arange(20, dtype=np.int64)[::3],
    "big_endian": np.arange(4, dtype=">f8"),
    "steps": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([[True], [False]]),
    "words": np.arange(3, dtype=np.uint16),
}


def made(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_written_and_read(tmp_path):
    file = write_safetensors(ARRAYS, tmp_path / "w.safetensors", {"model": "t2t_vit_7", "größe": "224"})
    content = read_safetensors(file)
    assert content.kind == "safetensors" and content.metadata == {"model": "t2t_vit_7", "größe": "224"}
    assert content.tree.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        tensor = content.tree[name]
        found = tensor.array()
        assert np.array_equal(found, array) and found.dtype == array.dtype.newbyteorder("=")
        assert tensor.shape == found.shape == array.shape and tensor.dtype == array.dtype.name and tensor.name == name
        assert found.flags.c_contiguous and found.flags.writeable
    assert read_safetensors(write_safetensors(ARRAYS, tmp_path / "bare.safetensors")).metadata == {}


def test_half_precisions_become_float32(tmp_path):
    values = np.array([1.5, -2.25, 0.0, np.inf], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    header = {
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "h": {"dtype": "F16", "shape": [4], "data_offsets": [8, 16]},
        "s": {"dtype": "BF16", "shape": [], "data_offsets": [16, 18]},
    }
    data = bits.tobytes() + values.astype(np.float16).tobytes() + bits[1:2].tobytes()
    tree = read_safetensors(made(tmp_path / "w.safetensors", header, data)).tree
    assert [tree[name].dtype for name in "bhs"] == ["bfloat16", "float16", "bfloat16"]
    assert tree["b"].array().tobytes() == tree["h"].array().tobytes() == values.tobytes()
    assert tree["b"].array().shape == (2, 2) and tree["b"].array().dtype == np.float32
    assert tree["s"].array().shape == () and tree["s"].array() == np.float32(-2.25)


def test_files_of_the_library_under_pytorch(tmp_path):
    code = """
import sys, torch
from safetensors.torch import save_file
x = torch.arange(6.).view(2, 3)
save_file({"f": x, "h": x.half(), "b": x.bfloat16()}, sys.argv[1], metadata={"format": "pt"})
"""
    try:
        run_torch(code, tmp_path / "w.safetensors")
    except RuntimeError as error:
        if "No module named 'safetensors'" not in str(error):
            raise
        pytest.skip("the Python with torch has no safetensors")
    content = read_safetensors(tmp_path / "w.safetensors")
    assert content.metadata == {"format": "pt"}
    for name in "fhb":
        assert content.tree[name].array().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_odd_dtypes_are_named(tmp_path):
    header = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    file = made(tmp_path / "w.safetensors", header, bytes(4))
    with pytest.raises(WeightsError, match=r"w\.safetensors: 'w' has dtype F8_E4M3, which is not supported"):
        read_safetensors(file)
    for array in (np.zeros(2, np.complex64), np.array(["a"]), np.array([None])):
        with pytest.raises(WeightsError, match="cannot write 'odd' to "):
            write_safetensors({"odd": array}, tmp_path / "new.safetensors")
    with pytest.raises(WeightsError, match="cannot write weights"):
        write_safetensors(ARRAYS, tmp_path / "new.safetensors", {"a": 1})
    assert [item.name for item in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_missing_file_and_folder(tmp_path):
    with pytest.raises(WeightsError, match="cannot read weights .*gone"):
        read_safetensors(tmp_path / "gone.safetensors")
    with pytest.raises(WeightsError, match="cannot write .*gone"):
        write_safetensors(ARRAYS, tmp_path / "gone" / "w.safetensors")
    file = write_safetensors(ARRAYS, tmp_path / "w.safetensors")
    tree = read_safetensors(file).tree
    file.unlink()
    with pytest.raises(WeightsError, match="cannot read 'steps'"):
        tree["steps"].array()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = write_safetensors(ARRAYS, tmp_path / "w.safetensors")
    before = file.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full_disk)
    with pytest.raises(WeightsError, match="No space left on device"):
        write_safetensors({"w": np.zeros(9)}, file)
    assert file.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["w.safetensors"]
