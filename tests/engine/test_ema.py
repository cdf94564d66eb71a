"""The average of the weights: its formula, what it leaves alone, evaluating with it, and going on."""

import numpy as np
import paddle
import pytest
from engine.ema import Ema
from engine.optim import freeze
from engine_fakes import assert_same, small_t2t, weights_of
from errors import UserError
from paddle import nn

FROZEN = {"pos_embed", "tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}


def shake(network, seed, size=1.0):
    """Change every trained parameter in place, as an optimiser does."""
    random = np.random.RandomState(seed)
    with paddle.no_grad():
        for parameter in network.parameters():
            if not parameter.stop_gradient:
                change = size * random.standard_normal(parameter.shape)
                parameter.add_(paddle.to_tensor(change.astype("float32")))


def averages(ema):
    return {name: tensor.numpy().copy() for name, tensor in ema.state_dict().items()}


def rates(warmup, decay, steps):
    return [min(decay, (1 + t) / (10 + t)) if warmup else decay for t in range(steps)]


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("decay", [0.99996, 0.9, 0.3, 0.0])
def test_formula(decay, warmup):
    network = small_t2t()
    ema = Ema(network, decay, warmup)
    wanted = {name: value.astype("float64") for name, value in weights_of(network).items()}
    for number, rate in enumerate(rates(warmup, decay, 12)):
        assert ema.rate() == pytest.approx(rate, rel=1e-12)
        shake(network, number)
        ema.update()
        for name, value in weights_of(network).items():
            wanted[name] = rate * wanted[name] + (1 - rate) * value
    assert ema.updates == 12
    found = averages(ema)
    assert list(found) == list(network.state_dict())
    for name, value in wanted.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6, err_msg=name)


def test_warm_up_ends_at_the_decay():
    ema = Ema(nn.Linear(1, 1), 0.99, warmup=True)
    ema.updates = 880
    assert ema.rate() < 0.99
    ema.updates = 900
    assert ema.rate() == 0.99


def test_it_begins_with_the_initial_weights_and_leaves_the_network_alone():
    network = small_t2t()
    start = weights_of(network)
    ema = Ema(network, 0.99996)
    assert_same(averages(ema), start)
    shake(network, 0)
    raw = weights_of(network)
    ema.update()
    assert_same(weights_of(network), raw)
    assert all(tensor.stop_gradient for _, tensor in ema.state_dict().items())


def test_a_constant_value_is_its_own_average():
    network = small_t2t()
    ema = Ema(network, 0.99996)
    for _ in range(50):
        ema.update()
    assert_same(averages(ema), weights_of(network))


def test_frozen_tensors_are_those_of_the_network():
    network = small_t2t()
    frozen = set(freeze(network, ["blocks.0.*", "cls_token"]))
    start = weights_of(network)
    ema = Ema(network, 0.5)
    for number in range(3):
        shake(network, number)
        ema.update()
    found = averages(ema)
    assert frozen > FROZEN
    for name, value in found.items():
        assert (value.tobytes() == start[name].tobytes()) == (name in frozen), name
    assert {key[len("ema/") :] for key in ema.arrays()} == set(found) | {"updates"}


@pytest.mark.filterwarnings("ignore:When training")
def test_running_statistics_are_averaged_and_counters_are_not():
    network = nn.Sequential(nn.BatchNorm1D(2, momentum=0.5))
    network.register_buffer("count", paddle.to_tensor([0], "int64"))
    ema = Ema(network, 0.75)
    network(paddle.to_tensor([[1.0, 3.0], [3.0, 5.0]]))
    network.count.add_(paddle.to_tensor([7], "int64"))
    ema.update()
    found = averages(ema)
    np.testing.assert_allclose(network.state_dict()["0._mean"].numpy(), [1, 2])
    np.testing.assert_allclose(found["0._mean"], [0.25, 0.5])
    assert found["count"].tolist() == [7]


# ---------------------------------------------------------------- evaluating with it


