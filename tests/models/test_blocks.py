"""SE, Ghost and Dense layers against arithmetic in NumPy; CPU forms against Paddle's operators."""

import math

import numpy as np
import paddle
import pytest
import t2t
from models import build_model
from models.dense import DenseBlock, Transition, dense_blocks
from models.ghost import CheapOperation, GhostAttention, GhostMlp
from models.se import SEAttention, SqueezeExcitation
from models.vit import BiasedAttention
from official_weights import fill

rng = np.random.default_rng(0)


def tokens(width, count=5):
    return rng.standard_normal((2, count, width)).astype("float32")


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def weights_of(layer):
    return {name: p.numpy().astype("float64") for name, p in fill(layer).named_parameters()}


def close(ours, expected):
    np.testing.assert_allclose(ours.numpy(), expected, atol=2e-6, rtol=2e-5)


def attention(q, k, v, heads):
    """Multi-head attention of q, k, v [B, N, D] before the projection."""
    out = []
    for part in np.split(np.stack([q, k, v]), heads, axis=-1):
        scores = part[0] @ part[1].transpose(0, 2, 1) * part.shape[-1] ** -0.5
        weight = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        out.append(weight @ part[2])
    return np.concatenate(out, axis=-1)


def excite(x, p, prefix=""):
    gate = np.maximum(x.mean(axis=1) @ p[f"{prefix}fc.0.weight"], 0) @ p[f"{prefix}fc.2.weight"]
    return x / (1 + np.exp(-gate))[:, None]


def test_squeeze_and_excitation():
    layer, x = SqueezeExcitation(32), tokens(32)
    p = weights_of(layer)
    assert {name: value.shape for name, value in p.items()} == {"fc.0.weight": (32, 2), "fc.2.weight": (2, 32)}
    close(layer(paddle.to_tensor(x)), excite(x, p))


def test_excitation_comes_after_the_projection():
    layer, x = SEAttention(32, 4), tokens(32)
    p = weights_of(layer)
    y = attention(*np.split(x @ p["qkv.weight"], 3, axis=-1), 4) @ p["proj.weight"] + p["proj.bias"]
    close(layer(paddle.to_tensor(x)), excite(y, p, "se_layer."))


def test_cheap_operation_is_a_depthwise_convolution():
    layer, x = CheapOperation(6), paddle.to_tensor(tokens(6))
    assert layer.weight.shape == [6, 1, 1] and layer.bias is None
    assert 0.5 < np.abs(CheapOperation(1000).weight.numpy()).max() <= 1
    convolved = paddle.nn.functional.conv1d(x.transpose([0, 2, 1]), layer.weight, groups=6)
    close(layer(x), convolved.transpose([0, 2, 1]).numpy())


def test_ghost_attention():
    layer, x = GhostAttention(16, 2), tokens(16)
    p = weights_of(layer)
    assert p["q.weight"].shape == (16, 8) and "q.bias" not in p and "qkv.weight" not in p
    parts = []
    for name in "qkv":
        half = x @ p[f"{name}.weight"]
        parts.append(np.concatenate([half, half * p[f"cheap_operation_{name}.weight"].ravel()], axis=-1))
    close(layer(paddle.to_tensor(x)), attention(*parts, 2) @ p["proj.weight"] + p["proj.bias"])


def test_ghost_mlp():
    layer, x = GhostMlp(8, 24), tokens(8)
    p = weights_of(layer)
    first = gelu(x @ p["fc1.weight"] + p["fc1.bias"])
    parts = [first, *(gelu(first * p[f"cheap_operation{i}.weight"].ravel()) for i in (2, 3))]
    close(layer(paddle.to_tensor(x)), np.concatenate(parts, axis=-1) @ p["fc2.weight"] + p["fc2.bias"])
    with pytest.raises(ValueError, match="mlp_ratio=2: the Ghost MLP"):
        GhostMlp(8, 16)


def test_dense_block_appends_channels_of_its_own_output():
    layer, plain, x = DenseBlock(6, 16, 2, 2.0), t2t.Block(16, 2, 2.0), paddle.to_tensor(tokens(16))
    p = weights_of(layer)
    weights_of(plain)
    grown = plain(x).numpy() @ p["dense_linear.weight"] + p["dense_linear.bias"]
    close(layer(x), np.concatenate([x.numpy(), grown], axis=-1))


