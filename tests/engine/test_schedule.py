"""The learning rate of every epoch against the official schedule."""

import math

import numpy as np
import pytest
from engine.schedule import learning_rate

RECIPE = {"lr": 1e-3, "epochs": 310, "warmup_epochs": 10, "warmup_lr": 1e-6, "min_lr": 1e-5, "cooldown_epochs": 10}

# Printed with five significant digits in the official logs and formulas.
WARMUP_10 = {0: 1e-6, 1: 1.009e-4, 5: 5.005e-4, 9: 9.001e-4, 10: 9.9729e-4, 50: 9.3368e-4, 100: 7.525e-4, 150: 5.05e-4,
             200: 2.575e-4, 250: 7.6317e-5, 299: 1.0027e-5}  # fmt: skip
WARMUP_5 = {0: 1e-6, 1: 2.008e-4, 4: 8.002e-4, 5: 9.9932e-4}


@pytest.mark.parametrize("lr", [1e-3, 5e-4])
@pytest.mark.parametrize("warmup", [10, 5])
def test_equals_the_official_schedule(shared_dir, lr, warmup):
    reference = np.load(shared_dir / "golden" / "recipe.npz")[f"lr_{lr}_warmup{warmup}"]
    ours = [learning_rate(epoch, **{**RECIPE, "lr": lr, "warmup_epochs": warmup}) for epoch in range(310)]
    assert np.abs(np.array(ours) - reference).max() <= 1e-12


@pytest.mark.parametrize("warmup, known", [(10, WARMUP_10), (5, WARMUP_5)])
def test_known_values(warmup, known):
    for epoch, value in known.items():
        assert learning_rate(epoch, **{**RECIPE, "warmup_epochs": warmup}) == pytest.approx(value, rel=5e-5), epoch


def test_the_cool_down_runs_at_the_lowest_rate():
    assert {learning_rate(epoch, **RECIPE) for epoch in range(300, 310)} == {1e-5}


def test_between_whole_epochs_the_rate_lies_on_the_same_curve():
    for epoch in (0, 3, 9, 10, 150, 298):
        ends = [learning_rate(epoch + part, **RECIPE) for part in (0, 1)]
        inside = [learning_rate(epoch + part, **RECIPE) for part in (0.25, 0.5, 0.75)]
        if epoch < 9:
            assert inside == pytest.approx([ends[0] + part * (ends[1] - ends[0]) for part in (0.25, 0.5, 0.75)])
        elif epoch > 9:
            assert ends[0] > inside[0] > inside[1] > inside[2] > ends[1]
    # Warm-up and cosine meet at full speed, not at a whole epoch's step.
    assert learning_rate(9.999, **RECIPE) == pytest.approx(1e-3, rel=1e-3)


# The earlier Paddle reproduction's log of 101 epochs, lr to four decimals: 0.0002, 0.0004 ... 0.0010, then 0.0009 from
# its epoch 67 on, whose place in the schedule is 68.
REPRODUCTION = {"lr": 1e-3, "epochs": 310, "warmup_epochs": 5, "warmup_lr": 1e-6, "min_lr": 5e-4, "cooldown_epochs": 0,
                "warmup_prefix": True}  # fmt: skip


def test_equals_the_log_of_the_earlier_reproduction():
    logged = [f"{learning_rate(epoch + 1, **REPRODUCTION):.4f}" for epoch in range(101)]
    assert logged == ["0.0002", "0.0004", "0.0006", "0.0008"] + ["0.0010"] * 63 + ["0.0009"] * 34
    # Begun at 0, the cosine would reach 0.0009 earlier.
    early = [f"{learning_rate(epoch + 1, **{**REPRODUCTION, 'warmup_prefix': False}):.4f}" for epoch in range(101)]
    assert early.index("0.0009") < 67


def test_a_cosine_behind_the_warm_up_begins_at_the_peak_and_ends_at_the_lowest_rate():
    assert learning_rate(5, **REPRODUCTION) == 1e-3
    assert learning_rate(5 + 305 / 2, **REPRODUCTION) == pytest.approx(7.5e-4, rel=1e-12)
    assert learning_rate(310 - 1e-9, **REPRODUCTION) == pytest.approx(5e-4) == learning_rate(310, **REPRODUCTION)


@pytest.mark.parametrize("prefix", [False, True])
def test_short_runs_have_a_finite_rate_in_every_epoch(prefix):
    for epochs in range(1, 9):
        for warmup in range(12):
            for cooldown in range(12):
                recipe = {**RECIPE, "epochs": epochs, "warmup_epochs": warmup, "cooldown_epochs": cooldown}
                for epoch in np.arange(0, epochs + 1.5, 0.5):
                    rate = learning_rate(epoch, **recipe, warmup_prefix=prefix)
                    assert math.isfinite(rate) and 1e-6 <= rate <= 1e-3, (recipe, epoch)
