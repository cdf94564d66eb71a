"""The ablation's command: small trainings of all networks, a report, going on, and mistakes before the first step."""

import numpy as np
import pytest
from commands import make_folders, mistake, run, settings, snapshot
from models.ablation import SMALL
from PIL import Image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train", count=2)
    make_folders(folder / "val", count=2, seed=50)
    return folder


def words(photos, output, **more):
    return settings(photos, output, **{"train__epochs": 1, "train__batch_size": 3, **more})


def ablation(photos, output, *options, **more):
    return run("ablation", *options, *words(photos, output, **more))


def test_stopped_gone_on_with_and_reported(photos, tmp_path):
    output = tmp_path / "out"
    stopped = ablation(photos, output, "--seeds", "1", train__max_hours=1e-9)
    assert stopped.code == 0 and "\nstopped; " in stopped.out and "ablation.py" in stopped.out, stopped
    assert [item.name for item in output.iterdir()] == ["t2t_vit_7_wo_t2t-seed42"]
    # A run of a longer ablation would have had another schedule.
    mistake(ablation(photos, output, train__epochs=2), "train.epochs=2", "train.epochs=1", "choose another output")
    outcome = ablation(photos, output, "--seeds", "1")
    assert outcome.code == 0, outcome
    log = (output / "t2t_vit_7_wo_t2t-seed42" / "train.log").read_text(encoding="utf-8")
    assert "going on in epoch 1 after step 1" in log
    for number, name in enumerate(SMALL, 1):
        assert f"[{number}/4] {name}, seed 42: epoch 1/1, loss" in outcome.out
        assert f"[{number}/4] {name}, seed 42: top-1 0." in outcome.out
        assert (output / f"{name}-seed42" / "best.pdparams").is_file()
    table = (output / "ablation.md").read_text(encoding="utf-8")
    assert table in outcome.out and table.count("\n| t2t_vit") == 4 and "t2t_vit_7_wide against t2t_vit_7" in table
    assert (output / "ablation.csv").read_text(encoding="utf-8").count("\n") == 5
    assert np.asarray(Image.open(output / "ablation.png")).std() > 1

    kept = snapshot(output / "t2t_vit_7-seed42")
    again = ablation(photos, output, "--seeds", "1")
    assert again.code == 0 and again.out.count("finished already") == 4 and table in again.out
    assert snapshot(output / "t2t_vit_7-seed42") == kept


@pytest.mark.parametrize(("options", "more", "parts"), [
    (("--seeds", "0"), {}, ("--seeds: 0", "between 1 and 100")),
    ((), {"model__name": "t2t_vit_14"}, ("model.name=t2t_vit_14", "leave it out")),
    ((), {"data__train_dir": "nowhere"}, ("nowhere",)),
    ((), {"data__val_dir": "nowhere"}, ("nowhere",)),
    ((), {"model__split_kernels": "[8,3,3]"}, ("t2t_vit_7_wo_t2t", "splits")),
    ((), {"train__lr": -1}, ("train.lr=-1",)),
])  # fmt: skip
def test_mistakes_are_told_before_anything_is_trained(photos, tmp_path, options, more, parts):
    mistake(ablation(photos, tmp_path / "out", *options, **more), *parts)
    assert not (tmp_path / "out").exists()