def test_transition_halves_the_channels():
    layer, x = Transition(9), tokens(9)
    p = weights_of(layer)
    close(layer(paddle.to_tensor(x)), gelu(x @ p["linear.weight"] + p["linear.bias"]))
    assert layer(paddle.to_tensor(x)).shape == [2, 5, 4]


def stack(**more):
    arguments = {"dim": 16, "depth": 4, "num_heads": 2, "mlp_ratio": 1, "growth": 4, "stages": (2, 1, 1), **more}
    return dense_blocks(**arguments, qk_scale=None, drop_rate=0.0, attn_drop_rate=0.0, drop_path_rate=0.22)


def test_dense_stages():
    layers, width = stack()
    kinds = [type(layer) for layer in layers]
    assert kinds == [DenseBlock, DenseBlock, Transition, DenseBlock, Transition, DenseBlock]
    # 16, 20 | 24 / 2 = 12 | 16 / 2 = 8 | 12
    assert [layer.norm1.weight.shape[0] for layer in layers if isinstance(layer, DenseBlock)] == [16, 20, 12, 8]
    assert width == 12
    # The official network takes the first of twelve values, one for each stage.
    rates = [layer.drop_path.drop_prob for layer in layers if isinstance(layer, DenseBlock)]
    assert rates == pytest.approx([0, 0, 0.02, 0.04])
    with pytest.raises(ValueError, match=r"depth=5: the stages \[2, 1, 1\] have 4 blocks"):
        stack(depth=5)
    with pytest.raises(ValueError, match="num_heads=8: does not divide the 20 channels"):
        stack(num_heads=8)


def test_biased_attention():
    layer, x = BiasedAttention(16, 2), tokens(16)
    p = weights_of(layer)
    parts = np.split(x @ p["qkv.weight"] + p["qkv.bias"], 3, axis=-1)
    close(layer(paddle.to_tensor(x)), attention(*parts, 2) @ p["proj.weight"] + p["proj.bias"])


def test_what_makes_a_vit():
    small, base = (build_model(name, img_size=32, depth=1) for name in ("vit_s_16", "vit_b_16"))
    for network, epsilon in ((small, 1e-5), (base, 1e-6)):
        assert not network.pos_embed.stop_gradient and network.pos_embed.shape == [1, 5, 768]
        assert 0.01 < network.pos_embed.numpy().std() < 0.03
        norms = [layer for layer in network.sublayers() if isinstance(layer, paddle.nn.LayerNorm)]
        assert [norm._epsilon for norm in norms] == [epsilon] * 3
        x = paddle.rand([1, 3, 32, 32])
        # One hard split: tokens are the patches, in the order channel, row, column.
        patch = x[:, :, :16, 16:].flatten(1)
        project = network.tokens_to_token.project
        close(network.tokens_to_token(x)[:, 1], (patch @ project.weight + project.bias).numpy())


@pytest.mark.parametrize("name", ["t2t_vit_14_se", "t2t_vit_dense", "t2t_vit_16_ghost", "vit_b_16"])
def test_cpu_forms_equal_paddles_operators(monkeypatch, name):
    network = fill(build_model(name, img_size=32, num_classes=10, **({} if name.endswith("_dense") else {"depth": 2})))
    network.eval()
    x, labels = paddle.to_tensor(rng.standard_normal((3, 3, 32, 32)).astype("float32")), paddle.to_tensor([1, 2, 3])

    def gradients():
        loss = paddle.nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        grads = {n: p.grad.numpy().copy() for n, p in network.named_parameters() if not p.stop_gradient}
        network.clear_gradients()
        return loss.item(), grads

    loss, grads = gradients()
    monkeypatch.setattr(t2t, "CPU_FORMS", False)
    plain_loss, plain_grads = gradients()
    assert abs(loss - plain_loss) < 1e-5
    for key, value in plain_grads.items():
        assert np.abs(grads[key] - value).max() <= 2e-4 * np.abs(value).max() + 1e-9, key
