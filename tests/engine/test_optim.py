"""What AdamW trains, what it decays, and eight official steps."""

import numpy as np
import paddle
import paddle.nn.functional as F
import t2t
from engine.optim import build_optimizer, decay_split
from engine_fakes import weights_of
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


def test_class_token_and_biases_of_any_shape_are_not_decayed():
    class Inner(nn.Layer):
        def __init__(self):
            super().__init__()
            self.cls_token = self.create_parameter([1, 1, 4])
            self.bias = self.create_parameter([2, 2])
            self.token = self.create_parameter([1, 1, 4])

    assert decay_split(nn.Sequential(Inner())) == (["0.token"], ["0.cls_token", "0.bias"])


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
