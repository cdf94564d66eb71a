"""The configurations that ship: they load, say what they are for, and hold the recipes of their sources."""

import dataclasses
import math
from dataclasses import replace

import pytest
import yaml
from engine.config import load_config
from engine.schema import KEYS, SECTIONS, Config
from models import ROWS

MODELS = [
    *("t2t_vit_7", "t2t_vit_10", "t2t_vit_12", "t2t_vit_14", "t2t_vit_19", "t2t_vit_24"),
    *("t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"),
    *("t2t_vit_14_resnext", "t2t_vit_14_wide", "t2t_vit_14_wo_t2t", "t2t_vit_c_14"),
]


def test_every_shipped_file_loads_and_says_what_it_is_for(root):
    files = sorted((root / "config").glob("*.yaml"))
    assert len(files) >= len(MODELS) + 1
    for file in files:
        config = load_config(file)
        assert config.output.startswith(("output/", "/root/paddlejob/workspace/output/"))
        head = file.read_text(encoding="utf-8").split("\nbase:")[0]
        for word in ("scripts/val.sh config/" + file.name, "Hardware:", "Time:", "Reach:"):
            assert word in head, (file, word)


@pytest.mark.parametrize("name", MODELS)
def test_every_published_network_has_a_file_with_its_recipe(root, name):
    config = load_config(root / "config" / f"{name}.yaml")
    assert config.model == dataclasses.replace(Config().model, name=name)
    assert config.output == f"output/{name}"
    assert config.val.weights in (f"output/{name}", f"output/{name}.pdparams")
    lite = name in ("t2t_vit_7", "t2t_vit_10", "t2t_vit_12")
    large = name.endswith(("_19", "_24"))
    assert config.train.lr == (1e-3 if lite else 5e-4)
    assert config.train.weight_decay == (0.03 if lite else 0.065 if large else 0.05)
    assert config.train.batch_size == (128 if lite else 64)
    assert (config.train.epochs, config.train.warmup_epochs, config.train.cooldown_epochs) == (310, 10, 10)


def test_each_file_has_its_own_target(root):
    targets = {name: load_config(root / "config" / f"{name}.yaml").val.target_acc for name in MODELS}
    assert targets["t2t_vit_7"] == 0.7156
    assert [name for name, value in targets.items() if value == 0.7156] == ["t2t_vit_7"]
    assert load_config(root / "config" / "t2t_vit_7_squash.yaml").val.target_acc == 0.7156
    assert load_config(root / "config" / "quickstart.yaml").val.target_acc != 0.7156


def test_special_files(root):
    large = load_config(root / "config" / "t2t_vit_14_384.yaml")
    assert (large.model.name, large.model.img_size, large.data.crop_pct) == ("t2t_vit_14", 384, 0.9)
    squash = load_config(root / "config" / "t2t_vit_7_squash.yaml")
    assert (squash.data.resize, squash.data.interpolation) == ("squash", "bilinear")
    assert squash.val.weights == "output/t2t_vit_7.pdparams"
    signs = load_config(root / "config" / "sign_digits.yaml")
    assert (signs.model.img_size, signs.train.epochs, signs.data.scale) == (64, 40, (0.5, 1.0))


def test_the_reproduction_repeats_the_earlier_recipe(root):
    config = load_config(root / "config" / "t2t_vit_7_reproduction.yaml")
    data, train = config.data, config.train
    assert (data.scale, data.hflip, data.auto_augment, data.color_jitter, data.reprob) == ((0.05, 1.0), 0, None, 0, 0)
    assert (data.train_interpolation, data.interpolation, data.resize) == ("bilinear", "bilinear", "squash")
    assert (train.smoothing, train.mixup_alpha, train.cutmix_alpha, train.ema_decay) == (0, 0, 0, None)
    assert (train.clip_grad, train.decayed, train.weight_decay, config.model.drop_path) == (1.0, "all", 0.3, 0)
    # 1252 steps of 4 x 256 images, the last one smaller.
    assert (math.ceil(1281167 / (4 * train.batch_size)), data.drop_last) == (1252, False)
    # tests/engine/test_schedule.py compares the rates with the log.
    schedule = (train.lr, train.epochs, train.warmup_epochs, train.warmup_lr, train.min_lr, train.cooldown_epochs)
    assert schedule == (1e-3, 310, 5, 1e-6, 5e-4, 0)
    assert (train.warmup_prefix, train.schedule_start, train.schedule) == (True, 1, "epoch")


def test_networks_that_are_compared_share_the_recipe_of_t2t_vit_14(root):
    shared = load_config(root / "config" / "ablation.yaml").train
    assert shared == load_config(root / "config" / "t2t_vit_14.yaml").train
    for name in ROWS:
        if name.startswith("t2t_") and ROWS[name].source not in ("Table 6", "Table 7"):
            continue
        text = (root / "config" / f"{name}.yaml").read_text(encoding="utf-8")
        assert "\nbase: ablation.yaml\n" in text and "\ntrain:" not in text
        assert load_config(root / "config" / f"{name}.yaml").train == shared


def test_complete_recipe_spells_every_key_with_the_default(root):
    content = yaml.safe_load((root / "config" / "t2t_vit_7.yaml").read_text(encoding="utf-8"))
    spelled = set()
    for name, value in content.items():
        spelled |= {f"{name}.{leaf}" for leaf in value} if name in SECTIONS else {name}
    assert spelled == set(KEYS)
    config = load_config(root / "config" / "t2t_vit_7.yaml")
    # The defaults are the plainest training; the recipe adds what the authors trained with.
    official = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "ema_decay": 0.99996}
    assert (config.model, config.train) == (Config().model, replace(Config().train, **official))
    assert (config.data.auto_augment, config.data.reprob) == ("rand-m9-mstd0.5-inc1", 0.25)
