"""Running the commands as a user would, in this process or in one of their own, on made images."""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from errors import run_command
from PIL import Image

TOOLS = Path(__file__).resolve().parents[1] / "tools"
SIZE = 16


class Outcome(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def run(command, *arguments):
    """Run tools/<command>.py through its main([...]) in this process."""
    main = importlib.import_module(command).main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run_command(main, [str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return Outcome(code, out.getvalue(), err.getvalue())


def process(command, *arguments, cwd=None, **environment):
    """Run tools/<command>.py in a Python of its own; keyword arguments are added to its environment."""
    line = [sys.executable, str(TOOLS / f"{command}.py"), *map(str, arguments)]
    done = subprocess.run(line, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    return Outcome(done.returncode, done.stdout, done.stderr)


def mistake(outcome, *parts):
    """Assert that the command ended as after a user's mistake, in one line that holds all `parts`; return the line."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    for part in parts:
        assert str(part) in outcome.err, (part, outcome.err)
    return outcome.err


def last_line(outcome):
    """The last line of stdout of a command that ended well."""
    assert outcome.code == 0, outcome
    return outcome.out.splitlines()[-1]


def make_image(path, seed=0):
    """Write a small picture of noise, as JPEG or what the suffix says, and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    return path


def cut_short(path):
    """Make an image that ends too early and return its path."""
    content = make_image(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def make_folders(folder, names=("ant", "bee", "cow"), count=4, seed=0):
    """Write a folder of `count` images for each name and return the folder."""
    for number, name in enumerate(names):
        for image in range(count):
            make_image(Path(folder) / name / f"{image}.JPEG", seed=seed + 100 * number + image)
    return Path(folder)


def make_list(folder, file):
    """Write `path label` for all images below the class folders of `folder` and return the file."""
    folder, file = Path(folder), Path(file)
    classes = sorted(item.name for item in folder.iterdir())
    images = sorted(folder.rglob("*.JPEG"))
    lines = [f"{image.relative_to(folder)} {classes.index(image.parent.name)}\n" for image in images]
    file.write_text("".join(lines), encoding="utf-8")
    return file


def settings(folder, run_folder, **more):
    """Words of a short training of T2T-ViT-7 at 16 px on folder/train and folder/val; `more` as train__lr=0.1."""
    chosen = {
        "model.img_size": SIZE, "model.num_classes": 3, "data.name": "Made", "data.train_list": "null",
        "data.train_dir": folder / "train", "data.val_dir": folder / "val", "data.val_list": "null",
        "data.workers": 0, "train.epochs": 2, "train.batch_size": 4, "train.warmup_epochs": 0,
        "train.cooldown_epochs": 0, "train.log_every": 2, "val.batch_size": 4, "val.target_acc": "null",
        "data.auto_augment": "null", "data.color_jitter": 0, "data.reprob": 0, "train.mixup_alpha": 0,
        "train.cutmix_alpha": 0, "train.ema_decay": "null", "output": run_folder, "device": "cpu",
    }  # fmt: skip
    chosen.update((key.replace("__", "."), value) for key, value in more.items())
    return [f"{key}={value}" for key, value in chosen.items()]


def metrics(run_folder, kind):
    """The objects of metrics.jsonl of one kind, "train" or "val"."""
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == kind]


def snapshot(folder):
    """Dict relative path -> bytes of all files below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


def make_weights(path, seed=0, name="t2t_vit_7", num_classes=3, img_size=SIZE):
    """Write fresh weights, without any config.yaml beside them, and return their file."""
    import paddle
    from models import build_model
    from weights.paddle_file import save_weights

    paddle.seed(seed)
    return save_weights(build_model(name, num_classes=num_classes, img_size=img_size).state_dict(), path)


def manifest(shared_dir):
    """The files of the reference data's manifest: (those an image command must accept, those it must refuse)."""
    folder = shared_dir / "data" / "nasty"
    rows = [line.split("\t") for line in (folder / "manifest.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    # The handling of files to be refused names the exception that Pillow raises for them.
    refused = [folder / row[0] for row in rows if re.search(r"[a-z]Error|OSError", row[4])]
    return [folder / row[0] for row in rows if folder / row[0] not in refused], refused
