"""The runs of an ablation: planned, told finished, checked, and trained in a process of their own (a stand-in here)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ablating import runs
from ablating.runs import Training, epochs_done, finished, plan, top1
from engine.config import save_config
from errors import UserError

# Prints what a training prints and leaves what it leaves; MODE is a word of the command line.
TRAINING = """
import json, os, signal, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
folder, epochs = words["output"], int(words["train.epochs"])
mode = words.get("data.name", "")
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
signal.signal(signal.SIGINT, lambda *_: stopping.append(1))
if mode == "mistake":
    print("data.train_dir: read")
    print("error: data.train_dir=x: not there; set it", file=sys.stderr)
    sys.exit(2)
if mode == "crash":
    raise RuntimeError("boom")
os.makedirs(folder + "/checkpoints", exist_ok=True)
for epoch in range(1, epochs + 1):
    print(f"Epoch [{epoch}/{epochs}], avg_Loss: 1.5000, avg_acc: 0.2500", flush=True)
    open(folder + f"/checkpoints/epoch-{epoch:04d}-step-000000.npz", "w").close()
    with open(folder + "/metrics.jsonl", "a") as file:
        print(json.dumps({"kind": "val", "weights": "raw", "epoch": epoch, "top1": epoch / 10}), file=file)
    if mode == "wait":
        while not stopping:
            time.sleep(0.01)
        print("stopped by a signal; the state is in F")
        sys.exit(1)
"""


@pytest.fixture
def config_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"train: {{epochs: 3, seed: 7, warmup_epochs: 0, cooldown_epochs: 0}}\noutput: {tmp_path}/out\n")
    return file


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text(TRAINING)
    monkeypatch.setattr(runs, "ROOT", tmp_path)


def one(config_file, *words):
    return plan(config_file, ["train.epochs=3", *words], ["t2t_vit_7"], 1)[0]


def test_every_network_comes_with_every_seed(config_file, tmp_path):
    found = plan(config_file, ["train.lr=0.5"], ["t2t_vit_7", "t2t_vit_c_7"], 2)
    assert [(run.network, run.seed) for run in found] == [
        ("t2t_vit_7", 7), ("t2t_vit_c_7", 7), ("t2t_vit_7", 8), ("t2t_vit_c_7", 8)]  # fmt: skip
    assert found[3].folder == tmp_path / "out" / "t2t_vit_c_7-seed8"
    for run in found:
        assert (run.config.model.name, run.config.train.seed, run.config.train.lr) == (run.network, run.seed, 0.5)
    # Nothing else differs between them.
    neutral = {replace(run.config, model=found[0].config.model, output="", train=replace(run.config.train, seed=0))
               for run in found}  # fmt: skip
    assert len(neutral) == 1


@pytest.mark.parametrize(("word", "parts"), [
    ("model.name=t2t_vit_14", "model.name=t2t_vit_14: .*leave it out"), ("train.init=x", "train.init=x: .*scratch"),
    ("train.nothing=1", "train.nothing"),
])  # fmt: skip
def test_what_would_be_another_comparison_is_refused(config_file, word, parts):
    with pytest.raises(UserError, match=parts):
        plan(config_file, [word], ["t2t_vit_7"], 1)


def test_runs_of_other_settings_are_refused_and_other_places_are_not(config_file):
    run = one(config_file, "model.num_classes=null")
    run.folder.mkdir(parents=True)
    kept = replace(run.config, model=replace(run.config.model, num_classes=3))
    save_config(kept, run.folder / "config.yaml")
    one(config_file, "model.num_classes=null")
    one(config_file, "model.num_classes=3", "data.train_dir=elsewhere", "data.workers=0", "val.batch_size=3",
        "train.keep=9", "device=cpu")  # fmt: skip
    for word in ("train.lr=0.5", "train.epochs=4", "data.hflip=0.1", "train.batch_size=3", "train.teacher=x"):
        with pytest.raises(UserError, match=rf"{word}: the run in .*t2t_vit_7-seed7 has .*choose another output"):
            one(config_file, "model.num_classes=3", word)


def test_a_run_trains_in_a_process_and_tells_its_epochs(config_file, stand_in):
    run, told = one(config_file), []
    assert not finished(run) and epochs_done(run) == 0
    assert Training(run)(lambda *words: told.append(words)) == 0
    assert told == [(epoch, "1.5000", "0.2500") for epoch in (1, 2, 3)]
    assert finished(run) and epochs_done(run) == 3 and top1(run) == 0.3


def test_only_the_last_epoch_counts_and_of_averages_the_average(config_file):
    run = one(config_file)
    (run.folder / "checkpoints").mkdir(parents=True)
    rows = [{"kind": "val", "weights": weights, "epoch": epoch, "top1": value} for weights, epoch, value in (
        ("raw", 2, 0.9), ("raw", 3, 0.5), ("ema", 3, 0.6))] + [{"kind": "train", "epoch": 3}]  # fmt: skip
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert top1(run) == 0.5
    assert top1(run._replace(config=one(config_file, "train.ema_decay=0.9").config)) == 0.6
    with pytest.raises(UserError, match="no accuracy of epoch 4"):
        top1(run._replace(config=one(config_file, "train.epochs=4").config))
    # A checkpoint within the last epoch is not its end.
    for name, done in (("epoch-0002-step-000000", 2), ("epoch-0002-step-000004", 2), ("epoch-0003-step-000000", 3)):
        (run.folder / "checkpoints" / f"{name}.npz").touch()
        assert (epochs_done(run), finished(run)) == (done, done == 3)


def test_mistakes_of_a_training_are_told_in_its_words(config_file, stand_in):
    with pytest.raises(UserError, match=r"^t2t_vit_7-seed7: data.train_dir=x: not there; set it"):
        Training(one(config_file, "data.name=mistake"))(print)


def test_a_failed_training_shows_its_end(config_file, stand_in, capfd):
    assert Training(one(config_file, "data.name=crash"))(print) == 1
    assert "RuntimeError: boom" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_the_training_is_waited_for(config_file, stand_in, number, capfd):
    training, before = Training(one(config_file, "data.name=wait")), signal.getsignal(number)
    code = training(lambda *_: threading.Timer(0.1, os.kill, [os.getpid(), number]).start())
    assert (code, training.asked) == (1, number)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == ""


def test_no_training_is_left_behind_by_a_kill(config_file, stand_in, root, tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(root / 'tools')!r})
from pathlib import Path
from ablating import runs
runs.ROOT = Path({str(tmp_path)!r})
(run,) = runs.plan({str(config_file)!r}, ["train.epochs=3", "data.name=wait"], ["t2t_vit_7"], 1)
training = runs.Training(run)
training(lambda *_: print(training._process.pid, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = Path("/proc") / process.stdout.readline().strip()
    assert child.is_dir()
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while time.monotonic() < end and _runs(child):
        time.sleep(0.02)
    assert not _runs(child)


def _runs(folder):
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
