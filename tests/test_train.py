"""The training command: what it prints and keeps, going on, and the commands that it proposes."""

import math
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from commands import (
    cut_short,
    make_folders,
    make_list,
    metrics,
    mistake,
    process,
    run,
    settings,
    snapshot,
)
from models import build_model
from weights.paddle_file import read_weights, save_weights

PROGRESS = re.compile(
    r"^Epoch \[\d+/2\], Step \[\d+/3\], Loss: \d+\.\d{4},acc: [01]\.\d{4}, read_time: \d+\.\d{4}, "
    r"train_time: \d+\.\d{4}, lr: 0\.\d+",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """train/ and val/ with three class folders each, 12 and 6 images."""
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train")
    make_folders(folder / "val", count=2, seed=50)
    return folder


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """A finished run of two epochs: its folder and the command's outcome."""
    folder = tmp_path_factory.mktemp("runs") / "a run"
    outcome = run("train", *settings(photos, folder))
    assert outcome.code == 0, outcome.err
    return folder, outcome


def proposals(outcome):
    """The proposed commands by name, as lists of words."""
    found = dict(re.findall(r"^(validate|predict): +(.+)$", outcome.out, re.MULTILINE))
    assert set(found) == {"validate", "predict"}
    return {name: shlex.split(line) for name, line in found.items()}


# ---------------------------------------------------------------- one run


def test_progress_lines_follow_the_contract(trained):
    _, outcome = trained
    assert len(PROGRESS.findall(outcome.out)) == 4
    assert re.search(r"^Step \[2/2\], acc: [01]\.\d{4}, read_time: \d+\.\d{4}", outcome.out, re.MULTILINE)
    assert outcome.err == ""


def test_facts_are_told_once(trained):
    _, outcome = trained
    for fact in ("config: ", "device: cpu", "t2t_vit_7 at 16 px, 3 classes", "train: 12 images", "val: 6 images",
                 "Resize(17, bicubic) CenterCrop(16)", "batch: 4 per process x 1 = 4", "2 epochs of 3 steps"):
        assert outcome.out.count(fact) == 1, fact


def test_run_folder_is_complete(trained):
    folder, outcome = trained
    kept = {item.name for item in folder.iterdir()}
    assert kept == {"config.yaml", "train.log", "metrics.jsonl", "vdl", "checkpoints", "best.pdparams", "last.pdparams",
                    "classes.txt", "lock"}
    assert (folder / "train.log").read_text(encoding="utf-8") == outcome.out
    assert (folder / "classes.txt").read_text(encoding="utf-8").split() == ["ant", "bee", "cow"]
    assert [(row["epoch"], row["step"]) for row in metrics(folder, "train")] == [(1, 2), (1, 3), (2, 2), (2, 3)]
    assert [row["epoch"] for row in metrics(folder, "val")] == [1, 2]
    assert all(row["images"] == 6 for row in metrics(folder, "val"))
    assert any(item.stat().st_size for item in (folder / "vdl").iterdir())
    assert read_weights(folder / "last.pdparams").keys() == read_weights(folder / "best.pdparams").keys()


def test_kept_configuration_is_resolved_and_gives_the_same_run(trained, photos, tmp_path):
    folder, _ = trained
    kept = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert kept["model"]["img_size"] == 16 and kept["data"]["train_dir"] == str(photos / "train")
    assert kept["train"]["beta2"] == 0.999 and "base" not in kept
    again = run("train", "--config", folder / "config.yaml", f"output={tmp_path / 'again'}")
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "last.pdparams").read_bytes() == (folder / "last.pdparams").read_bytes()


def test_list_files_and_other_settings(photos, tmp_path):
    lists = {f"data__{split}_list": make_list(photos / split, tmp_path / f"{split}.txt") for split in ("train", "val")}
    more = {"train__smoothing": 0.0, "train__clip_grad": "1.0", "model__drop_rate": 0.1, "train__val_every": 2}
    outcome = run("train", *settings(photos, tmp_path / "run", **lists, **more))
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "run" / "classes.txt").exists()
    assert [row["epoch"] for row in metrics(tmp_path / "run", "val")] == [2]
    first = run("predict", photos / "val" / "ant" / "0.JPEG", "--weights", tmp_path / "run")
    assert re.search(r"^ +\d+  0\.\d{4}$", first.out, re.MULTILINE), "list files give no names"


