"""PyTorch's files of both formats, read without PyTorch: made byte by byte, and by real PyTorch where it is found."""

import argparse
import json
import pickle
import time
from collections import OrderedDict

import numpy as np
import pytest
import torch_bytes as made
from torch_bytes import Call, Global, Storage, state_dict, tensor
from torch_python import run_torch
from weights.content import Budget
from weights.files import WeightsError
from weights.torch_file import Content, Namespace, Tensor, read_torch

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
BASE = np.arange(24, dtype=np.float32)


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.fixture(params=["stream", "zip"])
def read(request, tmp_path):
    """Makes a file of the content in one of the formats and reads it: the tree."""

    def read(content, **changes):
        maker = {"stream": made.stream_file, "zip": made.zip_file}[request.param]
        found = read_torch(write(tmp_path / "w.pth", maker(content, **changes)))
        assert type(found) is Content and found.metadata == {}
        assert found.kind == {"stream": "PyTorch (legacy)", "zip": "PyTorch (zip)"}[request.param]
        return found.tree

    return read


# ---------------------------------------------------------------- files made here


@pytest.mark.parametrize("protocol", [2, 4])
def test_training_checkpoint(read, protocol):
    arrays = {"module.head.weight": WEIGHT, "module.head.bias": np.array([1, -2, 3e-5], np.float32)}
    content = {
        "epoch": 98,
        "arch": "t2t_vit_7",
        "args": argparse.Namespace(lr=1e-3, betas=(0.9, 0.999), model="t2t_vit_7", none=None, sizes=[1, 2], ok=True),
        "state_dict": state_dict(arrays),
        "optimizer": {"state": {0: {"step": 5, "exp_avg": tensor(WEIGHT + 1, "9")}}, "param_groups": [{"params": [0]}]},
        "metric": np.float64(71.7),
        "scores": np.arange(3),
        "device": Call(Global("torch", "device"), "cuda", 1),
        "size": Call(Global("torch", "Size"), (3, 4)),
        "dtype": Global("torch", "float16"),
        3: 2**40, None: b"bytes", True: -1.5,
    }  # fmt: skip
    tree = read(content, protocol=protocol)
    assert list(tree) == list(content)
    assert type(tree["args"]) is Namespace and tree["args"].values == vars(content["args"])
    assert list(tree["state_dict"]) == list(arrays)
    for name, array in arrays.items():
        found = tree["state_dict"][name]
        assert (found.name, found.shape, found.dtype) == (name, array.shape, "float32")
        assert found.array().tobytes() == array.tobytes() and found.array().flags.writeable
    assert tree["optimizer"]["state"][0]["step"] == 5 and tree["optimizer"]["param_groups"] == [{"params": [0]}]
    assert np.array_equal(tree["optimizer"]["state"][0]["exp_avg"].array(), WEIGHT + 1)
    assert tree["metric"] == 71.7 and tree["scores"].tolist() == [0, 1, 2]
    assert (tree["device"], tree["size"], tree["dtype"]) == ("cuda:1", (3, 4), "torch.float16")
    assert (tree[3], tree[None], tree[True]) == (2**40, b"bytes", -1.5)


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u1", "?"])
def test_dtypes(read, kind):
    array = np.array([[0, 1], [2, 100]]).astype(kind)
    found = read({"w": tensor(array)})["w"]
    assert found.dtype == array.dtype.name
    assert np.array_equal(found.array(), array) and found.array().dtype == ("f4" if kind == "f2" else array.dtype)


