"""The runs of an ablation: where they lie, whether they are finished, what came out, and training one of them."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from engine.config import ROOT, load_config, project_path
from engine.schema import KEYS, Config
from errors import UserError
from startup import end_with_parent

EPOCH = re.compile(r"Epoch \[(\d+)/\d+\], avg_Loss: (\S+), avg_acc: (\S+)")
# Lines of a failed training that are shown.
_SHOWN = 30
# What does not change the result of a run.
_FREE = re.compile(
    r"val\..*|device|data\.(train|val)_(dir|list)|data\.(class_names|workers|use_shared_memory|name)"
    r"|train\.(log_every|keep|save_steps|max_hours)"
)


class Run(NamedTuple):
    """One training. words: command-line words of tools/train.py that make it."""

    network: str
    seed: int
    config: Config
    folder: Path
    words: list

    @property
    def epochs(self):
        return self.config.train.epochs


def plan(config_file, overrides, networks, seeds):
    """List of Run, all networks with one seed before the next one. seeds: how many, from train.seed on.

    Raises UserError for settings that would make the comparison another one, and for a folder whose runs had others.
    """
    base = load_config(config_file, overrides)
    if base.train.init:
        raise UserError(f"train.init={base.train.init}: an ablation trains from scratch; leave it out")
    if base.model.name not in (None, KEYS["model.name"].default):
        raise UserError(f"model.name={base.model.name}: an ablation trains {', '.join(networks)}; leave it out")
    runs = []
    for seed in range(base.train.seed, base.train.seed + seeds):
        for network in networks:
            output = f"{base.output.rstrip('/')}/{network}-seed{seed}"
            changed = [f"model.name={network}", f"train.seed={seed}", f"output={output}"]
            words = ["--config", str(config_file), *overrides, *changed]
            config = load_config(config_file, [*overrides, *changed])
            runs.append(Run(network, seed, config, project_path(output), words))
    for run in runs:
        _check_settings(run)
    return runs


def _check_settings(run):
    file = run.folder / "config.yaml"
    if not file.is_file():
        return
    before = load_config(file)
    for name in KEYS:
        now, was = _value(run.config, name), _value(before, name)
        # The run's own file holds what null became.
        if now is not None and now != was and name != "output" and not _FREE.fullmatch(name):
            raise UserError(
                f"{name}={now}: the run in {run.folder} has {name}={was}, and all runs need the same; choose another "
                "output or the old value"
            )


def _value(config, name):
    section, _, leaf = name.rpartition(".")
    return getattr(getattr(config, section) if section else config, leaf)


def finished(run):
    """Whether the training is over: there is the checkpoint of its last epoch, which comes after the figures."""
    return (run.folder / "checkpoints" / f"epoch-{run.epochs:04d}-step-000000.npz").is_file()


def epochs_done(run):
    """Whole epochs behind the newest checkpoint."""
    names = (run.folder / "checkpoints").glob("epoch-*.npz")
    return max((int(file.name[len("epoch-"):].partition("-")[0].partition(".")[0]) for file in names), default=0)


def top1(run):
    """Top-1 accuracy of a finished run after its last epoch, so that no epoch is chosen by the validation images."""
    kind = "raw" if run.config.train.ema_decay is None else "ema"
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [row["top1"] for row in rows if row["kind"] == "val" and row["weights"] == kind
             and row["epoch"] == run.epochs]  # fmt: skip
    if not found:
        raise UserError(f"{run.folder / 'metrics.jsonl'}: no accuracy of epoch {run.epochs}; remove {run.folder} and "
                        "start again")
    return found[-1]


class Training:
    """A training in a process of its own, to which signals to stop are passed on while it runs."""

    def __init__(self, run):
        self.run, self.asked, self._process = run, 0, None

    def __call__(self, tell):
        """Train and return the exit code; tell(epoch, loss, accuracy) after each epoch, all but the number as text.

        Raises UserError with the training's own line for a mistake of the user's. What a failed one wrote last goes to
        stderr.
        """
        # What is ignored, as under nohup, stays so.
        numbers = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in numbers}
        try:
            return self._follow(tell)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _follow(self, tell):
        command = [sys.executable, str(ROOT / "tools" / "train.py"), *self.run.words]
        # In a session of its own: a Ctrl-C reaches it through this process only.
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        lines = []
        with self._process:
            for line in self._process.stdout:
                lines = [*lines[1 - _SHOWN:], line]
                match = EPOCH.match(line)
                if match:
                    tell(int(match[1]), match[2], match[3])
        code = self._process.returncode
        if code == 2 and lines[-1].startswith("error: "):
            raise UserError(f"{self.run.folder.name}: {lines[-1][len('error: '):]}")
        if code and not self.asked:
            sys.stderr.writelines(lines)
        return code

    def _pass_on(self, number, _):
        self.asked = number
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)