def test_floats_that_yaml_reads_as_text(photos, tmp_path):
    (tmp_path / "c.yaml").write_text("train: {lr: 1e-3, weight_decay: 5e-2, min_lr: 1e-5}\n", encoding="utf-8")
    words = settings(photos, tmp_path / "run", train__epochs=1, train__max_steps=1, train__warmup_lr="1e-7")
    outcome = run("train", "--config", tmp_path / "c.yaml", *words)
    assert outcome.code == 0, outcome.err
    assert "lr 0.001 (used as given), weight decay 0.05;" in outcome.out


# ---------------------------------------------------------------- mixing


@pytest.mark.parametrize("drop_last, told, steps", [
    ("true", "data.drop_last: the last 3 images of each epoch's order do not fill a batch and are left out", 1),
    ("false", "the last batch of each epoch has 3 images", 2),
])  # fmt: skip
def test_mixing_takes_odd_batches_and_validation_has_plain_cross_entropy(tmp_path, drop_last, told, steps):
    make_folders(tmp_path / "train", names=("ant",), count=3)
    make_folders(tmp_path / "train", names=("bee",), count=4)
    make_folders(tmp_path / "val", names=("ant", "bee"), count=2, seed=50)
    # A head of zeros that no step moves: the loss is that of guessing between two classes, without any smoothing.
    network = build_model("t2t_vit_7", img_size=16, num_classes=2)
    for parameter in network.head.parameters():
        parameter.set_value(paddle.zeros_like(parameter))
    save_weights(network.state_dict(), tmp_path / "zero.pdparams")
    words = settings(tmp_path, tmp_path / "run", train__init=tmp_path / "zero.pdparams", train__warmup_lr=0,
                     train__warmup_epochs=5, train__epochs=1, model__num_classes=2, data__drop_last=drop_last,
                     train__mixup_alpha=0.8, train__cutmix_alpha=1.0, train__smoothing=0.1)  # fmt: skip
    outcome = run("train", *words)
    assert outcome.code == 0, outcome.err
    assert told in outcome.out and f"1 epochs of {steps} steps" in outcome.out
    (row,) = metrics(tmp_path / "run", "val")
    assert row["loss"] == pytest.approx(math.log(2), abs=1e-6)
    outcome = run("val", "--weights", tmp_path / "run")
    assert outcome.code == 0 and re.search(r"loss: 0\.6931\b", outcome.out), outcome


# ---------------------------------------------------------------- proposed commands


def test_proposed_commands_work_as_printed(trained, photos, monkeypatch):
    # The run folder's name needs quotes, and the weights' path is relative to a folder other than the root.
    folder, _ = trained
    monkeypatch.chdir(folder.parent)
    words = proposals(run("train", *settings(photos, folder)))
    assert words["validate"][-1] == words["predict"][-1] == "a run/best.pdparams"
    val, predict = (subprocess.run(words[name], capture_output=True, text=True) for name in ("validate", "predict"))
    assert val.returncode == 0 and val.stderr == "", val
    best = max(row["top1"] for row in metrics(folder, "val"))
    assert val.stdout.splitlines()[-1] == f"Made final val acc is:{best:.4f}"
    assert predict.returncode == 0 and predict.stderr == "", predict
    assert re.search(r"^class_id is: [012]$", predict.stdout, re.MULTILINE)
    assert re.search(r"  (ant|bee|cow)$", predict.stdout, re.MULTILINE)


def test_proposed_commands_in_the_root(trained, photos, monkeypatch, root):
    monkeypatch.chdir(root)
    for words in proposals(run("train", *settings(photos, trained[0]))).values():
        assert words[1] in ("tools/val.py", "tools/predict.py")
        assert run(Path(words[1]).stem, *words[2:]).code == 0


