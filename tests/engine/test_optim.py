"""What is trained, what is decayed, what a step of AdamW and of SGD does, and eight official steps."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
import t2t
from engine.optim import build_optimizer, decay_split, freeze, slot_shapes
from engine_fakes import assert_same, small_t2t, weights_of
from errors import UserError
from official_weights import fill
from paddle import nn

FROZEN = {"pos_embed", "tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}


def network_of_16_px():
    return t2t.t2t_vit_7(img_size=16, num_classes=3)


def step(network, optimizer, gradient):
    """One optimiser step in which every trainable parameter has the gradient `gradient(parameter)`."""
    total = sum((p * gradient(p)).sum() for p in network.parameters() if not p.stop_gradient)
    total.backward()
    optimizer.step()
    optimizer.clear_grad()


# ---------------------------------------------------------------- the two groups


def test_split_equals_the_official_groups(shared_dir):
    reference = np.load(shared_dir / "golden" / "recipe.npz")
    decayed, undecayed = decay_split(t2t.t2t_vit_7())
    assert sorted(decayed) == sorted(reference["decay"].tolist())
    assert sorted(undecayed) == sorted(reference["no_decay"].tolist())


def test_split_of_a_small_network():
    network = network_of_16_px()
    decayed, undecayed = decay_split(network)
    assert (len(decayed), len(undecayed)) == (38, 70)
    names = {name for name, _ in network.named_parameters()}
    assert set(decayed) | set(undecayed) == names - FROZEN and not set(decayed) & set(undecayed)
    assert {"cls_token", "head.bias", "norm.weight", "blocks.0.norm1.bias"} <= set(undecayed)
    assert {"head.weight", "blocks.0.attn.qkv.weight", "tokens_to_token.attention1.kqv.weight"} <= set(decayed)
    shapes = {name: p.shape for name, p in network.named_parameters()}
    assert all(len(shapes[name]) > 1 for name in decayed)


def test_class_token_positions_and_biases_of_any_shape_are_not_decayed():
    class Inner(nn.Layer):
        def __init__(self):
            super().__init__()
            self.cls_token = self.create_parameter([1, 1, 4])
            self.pos_embed = self.create_parameter([1, 2, 4])
            self.bias = self.create_parameter([2, 2])
            self.token = self.create_parameter([1, 1, 4])

    assert decay_split(nn.Sequential(Inner())) == (["0.token"], ["0.cls_token", "0.pos_embed", "0.bias"])


def test_frozen_parameters_are_absent():
    network = network_of_16_px()
    for name, parameter in network.named_parameters():
        parameter.stop_gradient = not name.startswith("head.")
    assert decay_split(network) == (["head.weight"], ["head.bias"])
    before = weights_of(network)
    optimizer = build_optimizer(network, lr=1.0, weight_decay=0.5)
    step(network, optimizer, lambda p: 1.0)
    after = weights_of(network)
    assert {name for name in before if (before[name] != after[name]).any()} == {"head.weight", "head.bias"}


def test_everything_can_be_decayed():
    network = network_of_16_px()
    freeze(network, ["cls_token"])
    decayed, undecayed = decay_split(network, "all")
    names = {name for name, _ in network.named_parameters()}
    assert set(decayed) == names - FROZEN - {"cls_token"} and undecayed == []


# ---------------------------------------------------------------- freezing


@pytest.mark.parametrize("patterns, trained", [
    ([], None), (["pos_embed"], None), (["[!h]*"], {"head.weight", "head.bias"}),
    (["tokens_to_token.*", "blocks.*", "norm.weight", "cls_token"], {"norm.bias", "head.weight", "head.bias"}),
])  # fmt: skip
def test_patterns_freeze_what_they_match(patterns, trained):
    network = small_t2t()
    names = {name for name, _ in network.named_parameters()}
    frozen = freeze(network, patterns)
    wanted = names - FROZEN if trained is None else trained
    assert {name for name, p in network.named_parameters() if not p.stop_gradient} == wanted
    assert set(frozen) == names - wanted and len(frozen) == len(set(frozen))


def test_a_pattern_means_the_whole_name():
    network = small_t2t()
    freeze(network, ["blocks.1*", "*.norm1.bias"])
    frozen = {name for name, p in network.named_parameters() if p.stop_gradient} - FROZEN
    wanted = {name for name, _ in network.named_parameters() if name.startswith("blocks.1.")}
    assert frozen == wanted | {"blocks.0.norm1.bias"} | {
        f"tokens_to_token.attention{n}.norm1.bias" for n in (1, 2)
    }


@pytest.mark.parametrize("pattern, near", [
    ("block.*", "blocks.*"), ("tokens_to_tokens.*", "tokens_to_token.*"), ("cls_tokens", "cls_token"),
    ("Head.*", "head.*"), ("head", "head."), ("blocks.0.attn.qkv.bias", "blocks.0.attn.qkv.*"),
    ("zzz", "cls_token, pos_embed, tokens_to_token.*, blocks.*, norm.*, head.*"),
    ("", "cls_token, pos_embed, tokens_to_token.*, blocks.*, norm.*, head.*"),
])  # fmt: skip
def test_a_pattern_without_a_match_is_refused(pattern, near):
    network = small_t2t()
    with pytest.raises(UserError) as caught:
        freeze(network, ["head.bias", pattern])
    text = str(caught.value)
    assert text.startswith(f"train.freeze: {pattern!r} matches no parameter") and "\n" not in text
    assert near in text.partition("nearest: ")[2]
    assert not network.head.bias.stop_gradient


def test_something_must_be_left_to_train():
    network = small_t2t()
    trainable = [p for p in network.parameters() if not p.stop_gradient]
    for patterns in (["*"], ["blocks.*", "tokens_to_token.*", "norm.*", "head.*", "cls_token"]):
        with pytest.raises(UserError, match=r"train\.freeze=\[.*\]: no parameter is left to train"):
            freeze(network, patterns)
    assert not any(p.stop_gradient for p in trainable)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_frozen_tensors_are_left_alone_by_step_and_decay(kind):
    network = small_t2t()
    frozen = freeze(network, ["tokens_to_token.*", "blocks.0.norm1.weight", "head.bias"])
    before = weights_of(network)
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.5, optimizer=kind, decayed="all")
    for _ in range(3):
        step(network, optimizer, lambda p: 1.0)
    after = weights_of(network)
    assert_same({n: after[n] for n in frozen}, {n: before[n] for n in frozen})
    assert all((after[n] != before[n]).any() for n in after if n not in frozen)


# ---------------------------------------------------------------- steps


def test_weight_decay_reaches_matrices_only():
    network = network_of_16_px()
    for parameter in network.parameters():
        if not parameter.stop_gradient:
            parameter.set_value(paddle.ones_like(parameter))
    before = weights_of(network)
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.5)
    # Gradients of zero: Adam itself moves nothing.
    step(network, optimizer, lambda p: 0.0)
    decayed, _ = decay_split(network)
    for name, value in weights_of(network).items():
        wanted = before[name] * (1 - 0.1 * 0.5) if name in decayed else before[name]
        np.testing.assert_allclose(value, wanted, rtol=1e-6, err_msg=name)


def test_arguments_reach_adamw():
    network = nn.Linear(2, 2)
    weight = network.weight.numpy().copy()
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.5, beta1=0.5, beta2=0.75, eps=0.3)
    for gradient in (1.0, 3.0):
        step(network, optimizer, lambda p, g=gradient: g)
    # Decoupled weight decay by hand.
    first = second = 0.0
    for count, gradient in enumerate((1.0, 3.0), 1):
        first = 0.5 * first + 0.5 * gradient
        second = 0.75 * second + 0.25 * gradient**2
        direction = first / (1 - 0.5**count) / (np.sqrt(second / (1 - 0.75**count)) + 0.3)
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * direction
    np.testing.assert_allclose(network.weight.numpy(), weight, rtol=1e-5)


def test_clip_grad_bounds_the_global_norm():
    moves = {}
    for clip in (None, 1.0):
        network = nn.Linear(3, 3)
        before = weights_of(network)
        # With a large eps AdamW's step grows with the gradient, so that clipping can be seen.
        optimizer = build_optimizer(network, lr=1.0, weight_decay=0.0, eps=1e6, clip_grad=clip)
        step(network, optimizer, lambda p: 1e4)
        after = weights_of(network)
        moves[clip] = np.sqrt(sum(((after[n] - before[n]) ** 2).sum() for n in before))
    # 12 gradients of 1e4: their norm is 3.46e4; Adam's first step is g / (|g| + eps).
    assert 0.02 < moves[None] < 0.05
    assert moves[1.0] < 2e-6


# Values of a parameter after steps with given gradients and rates, by the formulas of torch.optim, in double precision.


def by_sgd(p, steps, *, momentum, decay):
    velocity = 0.0
    for gradient, rate in steps:
        velocity = momentum * velocity + gradient + decay * p
        p = p - rate * velocity
    return p


def by_adamw(p, steps, *, decay):
    first = second = 0.0
    for count, (gradient, rate) in enumerate(steps, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        p = p * (1 - rate * decay)
        p = p - rate * first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
    return p


def gradients(network, count, seed=0):
    """`count` dicts of float32 arrays, as large as the parameters."""
    random = np.random.RandomState(seed)
    return [{n: random.standard_normal(p.shape).astype("float32") for n, p in network.named_parameters()}
            for _ in range(count)]  # fmt: skip


def step_with(network, optimizer, values):
    """One optimiser step with the gradients `values`, by structured name."""
    trained = {name: p for name, p in network.named_parameters() if not p.stop_gradient}
    sum((p * paddle.to_tensor(values[name])).sum() for name, p in trained.items()).backward()
    optimizer.step()
    optimizer.clear_grad()


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("decayed", ["matrices", "all"])
def test_five_steps_equal_the_formulas(kind, decayed):
    network = small_t2t()
    freeze(network, ["blocks.0.mlp.fc1.weight"])
    start, given = weights_of(network), gradients(network, 5)
    optimizer = build_optimizer(network, lr=0.01, weight_decay=0.3, optimizer=kind, momentum=0.8, decayed=decayed)
    rates = (0.01, 0.01, 0.05, 0.002, 0.002)
    for values, rate in zip(given, rates):
        optimizer.set_lr(rate)
        step_with(network, optimizer, values)
    with_decay, without = decay_split(network, decayed)
    assert bool(without) == (decayed == "matrices")
    for name, value in weights_of(network).items():
        if name in with_decay or name in without:
            steps = [(values[name].astype("float64"), rate) for values, rate in zip(given, rates)]
            decay = 0.3 if name in with_decay else 0.0
            options = {"momentum": 0.8, "decay": decay} if kind == "sgd" else {"decay": decay}
            wanted = (by_sgd if kind == "sgd" else by_adamw)(start[name].astype("float64"), steps, **options)
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            assert value.tobytes() == start[name].tobytes(), name


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_each_parameter_follows_its_own_rate(kind):
    """Step and weight decay, as torch.optim's parameter groups."""
    network = small_t2t()
    factors = {name: (1.0, 0.01, 0.37)[i % 3] for i, (name, _) in enumerate(network.named_parameters())}
    for name, parameter in network.named_parameters():
        parameter.optimize_attr["learning_rate"] = factors[name]
    start, given = weights_of(network), gradients(network, 4)
    optimizer = build_optimizer(network, lr=0.05, weight_decay=0.3, optimizer=kind, decayed="all")
    for values in given:
        step_with(network, optimizer, values)
    moved = [name for name in factors if name not in FROZEN]
    after = weights_of(network)
    for name in moved:
        steps = [(values[name].astype("float64"), 0.05 * factors[name]) for values in given]
        options = {"momentum": 0.9, "decay": 0.3} if kind == "sgd" else {"decay": 0.3}
        wanted = (by_sgd if kind == "sgd" else by_adamw)(start[name].astype("float64"), steps, **options)
        np.testing.assert_allclose(after[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("decayed", ["matrices", "all"])
def test_sgd_clips_the_norm_of_all_gradients_before_the_decay(decayed):
    network = small_t2t()
    start, (given,) = weights_of(network), gradients(network, 1)
    optimizer = build_optimizer(network, lr=0.5, weight_decay=0.3, optimizer="sgd", decayed=decayed, clip_grad=2.0)
    step_with(network, optimizer, given)
    with_decay, without = decay_split(network, decayed)
    norm = np.sqrt(sum((given[name].astype("float64") ** 2).sum() for name in with_decay + without))
    assert norm > 2
    for name, value in weights_of(network).items():
        if name not in FROZEN:
            decay = 0.3 if name in with_decay else 0.0
            wanted = start[name] - 0.5 * (given[name] * 2 / norm + decay * start[name])
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_optimizer_does_not_inherit_the_decay_of_an_earlier_one():
    network = nn.Linear(2, 2)
    for kind, decay in (("sgd", 0.5), ("sgd", 0.0), ("sgd", 0.5), ("adamw", 0.0)):
        network.weight.set_value(paddle.ones([2, 2]))
        optimizer = build_optimizer(network, lr=0.1, weight_decay=decay, optimizer=kind)
        step(network, optimizer, lambda p: 0.0)
        np.testing.assert_allclose(network.weight.numpy(), 1 - 0.1 * decay, rtol=1e-6)


@pytest.mark.parametrize("kind, count", [("adamw", 4), ("sgd", 1)])
def test_slots_are_those_that_paddle_makes(kind, count):
    network = small_t2t()
    freeze(network, ["blocks.0.*"])
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.1, optimizer=kind)
    step(network, optimizer, lambda p: 1.0)
    made = {key: list(value.shape) for key, value in optimizer.state_dict().items() if hasattr(value, "shape")}
    names = {name: parameter.name for name, parameter in network.named_parameters()}
    wanted = slot_shapes(optimizer, network)
    assert {f"{names[name]}_{slot}": shape for (name, slot), shape in wanted.items()} == made
    assert len(made) == count * sum(not p.stop_gradient for p in network.parameters())


def test_eight_official_steps(shared_dir):
    reference = np.load(shared_dir / "golden" / "recipe.npz")["adamw_losses"]
    network = fill(t2t.t2t_vit_7())
    network.eval()
    optimizer = build_optimizer(network, lr=1e-3, weight_decay=0.03)
    images = paddle.to_tensor(np.random.RandomState(7).standard_normal((4, 3, 224, 224)).astype("float32"))
    labels = paddle.to_tensor([923, 7, 0, 999])
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(network(images), labels)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    np.testing.assert_allclose(losses, reference, rtol=1e-3)
