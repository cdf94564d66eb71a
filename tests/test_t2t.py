"""The network's parts against independent arithmetic, and the rules of the official network (PITFALLS N01 to N10)."""

import numpy as np
import paddle
import pytest
import t2t
from official_weights import fill
from plain_t2t import PlainPerformer, PlainT2TViT

rng = np.random.default_rng(0)


def gelu(x):
    erf = np.vectorize(__import__("math").erf)
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def numpy_performer(network, x):
    """The token performer in NumPy float64, written from the equations."""
    p = {name: value.numpy().astype("float64") for name, value in network.named_parameters()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p[name + ".weight"] + p[name + ".bias"]

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    k, q, v = np.split(linear(norm(x, "norm1"), "kqv"), 3, axis=-1)

    def phi(x):
        return np.exp(x @ p["w"].T - (x**2).sum(-1, keepdims=True) / 2) / np.sqrt(32)

    weights = np.einsum("btm,bsm->bts", phi(q), phi(k))
    y = weights @ v / (weights.sum(-1, keepdims=True) + 1e-8)
    y = v + linear(y, "proj")
    return y + linear(gelu(linear(norm(y, "norm2"), "mlp.0")), "mlp.2")


@pytest.fixture
def performer():
    network = fill(t2t.TokenPerformer(147, 64))
    network.eval()
    return network


def test_performer_equals_numpy(performer):
    x = rng.standard_normal((2, 9, 147)).astype("float32")
    expected = numpy_performer(performer, x.astype("float64"))
    for grad in (False, True):
        with paddle.set_grad_enabled(grad):
            assert np.abs(performer(paddle.to_tensor(x)).numpy() - expected).max() < 1e-5


def test_performer_takes_k_q_v_in_that_order(performer):
    x = paddle.to_tensor(rng.standard_normal((2, 9, 147)).astype("float32"))
    before = performer(x).numpy()
    for parameter in (performer.kqv.weight, performer.kqv.bias):
        k, q, v = np.split(parameter.numpy(), 3, axis=-1)
        parameter.set_value(np.concatenate([q, k, v], axis=-1))
    assert np.abs(performer(x).numpy() - before).max() > 1e-3


def test_performer_residual_is_v(performer):
    for layer in (performer.proj, performer.mlp[0], performer.mlp[2]):
        layer.weight.set_value(np.zeros(layer.weight.shape, "float32"))
        layer.bias.set_value(np.zeros(layer.bias.shape, "float32"))
    x = paddle.to_tensor(rng.standard_normal((2, 9, 147)).astype("float32"))
    v = paddle.nn.functional.linear(performer.norm1(x), performer.kqv.weight, performer.kqv.bias)[:, :, 128:]
    np.testing.assert_allclose(performer(x).numpy(), v.numpy(), atol=1e-6)


def test_feature_matrix_is_orthogonal_scaled_and_frozen():
    network = t2t.t2t_vit_7(img_size=32, num_classes=10)
    parameters = dict(network.named_parameters())
    for name in ("tokens_to_token.attention1.w", "tokens_to_token.attention2.w"):
        w = parameters[name]
        assert w.stop_gradient and w.shape == [32, 64]
        np.testing.assert_allclose((w @ w.t()).numpy(), 32 * np.eye(32), atol=1e-3)


def test_frozen_tensors_stay_through_training():
    network = t2t.t2t_vit_7(img_size=32, num_classes=10)
    frozen = {n: p.numpy().copy() for n, p in network.named_parameters() if p.stop_gradient}
    assert set(frozen) == {"pos_embed", "tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}
    optimizer = paddle.optimizer.AdamW(0.1, parameters=network.parameters(), weight_decay=0.5)
    for _ in range(3):
        network(paddle.rand([2, 3, 32, 32])).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    parameters = dict(network.named_parameters())
    for name, value in frozen.items():
        assert np.array_equal(parameters[name].numpy(), value), name


def test_position_table_is_the_sinusoid():
    table = t2t.sinusoid_table(197, 256)
    assert table.shape == (1, 197, 256) and table.dtype == np.float32
    assert table[0, 0, :4].tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(table[0, 1, :2], [0.841471, 0.540302], atol=1e-6)
    # The angle falls with the pair of columns: j = 254 and 255 share 1 / 10000^(254/256).
    np.testing.assert_allclose(table[0, 100, 254], np.sin(100 / 10000 ** (254 / 256)), atol=1e-6)


@pytest.mark.parametrize("kernel, stride, padding, size", [(7, 4, 2, 32), (7, 4, 2, 33), (3, 2, 1, 8), (3, 2, 1, 9)])
def test_soft_split_equals_im2col(kernel, stride, padding, size):
    x = rng.standard_normal((2, 3, size, size)).astype("float32")
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out = (size + 2 * padding - kernel) // stride + 1
    expected = np.stack([
        padded[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel].reshape(2, -1)
        for i in range(out) for j in range(out)
    ], axis=1)  # fmt: skip
    assert np.array_equal(t2t.soft_split(paddle.to_tensor(x), kernel, stride, padding).numpy(), expected)


def test_static_graph_takes_any_batch_and_agrees(tmp_path):
    network = fill(t2t.t2t_vit_7(img_size=32, num_classes=10))
    network.eval()
    spec = [paddle.static.InputSpec([None, 3, 32, 32], "float32")]
    static = paddle.jit.to_static(network, input_spec=spec, full_graph=True)
    for batch in (1, 3):
        x = paddle.to_tensor(rng.standard_normal((batch, 3, 32, 32)).astype("float32"))
        with paddle.no_grad():
            outside = static(x).numpy()
        with paddle.no_grad():
            np.testing.assert_allclose(outside, network(x).numpy(), atol=1e-5)


def test_attention_scales():
    for name in ("t2t_vit_7", "t2t_vit_24"):
        network = getattr(t2t, name)(img_size=32)
        assert {block.attn.scale for block in network.blocks} == {0.125}
    token = t2t.t2t_vit_t_14(img_size=32).tokens_to_token
    assert (token.attention1.attn.scale, token.attention2.attn.scale) == (147**-0.5, 576**-0.5)
    assert t2t.t2t_vit_7(img_size=32, qk_scale=0.5).blocks[3].attn.scale == 0.5


def test_drop_path_rates_are_floats_and_reach_the_last_block():
    network = t2t.t2t_vit_14(img_size=32, drop_path_rate=0.1)
    rates = [block.drop_path.drop_prob for block in network.blocks]
    assert all(type(rate) is float for rate in rates)
    assert rates == pytest.approx([0.1 * i / 13 for i in range(14)])
    assert t2t.drop_path_rates(0.2, 1) == [0.0]


def test_drop_path_drops_whole_samples():
    layer = t2t.DropPath(0.4)
    x = paddle.ones([4000, 3, 5])
    layer.eval()
    assert layer(x) is x
    layer.train()
    kept = layer(x).numpy()
    assert np.unique(kept).tolist() == pytest.approx([0, 1 / 0.6])
    assert (kept == kept[:, :1, :1]).all()
    share = (kept[:, 0, 0] > 0).mean()
    assert abs(share - 0.6) < 4 * np.sqrt(0.24 / 4000)


@pytest.mark.parametrize("shape", [[100, 40, 64], [300000]])
def test_dropout_on_a_cpu_keeps_the_expected_share(shape):
    layer = t2t.Dropout(0.1)
    out = layer(paddle.ones(shape)).numpy()
    kept = out > 0
    assert abs(kept.mean() - 0.9) < 4 * np.sqrt(0.09 / kept.size)
    np.testing.assert_allclose(out[kept], 1 / 0.9, rtol=2e-5)
    paddle.seed(3)
    first = layer(paddle.ones(shape)).numpy()
    paddle.seed(3)
    assert np.array_equal(layer(paddle.ones(shape)).numpy(), first)


def test_performer_dropout_is_on_in_training_only():
    network = t2t.t2t_vit_7(img_size=32, num_classes=10)
    x = paddle.rand([2, 3, 32, 32])
    network.eval()
    assert np.array_equal(network(x).numpy(), network(x).numpy())
    network.train()
    assert not np.array_equal(network(x).numpy(), network(x).numpy())


@pytest.mark.parametrize("size", [0, -16, 200, 230, 232, 224.0, "224", True])
def test_other_sizes_are_refused_at_build(size):
    with pytest.raises(ValueError, match="multiple of 16"):
        t2t.t2t_vit_7(img_size=size)


@pytest.mark.parametrize("size", [16, 64, 384])
def test_allowed_sizes_run(size):
    network = t2t.t2t_vit_7(img_size=size, num_classes=3)
    assert network.pos_embed.shape == [1, (size // 16) ** 2 + 1, 256]
    network.eval()
    with paddle.no_grad():
        assert network(paddle.zeros([1, 3, size, size])).shape == [1, 3]


def test_images_of_another_size_are_refused():
    network = t2t.t2t_vit_7(img_size=32)
    for shape in ([1, 3, 64, 64], [1, 3, 32, 48]):
        with pytest.raises(ValueError, match="built for 32x32"):
            network(paddle.zeros(shape))


@pytest.mark.parametrize("kwargs, word", [
    ({"tokens_type": "conv"}, "performer"), ({"embed_dim": 100}, "num_heads"), ({"drop_rate": 1.0}, "drop_rate"),
    ({"drop_path_rate": -0.1}, "drop_path_rate"),
])  # fmt: skip
def test_other_arguments_are_checked(kwargs, word):
    with pytest.raises(ValueError, match=word):
        t2t.T2TViT(img_size=32, **kwargs)


def test_initialisation_is_the_official_one():
    network = t2t.t2t_vit_14(img_size=32)
    weights = np.concatenate([
        layer.weight.numpy().ravel() for layer in network.sublayers() if isinstance(layer, paddle.nn.Linear)
    ])  # fmt: skip
    assert abs(weights.std() - 0.02) < 1e-4 and abs(weights.mean()) < 1e-4
    # Not cut at two deviations: 4.55 % lie beyond.
    assert abs((np.abs(weights) > 0.04).mean() - 0.0455) < 0.001
    for layer in network.sublayers():
        if isinstance(layer, paddle.nn.Linear) and layer.bias is not None:
            assert not layer.bias.numpy().any()
    assert 0.015 < network.cls_token.numpy().std() < 0.025


def gradients(network, x, labels):
    paddle.seed(7)
    loss = paddle.nn.functional.cross_entropy(network(x), labels)
    loss.backward()
    grads = {n: p.grad.numpy().copy() for n, p in network.named_parameters() if not p.stop_gradient}
    network.clear_gradients()
    return loss.item(), grads


@pytest.mark.parametrize("name", ["t2t_vit_7", "t2t_vit_t_14", "t2t_vit_c_14", "t2t_vit_14_wo_t2t"])
def test_cpu_forms_equal_paddles_operators(monkeypatch, name):
    network = fill(getattr(t2t, name)(img_size=32, num_classes=10))
    network.eval()
    x, labels = paddle.to_tensor(rng.standard_normal((3, 3, 32, 32)).astype("float32")), paddle.to_tensor([1, 2, 3])
    loss, grads = gradients(network, x, labels)
    monkeypatch.setattr(t2t, "CPU_FORMS", False)
    plain_loss, plain_grads = gradients(network, x, labels)
    assert abs(loss - plain_loss) < 1e-5
    for key, value in plain_grads.items():
        scale = np.abs(value).max()
        assert np.abs(grads[key] - value).max() <= 2e-4 * scale + 1e-9, key


def test_cpu_forms_work_with_a_frozen_backbone():
    network = t2t.t2t_vit_7(img_size=32, num_classes=10)
    for name, parameter in network.named_parameters():
        parameter.stop_gradient = not name.startswith("head")
    network(paddle.rand([2, 3, 32, 32])).sum().backward()
    assert network.head.weight.grad is not None and network.blocks[0].norm1.weight.grad is None


def test_transposes_are_put_back():
    flag = "FLAGS_use_stride_kernel"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: True})
    network = t2t.t2t_vit_7(img_size=32)
    with pytest.raises(ValueError):
        network(paddle.zeros([1, 3, 48, 48]))
    network(paddle.zeros([1, 3, 32, 32]))
    assert paddle.get_flags(flag)[flag] is True
    paddle.set_flags(before)


def test_plain_yardstick_computes_the_same_network():
    plain, ours = fill(PlainT2TViT(img_size=32)), fill(t2t.t2t_vit_7(img_size=32))
    ours.pos_embed.set_value(plain.pos_embed)
    x = paddle.rand([2, 3, 32, 32])
    plain.eval()
    ours.eval()
    np.testing.assert_allclose(plain(x).numpy(), ours(x).numpy(), atol=1e-5)
    assert sorted(n for n, _ in plain.named_parameters()) == sorted(n for n, _ in ours.named_parameters())
    assert PlainPerformer(147).m == 32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exponential_and_division_are_float32_for_half_inputs(performer, dtype):
    """What mixed precision hands over: halves in, float32 inside and out, also where half precision overflows."""
    seen = []
    feature_map = performer.feature_map
    performer.feature_map = lambda x: seen.append(x.dtype) or feature_map(x)
    parts = [paddle.to_tensor(10 * rng.standard_normal((2, 9, 64)).astype("float32")).astype(dtype) for _ in range(3)]
    y = performer.linear_attention(*parts)
    assert seen == [paddle.float32, paddle.float32] and y.dtype == paddle.float32
    assert np.isfinite(y.numpy()).all()
    exact = performer.linear_attention(*(part.astype("float32") for part in parts))
    assert np.array_equal(y.numpy(), exact.numpy())
