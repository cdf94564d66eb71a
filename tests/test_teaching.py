"""Trainings with a teacher through the command: which ones it takes, what it tells, and going on after a cut."""

import pytest
from commands import make_folders, make_list, make_weights, metrics, mistake, run, settings, snapshot
from engine.config import load_config
from weights.paddle_file import read_weights
from weights.record import Record, sha256_of, write_record

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train", count=4)
    make_folders(folder / "val", count=2, seed=50)
    return folder


@pytest.fixture(scope="module")
def teacher(photos, tmp_path_factory):
    """The run folder of a MobileNet with a normalisation of its own."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    words = settings(photos, folder, model__name="mobilenet_v3", model__drop_path=0, train__epochs=1,
                     data__mean=list(MEAN), data__std=list(STD))  # fmt: skip
    outcome = run("train", *words)
    assert outcome.code == 0, outcome
    return folder


def taught(photos, folder, teacher, **more):
    return run("train", *settings(photos, folder, train__teacher=teacher, **more))


def with_record(folder, **changed):
    """A teacher's weights with a record, as convert leaves them."""
    folder.mkdir(exist_ok=True)
    weights = make_weights(folder / "converted")
    data = {"resize": "crop", "crop_pct": 0.9, "interpolation": "bicubic", "mean": list(MEAN), "std": list(STD)}
    values = {"source": "x.pth", "source_sha256": "0" * 64, "dictionary": "state_dict", "model": "t2t_vit_7",
              "img_size": 16, "num_classes": 3, "qk_scale": None, "data": data, "tensors": 1, "parameters": 1,
              "sha256": sha256_of(weights), **changed}  # fmt: skip
    write_record(Record(**values), weights)
    return weights


def test_a_cnn_teaches_and_the_run_goes_on_after_a_cut(photos, teacher, tmp_path):
    kept = snapshot(teacher)
    more = {"train__distill": "soft", "train__distill_temperature": 2, "train__mixup_alpha": 0.8}
    straight = taught(photos, tmp_path / "straight", teacher, **more)
    assert straight.code == 0, straight
    assert f"teacher: mobilenet_v3, 4,205,875 parameters, from {teacher / 'best.pdparams'}" in straight.out
    assert "soft distillation: 0.5 x labels + 0.5 x 2^2 x KL divergence at temperature 2; images are normalised anew" \
        in straight.out
    cut = taught(photos, tmp_path / "cut", teacher, **more, train__save_steps=1, train__max_hours=1e-9)
    assert cut.code == 0 and "stopped by train.max_hours" in cut.out, cut
    # In the middle of the first epoch.
    assert metrics(tmp_path / "cut", "val") == []
    again = taught(photos, tmp_path / "cut", teacher, **more)
    assert "going on in epoch 1 after step 1" in again.out, again
    for name in ("best", "last"):
        assert snapshot(tmp_path / "cut")[f"{name}.pdparams"] == snapshot(tmp_path / "straight")[f"{name}.pdparams"]
    assert load_config(tmp_path / "cut" / "config.yaml").train.teacher == str(teacher)
    assert snapshot(teacher) == kept


def test_the_network_begins_as_without_a_teacher(photos, teacher, tmp_path):
    nothing = {"train__epochs": 1, "train__lr": 1e-30, "train__warmup_lr": 0, "train__min_lr": 0}
    assert run("train", *settings(photos, tmp_path / "alone", **nothing)).code == 0
    assert taught(photos, tmp_path / "taught", teacher, **nothing).code == 0
    alone, taught_ = (read_weights(tmp_path / name) for name in ("alone", "taught"))
    assert all(abs(alone[name] - taught_[name]).max() < 1e-20 for name in alone)


def test_a_record_tells_the_teacher(photos, tmp_path):
    outcome = taught(photos, tmp_path / "run", with_record(tmp_path), train__epochs=1)
    assert outcome.code == 0 and "teacher: t2t_vit_7" in outcome.out and "hard distillation" in outcome.out


def test_a_changed_teacher_is_refused_and_another_place_is_told(photos, teacher, tmp_path):
    first = with_record(tmp_path / "first")
    assert taught(photos, tmp_path / "run", first, train__epochs=1).code == 0
    before = snapshot(tmp_path / "run")
    other = taught(photos, tmp_path / "run", teacher)
    mistake(other, f"train.teacher={teacher}", "other weights", "choose another output")
    assert snapshot(tmp_path / "run")["last.pdparams"] == before["last.pdparams"]
    moved = with_record(tmp_path / "moved")
    outcome = taught(photos, tmp_path / "run", moved)
    assert outcome.code == 0 and f"train.teacher was {first}, now {moved}" in outcome.out
    # A run that is complete needs it no more.
    moved.unlink()
    assert "the run is complete" in taught(photos, tmp_path / "run", moved).out


@pytest.mark.parametrize(("changed", "parts"), [
    ({"train__teacher": "nowhere"}, ("weights not found", "nowhere")),
    ({"train__distill": "warm"}, ("train.distill=warm", "hard, soft")),
    ({"train__distill_alpha": 1.5}, ("train.distill_alpha=1.5", "at most 1")),
    ({"train__distill_temperature": 0}, ("train.distill_temperature=0", "above 0")),
    ({"model__img_size": 32}, ("trained on 16 pixels", "model.img_size=32", "give a teacher")),
])  # fmt: skip
def test_mistakes_leave_nothing_behind(photos, teacher, tmp_path, changed, parts):
    mistake(run("train", *settings(photos, tmp_path / "run", **{"train__teacher": teacher, **changed})), *parts)
    assert not (tmp_path / "run").exists()


def test_teachers_of_other_classes_and_of_no_known_network(photos, teacher, tmp_path):
    four = make_folders(tmp_path / "four" / "train", names=("ant", "bee", "cow", "dog"), count=1).parent
    make_folders(four / "val", names=("ant",), count=1)
    more = {"model__num_classes": "null", "train__batch_size": 2}
    mistake(taught(four, tmp_path / "run", teacher, **more), "trained on 3 classes", "model.num_classes=4")
    other = make_folders(tmp_path / "other" / "train", names=("ant", "bee", "cat"), count=1).parent
    make_folders(other / "val", names=("ant",), count=1)
    mistake(taught(other, tmp_path / "run", teacher, train__batch_size=2), "class 'cow' is 'cat'", "data.train_dir")
    bare = make_weights(tmp_path / "bare")
    mistake(taught(photos, tmp_path / "run", bare), bare, "neither a record nor a run", "tools/convert.py")
    itself = taught(photos, teacher, teacher, model__name="mobilenet_v3", model__drop_path=0)
    mistake(itself, "run folder of this training itself", "choose another output")
    assert not (tmp_path / "run").exists()


def test_lists_name_no_classes_to_compare(photos, teacher, tmp_path):
    lists = {f"data__{split}_list": make_list(photos / split, tmp_path / f"{split}.txt") for split in ("train", "val")}
    assert taught(photos, tmp_path / "run", teacher, train__epochs=1, train__max_steps=1, **lists).code == 0