@pytest.mark.parametrize("fails", [False, True])
def test_swapped_computes_with_the_average_and_puts_back(fails):
    network = small_t2t()
    network.eval()
    ema = Ema(network, 0.5)
    shake(network, 0)
    ema.update()
    # Bits that a sum or product would change.
    network.head.bias.set_value(paddle.to_tensor([float("nan"), -0.0, 1e-42]))
    raw, average = weights_of(network), averages(ema)
    images = paddle.randn([2, 3, 16, 16])
    other = small_t2t()
    other.set_state_dict(ema.state_dict())
    other.eval()
    reached = None
    try:
        with ema.swapped() as inner:
            reached = weights_of(network)
            assert inner is network and (network(images) == other(images)).all().item()
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert_same(reached, average)
    assert_same(weights_of(network), raw)
    assert_same(averages(ema), average)
    assert all(p.stop_gradient == (name in FROZEN) for name, p in network.named_parameters())


def test_training_goes_on_after_swapping():
    network = small_t2t()
    optimizer = paddle.optimizer.SGD(0.1, network.parameters())
    ema = Ema(network, 0.5)
    shake(network, 0)
    ema.update()
    before = weights_of(network)["head.bias"]
    with ema.swapped():
        pass
    network(paddle.randn([2, 3, 16, 16]))[:, 0].sum().backward()
    optimizer.step()
    ema.update()
    np.testing.assert_allclose(weights_of(network)["head.bias"] - before, [-0.2, 0, 0], atol=1e-6)


def test_no_update_and_no_second_swap_while_swapped():
    ema = Ema(small_t2t(), 0.5)
    with ema.swapped():
        with pytest.raises(RuntimeError, match="holds the average"):
            ema.update()
        with pytest.raises(RuntimeError, match="holds the average"), ema.swapped():
            pass
    ema.update()


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("warmup", [False, True])
def test_cut_and_continued_is_straight_through(warmup):
    def run(network, ema, numbers):
        for number in numbers:
            shake(network, number)
            ema.update()

    def begin():
        paddle.seed(1)
        network = small_t2t()
        return network, Ema(network, 0.9, warmup)

    straight, first = begin(), begin()
    run(*straight, range(4))
    run(*first, range(2))
    raw, saved = weights_of(first[0]), first[1].arrays()
    paddle.seed(2)
    nn.Linear(3, 3)
    network = small_t2t()
    ema = Ema(network, 0.9, warmup)
    network.set_state_dict({name: paddle.to_tensor(value) for name, value in raw.items()})
    ema.restore({"model/pos_embed": np.zeros(3), **saved})
    assert_same(weights_of(network), raw)
    assert_same(ema.arrays(), saved)
    run(network, ema, range(2, 4))
    assert_same(ema.arrays(), straight[1].arrays())
    assert_same(weights_of(network), weights_of(straight[0]))
    assert ema.updates == 4
    # Neither is the other.
    assert (averages(ema)["head.weight"] != weights_of(network)["head.weight"]).any()
    assert set(averages(ema)) > FROZEN


def test_what_is_saved_does_not_change_with_the_average():
    network = small_t2t()
    ema = Ema(network, 0.5)
    saved = ema.arrays()
    before = {key: value.copy() for key, value in saved.items()}
    shake(network, 0)
    ema.update()
    assert_same(saved, before)


def drop(arrays):
    del arrays["ema/head.bias"]


def add(arrays):
    arrays["ema/tail.bias"] = np.zeros(3, "float32")


def reshape(arrays):
    arrays["ema/head.bias"] = np.zeros(4, "float32")


@pytest.mark.parametrize("spoil, name", [(drop, "head.bias"), (add, "tail.bias"), (reshape, "head.bias")])
def test_an_average_that_does_not_fit_is_refused(spoil, name):
    network = small_t2t()
    ema = Ema(network, 0.5)
    arrays = ema.arrays()
    spoil(arrays)
    shake(network, 0)
    ema.update()
    before = ema.arrays()
    with pytest.raises(UserError, match=f"in 1 tensors, such as {name};"):
        ema.restore(arrays)
    assert_same(ema.arrays(), before)


def test_a_checkpoint_without_average_is_refused():
    ema = Ema(small_t2t(), 0.5)
    with pytest.raises(UserError, match="train.ema_decay: the checkpoint holds no average"):
        ema.restore({"model/head.bias": np.zeros(3)})


@pytest.mark.parametrize("decay", [1.0, 1, -0.1, 1.5, float("nan"), float("inf")])
def test_decay_out_of_range(decay):
    with pytest.raises(UserError, match=f"train.ema_decay={decay}: must be at least 0 and below 1"):
        Ema(nn.Linear(1, 1), decay)
