"""Users' mistakes: exit code 2 and one line on stderr that names thing, value and remedy, within seconds."""

import contextlib
import io
import pickle
import shutil
import time
import zipfile
from pathlib import Path

import paddle
import pytest
from commands import make_folders, make_image, make_list, make_weights, mistake, process, run, settings, snapshot
from errors import UserError, run_command
from weights.paddle_file import read_weights


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """What works: train/, val/, list.txt, w.pdparams. No test may change it."""
    folder = tmp_path_factory.mktemp("good")
    make_folders(folder / "train", count=2)
    make_folders(folder / "val", count=1, seed=9)
    make_list(folder / "val", folder / "list.txt")
    make_weights(folder / "w")
    return folder


@pytest.fixture(autouse=True)
def nothing_is_lost(good, tmp_path):
    """No mistake takes ten seconds, changes a user's file or leaves a run folder behind."""
    before, start = snapshot(good), time.perf_counter()
    yield
    assert time.perf_counter() - start < 10
    assert snapshot(good) == before
    assert not (tmp_path / "run").exists()


@pytest.fixture
def commands(good, tmp_path):
    """Call a command with settings that work, but for those given."""

    def call(command, *words, **more):
        if command == "train":
            return run("train", *words, *settings(good, tmp_path / "run", **more))
        more.setdefault("val__weights", good / "w")
        images = [good / "val" / "ant" / "0.JPEG"] if command == "predict" else []
        return run(command, *images, *words, *settings(good, tmp_path / "run", **more))

    return call


def test_settings_used_here_do_work(commands, tmp_path):
    assert commands("train", train__epochs=1, train__max_steps=1).code == 0
    shutil.rmtree(tmp_path / "run")
    assert commands("val").code == 0 and commands("predict").code == 0


# ---------------------------------------------------------------- images and lists


@pytest.mark.parametrize("split", ["train", "val"])
def test_folders(commands, tmp_path, split):
    key, command = f"data__{split}_dir", split
    absent, file, empty = tmp_path / "absent", make_image(tmp_path / "f.png"), tmp_path / "empty"
    empty.mkdir()
    cases = ((absent, "no such folder or archive; check the path"), (file, "give the folder"), (empty, "no images"))
    for value, *parts in cases:
        mistake(commands(command, **{key: value}), f"data.{split}_dir={value}", *parts)
    mistake(commands(command, **{key: ""}), f"data.{split}_dir is not set", "give the folder")
    for name in ("ant", "bee", "cow"):
        (empty / name).mkdir()
    mistake(commands(command, **{key: empty}), f"data.{split}_dir={empty}", "no image", ".jpeg")


@pytest.mark.parametrize("command", ["train", "val"])
def test_flat_folder(commands, tmp_path, command):
    for number in range(3):
        make_image(tmp_path / "flat" / f"{number}.jpg")
    more = {f"data__{command}_dir": tmp_path / "flat"}
    mistake(commands(command, **more), tmp_path / "flat", "3 image(s) but no class folders", f"data.{command}_list")


def test_one_class_folder_where_a_thousand_are_configured(commands, tmp_path):
    make_folders(tmp_path / "nested", names=("train",))
    outcome = commands("train", data__train_dir=tmp_path / "nested", model__num_classes=1000)
    mistake(outcome, "found 1 class folder(s)", tmp_path / "nested", "the config says 1000", "model.num_classes")


@pytest.mark.parametrize("command", ["train", "val"])
@pytest.mark.parametrize(("text", "parts"), [
    ("ant/0.JPEG 0\nbee/0.JPEG 3\n", (":2: label 3", "0..2", "model.num_classes=3")),
    ("ant/0.JPEG 1\nbee/0.JPEG 2\ncow/0.JPEG 3\n", (":3: label 3", "labels start at 0")),
    ("ant/0.JPEG -1\n", (":1: label -1", "0..2")),
    ("ant/0.JPEG\n", (":1:", "no label", "`path label`")),
    ("ant/0.JPEG zero\n", (":1:", "'zero' is not an integer")),
    ("\nant/9.JPEG 0\n", (":2: no such file", "ant/9.JPEG", "relative to data.")),
    ("", ("the list is empty",)),
    ("\n\n", ("the list is empty",)),
])  # fmt: skip
def test_lists(commands, tmp_path, command, text, parts):
    (tmp_path / "list.txt").write_text(text, encoding="utf-8")
    mistake(commands(command, **{f"data__{command}_list": tmp_path / "list.txt"}), tmp_path / "list.txt", *parts)


