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


def test_short_runs_have_a_finite_rate_in_every_epoch():
    for epochs in range(1, 9):
        for warmup in range(12):
            for cooldown in range(12):
                recipe = {**RECIPE, "epochs": epochs, "warmup_epochs": warmup, "cooldown_epochs": cooldown}
                for epoch in range(epochs):
                    rate = learning_rate(epoch, **recipe)
                    assert math.isfinite(rate) and 1e-6 <= rate <= 1e-3, (recipe, epoch)