def test_bfloat16_and_odd_booleans(read):
    values = np.array([1.5, -2.25, np.inf, 3e38], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    tree = read({
        "b": tensor(values, of=Storage("BFloat16", "0", 4, upper.tobytes())),
        "s": tensor(values, of=Storage("BFloat16", "0", 4, upper.tobytes()), shape=(), offset=1),
        "t": tensor(values, of=Storage("Bool", "1", 3, b"\0\1\7"), shape=(3,)),
    })  # fmt: skip
    found = tree["b"].array()
    assert found.dtype == np.float32 and np.array_equal(found, (upper.astype(np.uint32) << 16).view(np.float32))
    assert tree["s"].array().shape == () and tree["s"].array() == np.float32(-2.25)
    assert tree["t"].array().dtype == bool and tree["t"].array().tobytes() == b"\0\1\1"


def test_windows_on_one_storage(read):
    base = made.storage(BASE, "7")
    windows = {
        "whole": (BASE.reshape(4, 6), {"shape": (4, 6)}),
        "transposed": (BASE.reshape(4, 6).T, {"shape": (6, 4), "strides": (1, 6)}),
        "offset": (BASE[5:9], {"offset": 5, "shape": (4,)}),
        "strided": (BASE.reshape(4, 6)[1::2, ::3], {"offset": 6, "shape": (2, 2), "strides": (12, 3)}),
        "scalar": (BASE[23], {"offset": 23, "shape": ()}),
        "empty": (BASE[24:].reshape(0, 5), {"offset": 24, "shape": (0, 5)}),
        "one_wide": (BASE[2:4].reshape(1, 2, 1), {"offset": 2, "shape": (1, 2, 1), "strides": (2**62, 1, 0)}),
        "expanded_within": (np.broadcast_to(BASE[:3], (2, 3)), {"shape": (2, 3), "strides": (0, 1)}),
    }
    tree = read({name: tensor(BASE, of=base, **window) for name, (_, window) in windows.items()})
    for name, (expected, _) in windows.items():
        found = tree[name].array()
        assert np.array_equal(found, expected) and found.shape == expected.shape and found.flags.c_contiguous, name
        found[...] = -1
    assert np.array_equal(tree["whole"].array(), BASE.reshape(4, 6)), "arrays are copies"


def test_ways_to_rebuild(read):
    storage = made.storage(WEIGHT, "0")
    plain = tensor(WEIGHT, of=storage)
    unsigned = np.array([1, 65535], np.uint16)
    untyped = Storage("UntypedStorage", "1", 4, unsigned.tobytes(), module="torch.storage")
    rebuilt = "torch._utils"
    tree = read({
        "old": tensor(WEIGHT, of=storage, rebuild="_rebuild_tensor"),
        "parameter": Call(Global(rebuilt, "_rebuild_parameter"), plain, True, OrderedDict()),
        "state": Call(Global(rebuilt, "_rebuild_parameter_with_state"), plain, True, OrderedDict(), {"note": 1}),
        "metadata": Call(Global(rebuilt, "_rebuild_tensor_v2"), storage, 0, (3, 4), (4, 1), False, OrderedDict(), {}),
        "typed": Call(Global("torch._tensor", "_rebuild_from_type_v2"), Global(rebuilt, "_rebuild_tensor_v2"),
                      Global("torch.nn.parameter", "Buffer"), (storage, 0, (3, 4), (4, 1), False, OrderedDict()), {}),
        "v3": Call(Global(rebuilt, "_rebuild_tensor_v3"), untyped, 0, (2,), (1,), False, OrderedDict(),
                   Global("torch", "uint16")),
    })  # fmt: skip
    assert np.array_equal(tree.pop("v3").array(), unsigned)
    assert all(np.array_equal(found.array(), WEIGHT) for found in tree.values()) and len(tree) == 5


def test_views_of_the_older_format(tmp_path):
    # ("storage", type, key of the root, device, elements of the root, (key of the view, offset, elements))
    content = {
        "view": tensor(BASE, of=Storage("Float", "7", 24, BASE.tobytes(), view=("8", 6, 10)), offset=1, shape=(3, 3)),
        "root": tensor(BASE, of=Storage("Float", "7", 24, BASE.tobytes())),
    }
    tree = read_torch(write(tmp_path / "w.pth", made.stream_file(content))).tree
    assert np.array_equal(tree["view"].array(), BASE[7:16].reshape(3, 3))
    assert np.array_equal(tree["root"].array(), BASE)
    beyond = Storage("Float", "7", 24, BASE.tobytes(), view=("8", 6, 10))
    content["view"] = tensor(BASE, of=beyond, offset=2, shape=(9,))
    with pytest.raises(WeightsError, match="beyond the end of its storage"):
        read_torch(write(tmp_path / "w.pth", made.stream_file(content)))


def test_names_as_python_2_wrote_them(tmp_path):
    # SHORT_BINSTRING and BINSTRING in the place of BINUNICODE.
    data = made.stream_file(state_dict({"head.weight": WEIGHT}))
    data = data.replace(b"X\x0b\0\0\0head.weight", b"U\x0bhead.weight").replace(b"X\1\0\0\0000", b"T\1\0\0\0000")
    assert b"U\x0bhead" in data and b"T\1\0\0\0000" in data
    tree = read_torch(write(tmp_path / "w.pth", data)).tree
    assert np.array_equal(tree["head.weight"].array(), WEIGHT)


def test_archives_of_other_machines_and_settings(tmp_path):
    big = tensor(WEIGHT, of=Storage("Float", "0", 12, WEIGHT.astype(">f4").tobytes()))
    tree = read_torch(write(tmp_path / "w.pth", made.zip_file({"w": big}, byteorder=b"big", folder="größe"))).tree
    assert np.array_equal(tree["w"].array(), WEIGHT) and tree["w"].array().dtype == np.float32
    # PyTorch before 2.1 wrote no byte order, and can be told to leave the checksums out.
    members = made.zip_members(state_dict({"w": WEIGHT}))
    del members["archive/byteorder"]
    data = bytearray(made.zipped({**members, "archive/": b"", "archive/.data/serialization_id": b"1" * 40}))
    place = -1
    while (place := data.find(b"PK\1\2", place + 1)) >= 0:
        data[place + 16 : place + 20] = bytes(4)
    assert np.array_equal(read_torch(write(tmp_path / "w.pth", bytes(data))).tree["w"].array(), WEIGHT)


def test_values_are_read_when_asked_for(tmp_path):
    state = state_dict({"a": WEIGHT, "b": WEIGHT + 1})
    data = made.zip_file(state)
    assert data.count(WEIGHT.tobytes()) == 1
    content = read_torch(write(tmp_path / "w.pth", data.replace(WEIGHT.tobytes(), (WEIGHT + 2).tobytes())))
    assert np.array_equal(content.tree["b"].array(), WEIGHT + 1)
    with pytest.raises(WeightsError, match="damaged or cut short .*checksum of 'a'"):
        content.tree["a"].array()


def test_shared_values_have_a_limit(read, monkeypatch):
    monkeypatch.setattr(Budget, "slack", 0)
    values = np.zeros(10_000, np.float32)
    base = made.storage(values, "0")
    tree = read({"a": tensor(values, of=base), "b": tensor(values, of=base)})
    taken = []
    with pytest.raises(WeightsError, match="refused at 'b': its tensors share their values and would take more memory"):
        for found in tree.values():
            taken.append(found.array())
            found.array()  # a second time costs nothing
    assert len(taken) == 1


def test_refusals_say_what_the_file_asks_for(read):
    cases = {
        "models.t2t_vit.T2T_ViT": Call(Global("models.t2t_vit", "T2T_ViT")),
        "a sparse tensor": Call(Global("torch._utils", "_rebuild_sparse_tensor"), 1),
        "a quantised tensor": Call(Global("torch._utils", "_rebuild_qtensor"), 1),
        "a complex tensor": tensor(WEIGHT, of=Storage("ComplexFloat", "0", 6, bytes(48))),
        "a storage outside a tensor": made.storage(WEIGHT, "0"),
        "torch.Size as a value": Global("torch", "Size"),
        "a tensor of another class": Call(Global("torch._tensor", "_rebuild_from_type_v2"), Global("torch", "Size"),
                                          Global("torch", "device"), (), {}),
        "a huge number as a dictionary key": {2**60: 1},
        "a dictionary key of type tuple": {(1, 2): 1},
        "float8_e4m3fn": Call(Global("torch._utils", "_rebuild_tensor_v3"), made.storage(WEIGHT, "0"), 0, (2,), (1,),
                              False, OrderedDict(), Global("torch", "float8_e4m3fn")),
    }  # fmt: skip
    for part, content in cases.items():
        with pytest.raises(WeightsError) as caught:
            read({"x": content} if not isinstance(content, dict) else content)
        assert f"the file asks for {part}" in str(caught.value).replace("a tensor of dtype ", ""), caught.value
        assert "save only model.state_dict() with torch" in str(caught.value)


def test_expanded_tensors_are_named_when_asked_for(read):
    tree = read({"a": tensor(BASE), "b": tensor(BASE, of=made.storage(BASE, "1"), shape=(5, 24), strides=(0, 1))})
    assert tree["b"].shape == (5, 24) and np.array_equal(tree["a"].array(), BASE)
    with pytest.raises(WeightsError, match="'b' is an expanded tensor, 120 elements on a storage of 24"):
        tree["b"].array()


def test_files_that_are_not_pytorch(tmp_path):
    cases = {
        pickle.dumps({"w": WEIGHT}, 4): "is a pickle, but not one of torch.save",
        pickle.dumps({"w": 1}, 2): "is a pickle, but not one of torch.save",
        b"<html>": "is not a PyTorch file",
        b"": "empty",
    }
    for data, part in cases.items():
        with pytest.raises(WeightsError, match=part):
            read_torch(write(tmp_path / "w.pth", data))
    np.savez(tmp_path / "w.npz", w=WEIGHT)
    with pytest.raises(WeightsError, match="none of torch.save"):
        read_torch(tmp_path / "w.npz")
    for path in (tmp_path / "gone.pth", tmp_path):
        with pytest.raises(WeightsError, match=f"cannot read weights {path}"):
            read_torch(path)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # pickletools, of texts that are refused
def test_changed_bytes_never_end_in_another_error(tmp_path):
    random = np.random.default_rng(0)
    content = {"args": argparse.Namespace(a=1), "state_dict": state_dict({"w": WEIGHT, "b": WEIGHT[0]})}
    for whole in (made.stream_file(content), made.zip_file(content)):
        for _ in range(500):
            data = bytearray(whole)
            for place in random.integers(2, len(whole), size=random.integers(1, 4)):
                data[place] = random.integers(256)
            try:
                tree = read_torch(write(tmp_path / "w.pth", bytes(data))).tree
                tree = tree.get("state_dict") if isinstance(tree, dict) else None
                [found.array() for found in (tree.values() if isinstance(tree, dict) else ()) if type(found) is Tensor]
            except WeightsError as error:
                assert "\n" not in str(error)


def test_a_full_training_state_of_the_largest_network_is_read(read):
    # T2T-ViT-24 has some 300 tensors; each comes as weight, average, two moments and step.
    def states(first):
        return OrderedDict((f"blocks.{i}.w", tensor(WEIGHT, str(first + i))) for i in range(320))

    moments = {
        i: {"step": tensor(np.float32(9), str(9000 + i), shape=()), "exp_avg": tensor(WEIGHT, str(10000 + i)),
            "exp_avg_sq": tensor(WEIGHT, str(20000 + i))} for i in range(320)
    }  # fmt: skip
    group = {"params": list(range(320)), "lr": 1e-3}
    start = time.process_time()
    tree = read({"state_dict": states(0), "state_dict_ema": states(1000),
                 "optimizer": {"state": moments, "param_groups": [group]}})  # fmt: skip
    assert time.process_time() - start < 10
    assert np.array_equal(tree["optimizer"]["state"][319]["exp_avg_sq"].array(), WEIGHT)
    assert len(tree["state_dict_ema"]) == 320


# ---------------------------------------------------------------- files of real PyTorch

SAVE = r"""
import argparse, collections, json, sys, numpy, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3, bias=False))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
ema = collections.OrderedDict((name, value + 1) for name, value in net.state_dict().items())
base = torch.randn(4, 6)
odd = {
    "parameter": nn.Parameter(torch.randn(3, 2)),
    "half": base.half(), "bfloat16": base.bfloat16(), "double": base.double(), "bool": base > 0,
    "long": torch.arange(5), "int8": torch.arange(-3, 3, dtype=torch.int8), "byte": torch.arange(9, dtype=torch.uint8),
    "int16": torch.arange(3, dtype=torch.int16), "int32": torch.arange(3, dtype=torch.int32),
    "transposed": base.t(), "permuted": torch.randn(2, 3, 4).permute(2, 0, 1), "strided": base[1::2, ::3],
    "shared_a": base[:2], "shared_b": base[2:], "scalar": torch.tensor(2.5), "element": base[3, 5],
    "empty": torch.zeros(0, 3), "channels_last": torch.randn(1, 3, 2, 2).contiguous(memory_format=torch.channels_last),
}
odd["with_attribute"] = nn.Parameter(torch.randn(2))
odd["with_attribute"].no_decay = True
checkpoint = {
    "epoch": 3, "arch": "net", "state_dict": net.state_dict(), "optimizer": optimizer.state_dict(), "version": 2,
    "args": argparse.Namespace(lr=1e-2, betas=(0.9, 0.999), model="net", device=torch.device("cpu"), size=base.shape),
    "state_dict_ema": ema, "metric": 71.7, "odd": odd,
    "net": nn.DataParallel(net).state_dict(), "scores": numpy.arange(4.0), "best": numpy.float64(3.5),
}
for legacy in (True, False):
    for protocol in (2, 4):
        torch.save(checkpoint, f"{sys.argv[1]}/{'stream' if legacy else 'zip'}{protocol}.pth", pickle_protocol=protocol,
                   _use_new_zipfile_serialization=not legacy)
expected = {}
def collect(value, path):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        expected[path] = (value.float() if value.dtype in (torch.half, torch.bfloat16) else value).contiguous().numpy()
    elif isinstance(value, dict):
        for name, item in value.items():
            collect(item, f"{path}/{name}")
collect(checkpoint, "")
numpy.savez(f"{sys.argv[1]}/expected.npz", **{f"a{i}": array for i, array in enumerate(expected.values())})
print(json.dumps(list(expected)))
print(torch.__version__)
"""


def flat(value, path=""):
    """Path -> tensor for all tensors in the dictionaries of a tree."""
    if isinstance(value, Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else ()
    return {key: item for name, inner in items for key, item in flat(inner, f"{path}/{name}").items()}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A folder with files of real PyTorch, and path -> array of what they must give."""
    folder = tmp_path_factory.mktemp("torch")
    names = json.loads(run_torch(SAVE, folder).splitlines()[0])
    with np.load(folder / "expected.npz") as arrays:
        return folder, {name: arrays[f"a{key}"] for key, name in enumerate(names)}


@pytest.mark.parametrize("file", ["stream2", "stream4", "zip2", "zip4"])
def test_every_tensor_of_real_files_is_exact(real, file):
    folder, expected = real
    tree = read_torch(folder / f"{file}.pth").tree
    found = flat(tree)
    assert list(found) == list(expected) and len(found) > 40
    for name, array in expected.items():
        values = found[name].array()
        assert values.tobytes() == array.tobytes() and values.dtype == array.dtype, name
        assert values.shape == found[name].shape == array.shape and values.flags.c_contiguous, name
    assert (tree["epoch"], tree["metric"], tree["arch"], tree["version"]) == (3, 71.7, "net", 2)
    assert tree["args"].values == {"lr": 1e-2, "betas": (0.9, 0.999), "model": "net", "device": "cpu", "size": (4, 6)}
    assert tree["optimizer"]["param_groups"][0]["params"] == list(range(5)) and tree["best"] == 3.5
    assert all(name.startswith("module.") for name in tree["net"]) and tree["scores"].tolist() == [0, 1, 2, 3]


def test_unsupported_tensors_of_real_files_are_named(tmp_path):
    code = r"""
import sys, warnings, torch
warnings.simplefilter("ignore")
x = torch.arange(6.).view(2, 3)
odd = {"sparse": x.to_sparse(), "csr": x.to_sparse_csr(), "complex": torch.complex(x, x), "meta": x.to("meta"),
       "quantised": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "expanded": x[:1].expand(1000, 3),
       "module": torch.nn.Linear(2, 2), "storage": x.untyped_storage()}
for name, value in odd.items():
    for legacy in (True, False):
        torch.save({"w": value}, f"{sys.argv[1]}/{name}.{legacy}.pth", _use_new_zipfile_serialization=not legacy)
"""
    run_torch(code, tmp_path)
    words = {"sparse": "a sparse tensor", "csr": "a sparse tensor", "complex": "a complex tensor",
             "meta": "a meta tensor", "quantised": "a quantised tensor", "expanded": "'w' is an expanded tensor",
             "storage": "outside a tensor", "module": "torch.nn.modules.linear.Linear"}  # fmt: skip
    for name, part in words.items():
        for legacy in (True, False):
            with pytest.raises(WeightsError, match=part):
                read_torch(tmp_path / f"{name}.{legacy}.pth").tree["w"].array()
