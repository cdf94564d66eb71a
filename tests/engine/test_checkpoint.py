"""The run folder: what survives a kill, a full disk or a foreign file, and going on bit for bit."""

import gc
import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import paddle
import pytest
from engine.checkpoint import RunFolder, restore_training, training_arrays
from engine.loop import Best
from engine.optim import build_optimizer, freeze
from engine.settings import plain
from engine_fakes import (
    ArrayBatches,
    ListLog,
    assert_same,
    checkpoint_names,
    make_config,
    make_trainer,
    pictures,
    small_t2t,
    weights_of,
)
from errors import UserError

ARRAYS = {"model/a": np.arange(40, dtype="float32").reshape(5, 8), "optimizer/a/moment1_0": np.ones(3, "float32")}


def meta(epoch, config=None):
    return {"epoch": epoch, "best": [0.5, epoch], "train_images": 22, "config": plain(config or make_config())}


@pytest.fixture
def folder(tmp_path):
    """A made run folder."""
    made = RunFolder(tmp_path / "run")
    made.create(make_config())
    return made


# ---------------------------------------------------------------- writing and finding


def test_saved_state_comes_back(folder):
    assert folder.latest() == (None, [])
    folder.save(ARRAYS, meta(7))
    state, notes = folder.latest()
    assert notes == [] and state["file"].name == "epoch-0007-step-000000.npz"
    assert_same(state["arrays"], ARRAYS)
    assert {key: state["meta"][key] for key in meta(7)} == meta(7)


def test_the_newest_by_number_and_only_the_last_ones_stay(folder):
    for epoch in (1, 2, 9999, 10000, 10001):
        folder.save(ARRAYS, meta(epoch))
        assert folder.latest()[0]["meta"]["epoch"] == epoch
    assert checkpoint_names(folder) == ["epoch-10000-step-000000.npz", "epoch-10001-step-000000.npz"]


def test_files_of_other_names_are_left_alone(folder):
    for name in ("epoch-0099.partial", "notes.txt", "epoch-x.npz"):
        (folder.checkpoints / name).write_bytes(b"?")
    for epoch in (1, 2, 3):
        folder.save(ARRAYS, meta(epoch))
    assert folder.latest()[0]["meta"]["epoch"] == 3
    assert len(checkpoint_names(folder)) == 3 + 2


# ---------------------------------------------------------------- damage


def test_a_damaged_newest_falls_back_with_a_note(folder):
    folder.save(ARRAYS, meta(1))
    folder.save(ARRAYS, meta(2))
    newest = folder.checkpoints / "epoch-0002-step-000000.npz"
    whole = newest.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        newest.write_bytes(whole[:size])
        state, notes = folder.latest()
        assert state["meta"]["epoch"] == 1
        assert len(notes) == 1 and str(newest) in notes[0] and "damaged" in notes[0]
    assert folder.examine(make_config(), 22)[1] == notes


