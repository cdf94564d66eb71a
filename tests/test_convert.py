"""The converter through its command: every tensor exact, in and out, and nothing written where anything is wrong."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import paddle
import pytest
import torch_files
from commands import TOOLS, last_line, make_folders, make_weights, mistake, process, run, settings, snapshot
from models import build_model
from models.identify import linear_weights
from torch_files import BFloat16
from weights.loading import load_weights
from weights.paddle_file import read_weights, save_weights
from weights.record import read_record
from weights.safetensors_file import read_safetensors, write_safetensors

CLASSES, SIZE = 256, 32


def random_state(name="t2t_vit_7", **arguments):
    """Noise for the tensors of a network in PyTorch's layout, by default with a head that is square: dict of arrays."""
    arguments = {"img_size": SIZE, "num_classes": CLASSES, **arguments}
    with paddle.LazyGuard():
        network = build_model(name, **arguments)
    linear = linear_weights(network)
    shapes = {key: tuple(tensor.shape)[:: -1 if key in linear else 1] for key, tensor in network.state_dict().items()}
    # One block of noise again and again: drawing a value for each of 64 million parameters takes seconds.
    noise = np.random.default_rng(0).standard_normal(1_000_003, dtype="f4") / 10
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    parts = np.split(np.resize(noise, sum(sizes)), np.cumsum(sizes)[:-1])
    return {key: part.reshape(shape) for (key, shape), part in zip(shapes.items(), parts)}


def turned(state):
    """Names of Linear weights by their meaning: two axes, and neither random features nor the position table."""
    return {name for name, array in state.items() if array.ndim == 2 and not name.endswith(".w")}


def in_paddle(state):
    """PyTorch's layout to Paddle's."""
    linear = turned(state)
    return {name: array.T if name in linear else array for name, array in state.items()}


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def state():
    """random_state of T2T-ViT-7."""
    return random_state()


@pytest.fixture(scope="module")
def training(state):
    """What the official training saves: raw and averaged weights (raw + 1), optimiser, arguments."""
    return {
        "epoch": 309, "arch": "t2t_vit_7", "state_dict": {f"module.{name}": array for name, array in state.items()},
        "optimizer": {"state": {0: {"step": 5, "exp_avg": state["cls_token"]}}, "param_groups": [{"lr": 1e-3}]},
        "version": 2, "args": argparse.Namespace(model="t2t_vit_7", lr=1e-3, aa="rand-m9", mean=(0.5,), resume=None),
        "state_dict_ema": {name: array + 1 for name, array in state.items()}, "metric": 71.7,
    }  # fmt: skip


# ---------------------------------------------------------------- in


@pytest.mark.parametrize("save", [torch_files.save_zip, torch_files.save_legacy])
def test_every_tensor_of_a_pytorch_file(tmp_path, training, state, save):
    file = save(training, tmp_path / "71.7_T2T_ViT_7.pth.tar")
    outcome = run("convert", file, tmp_path / "w.pdparams")
    assert outcome.code == 0, outcome
    found = read_weights(tmp_path / "w")
    assert len(found) == len(state) == 111
    square = {name for name in turned(state) if len(set(state[name].shape)) == 1}
    assert {"blocks.3.attn.proj.weight", "tokens_to_token.attention1.proj.weight", "head.weight"} <= square
    for name, array in state.items():
        expected = array + 1
        assert np.array_equal(found[name], expected.T if name in turned(state) else expected), name
        assert found[name].dtype == np.float32
    # Left as they are although they have two axes, or three.
    for name in ("tokens_to_token.attention1.w", "tokens_to_token.attention2.w", "pos_embed", "cls_token"):
        assert np.array_equal(found[name], state[name] + 1)


