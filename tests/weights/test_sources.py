"""Which format a file is, which dictionary inside is meant, which tensors of it, and what is refused before Paddle."""

import argparse
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch_files
from models.identify import PADDLE, PYTORCH
from weights import sources
from weights.files import WeightsError
from weights.paddle_file import read_weights, save_weights
from weights.safetensors_file import write_safetensors
from weights.sources import arrays_of, choose, read_source

STATE = {"cls_token": np.arange(3, dtype="f4").reshape(1, 1, 3), "norm.weight": np.array([1, 2.5, -3e-5], "f4")}
RAISED = {name: array + 1 for name, array in STATE.items()}


def torch_source(content, path, save=torch_files.save_zip):
    return read_source(save(content, path))


def values(source, **options):
    choice = choose(source, **options)
    return choice, arrays_of(source, choice)


def same(left, right):
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


def one_memory(names, size):
    """A pickle of float16 arrays over one piece of `size` bytes."""
    made = b"\x80\x04B" + size.to_bytes(4, "little") + bytes(size) + b"q\7}("
    for name in names:
        made += b"X" + len(name).to_bytes(4, "little") + name.encode()
        made += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\1b\x87R"
        made += b"(K\1J" + (size // 2).to_bytes(4, "little") + b"\x85cnumpy\ndtype\nX\2\0\0\0f2"
        made += b"K\0K\1\x87R(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89h\7tb"
    return made + b"u."


def refusal(call, *arguments, **options):
    with pytest.raises(WeightsError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize("suffix", [".pth.tar", ".pdparams", ".safetensors", ".bin"])
def test_the_content_tells_the_format_whatever_the_suffix(tmp_path, suffix):
    file = tmp_path / f"w{suffix}"
    kinds = []
    for save in (torch_files.save_zip, torch_files.save_legacy):
        source = torch_source(STATE, file, save)
        assert source.layout == "PyTorch" and same(values(source)[1], STATE)
        kinds.append(source.kind)
    write_safetensors(STATE, file, {"model": "t2t_vit_7"})
    source = read_source(file)
    assert source.layout is None and source.model == "t2t_vit_7" and same(values(source)[1], STATE)
    kinds.append(source.kind)
    save_weights(STATE, tmp_path / "x").replace(file)
    source = read_source(file)
    assert source.layout == "Paddle" and same(values(source)[1], STATE)
    assert len({*kinds, source.kind}) == 4
    # The command compares the words of the two modules.
    assert (sources.PADDLE, sources.PYTORCH) == (PADDLE, PYTORCH)


def test_a_safetensors_header_may_begin_like_a_pickle(tmp_path):
    # A header of 128 bytes: the file's first byte is that of a pickle.
    write_safetensors({"w": np.zeros(2, "f4")}, tmp_path / "w", {"filling": "x"})
    data = (tmp_path / "w").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip().ljust(128)
    assert len(header) == 128
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    assert read_source(tmp_path / "w").layout is None


def test_files_of_no_format_say_what_they_look_like(tmp_path):
    cases = {
        b"": "empty", b"<!DOCTYPE html><title>404</title>": "web page", b"\n <html>": "web page",
        b"version https://git-lfs.github.com/spec/v1\n": "git lfs pull", b"hello": "name one of these",
        b"\0": "name one of these", b"\xff" * 600: "name one of these",
    }  # fmt: skip
    for number, (data, part) in enumerate(cases.items()):
        file = tmp_path / f"{number}.pth"
        file.write_bytes(data)
        text = refusal(read_source, file)
        assert part in text and str(file) in text
    with zipfile.ZipFile(tmp_path / "epoch-0001.npz", "w") as archive:
        archive.writestr("a.npy", b"")
    assert "name its run folder" in refusal(read_source, tmp_path / "epoch-0001.npz")
    assert "weights not found" in refusal(read_source, tmp_path / "gone.pth")
    assert "no best.pdparams" in refusal(read_source, tmp_path)


def test_a_run_folder_means_its_best_weights_and_a_name_its_file(tmp_path):
    best, last = save_weights(STATE, tmp_path / "best"), save_weights(RAISED, tmp_path / "last")
    assert read_source(tmp_path).path == best
    assert read_source(tmp_path / "last").path == last


def test_the_network_that_a_training_program_noted(tmp_path):
    for number, (content, named) in enumerate([
        ({"state_dict": STATE, "arch": "t2t_vit_14"}, "t2t_vit_14"),
        ({"state_dict": STATE, "args": argparse.Namespace(model="t2t_vit_19", lr=0.1)}, "t2t_vit_19"),
        ({"state_dict": STATE, "args": argparse.Namespace(model=3)}, None),
        ({"state_dict": STATE, "args": 5, "arch": None}, None),
        (STATE, None),
    ]):  # fmt: skip
        assert torch_source(content, tmp_path / str(number)).model == named


# ---------------------------------------------------------------- the dictionary


def test_the_averaged_weights_come_first(tmp_path):
    content = {"epoch": 3, "state_dict": STATE, "state_dict_ema": RAISED, "optimizer": {"state": {0: {"m": STATE}}}}
    source = torch_source(content, tmp_path / "w")
    choice, arrays = values(source)
    assert choice.dictionary == "state_dict_ema" and same(arrays, RAISED)
    assert choice.found == {"state_dict": 2, "state_dict_ema": 2}
    choice, arrays = values(source, key="state_dict")
    assert choice.dictionary == "state_dict" and same(arrays, STATE)


@pytest.mark.parametrize("key", ["state_dict", "model", "net"])
def test_other_dictionaries_in_order(tmp_path, key):
    content = {"other": RAISED, "acc": 98.3, "epoch": np.array(7), "net": STATE if key == "net" else RAISED}
    content.update({"model": STATE if key == "model" else RAISED} if key != "net" else {})
    content.update({"state_dict": STATE, "state_dict_ema": None} if key == "state_dict" else {})
    choice, arrays = values(torch_source(content, tmp_path / "w"))
    assert choice.dictionary == key and same(arrays, STATE) and "the file itself" not in choice.found


def test_bare_weights_and_nested_ones(tmp_path):
    choice, arrays = values(torch_source(STATE, tmp_path / "a"))
    assert choice.dictionary == "the file itself" and same(arrays, STATE) and list(choice.found.values()) == [2]
    source = torch_source({"best": {"ema": STATE, "none": {}}, "last": RAISED}, tmp_path / "b")
    assert same(values(source, key="best.ema")[1], STATE)
    assert "name one of these with --key: best.ema, last" in refusal(choose, source)
    for key in ("gone", "best", "best.none", "best.ema.cls_token", "", "last.", "."):
        assert f"--key {key}:" in refusal(choose, source, key=key)


def test_nothing_to_convert(tmp_path):
    contents = [{}, {"state_dict": {}}, {"epoch": 3}, [1, 2], 5, "text", {"state_dict": [STATE]}]
    for number, content in enumerate(contents):
        text = refusal(choose, torch_source(content, tmp_path / str(number)))
        assert "name another file" in text and str(tmp_path / str(number)) in text


# ---------------------------------------------------------------- the tensors


def test_names_of_other_ports_and_wrappers_are_translated(tmp_path):
    content = {"state_dict": {f"module.backbone.{name}": array for name, array in STATE.items()}}
    choice, arrays = values(torch_source(content, tmp_path / "w"))
    assert same(arrays, STATE) and choice.naming.prefix == "module." and choice.naming.dialect == "mmpretrain"
    assert choice.naming.names["cls_token"] == "module.backbone.cls_token"


def test_tensors_are_left_out_by_pattern(tmp_path):
    content = {**STATE, "aux_head.weight": np.ones((2, 2), "f4"), "aux_head.bias": np.ones(2, "f4"), "epoch": 7}
    source = torch_source({"state_dict": {f"module.{name}": item for name, item in content.items()}}, tmp_path / "w")
    # Patterns are for the names in the file or for the official ones.
    choice, arrays = values(source, drop=["module.aux_head.*", "epoch"])
    assert same(arrays, STATE)
    assert choice.dropped == ["module.aux_head.weight", "module.aux_head.bias", "module.epoch"]
    assert list(choice.naming.names) == list(STATE)
    text = refusal(choose, source, drop=["aux_*", "aux_tail.*", "epoch"])
    assert "--drop aux_tail.*: no tensor of state_dict" in text
    # Two patterns may name the same tensors.
    assert same(values(source, drop=["aux_*", "*aux_head.bias", "epoch"])[1], STATE)


def test_what_is_no_tensor_is_named(tmp_path):
    for value, word in ((7, "int"), (None, "NoneType"), ([1.0], "list"), ({"a": np.ones(1, "f4")}, "dict")):
        source = torch_source({"state_dict": {**STATE, "strange": value}}, tmp_path / "w")
        text = refusal(choose, source)
        assert f"state_dict: strange is no tensor but a {word}" in text and "--drop" in text
    for dtype in ("i8", "u1"):
        source = torch_source({"state_dict": {**STATE, "count": np.ones(3, dtype)}}, tmp_path / "w")
        assert "count is" in refusal(choose, source)


def test_values_become_float32(tmp_path):
    content = {
        "half": np.array([1.5, -2], "f2"), "double": np.array([[0.1, 3]], "f8"),
        "brain": torch_files.BFloat16(np.array([1.5, 3.140625], "f4")), "single": np.array(2.5, "f4"),
    }  # fmt: skip
    choice, arrays = values(torch_source(content, tmp_path / "w"))
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays.values())
    assert arrays["half"].tolist() == [1.5, -2] and arrays["brain"].tolist() == [1.5, 3.140625]
    assert arrays["single"].shape == () and arrays["double"].tolist() == [[np.float32(0.1), 3]]
    assert [tensor.dtype for tensor in choice.tensors.values()] == ["float16", "float64", "bfloat16", "float32"]


def test_a_tar_archive_is_named(tmp_path):
    with tarfile.open(tmp_path / "w.pth.tar", "w") as archive:
        archive.add(torch_files.save_zip(STATE, tmp_path / "w.pth"), "w.pth")
    assert "is a tar archive" in refusal(read_source, tmp_path / "w.pth.tar")


def test_arrays_of_paddle_files(tmp_path):
    state = {
        "half": np.array([1.5, -2], "f2"), "brain": np.array([0x3FC0, 0x4049], "u2"), "big": np.array([[1, 2]], ">f4"),
        "fortran": np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)), "scalar": np.array(1, "f4"),
    }  # fmt: skip
    choice, arrays = values(read_source(save_weights(state, tmp_path / "w")))
    assert [tensor.dtype for tensor in choice.tensors.values()] == ["float16", "bfloat16", *["float32"] * 3]
    assert arrays["brain"].tolist() == [1.5, 3.140625] and arrays["big"].tolist() == [[1, 2]]
    assert arrays["fortran"].tolist() == [[0, 1, 2], [3, 4, 5]] and arrays["scalar"].shape == ()
    assert all(array.dtype == np.dtype("f4") and array.flags.c_contiguous for array in arrays.values())