def test_no_flipped_byte_fails_loading_or_goes_unseen(folder):
    folder.save(ARRAYS, {"epoch": 1, "best": [0, 0], "config": {}})
    file = folder.checkpoints / "epoch-0001-step-000000.npz"
    whole = file.read_bytes()
    for position in range(len(whole)):
        for flip in (0x01, 0x08, 0x20, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            file.write_bytes(damaged)
            state, notes = folder.latest()
            if state is None:
                assert len(notes) == 1
            else:
                # A byte that carries nothing, such as a time stamp.
                assert_same(state["arrays"], ARRAYS)


def test_an_array_under_the_name_of_a_checkpoint_is_damage(folder):
    with open(folder.checkpoints / "epoch-0001-step-000000.npz", "wb") as file:
        np.save(file, np.ones(3))
    state, notes = folder.latest()
    assert state is None and len(notes) == 1


class Bomb:
    """Makes a folder when unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("where", ["array", "meta", "pickle"])
def test_a_hostile_checkpoint_runs_no_code(folder, tmp_path, where):
    folder.save(ARRAYS, meta(1))
    mark, file = tmp_path / "ran", folder.checkpoints / "epoch-0002-step-000000.npz"
    bomb = np.array([Bomb(mark)], object)
    if where == "pickle":
        file.write_bytes(pickle.dumps(Bomb(mark)))
    else:
        text = bomb if where == "meta" else np.frombuffer(json.dumps({**meta(2), "tensors": 1}).encode(), np.uint8)
        np.savez(file, meta=text, **{"model/a": bomb if where == "array" else np.ones(1)})
        assert zipfile.is_zipfile(file)
    (folder.checkpoints / "latest").write_text(file.name)
    assert not mark.exists()
    state, notes = folder.latest()
    assert not mark.exists()
    assert state["meta"]["epoch"] == 1 and len(notes) == 1


# ---------------------------------------------------------------- disks


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_leaves_the_old_checkpoint(folder):
    folder.save(ARRAYS, meta(1))
    before = checkpoint_names(folder)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = {"model/a": np.zeros(1 << 18, "float32")}
    # A real failure of write(), in the middle of the data.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limit[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*-0002-step-000000\.npz: File too large; .*start again"):
            folder.save(big, meta(2))
        # An archive left half-written would complain now, on stderr.
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert checkpoint_names(folder) == before and folder.latest()[0]["meta"]["epoch"] == 1
    folder.save(big, meta(2))
    assert folder.latest()[0]["meta"]["epoch"] == 2


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_before_the_rename_leaves_the_old_checkpoint(folder, monkeypatch, call):
    folder.save(ARRAYS, meta(1))

    def fail(*args):
        # The name that counts must not be there before the data is on the disk.
        assert not (folder.checkpoints / "epoch-0002-step-000000.npz").exists()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(UserError, match="Input/output error"):
        folder.save(ARRAYS, meta(2))
    assert checkpoint_names(folder) == ["epoch-0001-step-000000.npz"]


def test_a_run_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"output=.*file/run: cannot be made: Not a directory; choose another output"):
        RunFolder(tmp_path / "file" / "run").create(make_config())


# ---------------------------------------------------------------- what may go on


@pytest.mark.parametrize("name", ["best", "last"])
def test_weights_without_a_checkpoint_are_refused(folder, name):
    file = folder.path / f"{name}.pdparams"
    file.write_bytes(b"weights of somebody")
    with pytest.raises(UserError, match=rf"{name}\.pdparams but no checkpoint to go on from"):
        folder.examine(make_config(), 22)
    (folder.checkpoints / "epoch-0003-step-000000.npz").write_bytes(b"torn")
    with pytest.raises(UserError, match="no readable checkpoint"):
        folder.examine(make_config(), 22)
    assert file.read_bytes() == b"weights of somebody"


@pytest.mark.parametrize("key, old, new", [
    ("model.name", "t2t_vit_7", "t2t_vit_14"), ("model.img_size", 32, 64), ("model.num_classes", 3, 5),
    ("model.qk_scale", None, 0.5), ("train.optimizer", "adamw", "sgd"), ("train.freeze", (), ("cls_token",)),
    ("train.freeze", ("cls_token", "norm.*"), ("cls_token",)),
])  # fmt: skip
def test_another_model_or_other_moments_are_refused(folder, key, old, new):
    folder.save(ARRAYS, meta(1, make_config(**{key: old})))
    with pytest.raises(UserError) as caught:
        folder.examine(make_config(**{key: new}), 22)
    text = str(caught.value)
    old, new = (list(value) if isinstance(value, tuple) else value for value in (old, new))
    assert f"{key}={new}" in text and f"{key}={old}" in text and str(folder.path) in text


def test_other_changes_are_listed(folder):
    folder.save(ARRAYS, meta(2))
    same, notes = folder.examine(make_config(), 22)
    assert same["meta"]["epoch"] == 2 and notes == []
    changes = {"train__epochs": 9, "train__lr": 0.5, "model__drop_path": 0.3, "data__scale": (0.5, 1.0)}
    _, notes = folder.examine(make_config(**changes, output="elsewhere"), 22)
    assert notes == [
        "model.drop_path was 0.1, now 0.3", "data.scale was [0.08, 1.0], now [0.5, 1.0]", "train.epochs was 2, now 9",
        "train.lr was 0.01, now 0.5", "output was output/t2t_vit_7, now elsewhere",
    ]  # fmt: skip


def test_settings_that_fit_the_moments_may_change(folder):
    folder.save(ARRAYS, meta(2))
    changes = {"train__decayed": "all", "train__momentum": 0.5, "train__layer_decay": 0.5,
               "train__backbone_lr_scale": 0.1, "train__freeze": ()}  # fmt: skip
    _, notes = folder.examine(make_config(**changes), 22)
    assert notes == [
        "train.backbone_lr_scale was 1.0, now 0.1", "train.layer_decay was None, now 0.5",
        "train.decayed was matrices, now all", "train.momentum was 0.9, now 0.5",
    ]  # fmt: skip


def test_a_checkpoint_of_another_version_with_fewer_keys(folder):
    old = plain(make_config())
    # Formerly there was no choice: what is now the default.
    for key in ("clip_grad", "optimizer", "freeze", "min_lr"):
        del old["train"][key]
    del old["val"], old["device"]
    early = {key: value for key, value in meta(1).items() if key != "train_images"}
    folder.save(ARRAYS, {**early, "config": old})
    assert folder.examine(make_config(), 22)[1] == []
    _, notes = folder.examine(make_config(train__clip_grad=1.0, train__min_lr=1e-6, val__batch_size=7), 22)
    assert notes == [
        "train.min_lr was 1e-05, now 1e-06", "train.clip_grad was None, now 1.0", "val.batch_size was 128, now 7",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"train\.optimizer=sgd: .* has train\.optimizer=adamw"):
        folder.examine(make_config(train__optimizer="sgd"), 22)


def test_another_number_of_training_images_is_refused(folder):
    folder.save(ARRAYS, meta(1))
    with pytest.raises(UserError, match="trained on 22 images, now there are 1281167 in data.train_dir="):
        folder.examine(make_config(), 1281167)


def test_another_list_of_as_many_images_is_told(folder):
    folder.save(ARRAYS, {**meta(1), "train_list": "a1"})
    assert folder.examine(make_config(), 22, "a1")[1] == [] == folder.examine(make_config(), 22)[1]
    listed = make_config(data__train_dir="d", data__train_list="l.txt")
    for config, place in ((make_config(data__train_dir="d"), "data.train_dir=d"), (listed, "data.train_list=l.txt")):
        assert folder.examine(config, 22, "b2")[1][-1] == f"{place}: other images or labels than before, as many"
    folder.save(ARRAYS, meta(2))
    assert folder.examine(make_config(), 22, "b2")[1] == []


@pytest.mark.parametrize("name", ["config.yaml", "train.log", "classes.txt"])
def test_a_folder_of_somebody_else_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"holds {name} that no run of this project wrote"):
        RunFolder(tmp_path).examine(make_config(), 22)
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path):
    RunFolder(tmp_path).create(make_config())
    (tmp_path / "train.log").write_text("a line")
    assert RunFolder(tmp_path).examine(make_config(), 22) == (None, [])


def test_a_folder_in_use_is_refused(tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from engine.checkpoint import RunFolder; from engine_fakes import make_config\n"
        "folder = RunFolder(sys.argv[3]); folder.create(make_config()); print('claimed', flush=True); sys.stdin.read()"
    )
    paths = [str(Path(__file__).parents[2] / name) for name in ("tools", "tests")]
    other = subprocess.Popen(
        [sys.executable, "-c", code, *paths, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(UserError, match="another training is using this folder"):
            RunFolder(tmp_path).create(make_config())
    finally:
        other.kill()
        other.wait()
    RunFolder(tmp_path).create(make_config())


# ---------------------------------------------------------------- going on


def arrays_after_steps(network, steps=2, kind="adamw"):
    optimizer = build_optimizer(network, lr=1e-2, weight_decay=0.1, optimizer=kind)
    for seed in range(steps):
        images = paddle.to_tensor(pictures(4, size=16, seed=seed)[0])
        network(images).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return optimizer, training_arrays(network, optimizer)


def test_the_state_holds_moments_under_structured_names():
    network = small_t2t()
    _, arrays = arrays_after_steps(network)
    trainable = {name for name, p in network.named_parameters() if not p.stop_gradient}
    slots = {}
    for key in arrays:
        if key.startswith("optimizer/"):
            _, name, slot = key.split("/")
            slots.setdefault(name, set()).add(slot)
    assert set(slots) == trainable
    assert all(len(found) == 4 for found in slots.values()), "two moments and two powers of beta each"
    assert {key for key in arrays if key.startswith("model/")} == {f"model/{name}" for name in network.state_dict()}


def test_a_state_of_another_network_is_refused():
    _, arrays = arrays_after_steps(small_t2t())
    other = small_t2t(5)
    before = weights_of(other)
    with pytest.raises(UserError, match="checkpoint.*3 classes"):
        restore_training(other, build_optimizer(other, lr=1e-2, weight_decay=0.1), arrays)
    assert_same(weights_of(other), before)


OPTIMISER_STATE = "the checkpoint's optimiser state does not fit: it "


@pytest.mark.parametrize("before, after", [("adamw", "sgd"), ("sgd", "adamw")])
def test_the_state_of_another_optimizer_is_refused(before, after):
    _, arrays = arrays_after_steps(small_t2t(), kind=before)
    network = small_t2t()
    optimizer = build_optimizer(network, lr=1e-2, weight_decay=0.1, optimizer=after)
    faults = r"lacks \d+, such as cls_token/.*; it has no use for \d+, such as cls_token/.*; choose another output or "
    with pytest.raises(UserError, match=f"{OPTIMISER_STATE}{faults}the train.optimizer and train.freeze of the run"):
        restore_training(network, optimizer, arrays)


@pytest.mark.parametrize("before, after, fault", [
    ([], ["head.bias"], "has no use for 4, such as head.bias/"), (["head.bias"], [], "lacks 4, such as head.bias/"),
    (["cls_token"], ["head.bias"], "lacks 4, such as cls_token/moment1_0; it has no use for 4, such as head.bias/"),
])  # fmt: skip
def test_the_state_of_other_frozen_tensors_is_refused(before, after, fault):
    first, second = small_t2t(), small_t2t()
    freeze(first, before)
    freeze(second, after)
    _, arrays = arrays_after_steps(first)
    with pytest.raises(UserError) as caught:
        restore_training(second, build_optimizer(second, lr=1e-2, weight_decay=0.1), arrays)
    assert str(caught.value).startswith(OPTIMISER_STATE + fault) and "\n" not in str(caught.value)


def test_moments_that_are_missing_strange_or_of_another_shape_are_refused():
    network = small_t2t()
    optimizer, arrays = arrays_after_steps(network)
    key = "optimizer/blocks.0.mlp.fc1.weight/moment2_0"
    faults = {
        "lacks 1, such as blocks.0.mlp.fc1.weight/moment2_0;": {k: v for k, v in arrays.items() if k != key},
        "has another shape of 1, such as blocks.0.mlp.fc1.weight/moment2_0;": {**arrays, key: arrays[key].T[:5]},
        "has no use for 1, such as nobody/moment1_0;": {**arrays, "optimizer/nobody/moment1_0": arrays[key]},
        "has no use for 1, such as nobody;": {**arrays, "optimizer/nobody": arrays[key]},
    }
    for fault, state in faults.items():
        with pytest.raises(UserError) as caught:
            restore_training(network, optimizer, state)
        assert str(caught.value).startswith(OPTIMISER_STATE + fault)


FINE_TUNING = {
    "sgd": {"train__optimizer": "sgd", "train__decayed": "all"},
    "frozen": {"train__freeze": ("tokens_to_token.*", "blocks.0.norm1.weight", "cls_token")},
    "official": {"train__optimizer": "sgd", "train__decayed": "all", "train__freeze": ("cls_token", "norm.*"),
                 "train__backbone_lr_scale": 0.1, "train__warmup_epochs": 0},
    "layers": {"train__layer_decay": 0.5, "train__backbone_lr_scale": 0.5, "train__clip_grad": 1.0},
}  # fmt: skip


def train(folder, epochs, total=4, on_the_way=None, **values):
    """Train up to `epochs` of a run of `total`, from the folder's checkpoint if there is one."""
    values = {"train__warmup_epochs": 2, "train__lr": 2e-3, "model__img_size": 16, **values}
    config = make_config(train__epochs=total, **values)
    paddle.seed(config.train.seed)
    if on_the_way:
        on_the_way()
    network = small_t2t(drop_rate=0.1, drop_path_rate=0.3)
    batches = ArrayBatches(*pictures(22, size=16), 6, shuffle=True, drop_last=True)
    val = ArrayBatches(*pictures(9, size=16, seed=1), 4)
    trainer = make_trainer(folder, config, batches, val, network, ListLog())
    state, notes = trainer.folder.examine(config, batches.samples)
    if state:
        trainer.restore(state)
        assert trainer.first_epoch == state["meta"]["epoch"]
    if epochs < total:
        keep = trainer._keep

        def stop_after(epoch):
            keep(epoch)
            if epoch + 1 == epochs:
                raise KeyboardInterrupt

        trainer._keep = stop_after
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
    else:
        trainer.fit()
    return trainer, training_arrays(trainer.network, trainer.optimizer), batches.seen


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Four epochs without a break."""
    return train(tmp_path_factory.mktemp("straight"), 4)


def without_times(objects):
    return [{k: v for k, v in values.items() if not k.endswith("_time") and k != "images_per_s"} for values in objects]


def other_layers():
    # They take names of Paddle's (linear_0.w_0 ...) and numbers of the generator.
    paddle.nn.Linear(3, 5)
    paddle.nn.LayerNorm(4)
    paddle.randn([7])


@pytest.mark.parametrize("on_the_way", [None, other_layers])
def test_two_epochs_and_two_more_equal_four(straight, tmp_path, on_the_way):
    whole, arrays, order = straight
    first, _, first_order = train(tmp_path, 2)
    second, resumed, second_order = train(tmp_path, 4, on_the_way=on_the_way)
    assert second.first_epoch == 2
    assert_same(dict(sorted(resumed.items())), dict(sorted(arrays.items())))
    assert first_order + second_order == order
    assert without_times(first.log.objects + second.log.objects) == without_times(whole.log.objects)
    assert second.best == whole.best
    assert second.log.matching(r"^Epoch \[3/4\], Step \[1/3\]") and not second.log.matching(r"^Epoch \[[12]/")
    for name in ("best", "last"):
        assert (tmp_path / f"{name}.pdparams").read_bytes() == (whole.folder.path / f"{name}.pdparams").read_bytes()


@pytest.mark.parametrize("case", FINE_TUNING)
def test_fine_tuning_goes_on_bit_for_bit(tmp_path, case):
    whole, arrays, order = train(tmp_path / "whole", 4, **FINE_TUNING[case])
    first, _, first_order = train(tmp_path / "parts", 2, **FINE_TUNING[case])
    second, resumed, second_order = train(tmp_path / "parts", 4, on_the_way=other_layers, **FINE_TUNING[case])
    assert second.first_epoch == 2 and first_order + second_order == order
    assert_same(dict(sorted(resumed.items())), dict(sorted(arrays.items())))
    assert without_times(first.log.objects + second.log.objects) == without_times(whole.log.objects)


def test_a_run_that_is_complete_trains_no_further(straight):
    whole, _, _ = straight
    again, _, order = train(whole.folder.path, 4)
    assert again.log.lines == [] and order == [] and again.best == whole.best
    assert_same(weights_of(again.network), weights_of(whole.network))


def test_the_best_epoch_survives(folder):
    folder.save(ARRAYS, {**meta(3), "best": list(Best(0.75, 2))})
    assert Best(*folder.latest()[0]["meta"]["best"]) == (0.75, 2)


def test_a_kill_between_checkpoint_and_weights_loses_nothing(tmp_path):
    trainer, _, _ = train(tmp_path, 2)
    state, _ = trainer.folder.latest()
    kept = (tmp_path / "last.pdparams").read_bytes()
    for name in ("best", "last"):
        (tmp_path / f"{name}.pdparams").unlink()
    state["meta"]["best"] = [0.9, 2]
    trainer.restore(state)
    assert all((tmp_path / f"{name}.pdparams").read_bytes() == kept for name in ("best", "last"))