def test_what_is_printed(tmp_path, training):
    file = torch_files.save_zip(training, tmp_path / "w.pth.tar")
    outcome = run("convert", file, tmp_path / "w.pdparams")
    for part in (
        f"source: {file}: PyTorch (zip), {file.stat().st_size:,} bytes",
        "found: state_dict (111 tensors), state_dict_ema (111 tensors); taken: state_dict_ema",
        "names: official",
        "model: t2t_vit_7 at 32 px, 256 classes, by parameter count, names and shapes",
        "layout: 38 Linear weights as PyTorch keeps them",
        f"written: {tmp_path / 'w.pdparams'}: 111 tensors, 4,069,862 parameters, ",
        f"record: {tmp_path / 'w.pdparams.json'}: resize crop, crop_pct 0.9, interpolation bicubic",
    ):
        assert f"\n{part}" in f"\n{outcome.out}", (part, outcome.out)
    assert last_line(outcome).endswith(f"tools/predict.py IMG --weights {tmp_path / 'w.pdparams'}")
    assert "note:" not in outcome.out and outcome.err == ""
    # The averaged weights are taken by default and the raw ones when asked for.
    outcome = run("convert", file, tmp_path / "raw.pdparams", "--key", "state_dict")
    assert "taken: state_dict\n" in outcome.out and "note: state_dict_ema is left" in outcome.out
    assert "names: official, 'module.' taken off" in outcome.out
    raw, averaged = read_weights(tmp_path / "raw"), read_weights(tmp_path / "w")
    assert all(np.array_equal(raw[name] + 1, averaged[name]) for name in averaged)


@pytest.mark.parametrize("key", ["state_dict", "model", "net", None])
def test_files_with_raw_weights_alone_say_so(tmp_path, state, key):
    prefixed = {f"module.module.{name}": array for name, array in state.items()}
    file = torch_files.save_legacy({key: prefixed, "acc": 98.3, "epoch": 60} if key else prefixed, tmp_path / "w.pth")
    outcome = run("convert", file, tmp_path / "w")
    assert outcome.code == 0 and "'module.module.' taken off" in outcome.out
    assert ("note: there is no state_dict_ema; these may be the raw weights" in outcome.out) is (key is not None)
    assert same(read_weights(tmp_path / "w.pdparams"), in_paddle(state))


def test_other_types_become_float32(tmp_path, state):
    exact = {name: array.astype("f2").astype("f4") for name, array in state.items()}
    mixed = {name: array.astype("f2") for name, array in exact.items()}
    mixed["cls_token"] = exact["cls_token"].astype("f8")
    mixed["norm.bias"] = BFloat16(np.ones(256, "f4"))
    file = torch_files.save_zip({"state_dict_ema": mixed}, tmp_path / "w.pth")
    outcome = run("convert", file, tmp_path / "w.pdparams")
    for part in ("1 tensors are bfloat16", "109 tensors are float16", "1 tensors are float64"):
        assert f"note: {part}; they are written as float32" in outcome.out
    assert same(read_weights(tmp_path / "w.pdparams"), in_paddle({**exact, "norm.bias": np.ones(256, "f4")}))


def test_names_of_paddlevit(tmp_path, state):
    theirs = {name.replace("tokens_to_token.attention", "patch_embed.attn")
              .replace("tokens_to_token.project", "patch_embed.proj"): array
              for name, array in in_paddle(state).items()}  # fmt: skip
    outcome = run("convert", save_weights(theirs, tmp_path / "t2t_vit_7"), tmp_path / "w")
    assert "names: PaddleViT, mapped to the official ones" in outcome.out
    assert "layout: 38 Linear weights as Paddle keeps them" in outcome.out
    assert same(read_weights(tmp_path / "w"), in_paddle(state))


def test_names_of_mmpretrain(tmp_path):
    state = random_state("t2t_vit_t_14", img_size=16, num_classes=3)
    theirs = {}
    for name, array in state.items():
        new = name.replace("blocks.", "encoder.").replace(".mlp.fc1.", ".ffn.layers.0.0.")
        new = new.replace(".mlp.fc2.", ".ffn.layers.1.").replace(".norm1.", ".ln1.").replace(".norm2.", ".ln2.")
        theirs[new.replace("head.", "head.layers.head.") if "head" in new else f"backbone.{new}"] = array
    file = torch_files.save_zip({"meta": {"epoch": 300}, "state_dict": theirs}, tmp_path / "t2t-vit-t-14.pth")
    outcome = run("convert", file, tmp_path / "w")
    assert "names: mmpretrain, mapped to the official ones" in outcome.out
    assert "model: t2t_vit_t_14 at 16" in outcome.out
    assert same(read_weights(tmp_path / "w"), in_paddle(state))


