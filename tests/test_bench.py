"""The measuring command: that it measures and says what; the figures are not judged."""

import os
import re
import subprocess
import sys

import pytest
from commands import TOOLS, mistake, run

SMALL = ("--img-size", "16", "--batch", "2", "--steps", "1", "--device", "cpu")
NUMBER = r"\d+\.\d"


def test_each_mode_has_its_line():
    outcome = run("bench", *SMALL)
    assert outcome.code == 0 and outcome.err == ""
    about, settings, inference, training, loader = outcome.out.splitlines()
    assert about.startswith("Paddle ") and settings == "t2t_vit_7 at 16 px, batch 2, median of 1 steps"
    assert re.fullmatch(rf"inference: {NUMBER} images/s, \d+ MiB peak memory", inference)
    speed, hours, minutes = map(float, re.fullmatch(
        rf"training: ({NUMBER}) images/s, \d+ MiB peak memory, an ImageNet epoch in (\d+):(\d\d):\d\d", training
    ).groups())  # fmt: skip
    # The speed is printed with one decimal.
    assert hours + minutes / 60 == pytest.approx(1_281_167 / speed / 3600, rel=0.02 + 0.05 / speed)
    assert re.fullmatch(rf"loader: {NUMBER} images/s on one core \(.*\), {NUMBER} with RandAugment", loader)


def test_all_processes_together(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "FLAGS_", "CUDA_VISIBLE"))}
    environment["OMP_NUM_THREADS"] = "1"
    line = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(tmp_path),
            str(TOOLS / "bench.py"), *SMALL]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes, each: cpu, 1 thread(s)" in done.stdout
    together, alone, efficiency = map(float, re.search(
        rf"training: ({NUMBER}) images/s together, ({NUMBER}) by one process while the others wait; efficiency (\S+)",
        done.stdout,
    ).groups())  # fmt: skip
    assert efficiency == pytest.approx(together / (2 * alone), abs=0.01 + 0.1 / alone)


@pytest.mark.parametrize("option", ["--batch", "--steps", "--threads"])
def test_nothing_is_no_number(option):
    mistake(run("bench", option, "0"), option, "must be 1 or more")
