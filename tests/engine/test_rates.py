"""The rate of each parameter in each epoch, and that the optimisers use it."""

import math

import numpy as np
import paddle
import pytest
import t2t
from engine.optim import build_optimizer, freeze
from engine.rates import Rates
from engine.schedule import learning_rate
from engine_fakes import make_config, small_t2t, weights_of

# The official transfer to CIFAR: no warm-up, 60 epochs, one lowest rate for all groups.
TRANSFER = {"train__epochs": 60, "train__lr": 0.05, "train__min_lr": 2e-4, "train__backbone_lr_scale": 0.01}


def rates_of(network=None, total_batch=512, **values):
    return Rates(network or small_t2t(), make_config(**values).train, total_batch)


def names_of(network):
    return [name for name, _ in network.named_parameters()]


# ---------------------------------------------------------------- the function


def test_by_default_all_have_the_rate_of_the_schedule():
    values = {"train__epochs": 30, "train__warmup_epochs": 5, "train__cooldown_epochs": 5, "train__lr": 1e-3}
    rates = rates_of(**values)
    for epoch in range(30):
        wanted = learning_rate(epoch, lr=1e-3, epochs=30, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5,
                               cooldown_epochs=5)  # fmt: skip
        assert {rates.of(name, epoch) for name in rates.parameters} == {wanted} == {rates.head(epoch)}
        assert rates.scale(epoch) == wanted
        # Exactly 1: Paddle then takes the optimiser's rate as it is.
        assert {p.optimize_attr["learning_rate"] for p in rates.parameters.values()} == {1.0}
    assert rates.describe() == []


def test_the_official_transfer():
    rates = rates_of(**TRANSFER)
    for epoch in range(60):
        for name, peak in (("head.weight", 0.05), ("head.bias", 0.05), ("blocks.0.attn.qkv.weight", 5e-4),
                           ("tokens_to_token.project.bias", 5e-4), ("norm.weight", 5e-4), ("cls_token", 5e-4)):
            # torch.optim.lr_scheduler.CosineAnnealingLR with T_max 60, eta_min 2e-4
            wanted = 2e-4 + 0.5 * (peak - 2e-4) * (1 + math.cos(math.pi * epoch / 60))
            assert rates.of(name, epoch) == pytest.approx(wanted, rel=1e-12)
    assert [rates.peak(name) for name in ("head.bias", "blocks.1.norm1.bias")] == [0.05, 5e-4]


def test_a_lower_peak_keeps_both_ends():
    rates = rates_of(**{**TRANSFER, "train__warmup_epochs": 4, "train__warmup_lr": 1e-4, "train__cooldown_epochs": 3})
    for name, peak in (("head.weight", 0.05), ("cls_token", 5e-4)):
        assert rates.of(name, 0) == 1e-4
        assert rates.of(name, 1) == pytest.approx(1e-4 + (peak - 1e-4) / 4)
        assert {rates.of(name, epoch) for epoch in (57, 58, 59)} == {2e-4}


def test_distances_from_the_head():
    network = t2t.t2t_vit_14(img_size=16, num_classes=3)
    rates = rates_of(network)
    distances = {}
    for name in names_of(network):
        distances.setdefault(rates.distance(name), set()).add(".".join(name.split(".")[:2])
                                                              if name.startswith("blocks") else name.split(".")[0])
    assert distances == {
        0: {"norm", "head"}, 15: {"cls_token", "pos_embed", "tokens_to_token"},
        **{14 - block: {f"blocks.{block}"} for block in range(14)},
    }  # fmt: skip


def test_layer_decay_multiplies_the_whole_curve():
    values = {"train__epochs": 20, "train__warmup_epochs": 3, "train__cooldown_epochs": 2}
    plain, rates = rates_of(**values), rates_of(**values, train__layer_decay=0.5)
    for epoch in range(20):
        for name, factor in (("head.weight", 1), ("norm.bias", 1), ("blocks.1.norm1.weight", 0.5),
                             ("blocks.0.norm1.weight", 0.25), ("cls_token", 0.125),
                             ("tokens_to_token.attention1.kqv.weight", 0.125)):
            assert rates.of(name, epoch) == pytest.approx(factor * plain.of(name, epoch), rel=1e-12)


def test_both_together_are_a_product():
    values = {**TRANSFER, "train__layer_decay": 0.5}
    scaled, rates = rates_of(**TRANSFER), rates_of(**values)
    for epoch in (0, 30, 59):
        for name, factor in {"head.weight": 1, "norm.bias": 1, "blocks.0.norm1.bias": 0.25, "cls_token": 0.125}.items():
            assert rates.of(name, epoch) == pytest.approx(factor * scaled.of(name, epoch), rel=1e-12)