# ---------------------------------------------------------------- going on


def test_a_finished_run_says_so_and_keeps_all(trained, photos):
    folder, _ = trained
    before = snapshot(folder)
    for epochs in (2, 1):
        outcome = run("train", *settings(photos, folder, train__epochs=epochs))
        assert outcome.code == 0
        assert f"the run is complete; to train longer raise train.epochs (now {epochs})" in outcome.out
        assert "Epoch [" not in outcome.out
    after = snapshot(folder)
    # The logs are appended to.
    assert all(after[name].startswith(before[name]) for name in before)
    assert {name.split("/")[0] for name in before if after[name] != before[name]} <= {"train.log", "vdl"}


def test_more_epochs_go_on_after_the_last(photos, tmp_path):
    words = settings(photos, tmp_path / "run", train__epochs=1)
    assert run("train", *words).code == 0
    outcome = run("train", *words, "train.epochs=3")
    assert outcome.code == 0, outcome.err
    assert "going on after epoch 1 from" in outcome.out and "train.epochs was 1, now 3" in outcome.out
    assert re.search(r"Epoch \[(\d)/3\]", outcome.out)[1] == "2"
    assert [row["epoch"] for row in metrics(tmp_path / "run", "val")] == [1, 2, 3]
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert kept["train"]["epochs"] == 3


def test_interrupted_is_uninterrupted(photos, tmp_path, trained):
    # The schedule depends on train.epochs, so the first part runs under the full count and is stopped from inside.
    from engine.loop import Trainer

    class Stop(Exception):
        pass

    keep, words = Trainer._keep, settings(photos, tmp_path / "run")

    def keep_and_stop(self, *arguments):
        keep(self, *arguments)
        raise Stop

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Trainer, "_keep", keep_and_stop)
        run("train", *words)
    outcome = run("train", *words)
    assert outcome.code == 0 and "going on after epoch 1" in outcome.out
    assert (tmp_path / "run" / "last.pdparams").read_bytes() == (trained[0] / "last.pdparams").read_bytes()


def test_a_run_is_not_continued_on_other_classes(trained, photos, tmp_path):
    make_folders(tmp_path / "train", names=("ant", "bee", "dog"))
    make_folders(tmp_path / "val", names=("ant", "bee", "dog"), count=1)
    before = snapshot(trained[0])
    outcome = run("train", *settings(tmp_path, trained[0], train__epochs=3))
    mistake(outcome, tmp_path / "train", "'dog'", "'cow'", "choose another output")
    outcome = run("train", *settings(photos, trained[0], train__epochs=3, model__img_size=32))
    mistake(outcome, "model.img_size=32", "model.img_size=16", "choose another output")
    assert snapshot(trained[0]) == before


# ---------------------------------------------------------------- workers and steps


def test_number_of_workers_changes_no_bit(trained, photos, tmp_path):
    outcome = run("train", *settings(photos, tmp_path / "run", data__workers=2))
    assert outcome.code == 0, outcome.err
    one, two = (read_weights(folder / "last.pdparams") for folder in (trained[0], tmp_path / "run"))
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_may_be_stopped_early(photos, tmp_path, workers):
    words = settings(photos, tmp_path / "run", data__workers=workers, train__epochs=3, train__batch_size=2,
                     train__max_steps=3, train__log_every=1)
    outcome = run("train", *words)
    assert outcome.code == 0, outcome.err
    steps = [(row["epoch"], row["step"]) for row in metrics(tmp_path / "run", "train")]
    assert steps == [(epoch, step) for epoch in (1, 2, 3) for step in (1, 2, 3)]


def test_a_set_smaller_than_a_batch_is_used_and_said(photos, tmp_path):
    words = settings(photos, tmp_path / "run", train__epochs=1, train__batch_size=100)
    outcome = run("train", *words)
    assert outcome.code == 0 and "12 images do not fill one batch of 100; the incomplete batch is used" in outcome.out