def test_layout_of_safetensors_is_seen_from_its_shapes(tmp_path, state):
    for number, (arrays, layout) in enumerate(((state, "PyTorch"), (in_paddle(state), "Paddle"))):
        file = tmp_path / f"{number}.safetensors"
        write_safetensors({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file, {})
        outcome = run("convert", file, tmp_path / f"{number}.pdparams")
        assert f"layout: 38 Linear weights as {layout} keeps them" in outcome.out
        assert same(read_weights(tmp_path / f"{number}.pdparams"), in_paddle(state))


# ---------------------------------------------------------------- out and back


@pytest.mark.parametrize("suffix", [".safetensors", ".pth.tar", ".PTH"])
def test_round_trips_end_where_they_began(tmp_path, suffix):
    begin = make_weights(tmp_path / "begin", num_classes=64, img_size=SIZE)
    outcome = run("convert", begin, tmp_path / f"middle{suffix}")
    assert "next:" not in outcome.out and "Linear weights as Paddle keeps them" in outcome.out
    outcome = run("convert", tmp_path / f"middle{suffix}", tmp_path / "end.pdparams")
    assert "Linear weights as PyTorch keeps them" in outcome.out
    assert begin.read_bytes() == (tmp_path / "end.pdparams").read_bytes()
    images = paddle.to_tensor(np.random.RandomState(0).standard_normal((2, 3, SIZE, SIZE)).astype("f4"))
    logits = []
    for file in (begin, tmp_path / "end.pdparams"):
        network = build_model("t2t_vit_7", img_size=SIZE, num_classes=64)
        load_weights(network, read_weights(file), source=file)
        network.eval()
        logits.append(network(images).numpy())
    assert np.array_equal(*logits)


def test_safetensors_have_the_official_names_and_pytorchs_layout(tmp_path, state):
    source = save_weights(in_paddle(state), tmp_path / "w")
    assert run("convert", source, tmp_path / "w.safetensors").code == 0
    content = read_safetensors(tmp_path / "w.safetensors")
    assert same({name: tensor.array() for name, tensor in content.tree.items()}, state)
    assert content.metadata == {"format": "pt", "model": "t2t_vit_7"}


# ---------------------------------------------------------------- the network


def test_rows_with_the_same_shapes(tmp_path):
    state = random_state("t2t_vit_14", img_size=16, num_classes=2)
    bare = torch_files.save_zip(state, tmp_path / "bare.pth")
    outcome = run("convert", bare, tmp_path / "a")
    assert "model: t2t_vit_14 at 16 px, 2 classes" in outcome.out
    assert "note: t2t_vit_14_resnext has the same names and shapes; --model t2t_vit_14_resnext" in outcome.out
    resnext = "model: t2t_vit_14_resnext at 16 px, 2 classes"
    outcome = run("convert", bare, tmp_path / "b", "--model", "t2t_vit_14_resnext")
    assert f"{resnext}, as --model says" in outcome.out and read_record(tmp_path / "b.pdparams").model in resnext
    config = TOOLS.parent / "config" / "t2t_vit_14_resnext.yaml"
    assert resnext in run("convert", bare, tmp_path / "d", "--config", config).out
    noted = torch_files.save_zip({"state_dict": state, "arch": "t2t_vit_14_resnext"}, tmp_path / "noted.pth")
    assert resnext in run("convert", noted, tmp_path / "e").out
    # The record, and the metadata of safetensors, carry it on.
    assert run("convert", tmp_path / "b.pdparams", tmp_path / "f.safetensors").code == 0
    (tmp_path / "f.safetensors.json").unlink()
    assert resnext in run("convert", tmp_path / "f.safetensors", tmp_path / "g.pth").out
    assert resnext in run("convert", tmp_path / "g.pth", tmp_path / "h").out


def test_weights_for_384_pixels(tmp_path):
    file = torch_files.save_zip(random_state("t2t_vit_14", img_size=384, num_classes=1000), tmp_path / "83.3.pth.tar")
    outcome = run("convert", file, tmp_path / "w.pdparams")
    assert "model: t2t_vit_14_384 at 384 px, 1000 classes" in outcome.out
    assert f"--config config/t2t_vit_14_384.yaml --weights {tmp_path / 'w.pdparams'}" in last_line(outcome)
    assert read_record(tmp_path / "w.pdparams").img_size == 384
    assert read_weights(tmp_path / "w")["pos_embed"].shape == (1, 577, 384)


# ---------------------------------------------------------------- the record


def test_the_record_says_what_the_weights_need(tmp_path, training):
    file = torch_files.save_zip(training, tmp_path / "71.7.pth.tar")
    assert run("convert", file, tmp_path / "w", "data.crop_pct=1.0", "data.mean=[0.5, 0.4, 0.3]").code == 0
    record = read_record(tmp_path / "w.pdparams")
    assert record.source == "71.7.pth.tar" and record.dictionary == "state_dict_ema" and record.model == "t2t_vit_7"
    assert (record.img_size, record.num_classes, record.qk_scale) == (SIZE, CLASSES, None)
    assert (record.tensors, record.parameters) == (111, 4_069_862)
    assert record.data == {"resize": "crop", "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3],
                           "std": [0.229, 0.224, 0.225]}  # fmt: skip
    # A conversion of converted weights keeps the settings, unless others are given.
    assert run("convert", tmp_path / "w", tmp_path / "x.pth", "model.qk_scale=0.0625").code == 0
    assert run("convert", tmp_path / "x.pth", tmp_path / "y", "data.interpolation=bilinear").code == 0
    again = read_record(tmp_path / "y.pdparams")
    assert again.data == {**record.data, "interpolation": "bilinear"} and again.qk_scale == 0.0625
    squash = TOOLS.parent / "config" / "t2t_vit_7_squash.yaml"
    assert run("convert", tmp_path / "w", tmp_path / "z", "--config", squash).code == 0
    assert read_record(tmp_path / "z.pdparams").data["resize"] == "squash"


def test_settings_that_contradict_the_weights(tmp_path, training):
    file = torch_files.save_zip(training, tmp_path / "w.pth")
    for word, part in (("model.num_classes=1000", "the weights have 256"), ("model.img_size=64", "the weights have 32"),
                       ("model.name=t2t_vit_14", "not the weights of t2t_vit_14:"), ("data.crop=1", "unknown key"),
                       ("data.crop_pct=9", "data.crop_pct"), ("crop_pct", "crop_pct")):  # fmt: skip
        mistake(run("convert", file, tmp_path / "x", word), part)
    assert run("convert", file, tmp_path / "x", "model.num_classes=256", "model.img_size=32", "train.lr=1").code == 0
    mistake(run("convert", file, tmp_path / "y", "--config", tmp_path / "gone.yaml"), "gone.yaml")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["w.pth", "x.pdparams", "x.pdparams.json"]


def test_a_run_folder_brings_its_settings(tmp_path):
    make_folders(tmp_path / "photos" / "train")
    make_folders(tmp_path / "photos" / "val", count=1)
    words = settings(tmp_path / "photos", tmp_path / "run", train__epochs=1, data__crop_pct=0.5)
    assert run("train", *words).code == 0
    before = snapshot(tmp_path / "run")
    assert run("convert", tmp_path / "run", tmp_path / "w.pth").code == 0
    record = read_record(tmp_path / "w.pth")
    assert record.source == "best.pdparams" and record.data["crop_pct"] == 0.5 and record.num_classes == 3
    # The names of the class folders go along, from record to record.
    assert record.classes == ["ant", "bee", "cow"]
    assert run("convert", tmp_path / "w.pth", tmp_path / "w").code == 0
    assert read_record(tmp_path / "w.pdparams").classes == ["ant", "bee", "cow"]
    assert same(read_weights(tmp_path / "w"), read_weights(tmp_path / "run"))
    assert snapshot(tmp_path / "run") == before
    # What was converted is evaluated by its own settings.
    outcome = run("val", "--weights", tmp_path / "w", "data.name=Made", f"data.val_dir={tmp_path / 'photos' / 'val'}",
                  "data.val_list=null", "data.workers=0")  # fmt: skip
    assert outcome.code == 0 and "Resize(32, bicubic)" in outcome.out and "Made final val acc" in outcome.out


@pytest.mark.parametrize("classes", [10, 100, 7])
def test_the_authors_cifar_files_are_known_by_their_form(tmp_path, classes):
    content = {"net": {f"module.{name}": array for name, array in random_state(num_classes=classes).items()},
               "acc": 98.3, "epoch": 59}  # fmt: skip
    file = torch_files.save_zip(content, tmp_path / "cifar.pth")
    outcome = run("convert", file, tmp_path / "w")
    record = read_record(tmp_path / "w.pdparams")
    assert outcome.code == 0 and record.num_classes == classes
    known = classes != 7
    assert (f"data: as in config/finetune_cifar{classes}.yaml" in outcome.out) is known
    assert record.data["resize"] == ("squash" if known else "crop")
    assert record.data["mean"] == ([0.4914, 0.4822, 0.4465] if known else [0.485, 0.456, 0.406])
    # A configuration that was named goes before.
    assert run("convert", file, tmp_path / "v", "--config", TOOLS.parent / "config" / "t2t_vit_7.yaml").code == 0
    assert read_record(tmp_path / "v.pdparams").data["resize"] == "crop"


# ---------------------------------------------------------------- what does not fit


def refused(tmp_path, content, *words, save=torch_files.save_zip):
    """stdout and the line on stderr of a conversion that must fail and leave nothing."""
    file = content if isinstance(content, type(tmp_path)) else save(content, tmp_path / "source.pth")
    before = snapshot(tmp_path)
    outcome = run("convert", file, tmp_path / "new" / "folder" / "w.pdparams", *words)
    line = mistake(outcome, file)
    assert snapshot(tmp_path) == before and not (tmp_path / "new").exists()
    return outcome.out, line


def test_missing_extra_and_misshapen_tensors_are_listed(tmp_path, state):
    changed = dict(state)
    for name in ("blocks.0.norm1.bias", "norm.weight"):
        changed.pop(name)
    changed.update({f"aux_head.{i}.weight": np.ones((2, 3), "f4") for i in range(7)})
    changed["blocks.1.norm1.bias"] = np.ones(255, "f4")
    changed["blocks.1.attn.qkv.weight"] = np.ones((768, 255), "f4")
    out, line = refused(tmp_path, {"state_dict_ema": {f"module.{name}": array for name, array in changed.items()}})
    for part in ("2 missing (blocks.0.norm1.bias [256]; norm.weight [256])",
                 "7 too much (module.aux_head.0.weight [2, 3]", "and 2 more, listed above",
                 "2 of another shape (module.blocks.1.norm1.bias [255], needed [256]",
                 "qkv.weight [768, 255], needed [768, 256]", "t2t_vit_7, the nearest network", "--drop"):  # fmt: skip
        assert part in line
    assert "too much: module.aux_head.6.weight [2, 3]\n" in out and "missing: norm.weight [256]\n" in out


def test_extra_tensors_can_be_left_out_by_name(tmp_path, state):
    extra = {"aux_head.weight": np.ones((2, 3), "f4"), "aux_head.bias": np.ones(2, "f4"), "epoch": 3}
    file = torch_files.save_zip({"state_dict_ema": {**state, **extra}}, tmp_path / "w.pth")
    outcome = run("convert", file, tmp_path / "w", "--drop", "aux_head.*", "--drop", "epoch")
    assert outcome.code == 0
    for name in extra:
        assert f"dropped: {name}\n" in outcome.out
    assert same(read_weights(tmp_path / "w"), in_paddle(state))
    _, line = refused(tmp_path, file, "--drop", "aux_head.*")
    assert "epoch is no tensor" in line
    _, line = refused(tmp_path, file, "--drop", "*", "--drop", "head.x")
    assert "--drop head.x: no tensor" in line
    _, line = refused(tmp_path, file, "--drop", "aux_*", "--drop", "head.*", "--drop", "epoch")
    assert "2 missing (head.weight [1000, 256]; head.bias [1000])" in line


def test_values_without_meaning(tmp_path, state):
    broken = {**state, "blocks.2.mlp.fc1.bias": np.full(512, np.nan, "f4")}
    assert "blocks.2.mlp.fc1.bias holds NaN or infinity (1 of 111" in refused(tmp_path, {"state_dict_ema": broken})[1]
    integers = {**state, "norm.bias": np.ones(256, "i8")}
    assert "norm.bias is int64" in refused(tmp_path, {"state_dict_ema": integers})[1]


def test_files_whose_linear_weights_lie_the_wrong_way(tmp_path, state):
    untransposed = save_weights(state, tmp_path / "w")
    line = refused(tmp_path, untransposed)[1]
    assert "its Linear weights lie as PyTorch keeps them, though this is a file of Paddle" in line
    line = refused(tmp_path, {name: np.ascontiguousarray(array) for name, array in in_paddle(state).items()})[1]
    assert "its Linear weights lie as Paddle keeps them, though this is a file of PyTorch" in line
    mixed = {**state, "blocks.0.attn.qkv.weight": np.ascontiguousarray(state["blocks.0.attn.qkv.weight"].T)}
    for save in (torch_files.save_zip, write_safetensors):
        line = refused(tmp_path, mixed, save=save)[1]
        assert "1 of another shape (blocks.0.attn.qkv.weight [256, 768], needed [768, 256])" in line


def test_other_networks(tmp_path, state):
    line = refused(tmp_path, state, "--model", "t2t_vit_14")[1]
    assert "not the weights of t2t_vit_14: " in line and "nearest" not in line and "77 missing" in line
    mistake(run("convert", tmp_path / "source.pth", tmp_path / "w", "--model", "t2t_vit_77"), "did you mean t2t_vit_7?")
    vgg = {"features.0.weight": np.ones((64, 3, 3, 3), "f4"), "classifier.6.bias": np.ones(1000, "f4")}
    line = refused(tmp_path, vgg)[1]
    assert "the nearest network" in line and "2 too much (features.0.weight [64, 3, 3, 3]" in line


def test_other_words_of_the_command(tmp_path, training):
    file = torch_files.save_zip(training, tmp_path / "w.pth")
    assert "--key gone" in refused(tmp_path, file, "--key", "gone")[1]
    mistake(run("convert", file), "DST")
    mistake(run("convert"), "SRC")
    mistake(run("convert", tmp_path / "gone.pth", tmp_path / "x"), tmp_path / "gone.pth", "not found")
    mistake(run("convert", tmp_path, tmp_path / "x"), tmp_path, "best.pdparams")
    assert run("convert", "--help").code == 0
    assert [item.name for item in tmp_path.iterdir()] == ["w.pth"]


# ---------------------------------------------------------------- where it goes


def test_nothing_of_the_users_is_replaced_unasked(tmp_path, training, state):
    file = torch_files.save_zip(training, tmp_path / "w.pth")
    for name in ("a.pdparams", "b.pdparams.json", "c.pt"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "d.pdparams").mkdir()
    (tmp_path / "e.pdparams").symlink_to("nowhere")
    before = snapshot(tmp_path)
    for name in ("a.pdparams", "a", "b", "b.pdparams", "c.pt", "e"):
        mistake(run("convert", file, tmp_path / name), "exists already", "--overwrite")
    mistake(run("convert", file, tmp_path / "d"), "is no regular file")
    mistake(run("convert", file, tmp_path / "d", "--overwrite"), "is no regular file")
    for name in ("", ".", f"{tmp_path}/", f"{tmp_path}/new/", tmp_path, tmp_path / "..", tmp_path / "x."):
        mistake(run("convert", file, name), "is a folder or no name")
    mistake(run("convert", file, tmp_path / ("n" * 300)), "longer than 200 bytes")
    mistake(run("convert", file, "/dev/null", "--overwrite"), "is no regular file")
    mistake(run("convert", file, file, "--overwrite"), "is SRC itself")
    mistake(run("convert", file, file), "exists already")
    assert snapshot(tmp_path) == before
    # A failure with --overwrite leaves the old file too.
    mistake(run("convert", file, tmp_path / "a", "--overwrite", "--key", "gone"), "gone")
    assert snapshot(tmp_path) == before
    for name in ("a", "b", "c.pt"):
        assert run("convert", file, tmp_path / name, "--overwrite", "--key", "state_dict").code == 0
    assert same(read_weights(tmp_path / "a"), in_paddle(state)) and read_record(tmp_path / "b.pdparams")


def test_names_that_are_no_format(tmp_path, training):
    file = torch_files.save_zip(training, tmp_path / "w.pth")
    for name in ("w.onnx", "w.tar", "71.7_T2T_ViT_7", "w.npz"):
        mistake(run("convert", file, tmp_path / name), tmp_path / name, ".pdparams, .safetensors, .pth, .pt, .pth.tar")


@pytest.mark.parametrize("suffix", [".pdparams", ".safetensors", ".pth"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, state, suffix, call):
    file = torch_files.save_zip(state, tmp_path / "source.pth")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / f"w{suffix}").write_bytes(b"mine")
    before, calls = snapshot(tmp_path), []

    def full_disk(*arguments):
        calls.append(1)
        if len(calls) >= call:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    for folder in (tmp_path / "new" / "folder", tmp_path / "old"):
        calls.clear()
        outcome = run("convert", file, folder / f"w{suffix}", "--overwrite")
        mistake(outcome, f"{folder / 'w'}{suffix}", "No space left on device")
        assert ".converting-" not in outcome.err and len(calls) == call
        assert snapshot(tmp_path) == before and not (tmp_path / "new").exists()
        assert not list(tmp_path.rglob(".*"))


def test_folders_that_cannot_be_written(tmp_path, state):
    file = torch_files.save_zip(state, tmp_path / "source.pth")
    mistake(run("convert", file, file / "w.pdparams"), file / "w.pdparams")
    mistake(run("convert", file, "/proc/none/w.pdparams"), "cannot write /proc/none/w.pdparams")
    assert [item.name for item in tmp_path.iterdir()] == ["source.pth"]


# ---------------------------------------------------------------- the rest


def test_check_prints_a_fingerprint(tmp_path, state):
    file = torch_files.save_zip(state, tmp_path / "w.pth")
    lines = []
    for source, target in ((file, "a.pdparams"), (tmp_path / "a.pdparams", "b.safetensors")):
        outcome = run("convert", source, tmp_path / target, "--check")
        assert outcome.code == 0 and "check: 111 tensors loaded" in outcome.out
        lines.append([line for line in outcome.out.splitlines() if "fingerprint" in line or line.startswith("image")])
    assert lines[0] == lines[1] and lines[0]
    other = torch_files.save_zip({**state, "norm.bias": state["norm.bias"] + 1}, tmp_path / "other.pth")
    outcome = run("convert", other, tmp_path / "c", "--check")
    assert not set(lines[0][1:]) & set(outcome.out.splitlines())


def test_torch_is_not_needed_and_not_imported(tmp_path, state):
    file = torch_files.save_legacy(state, tmp_path / "w.pth")
    code = f"""
import sys
sys.modules["torch"] = sys.modules["timm"] = None
sys.path.insert(0, {str(TOOLS)!r})
import convert
assert convert.main([{str(file)!r}, {str(tmp_path / 'w.pdparams')!r}]) == 0
assert convert.main([{str(tmp_path / 'w.pdparams')!r}, {str(tmp_path / 'x.pth')!r}]) == 0
assert sys.modules["torch"] is None
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    assert same(read_weights(tmp_path / "w"), in_paddle(state))


def test_bad_files_are_refused_without_starting_paddle(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"PK\x03\x04 and nothing")
    code = f"""
import sys
sys.path.insert(0, {str(TOOLS)!r})
import convert
from errors import run_command
code = run_command(convert.main, [{str(tmp_path / 'w.pth')!r}, {str(tmp_path / 'w.pdparams')!r}])
assert "paddle" not in sys.modules
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done


def test_as_a_process_from_another_folder(tmp_path, state):
    torch_files.save_zip(state, tmp_path / "w.pth")
    outcome = process("convert", "w.pth", "out/w.pdparams", cwd=tmp_path)
    assert outcome.code == 0 and outcome.err == ""
    assert same(read_weights(tmp_path / "out" / "w"), in_paddle(state))
    assert json.loads((tmp_path / "out" / "w.pdparams.json").read_text())["source"] == "w.pth"


def test_the_largest_network(tmp_path):
    """Prints how long T2T-ViT-24 takes; the time decides nothing, since machines differ."""
    state = random_state("t2t_vit_24", img_size=224, num_classes=1000)
    file = torch_files.save_legacy({"state_dict_ema": state}, tmp_path / "82.3_T2T_ViT_24.pth.tar")
    start = time.perf_counter()
    outcome = process("convert", file, tmp_path / "w.pdparams")
    print(f"T2T-ViT-24 converted in {time.perf_counter() - start:.1f} s")
    assert "--config config/t2t_vit_24.yaml" in last_line(outcome)
    assert read_record(tmp_path / "w.pdparams").parameters == 64_105_934
    found = read_weights(tmp_path / "w")
    assert same(found, in_paddle(state))
    shutil.rmtree(tmp_path)
