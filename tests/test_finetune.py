"""Fine-tuning through the commands: from a weights file or a run to other classes and sizes, then val and predict."""

import json

import numpy as np
import pytest
from commands import last_line, make_folders, make_list, make_weights, mistake, run, settings, snapshot
from engine.config import load_config
from weights.paddle_file import read_weights
from weights.record import Record, record_file, sha256_of, write_record

DATA = {"resize": "crop", "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225]}  # fmt: skip
NAMES = ("ant", "bee", "cow", "dog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """train/ and val/ with four classes, and weights of five classes at 32 px."""
    folder = tmp_path_factory.mktemp("images")
    make_folders(folder / "train", NAMES, count=3)
    make_folders(folder / "val", NAMES, count=2, seed=9)
    make_weights(folder / "five", num_classes=5, img_size=32)
    return folder


def recorded(folder, name="t2t_vit_7", **changed):
    """Weights of `name` with a record, as convert leaves them."""
    weights = make_weights(folder / "converted", name=name, num_classes=5, img_size=32)
    values = {"source": "x.pth", "source_sha256": "0" * 64, "dictionary": "state_dict_ema", "model": name,
              "img_size": 32, "num_classes": 5, "qk_scale": None, "data": DATA, "tensors": 1, "parameters": 1,
              "sha256": sha256_of(weights), **changed}  # fmt: skip
    write_record(Record(**values), weights)
    return weights


def finetune(folder, run_folder, init, **more):
    more = {"train__init": init, "model__num_classes": "null", "train__epochs": 1, **more}
    return run("train", *settings(folder, run_folder, **more))


def same(left, right):
    """Whether tensors are equal but for steps of a learning rate of 1e-30, which biases of 0 feel."""
    return left.shape == right.shape and np.abs(left - right).max() < 1e-20


def test_other_classes_and_another_size(folder, tmp_path):
    made = finetune(folder, tmp_path / "run", folder / "five")
    assert made.code == 0, made
    total = len(read_weights(folder / "five"))
    assert f"init: {folder / 'five.pdparams'}: {total - 2} tensors loaded; head re-initialised (5 -> 4 classes); " \
           f"pos_embed resized from 2x2 to 1x1 tokens" in made.out
    assert (tmp_path / "run" / "classes.txt").read_text().split() == list(NAMES)
    assert read_weights(tmp_path / "run")["head.weight"].shape == (256, 4)


@pytest.mark.parametrize("form", ["five", "five.pdparams"])
def test_init_with_and_without_suffix(folder, tmp_path, form):
    assert finetune(folder, tmp_path / "run", folder / form, train__max_steps=1).code == 0


def test_only_the_head_differs_before_the_first_step(folder, tmp_path):
    # A rate of nearly nothing leaves what was loaded as it was.
    weights = make_weights(tmp_path / "w", num_classes=5)
    more = {"train__lr": 1e-30, "train__warmup_lr": 0, "train__min_lr": 0, "train__weight_decay": 0}
    assert finetune(folder, tmp_path / "run", weights, **more).code == 0
    before, after = read_weights(weights), read_weights(tmp_path / "run")
    assert {name for name in before if not same(before[name], after[name])} == {"head.weight", "head.bias"}


def test_the_same_classes_keep_the_head(folder, tmp_path):
    weights = make_weights(tmp_path / "w", num_classes=4)
    more = {"train__lr": 1e-30, "train__warmup_lr": 0, "train__min_lr": 0, "train__weight_decay": 0}
    made = finetune(folder, tmp_path / "run", weights, **more)
    assert "re-initialised" not in made.out
    before, after = read_weights(weights), read_weights(tmp_path / "run")
    assert all(same(before[name], after[name]) for name in before)


def test_a_run_folder_is_all_that_val_and_predict_need(folder, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert finetune(folder, first, folder / "five", data__crop_pct=0.7).code == 0
    # From a run: the network's name comes from its configuration.
    assert finetune(folder, second, first, model__name="null", data__crop_pct=0.7).code == 0
    for run_folder in (first, second):
        assert "Resize(22, bicubic)" in run("val", "--weights", run_folder).out
        made = run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", run_folder, "--json")
        row = json.loads(last_line(made))
        assert sorted(item["name"] for item in row["top"]) == list(NAMES)
    assert "4 classes" not in run("val", "--weights", second).err


def test_val_with_the_configuration_finds_what_is_null_in_the_run(folder, tmp_path):
    assert finetune(folder, tmp_path / "run", folder / "five").code == 0
    words = settings(folder, tmp_path / "run", model__num_classes="null", model__name="null",
                     val__weights=tmp_path / "run")  # fmt: skip
    assert run("val", *words).code == 0


def test_going_on_does_not_need_the_weights_again(folder, tmp_path):
    weights = make_weights(tmp_path / "w", num_classes=5)
    assert finetune(folder, tmp_path / "run", weights, model__name="t2t_vit_7").code == 0
    weights.unlink()
    made = finetune(folder, tmp_path / "run", weights, train__epochs=2, model__name="null")
    assert made.code == 0 and "not read again" in made.out and "going on after epoch 1" in made.out


def test_frozen_parts_stay_as_they_were(folder, tmp_path):
    weights = make_weights(tmp_path / "w", num_classes=4)
    made = finetune(folder, tmp_path / "run", weights, train__freeze="tokens_to_token.*,blocks.[0-5].*")
    assert made.code == 0 and "train.freeze=tokens_to_token.*,blocks.[0-5].*: " in made.out, made
    before, after = read_weights(weights), read_weights(tmp_path / "run")
    same = {name for name in before if np.array_equal(before[name], after[name])}
    frozen = {n for n in before if n.startswith(("tokens_to_token.", *(f"blocks.{i}." for i in range(6))))}
    assert same == frozen | {"pos_embed"}


def test_sgd_and_layer_decay_reach_the_optimiser(folder, tmp_path):
    more = {"train__optimizer": "sgd", "train__layer_decay": 0.5, "train__backbone_lr_scale": 0.1}
    made = finetune(folder, tmp_path / "run", folder / "five", train__decayed="all", train__min_lr=0,
                    train__warmup_lr=0, **more)  # fmt: skip
    assert made.code == 0, made
    assert "peak rates: 0.001 for 2 tensors (head)" in made.out and "with weight decay, 0 without" in made.out


# ---------------------------------------------------------------- records


def test_converted_weights_bring_network_size_and_transform(folder, tmp_path):
    weights = recorded(tmp_path, data={**DATA, "resize": "squash", "interpolation": "bilinear"})
    made = run("val", "--weights", weights, f"data.val_dir={folder / 'val'}",
               f"data.val_list={make_list(folder / 'val', tmp_path / 'list.txt')}", "data.workers=0")  # fmt: skip
    assert made.code == 0, made
    assert "t2t_vit_7 at 32 px" in made.out and "Resize(32x32, bilinear)" in made.out
    assert "target: none set" in made.out
    made = run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", weights)
    assert made.code == 0 and "class_id is:" in made.out


def test_other_settings_than_the_record_are_named(folder, tmp_path):
    weights = recorded(tmp_path)
    words = settings(folder, tmp_path / "run", model__num_classes=5, model__img_size=32, data__crop_pct=1.0,
                     data__val_list=make_list(folder / "val", tmp_path / "list.txt"), val__weights=weights)  # fmt: skip
    made = run("val", *words)
    assert made.code == 0 and "note: data.crop_pct=1.0 here, 0.9 where the weights were trained" in made.out, made


def test_fine_tuning_takes_the_network_from_the_record(folder, tmp_path):
    weights = recorded(tmp_path, name="t2t_vit_10")
    made = finetune(folder, tmp_path / "run", weights, model__name="null", data__mean=[0.5, 0.5, 0.5])
    assert made.code == 0 and "model: t2t_vit_10" in made.out, made
    assert "note: data.mean=" in made.out
    assert "name: t2t_vit_10" in (tmp_path / "run" / "config.yaml").read_text()


def test_size_mean_and_deviation_may_be_those_of_the_weights(folder, tmp_path):
    data = {**DATA, "mean": [0.4, 0.5, 0.6], "std": [0.3, 0.2, 0.1]}
    weights = recorded(tmp_path, data=data)
    nulls = {"model__img_size": "null", "data__mean": "null", "data__std": "null", "model__name": "null"}
    made = finetune(folder, tmp_path / "run", weights, **nulls)
    assert made.code == 0 and "at 32 px" in made.out and "note:" not in made.out, made
    config = load_config(tmp_path / "run" / "config.yaml")
    assert (config.data.mean, config.data.std, config.model.img_size) == ((0.4, 0.5, 0.6), (0.3, 0.2, 0.1), 32)
    # A run tells them as well; without either they are the defaults.
    assert finetune(folder, tmp_path / "again", tmp_path / "run", **nulls).code == 0
    assert load_config(tmp_path / "again" / "config.yaml").data.mean == (0.4, 0.5, 0.6)
    plain = make_weights(tmp_path / "plain", num_classes=5, img_size=224)
    nulls.update(model__name="t2t_vit_7", train__max_steps=1)
    assert finetune(folder, tmp_path / "plain_run", plain, **nulls).code == 0
    config = load_config(tmp_path / "plain_run" / "config.yaml")
    assert (config.data.mean, config.model.img_size) == ((0.485, 0.456, 0.406), 224)


def test_names_of_the_classes_travel_with_the_record(folder, tmp_path):
    names = ["rot", "grün", "blau", "a b", "z"]
    weights = recorded(tmp_path, classes=names)
    made = run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", weights, "--json")
    assert sorted(row["name"] for row in json.loads(last_line(made))["top"]) == sorted(names)


@pytest.mark.parametrize("changed", [{"img_size": 64}, {"img_size": 16000}, {"num_classes": 10**9}, {"model": "no"}])
def test_a_record_that_contradicts_its_weights_is_named(folder, tmp_path, changed):
    weights = recorded(tmp_path, **changed)
    mistake(run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", weights), weights.name)
    if changed == {"img_size": 64}:
        # Its table must not be resized from a size that it does not have.
        made = finetune(folder, tmp_path / "run", weights, model__img_size="null")
        mistake(made, f"{weights.name}.json tells of 64 px")


def test_a_class_without_validation_image_is_told(folder, tmp_path):
    make_folders(tmp_path / "val", NAMES[:3], count=1)
    made = finetune(folder, tmp_path / "run", folder / "five", data__val_dir=tmp_path / "val")
    assert made.code == 0 and "no validation image of 1 class(es), such as 'dog'" in made.out


def test_networks_that_only_the_record_tells_apart(folder, tmp_path):
    # Same names and shapes, other heads: without the record the wrong network would run and give wrong results.
    weights = recorded(tmp_path, name="t2t_vit_14_resnext")
    words = settings(folder, tmp_path / "run", model__name="t2t_vit_14", model__num_classes=5, model__img_size=32,
                     val__weights=weights)  # fmt: skip
    mistake(run("val", *words), "t2t_vit_14_resnext", "set model.name=")
    mistake(finetune(folder, tmp_path / "run", weights, model__name="t2t_vit_14"), "set model.name=")
    assert not (tmp_path / "run").exists()


def test_another_attention_scale_than_the_record_is_refused(folder, tmp_path):
    weights = recorded(tmp_path, qk_scale=0.0625)
    words = settings(folder, tmp_path / "run", model__num_classes=5, model__img_size=32, val__weights=weights)
    mistake(run("val", *words), "model.qk_scale", "0.0625")
    assert run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", weights).code == 0


def test_the_attention_scale_comes_with_the_network(folder, tmp_path):
    weights = recorded(tmp_path, qk_scale=0.0625)
    assert finetune(folder, tmp_path / "run", weights, model__name="null").code == 0
    assert load_config(tmp_path / "run" / "config.yaml").model.qk_scale == 0.0625


def test_a_record_of_other_weights_stops(folder, tmp_path):
    weights = recorded(tmp_path, sha256="0" * 64)
    mistake(run("predict", folder / "val" / "ant" / "0.JPEG", "--weights", weights), record_file(weights), "SHA-256")


# ---------------------------------------------------------------- mistakes


def test_mistakes_end_in_one_line_and_leave_nothing(folder, tmp_path):
    before = snapshot(folder)
    damaged = tmp_path / "damaged.pdparams"
    damaged.write_bytes((folder / "five.pdparams").read_bytes()[:-100])
    pytorch = tmp_path / "x.pth.tar"
    pytorch.write_bytes(b"PK\x03\x04" + bytes(100))
    cases = [
        ({"init": tmp_path / "none"}, ["weights not found", "none"]),
        ({"init": damaged}, ["damaged"]),
        ({"init": folder}, ["no best.pdparams"]),
        ({"init": "", "model__name": "null"}, ["model.name is null", "train.init"]),
        ({"init": folder / "five", "model__name": "null"}, ["model.name is null", "record", "t2t_vit_7"]),
        ({"init": pytorch, "model__name": "null"}, ["is a PyTorch file", "scripts/convert.sh"]),
        ({"init": folder / "five", "model__name": "t2t_vit_10"}, ["10 blocks", "7 blocks"]),
        ({"init": folder / "five", "train__freeze": "block.*"}, ["train.freeze", "block.*", "blocks.*"]),
        ({"init": folder / "five", "train__freeze": "*"}, ["train.freeze", "no parameter is left"]),
        ({"init": folder / "five", "train__backbone_lr_scale": 0.001}, ["train.min_lr", "backbone_lr_scale"]),
        ({"init": folder / "five", "train__optimizer": "adam"}, ["train.optimizer", "adamw, sgd"]),
        ({"init": folder / "five", "data__train_dir": folder / "train" / "ant"}, ["no class folders"]),
    ]
    for more, parts in cases:
        mistake(finetune(folder, tmp_path / "run", **more), *parts)
        assert not (tmp_path / "run").exists(), more
    assert snapshot(folder) == before


def test_a_list_does_not_tell_the_number_of_classes(folder, tmp_path):
    words = {"data__train_list": make_list(folder / "train", tmp_path / "list.txt")}
    mistake(finetune(folder, tmp_path / "run", folder / "five", **words), "model.num_classes")


def test_the_run_keeps_its_optimiser(folder, tmp_path):
    assert finetune(folder, tmp_path / "run", folder / "five").code == 0
    mistake(finetune(folder, tmp_path / "run", folder / "five", train__epochs=2, train__optimizer="sgd"),
            "train.optimizer=sgd", "adamw")  # fmt: skip
    mistake(finetune(folder, tmp_path / "run", folder / "five", train__epochs=2, train__freeze="blocks.0.*"),
            "train.freeze")  # fmt: skip
    mistake(finetune(folder, tmp_path / "run", "elsewhere", train__epochs=2), "train.init=elsewhere")


def test_the_shipped_configuration_names_what_to_give(root):
    config = root / "config" / "finetune.yaml"
    mistake(run("train", "--config", config), "model.name is null", "train.init")
    mistake(run("train", "--config", config, "model.name=t2t_vit_7"), "data.train_dir is not set")