def test_a_rate_of_zero_divides_nothing():
    rates = rates_of(**TRANSFER, train__warmup_epochs=2, train__warmup_lr=0.0)
    assert rates.scale(0) == 0.0
    assert {rates.of(name, 0) for name in rates.parameters} == {0.0}
    assert {p.optimize_attr["learning_rate"] for p in rates.parameters.values()} == {1.0}


def test_the_factors_are_those_of_the_last_epoch_set():
    rates = rates_of(**TRANSFER)
    for epoch in (0, 59, 30, 0):
        head = rates.scale(epoch)
        for name, parameter in rates.parameters.items():
            assert parameter.optimize_attr["learning_rate"] * head == pytest.approx(rates.of(name, epoch), rel=1e-12)


# ---------------------------------------------------------------- place in the schedule, linear scaling


def test_by_default_the_place_is_the_epoch():
    rates = rates_of()
    assert [rates.place(epoch, step, 7) for epoch in (0, 5) for step in (1, 4, 7)] == [0] * 3 + [5] * 3
    assert rates_of(train__schedule_start=1).place(5, 4, 7) == 6


def test_the_place_of_each_step():
    rates = rates_of(train__schedule="step", train__schedule_start=1)
    assert [rates.place(3, step, 4) for step in (1, 2, 3, 4)] == [4, 4.25, 4.5, 4.75]


@pytest.mark.parametrize("steps, windows", [(12, 3), (10, 3), (3, 1)])
def test_batches_of_one_window_have_one_place_that_of_the_same_step_of_big_batches(steps, windows):
    small, big = (rates_of(train__schedule="step", train__accumulate=count) for count in (4, 1))
    found = [small.place(2, step, steps) for step in range(1, steps + 1)]
    assert found == [big.place(2, (step - 1) // 4 + 1, windows) for step in range(1, steps + 1)]


def test_linear_scaling_multiplies_the_whole_curve_and_says_so():
    values = {**TRANSFER, "train__warmup_epochs": 3, "train__layer_decay": 0.5}
    plain, scaled = rates_of(**values), rates_of(total_batch=128, train__lr_base_batch=512, **values)
    for place in (0, 1, 2.5, 30, 59):
        assert scaled.head(place) == pytest.approx(plain.head(place) / 4, rel=1e-12)
        for name in ("head.bias", "blocks.0.norm1.bias", "cls_token"):
            assert scaled.of(name, place) == pytest.approx(plain.of(name, place) / 4, rel=1e-12)
            assert scaled.peak(name) == pytest.approx(plain.peak(name) / 4, rel=1e-12)
        assert scaled.scale(place) == scaled.head(place)
    line, groups = scaled.describe()
    assert line == "train.lr_base_batch=512: all rates are multiplied by 128 / 512 = 0.25; lr 0.0125 instead of 0.05"
    assert groups.startswith("peak rates: 0.0125 for 2 tensors (head)")


def test_the_intended_batch_scales_by_one():
    assert rates_of(train__lr_base_batch=512).head(20) == rates_of().head(20)
    (line,) = rates_of(train__lr_base_batch=512).describe()
    assert "512 / 512 = 1;" in line


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("epoch", [0, 25])
def test_a_step_moves_each_parameter_by_its_rate(kind, epoch):
    network = small_t2t()
    rates = rates_of(network, **TRANSFER, train__layer_decay=0.7)
    for parameter in network.parameters():
        parameter.set_value(paddle.ones_like(parameter))
    optimizer = build_optimizer(network, lr=1.0, weight_decay=0.5, optimizer=kind, decayed="all")
    optimizer.set_lr(rates.scale(epoch))
    before = weights_of(network)
    sum(p.sum() for p in network.parameters() if not p.stop_gradient).backward()
    optimizer.step()
    for name, value in weights_of(network).items():
        # Either first step is rate * (1 + 0.5 * 1): a gradient of 1 and the decay of a weight of 1.
        wanted = 0.0 if network.state_dict()[name].stop_gradient else 1.5 * rates.of(name, epoch)
        np.testing.assert_allclose(before[name] - value, wanted, rtol=2e-3, atol=1e-7, err_msg=name)


# ---------------------------------------------------------------- words


def test_description_of_two_rates():
    network = small_t2t()
    freeze(network, ["cls_token", "norm.*"])
    (line,) = rates_of(network, **TRANSFER).describe()
    assert line == "peak rates: 0.05 for 2 tensors (head); 0.0005 for 48 tensors (tokens_to_token, blocks)"


def test_description_of_many_rates():
    (line,) = rates_of(train__layer_decay=0.5, train__lr=1e-3).describe()
    assert line == (
        "peak rates: 0.001 for 4 tensors (norm, head); 22 tensors in 2 groups between; "
        "0.000125 for 27 tensors (cls_token, tokens_to_token)"
    )


def test_frozen_parameters_are_not_described():
    network = small_t2t()
    freeze(network, ["[!h]*"])
    assert rates_of(network, **TRANSFER).describe() == []
