"""PyTorch's format written without PyTorch: PyTorch reads the same arrays, and nothing is left half done."""

import zipfile

import numpy as np
import pytest
from torch_python import run_torch
from weights import atomic
from weights.files import WeightsError
from weights.torch_file import read_torch
from weights.torch_writer import write_torch

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "blocks.0.attn.qkv.weight": RANDOM.standard_normal((6, 4)).astype(np.float32),
    "transposed": RANDOM.standard_normal((3, 5)).astype(np.float32).T,
    "strided": np.arange(20, dtype=np.int64)[::3],
    "big_endian": np.arange(4, dtype=">f8"),
    "half": np.array([1.5, np.inf, -0.0], np.float16),
    "steps": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([[True], [False]]),
    "bytes": np.arange(5, dtype=np.uint8),
    "größe.weight": np.ones((2, 1, 3), np.int32),
    "long": np.zeros(70_000, np.int8),
    "short": np.array([-3, 4], np.int16),
}
CHECK = r"""
import collections, sys, numpy, torch
state = torch.load(sys.argv[1], weights_only=True)
mapped = torch.load(sys.argv[1], weights_only=True, mmap=True)
assert all(torch.equal(state[name], mapped[name]) for name in state)
assert type(state) is collections.OrderedDict and all(type(t) is torch.Tensor for t in state.values())
assert all(t.is_contiguous() and not t.requires_grad for t in state.values())
numpy.savez(sys.argv[2], **{f"a{i}": t.numpy() for i, t in enumerate(state.values())}, names=numpy.array(list(state)))
"""


def test_pytorch_reads_the_same(tmp_path):
    file = write_torch(ARRAYS, tmp_path / "w.pth")
    run_torch(CHECK, file, tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz") as back:
        assert back["names"].tolist() == list(ARRAYS)
        for key, array in enumerate(ARRAYS.values()):
            found = back[f"a{key}"]
            assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.shape
            assert found.tobytes() == array.astype(found.dtype).tobytes()


def test_paddle_to_pytorch_to_arrays(tmp_path):
    import paddle

    layer = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.LayerNorm(4), paddle.nn.Linear(4, 4))
    arrays = {name: np.array(tensor.numpy()) for name, tensor in layer.state_dict().items()}
    tree = read_torch(write_torch(arrays, tmp_path / "w.pth")).tree
    assert list(tree) == list(arrays)
    for name, array in arrays.items():
        assert tree[name].array().tobytes() == array.tobytes() and tree[name].shape == array.shape


def test_own_reader_reads_the_same(tmp_path):
    tree = read_torch(write_torch(ARRAYS, tmp_path / "w.pth")).tree
    assert list(tree) == list(ARRAYS)
    for name, array in ARRAYS.items():
        found = tree[name].array()
        assert np.array_equal(found, array) and found.shape == array.shape


def test_bytes_depend_on_the_arrays_alone(tmp_path):
    first = write_torch(ARRAYS, tmp_path / "a.pth").read_bytes()
    assert write_torch({name: array.copy() for name, array in ARRAYS.items()}, tmp_path / "b.pth").read_bytes() == first


def test_storages_are_aligned(tmp_path):
    file = write_torch(ARRAYS, tmp_path / "w.pth")
    data = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            header = data[entry.header_offset : entry.header_offset + 30]
            assert (entry.header_offset + 30 + int.from_bytes(header[26:28], "little")
                    + int.from_bytes(header[28:30], "little")) % 64 == 0  # fmt: skip


def test_what_cannot_be_written(tmp_path):
    for array in (np.zeros(2, np.uint16), np.zeros(2, np.complex64), np.array(["a"]), np.array([None])):
        with pytest.raises(WeightsError, match=r"cannot write 'odd' to .*w\.pth: PyTorch has no dtype"):
            write_torch({"w": np.ones(3), "odd": array}, tmp_path / "w.pth")
    assert not list(tmp_path.iterdir())
    with pytest.raises(WeightsError, match="cannot write .*gone"):
        write_torch(ARRAYS, tmp_path / "gone" / "w.pth")


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, fault):
    file = write_torch(ARRAYS, tmp_path / "w.pth")
    before = file.read_bytes()

    def fail(_):
        raise fault

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(WeightsError if isinstance(fault, OSError) else KeyboardInterrupt):
        write_torch({"w": np.zeros(9)}, file)
    assert file.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["w.pth"]