def test_training_checkpoints_of_paddle(tmp_path):
    # As training programs save with paddle.save: weights, moments and counters in one file.
    names = {"StructuredToParameterName@@": {"cls_token": "cls_token"}}
    content = {"model": {**STATE, **names}, "optimizer": {"m": STATE["cls_token"], "LR_Scheduler": {"last_epoch": 3}},
               "epoch": 12, "lr": 1e-3, "scaler": None}  # fmt: skip
    file = tmp_path / "w.pdparams"
    file.write_bytes(pickle.dumps(content, protocol=4))
    choice, arrays = values(read_source(file))
    assert choice.dictionary == "model" and same(arrays, STATE) and set(choice.found) == {"model", "optimizer"}
    text = refusal(read_weights, file)
    assert "'model' is not a tensor" in text and f"bash scripts/convert.sh {file}" in text


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path, bad):
    content = {**STATE, "head.bias": np.array([1, bad], "f4"), "head.weight": np.full((2, 3), bad, "f2")}
    source = torch_source({"state_dict_ema": content}, tmp_path / "w")
    text = refusal(arrays_of, source, choose(source))
    assert "state_dict_ema: head.bias holds NaN or infinity (2 of 4 tensors do)" in text
    source = torch_source({"w": np.array([1e300])}, tmp_path / "v")
    assert "w holds NaN or infinity" in refusal(arrays_of, source, choose(source))


def test_tensors_larger_than_their_file_are_refused(tmp_path, monkeypatch):
    source = torch_source(STATE, tmp_path / "w")
    monkeypatch.setattr(type(source.tree["cls_token"]), "array", lambda self: pytest.fail("values were read"))
    source.tree["cls_token"].shape = (1, 10**6, 10)
    assert "share their values" in refusal(choose, source)


def test_arrays_of_paddle_over_the_same_bytes_are_refused(tmp_path):
    file = tmp_path / "w.pdparams"
    file.write_bytes(one_memory(("cls_token", "pos_embed", "norm.bias"), 16 << 20))
    assert {array.nbytes for array in read_weights(file).values()} == {16 << 20}
    assert "share their values and would take 50,331,648 bytes" in refusal(choose, read_source(file))