def test_lists_that_are_none(commands, tmp_path, good):
    mistake(commands("val", data__val_list=tmp_path / "no.txt"), f"data.val_list={tmp_path / 'no.txt'}", "no such file")
    mistake(commands("val", data__val_list=good / "val"), f"data.val_list={good / 'val'}", "data.val_dir")
    mistake(commands("val", data__val_list=good / "w.pdparams"), "data.val_list", "not a UTF-8 text file")


# ---------------------------------------------------------------- weights


def pytorch_zip(path, good):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")


def pytorch_old(path, good):
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2))


def truncated(path, good):
    path.write_bytes((good / "w.pdparams").read_bytes()[:-1000])


def half(path, good):
    content = (good / "w.pdparams").read_bytes()
    path.write_bytes(content[: len(content) // 2])


def without_one(path, good):
    state = dict(read_weights(good / "w"))
    state["blocks.0.extra"] = state.pop("blocks.3.attn.qkv.weight")
    path.write_bytes(pickle.dumps(state, protocol=4))


def jpeg(path, good):
    shutil.copy(good / "val" / "ant" / "0.JPEG", path)


WEIGHTS = {
    "absent": (lambda path, good: None, ("not found", "README.md, 'Weights'")),
    "empty": (lambda path, good: path.touch(), ("empty (0 bytes)", "copy the file again")),
    "truncated": (truncated, ("cut short", "copy the file again")),
    "half": (half, ("cut short", "copy the file again")),
    "folder": (lambda path, good: path.mkdir(), ("no best.pdparams or last.pdparams", "README.md, 'Weights'")),
    "jpeg": (jpeg, ("not a weights file", "name a .pdparams file")),
    "pytorch zip": (pytorch_zip, ("is a PyTorch file", "convert it first: bash scripts/convert.sh")),
    "old pytorch": (pytorch_old, ("is a PyTorch file", "convert it first: bash scripts/convert.sh")),
    "text": (lambda path, good: path.write_text("weights"), ("not a weights file",)),
    "one tensor renamed": (without_one, ("1 missing (blocks.3.attn.qkv.weight)", "1 unexpected (blocks.0.extra)")),
    "other model": (lambda path, good: make_weights(path, name="t2t_vit_10"),
                    ("unexpected", "10 blocks", "7 blocks", "set model.name")),
    "other classes": (lambda path, good: make_weights(path, num_classes=4), ("4 classes", "model.num_classes=4")),
    "other size": (lambda path, good: make_weights(path, img_size=32), ("32 px", "set model.img_size=32")),
}  # fmt: skip


@pytest.mark.parametrize("command", ["val", "predict"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights(commands, good, tmp_path, command, kind):
    make, parts = WEIGHTS[kind]
    path = tmp_path / "x.pdparams"
    make(path, good)
    for outcome in (commands(command, "--weights", path), commands(command, val__weights=path)):
        mistake(outcome, path, *parts)
        assert "class_id" not in outcome.out and "final val acc" not in outcome.out


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("command", ["train", "val", "predict"])
@pytest.mark.parametrize(("word", "parts"), [
    ("train.learning_rate=1", ("unknown key 'train.learning_rate'", "keys of train", "lr")),
    ("data.worker=1", ("unknown key 'data.worker'", "did you mean data.workers?")),
    ("optim.lr=1", ("unknown key 'optim.lr'", "did you mean train.lr?")),
    ("train.epochs=many", ("train.epochs=many", "expected a whole number")),
    ("train.lr=fast", ("train.lr=fast", "expected a finite number such as")),
    ("train.lr=-1e-3", ("train.lr=-0.001", "above 0")),
    ("model.img_size=200", ("model.img_size=200", "multiple of 16", "192 and 208")),
    ("model.name=t2t_vit_9", ("model.name=t2t_vit_9", "no such model", "t2t_vit_1")),
    ("train.mixup_alpha=-1", ("train.mixup_alpha=-1", "at least 0")),
    ("train.ema_decay=1", ("train.ema_decay=1", "below 1")),
    ("data.reprob=1.5", ("data.reprob=1.5", "at most 1")),
    ("train.amp=O1", ("train.amp=O1", "off, fp16, bf16")),
    ("data.resize=pad", ("data.resize=pad", "crop, squash")),
    ("device=tpu", ("device=tpu", "auto, cpu, gpu")),
    ("train", ("train", "key=value")),
    ("--nonsense", ("--nonsense", "--help")),
])  # fmt: skip
def test_settings(commands, command, word, parts):
    key, equals, value = word.partition("=")
    if command == "predict" and word == "train":
        parts = ("train: no such image or folder",)
    mistake(commands(command, **{key.replace(".", "__"): value}) if equals else commands(command, word), *parts)


def test_device_that_this_paddle_lacks(commands):
    if paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("this machine has a card")
    for command in ("train", "val", "predict"):
        mistake(commands(command, device="gpu"), "device=gpu", "paddlepaddle-gpu", "device=auto")


def test_configuration_files(commands, tmp_path, good):
    for command in ("train", "val", "predict"):
        mistake(commands(command, "--config", tmp_path / "t2t_vit7.yaml"), tmp_path / "t2t_vit7.yaml", "not found",
                "did you mean")
    mistake(commands("val", "--config", tmp_path), tmp_path, "cannot read", "give a .yaml file")
    mistake(commands("val", "--config", good / "w.pdparams"), good / "w.pdparams", "give a .yaml file")
    (tmp_path / "c.yaml").write_text("train:\n  lr: [1\n", encoding="utf-8")
    mistake(commands("val", "--config", tmp_path / "c.yaml"), f"{tmp_path / 'c.yaml'}, line", "not valid YAML")
    (tmp_path / "c.yaml").write_text("train: {clip_grad: -1}\n", encoding="utf-8")
    mistake(commands("train", "--config", tmp_path / "c.yaml"), "train.clip_grad=-1", tmp_path / "c.yaml")


# ---------------------------------------------------------------- output


def test_output_that_cannot_be_made(commands, tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        mistake(commands("train", output=output), f"output={output}", "cannot be made", "choose another output")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    mistake(commands("train", output=""), "output", "must not be empty")


def test_output_that_cannot_be_written(commands, tmp_path, monkeypatch):
    # Tests may run as root, whom no permission stops: the system call is made to refuse.
    make = Path.mkdir

    def refuse(path, *arguments, **named):
        if path == tmp_path / "locked" / "checkpoints":
            raise PermissionError(13, "Permission denied", str(path))
        return make(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)
    mistake(commands("train", output=tmp_path / "locked"), f"output={tmp_path / 'locked'}", "Permission denied")


def test_output_with_weights_of_another_run(commands, tmp_path, good):
    (tmp_path / "old").mkdir()
    shutil.copy(good / "w.pdparams", tmp_path / "old" / "best.pdparams")
    mistake(commands("train", output=tmp_path / "old"), tmp_path / "old", "best.pdparams", "choose another output")
    assert [item.name for item in (tmp_path / "old").iterdir()] == ["best.pdparams"]


# ---------------------------------------------------------------- true processes


@pytest.mark.parametrize("command", ["train", "val", "predict", "list_models"])
def test_exit_code_of_the_process(command, tmp_path):
    words = {"predict": ("a.jpg", "x.y=1"), "list_models": ("nothing",)}.get(command, ("x.y=1",))
    mistake(process(command, *words, cwd=tmp_path), words[-1].partition("=")[0])
    assert not list(tmp_path.iterdir())


def test_anything_else_keeps_its_traceback_and_its_code():
    def defect(_):
        raise KeyError("a defect of the program")

    def error(_):
        raise UserError("a thing\n in two lines")

    with pytest.raises(KeyError):
        run_command(defect)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert run_command(error) == 2
    assert err.getvalue() == "error: a thing in two lines\n"
    assert run_command(lambda _: None) == 0 and run_command(lambda _: 1) == 1