@pytest.mark.parametrize("shared", [True, False])
def test_shared_memory_may_be_left_unused(photos, tmp_path, monkeypatch, shared):
    import wiring

    given, build = [], wiring.build_loader
    monkeypatch.setattr(wiring, "build_loader", lambda *a, **named: given.append(named) or build(*a, **named))
    words = settings(photos, tmp_path / "run", data__use_shared_memory=shared, train__epochs=1, train__max_steps=1)
    assert run("train", *words).code == 0
    assert [named["use_shared_memory"] for named in given] == [shared, shared]


# ---------------------------------------------------------------- images that cannot be read


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(tmp_path, workers):
    # Workers end with their process, so this one has its own.
    command = process if workers else run
    make_folders(tmp_path / "train")
    make_folders(tmp_path / "val", count=1)
    path = cut_short(tmp_path / "train" / "bee" / "broken.jpg")
    outcome = command("train", *settings(tmp_path, tmp_path / "run", data__workers=workers, train__batch_size=13))
    mistake(outcome, path, "runcated", "data.on_error=skip")
    assert not (tmp_path / "run" / "last.pdparams").exists()


def test_broken_images_may_be_skipped_and_are_counted(tmp_path):
    make_folders(tmp_path / "train")
    make_folders(tmp_path / "val", count=1)
    cut_short(tmp_path / "train" / "bee" / "broken.jpg")
    cut_short(tmp_path / "val" / "bee" / "broken.jpg")
    words = settings(tmp_path, tmp_path / "run", data__on_error="skip", train__batch_size=13, train__epochs=1)
    outcome = run("train", *words)
    assert outcome.code == 0, outcome.err
    assert "skipped images: 1" in outcome.out
    assert "1 undecodable validation image(s) left out of this accuracy" in outcome.out
    assert metrics(tmp_path / "run", "val")[0]["images"] == 3


def test_file_names_that_are_not_utf8(tmp_path):
    make_folders(tmp_path / "train", count=1)
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    os.rename(tmp_path / "val" / "ant" / "0.JPEG", os.fsencode(tmp_path / "val" / "ant") + b"/\xff.JPEG")
    words = settings(tmp_path, tmp_path / "run", train__epochs=1, train__batch_size=3)
    outcome = process("train", *words, PYTHONIOENCODING="utf-8:strict")
    assert outcome.code == 0 and outcome.err == "", outcome
    assert (tmp_path / "run" / "train.log").read_text(encoding="utf-8") == outcome.out


# ---------------------------------------------------------------- what ships


def test_smoke_default_configuration_runs_unedited(root, tmp_path):
    """The complete recipe on the shipped photos, at its own size and batch; only short, and into another folder."""
    outcome = process("train", "train.epochs=1", "train.max_steps=1", f"output={tmp_path / 'run'}", cwd=tmp_path)
    assert outcome.code == 0 and outcome.err == "", outcome
    assert "t2t_vit_7 at 224 px, 1000 classes, 4,310,222 parameters (4,255,694 trained" in outcome.out
    assert re.search(r"^ImageNet val acc is:[01]\.\d{4}", outcome.out, re.MULTILINE)
    predict = run("predict", root / "lit_data" / "cat.jpg", "--weights", tmp_path / "run")
    assert predict.code == 0 and re.search(r" +\d+  0\.\d{4}  n\d{8}  \w+", predict.out)


def test_default_table_of_names_stands_back_for_other_classes(trained, photos):
    # The configurations inherit the names of ImageNet; a run on other folders shows its own.
    folder, _ = trained
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["data"]["class_names"]
    outcome = run("predict", photos / "val" / "ant" / "0.JPEG", "--weights", folder)
    assert set(re.findall(r"\d  (\S+)$", outcome.out, re.MULTILINE)) == {"ant", "bee", "cow"}


def test_own_names_must_fit_before_training_starts(photos, tmp_path):
    (tmp_path / "names.txt").write_text("a\nb\n", encoding="utf-8")
    words = settings(photos, tmp_path / "run", data__class_names=tmp_path / "names.txt")
    mistake(run("train", *words), tmp_path / "names.txt", "2 lines, expected 3")
    assert not (tmp_path / "run").exists()


