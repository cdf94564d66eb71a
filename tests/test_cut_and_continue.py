"""Trainings in processes of their own that are killed, stopped, or run out of disk, and go on as if nothing happened.

T2T_LONG=1 makes 20 kills and 5 stops instead of the few that every run of the tests makes.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import TOOLS, make_folders, mistake, run, settings
from engine.checkpoint import RunFolder
from engine.runlog import RunLog
from engine_fakes import assert_same, make_config

LONG = bool(os.environ.get("T2T_LONG"))
# Of each half of the cuts: without loader workers, and with two of them and other layers before the model.
CUTS = [signal.SIGKILL] * (10 if LONG else 2) + [signal.SIGTERM] * (3 if LONG else 1)
SAVES = 100 if LONG else 25
EPOCHS, IMAGES = 3, 32
TIMES = ("read_time", "train_time", "images_per_s")
STEP = re.compile(r"^Epoch \[\d+/\d+\], Step ", re.MULTILINE)

# The command; with OTHER_LAYERS set, tensors take Paddle's names and random numbers before the network is built.
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from startup import import_paddle
paddle = import_paddle()
if os.environ.get("OTHER_LAYERS"):
    others = paddle.nn.Linear(3, 5), paddle.nn.LayerNorm(4), paddle.randn([7])
import train
from errors import run_command
sys.exit(run_command(train.main))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train", names=("ant", "bee"), count=IMAGES // 2)
    make_folders(folder / "val", names=("ant", "bee"), count=2, seed=50)
    return folder


def words(photos, folder, **more):
    recipe = {"train__epochs": EPOCHS, "train__log_every": 1, "train__batch_size": 4, "train__warmup_epochs": 1,
              "train__schedule": "step", "train__ema_decay": 0.9, "train__mixup_alpha": 0.8, "train__cutmix_alpha": 1.0,
              "data__auto_augment": "rand-m9-mstd0.5-inc1", "data__reprob": 0.25, "model__num_classes": 2,
              "model__drop_rate": 0.1}  # fmt: skip
    return settings(photos, folder, **{**recipe, **more})


def start(arguments, **environment):
    """Start the command in a process group of its own, its output in a pipe."""
    line = [sys.executable, "-c", PROGRAM, str(TOOLS), *arguments]
    return subprocess.Popen(
        line, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def cut(process, number, steps, delay, group=True):
    """Send a signal some seconds after so many lines of steps, unless the process is over by then; (output, sent)."""
    seen, lines = 0, []
    for line in process.stdout:
        lines.append(line)
        seen += bool(STEP.match(line))
        if seen == steps:
            break
    else:
        process.wait(60)
        return "".join(lines), False
    time.sleep(delay)
    sent = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        # As a terminal and the launcher do: to the whole group.
        (os.killpg if group else os.kill)(process.pid, number)
    rest, _ = process.communicate(timeout=120)
    return "".join(lines) + rest, sent


def result(folder):
    """What may not depend on cuts: the last state, weights, metrics without times, curves, the best epoch."""
    state, notes = RunFolder(folder).latest()
    assert notes == []
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    kept = {name: (folder / f"{name}.pdparams").read_bytes() for name in ("best", "last", "last_ema")}
    return dict(sorted(state["arrays"].items())), metrics, curves(folder), kept, state["meta"]["best"]


def curves(folder):
    """{tag: [(step, value)]} of the curves without times; in one file, its steps strictly increasing."""
    from visualdl import LogReader

    (file,) = (folder / "vdl").iterdir()
    reader = LogReader(file_path=str(file))
    found = {}
    for name in reader.get_tags()["scalar"]:
        points = [(point.id, point.value) for point in reader.get_data("scalar", name)]
        assert all(a[0] < b[0] for a, b in zip(points, points[1:])), (name, points)
        found[name.replace("%2F", "/")] = points
    return {tag: points for tag, points in found.items() if "time" not in tag and "per_s" not in tag}


def assert_equal(first, second):
    assert_same(first[0], second[0])
    assert first[1:] == second[1:]


@pytest.fixture(scope="module")
def straight(photos, tmp_path_factory):
    """The result of a training without a cut."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    outcome = run("train", *words(photos, folder))
    assert outcome.code == 0, outcome.err
    found = result(folder)
    assert [row["step"] for row in found[1] if row["kind"] == "train"] == list(range(1, IMAGES // 4 + 1)) * EPOCHS
    for kind in ("moment1_0", "cls_token"):
        assert any(name.endswith(kind) for name in found[0])
    assert {row["weights"] for row in found[1] if row["kind"] == "val"} == {"raw", "ema"}
    assert not np.array_equal(*(found[0][name] for name in ("model/head.bias", "extra/ema/head.bias")))
    return found


def workers_of(text):
    """Processes with `text` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("workers, layers", [(0, ""), (2, "1")])
def test_cut_at_random_moments(straight, photos, tmp_path, workers, layers):
    chance, cuts, runs = random.Random(workers), list(CUTS), 0
    chance.shuffle(cuts)
    folder = tmp_path / "0"
    while True:
        process = start(words(photos, folder, data__workers=workers, train__save_steps=3), OTHER_LAYERS=layers)
        if not cuts:
            output, _ = process.communicate(timeout=120)
        else:
            output, sent = cut(process, cuts[-1], chance.randint(1, 9), chance.uniform(0, 0.25))
            if sent:
                number = cuts.pop()
                killed = number == signal.SIGKILL
                assert process.returncode == (-number if killed else 1), output
                # A signal that comes while the process is ending finds its own handler.
                assert killed or "to go on, start the same command again" in output, output
                continue
        assert process.returncode == 0, output
        assert_equal(result(folder), straight)
        runs += 1
        if not cuts:
            break
        folder = tmp_path / str(runs)
    # Workers see within seconds that nobody needs them any more.
    deadline = time.monotonic() + 20
    while workers_of(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert workers_of(str(tmp_path)) == []


def test_ctrl_c_and_a_copied_folder(straight, photos, tmp_path):
    """Stopped with Ctrl-C in the second epoch, copied elsewhere, and gone on with from there."""
    process = start(words(photos, tmp_path / "run", data__workers=2))
    output, _ = cut(process, signal.SIGINT, IMAGES // 4 + 2, 0)
    assert process.returncode == 1 and "stopped by SIGINT" in output and "Traceback" not in output, output
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "run")
    outcome = run("train", *words(photos, tmp_path / "elsewhere", data__workers=0))
    assert outcome.code == 0, outcome.err
    step = re.search(r"^going on in epoch 2 after step (\d) from .*elsewhere", outcome.out, re.MULTILINE)[1]
    first = STEP.search(outcome.out).end()
    assert outcome.out[first:].startswith(f"[{int(step) + 1}/8]")
    assert_equal(result(tmp_path / "elsewhere"), straight)


def test_two_ctrl_c_end_at_once(photos, tmp_path):
    process = start(words(photos, tmp_path / "run", train__batch_size=32, train__epochs=20))
    for line in process.stdout:
        if STEP.match(line):
            break
    os.kill(process.pid, signal.SIGINT)
    # Signals of one kind that come together are one.
    time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in output, output
    assert "interrupted" in output or "stopped by SIGINT" in output


def test_hours_that_are_over_are_no_failure(photos, tmp_path):
    outcome = run("train", *words(photos, tmp_path / "run"), "train.max_hours=1e-9")
    assert outcome.code == 0 and "stopped by train.max_hours=1e-09; the state is in" in outcome.out, outcome
    assert "best top-1" not in outcome.out
    assert RunFolder(tmp_path / "run").latest()[0]["file"].name == "epoch-0000-step-000001.npz"


# ---------------------------------------------------------------- two processes


def launch(photos, folder, stop_after=None):
    """Train in two processes under Paddle's launcher; stop_after: lines of metrics.jsonl before SIGTERM. Its output."""
    arguments = words(photos, folder, train__batch_size=1, train__log_every=50)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "FLAGS_", "CUDA_VISIBLE"))}
    line = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir",
            str(folder) + "-log", str(TOOLS / "train.py"), *arguments]  # fmt: skip
    process = subprocess.Popen(line, env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        file = folder / "metrics.jsonl"
        while stop_after and process.poll() is None:
            if file.exists() and file.read_text().count("\n") >= stop_after:
                time.sleep(0.4)
                process.terminate()
                break
            time.sleep(0.02)
        return process.communicate(timeout=100)[0], process.returncode
    finally:
        process.terminate()
        process.wait(40)
        for number in workers_of(str(folder)):
            os.kill(number, signal.SIGKILL)


@pytest.mark.skipif(not LONG, reason="T2T_LONG=1 runs it")
def test_two_processes_stop_at_the_same_step_and_go_on(photos, tmp_path):
    output, code = launch(photos, tmp_path / "whole")
    assert code == 0, output
    # Line, epoch and validation of the first epoch; the launcher shows nothing any more after the signal.
    output, code = launch(photos, tmp_path / "parts", stop_after=3)
    log = (tmp_path / "parts-log" / "workerlog.0").read_text()
    assert code != 0 and "stopped by SIGTERM; the state is in" in log and "Traceback" not in log + output, log + output
    meta = RunFolder(tmp_path / "parts").latest()[0]["meta"]
    assert meta["epoch"] < EPOCHS and meta["global_batch"] == 2
    output, code = launch(photos, tmp_path / "parts")
    assert code == 0 and "going on " in output, output
    assert_equal(result(tmp_path / "parts"), result(tmp_path / "whole"))


# ---------------------------------------------------------------- checkpoints and disks


def save_for_ever(path, saved):
    folder, random_state = RunFolder(path), np.random.RandomState(0)
    arrays = {f"model/{number}": random_state.rand(300, 100) for number in range(4)}
    for step in range(saved.value + 1, 10**6):
        arrays["model/step"] = np.array([step])
        folder.save(arrays, {"epoch": step // 100, "step": step % 100})
        saved.value = step


def test_a_kill_while_saving_never_costs_the_state(tmp_path):
    RunFolder(tmp_path).create(make_config())
    fork, chance = multiprocessing.get_context("fork"), random.Random(0)
    saved, before = fork.Value("q", 0), 0
    for _ in range(SAVES):
        process = fork.Process(target=save_for_ever, args=(tmp_path, saved))
        process.start()
        until = saved.value + 1
        while saved.value < until:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        state, notes = RunFolder(tmp_path).latest()
        (step,) = state["arrays"]["model/step"].tolist()
        assert notes == [] and state["meta"]["epoch"] * 100 + state["meta"]["step"] == step
        assert step >= saved.value > before, "what save() returned from stays"
        pointed = (tmp_path / "checkpoints" / "latest").read_text().strip()
        assert (tmp_path / "checkpoints" / pointed).is_file()
        saved.value = before = step
    # Kills leave no rubbish behind: two states, perhaps a third one, the pointer and one file that was being written.
    assert len(list((tmp_path / "checkpoints").iterdir())) <= 5


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 150 MB, and a function that gives it another size."""
    def mount(*options):
        return subprocess.run(["mount", *options, str(tmp_path)], capture_output=True).returncode == 0

    if os.geteuid() or not mount("-t", "tmpfs", "-o", "size=150m", "tmpfs"):
        pytest.skip("needs the right to mount a tmpfs; a full disk is also tested in engine/test_checkpoint.py")
    yield tmp_path, lambda size: mount("-o", f"remount,size={size}")
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_ends_the_run_and_keeps_the_state(straight, photos, small_disk):
    disk, resize = small_disk
    folder = disk / "run"
    # A state takes 64 MB and weights three times 16: the second state does not fit.
    outcome = run("train", *words(photos, folder))
    mistake(outcome, "cannot write", "No space left on device", "free some space and start again")
    state, notes = RunFolder(folder).latest()
    assert notes == [] and (state["meta"]["epoch"], state["meta"]["step"]) == (1, 0)
    assert resize("300m")
    assert run("train", *words(photos, folder)).code == 0
    assert_equal(result(folder), straight)


def test_a_disk_too_full_for_a_line_of_the_log(photos, small_disk):
    disk, _ = small_disk
    log = RunLog(RunFolder(disk).path, stream=open(os.devnull, "w"))  # noqa: SIM115
    with contextlib.suppress(OSError), open(disk / "ballast", "wb") as ballast:
        while True:
            ballast.write(bytes(1 << 12))
            ballast.flush()
    from errors import UserError

    with pytest.raises(UserError, match="cannot write the logs in .*No space left on device; free some space"):
        for number in range(100):
            log.line("x" * 100)
            log.metrics(number=number)
            log.curves(number, train_loss=1.0)
    log.close()


# ---------------------------------------------------------------- what grows


def kilobytes(number):
    """Memory of a process."""
    text = Path(f"/proc/{number}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1])


def test_memory_and_open_files_stay_flat(photos, tmp_path, monkeypatch):
    from engine.loop import Trainer

    keep, found = Trainer._keep, []

    def measure(self, epoch):
        file = keep(self, epoch)
        gc.collect()
        processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        found.append((len(processes), len(os.listdir("/proc/self/fd")), sum(map(kilobytes, processes))))
        return file

    monkeypatch.setattr(Trainer, "_keep", measure)
    outcome = run("train", *words(photos, tmp_path / "run", data__workers=2, train__epochs=6, train__max_steps=4))
    assert outcome.code == 0 and len(found) == 6, outcome.err
    assert len({(processes, files) for processes, files, _ in found[1:]}) == 1, found
    assert found[5][2] <= 1.05 * found[1][2], found
