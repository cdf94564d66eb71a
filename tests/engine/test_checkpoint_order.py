"""Which checkpoint a run goes on from, and which ones stay."""

import errno
import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from engine.checkpoint import RunFolder
from engine.settings import plain
from engine_fakes import checkpoint_names, make_config
from errors import UserError

ARRAYS = {"model/a": np.ones(3, "float32")}


def meta(epoch, step=0):
    config = plain(make_config())
    return {"epoch": epoch, "step": step, "best": [0.5, epoch], "train_images": 22, "config": config}


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.create(make_config())
    return made


def test_a_grown_batch_makes_smaller_numbers(folder):
    """The state before stays to fall back on, though its number is higher, until there is another."""
    for step in (6, 8):
        folder.save(ARRAYS, meta(3, step))
    folder.save(ARRAYS, meta(3, 2))
    assert checkpoint_names(folder) == ["epoch-0003-step-000002.npz", "epoch-0003-step-000008.npz"]
    assert folder.latest()[0]["meta"]["step"] == 2
    (folder.checkpoints / "epoch-0003-step-000002.npz").write_bytes(b"")
    state, notes = folder.latest()
    assert state["meta"]["step"] == 8 and len(notes) == 1 and "step-000002.npz is damaged" in notes[0]
    for step in (2, 3):
        folder.save(ARRAYS, meta(3, step))
    assert checkpoint_names(folder) == ["epoch-0003-step-000002.npz", "epoch-0003-step-000003.npz"]
    (folder.checkpoints / "latest").unlink()
    assert folder.latest()[0]["meta"]["step"] == 3


def test_a_folder_in_the_place_of_a_checkpoint_is_none(folder):
    folder.save(ARRAYS, meta(1))
    (folder.checkpoints / "epoch-0002-step-000000.npz").mkdir()
    assert folder.latest()[0]["meta"]["epoch"] == 1
    for epoch in (3, 4):
        folder.save(ARRAYS, meta(epoch))
    assert folder.latest()[0]["meta"]["epoch"] == 4


def test_a_run_without_its_configuration(folder):
    folder.create(make_config())
    folder.save(ARRAYS, meta(1))
    (folder.path / "train.log").write_text("a line")
    (folder.path / "config.yaml").unlink()
    assert folder.examine(make_config(), 22)[0]["meta"]["epoch"] == 1
    (folder.path / "config.yaml").write_text("mine: 1")
    with pytest.raises(UserError, match="config.yaml is not the one that the run wrote; remove it, and"):
        folder.examine(make_config(), 22)
    assert (folder.path / "config.yaml").read_text() == "mine: 1"


# ---------------------------------------------------------------- damage


def spoilt(folder, meta_of_it, **arrays):
    """A newest checkpoint with this meta, whatever it is, and these arrays behind a good one."""
    folder.save(ARRAYS, meta(1))
    text = np.frombuffer(json.dumps(meta_of_it).encode(), np.uint8)
    np.savez(folder.checkpoints / "epoch-0002-step-000000.npz", meta=text, **arrays)
    (folder.checkpoints / "latest").write_text("epoch-0002-step-000000.npz")


@pytest.mark.parametrize("change", [
    {"tensors": None}, {"tensors": "1"}, {"epoch": "2"}, {"step": 1.5}, {"best": "x"}, {"best": [0.5]},
    {"best": ["a", 1]}, {"config": []}, {"meter": 3}, {"logs": [1]}, None,
], ids=str)  # fmt: skip
def test_a_checkpoint_whose_meta_is_of_another_kind_is_damaged(folder, change):
    spoilt(folder, [1, 2] if change is None else {**meta(2), "tensors": 1, **change}, a=np.ones(2))
    state, notes = folder.latest()
    assert state["meta"]["epoch"] == 1 and len(notes) == 1 and "epoch-0002-step-000000.npz is damaged" in notes[0]


def test_a_member_that_is_no_array_or_of_any_size_is_damage(folder):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    for content in (b"no array", pickle.dumps([1]), header.getvalue()):
        spoilt(folder, {**meta(2), "tensors": 1})
        with zipfile.ZipFile(folder.checkpoints / "epoch-0002-step-000000.npz", "a") as archive:
            archive.writestr("a.npy", content)
        state, notes = folder.latest()
        assert state["meta"]["epoch"] == 1 and len(notes) == 1, content


def test_no_damage_of_a_dozen_bytes_raises(folder):
    """Wherever the zeros are: the state comes whole, or the one before it does."""
    folder.save(ARRAYS, meta(1))
    folder.save(ARRAYS, meta(2))
    file = folder.checkpoints / "epoch-0002-step-000000.npz"
    whole = file.read_bytes()
    for start in range(0, len(whole), 5):
        file.write_bytes(whole[:start] + bytes(12) + whole[start + 12:])
        state, _ = folder.latest()
        assert np.array_equal(state["arrays"]["model/a"], ARRAYS["model/a"])


def test_a_disk_that_fails_for_now_costs_no_checkpoint(folder, monkeypatch):
    folder.save(ARRAYS, meta(1))

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(UserError, match="cannot read .*epoch-0001-step-000000.npz: Input/output error; mend that"):
        folder.latest()


def test_a_checkpoint_without_settings_is_refused(folder):
    made = {key: value for key, value in meta(2).items() if key != "config"}
    folder.save(ARRAYS, made)
    with pytest.raises(UserError, match="epoch-0002-step-000000.npz: holds no settings"):
        folder.examine(make_config(), 22)
