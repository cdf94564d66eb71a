"""What is seen of a forward pass: the order of tokens, the attention against NumPy, and that nothing is changed."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from errors import UserError
from models import build_model
from paddle import nn
from pictures.splits import Split
from pictures.watching import to_maps, watch
from t2t import T2TViT

T2T = [Split(7, 4, 2), Split(3, 2, 1), Split(3, 2, 1)]


def build(**more):
    paddle.seed(0)
    network = T2TViT(**{"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5, **more})
    network.eval()
    return network


class Positions(nn.Layer):
    """A layer whose token i of a 3x4 ... grid says its own row and column."""

    def __init__(self, side, class_token):
        super().__init__()
        self.side, self.class_token = side, class_token
        self.weight = self.create_parameter([1])

    def forward(self, x):
        places = [[float(row), float(column)] for row in range(self.side) for column in range(self.side)]
        return paddle.to_tensor([[[-7.0, -7.0]] * self.class_token + places])


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("side", [1, 2, 3, 5])
def test_tokens_become_maps_row_by_row(side, class_token):
    network = nn.Sequential(Positions(side, class_token))
    rows, columns = watch(network, paddle.zeros([1, 3, 8, 8])).layers["0"]
    np.testing.assert_array_equal(rows, np.arange(side)[:, None] * np.ones(side))
    np.testing.assert_array_equal(columns, np.arange(side) * np.ones((side, 1)))


def test_what_is_no_grid():
    assert to_maps(np.zeros((1, 10))) is None and to_maps(np.zeros((1, 8, 3))) is None
    maps = np.arange(24.0).reshape(1, 4, 2, 3)
    assert to_maps(maps) is maps


def test_layers_of_the_network_in_order():
    stages = ["attention1", "attention2", "project"]
    seen = watch(build(), paddle.randn([1, 3, 32, 32])).layers
    assert list(seen) == [f"tokens_to_token.{stage}" for stage in stages] + ["blocks.0", "blocks.1"]
    assert [maps.shape for maps in seen.values()] == [(64, 8, 8), (64, 4, 4), (24, 2, 2), (24, 2, 2), (24, 2, 2)]


def test_layers_are_what_the_maps_of_the_network_are():
    network, x = build(), paddle.randn([1, 3, 32, 32])
    seen = watch(network, x).layers
    with paddle.no_grad():
        maps = network.forward_features(x, maps=True)
    np.testing.assert_allclose(seen["tokens_to_token.attention1"], maps[4].numpy()[0], atol=1e-6)
    np.testing.assert_allclose(seen["tokens_to_token.attention2"], maps[8].numpy()[0], atol=1e-6)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_that_of_plain_numpy(scale):
    network, x = build(num_heads=3, qk_scale=scale), paddle.randn([1, 3, 32, 32])
    inputs = []
    for block in network.blocks:
        block.attn.register_forward_pre_hook(lambda layer, given: inputs.append(given[0].numpy()[0].astype("float64")))
        # Fresh weights attend evenly, which would hide mistakes.
        block.attn.qkv.weight.set_value(block.attn.qkv.weight * 20)
    seen = watch(network, x).attention
    assert len(seen) == 2
    for weights, block, given in zip(seen, network.blocks, inputs):
        qkv = given @ block.attn.qkv.weight.numpy().astype("float64")
        for head in range(3):
            q, k = (qkv[:, part * 24 + head * 8 : part * 24 + head * 8 + 8] for part in (0, 1))
            logits = q @ k.T * (scale or 8**-0.5)
            expected = np.exp(logits - logits.max(axis=1, keepdims=True))
            expected /= expected.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(weights[head], expected, atol=1e-5)
            assert np.ptp(expected) > 0.2
        np.testing.assert_allclose(weights.sum(axis=2), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "splits", "mixing"), [
    ("t2t_vit_7", T2T, True), ("t2t_vit_t_14", T2T, True), ("t2t_vit_c_14", T2T, False),
    ("t2t_vit_14_wo_t2t", [Split(16, 16, 0)], False),
])  # fmt: skip
def test_splits_and_attention_of_published_networks(name, splits, mixing):
    network = build_model(name, img_size=16, num_classes=3)
    network.eval()
    seen = watch(network, paddle.randn([1, 3, 16, 16]))
    assert seen.splits == splits and seen.mixing is mixing
    assert len(seen.attention) == len(network.blocks)
    assert {weights.shape for weights in seen.attention} == {(network.blocks[0].attn.num_heads, 2, 2)}


def test_a_convolutional_network_has_maps_only():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.blocks = nn.LayerList([nn.Sequential(nn.Conv2D(3, 4, 3, stride=2, padding=1), nn.ReLU())])
            self.bn = nn.BatchNorm2D(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(self.bn(x).mean(axis=[2, 3]))

    network = Net()
    network.eval()
    seen = watch(network, paddle.randn([1, 3, 9, 9]))
    assert list(seen.layers) == ["blocks.0"] and seen.layers["blocks.0"].shape == (4, 5, 5)
    assert seen.attention == [] and seen.splits == [] and seen.mixing is False


def test_convolutions_of_blocks_make_no_tokens():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.split, self.local = nn.Conv2D(3, 4, 4, stride=2, padding=1), nn.Conv2D(4, 4, 3, padding=1)

        def forward(self, x):
            tokens = self.split(x).flatten(2).transpose([0, 2, 1]).unsqueeze(1)
            attention = F.softmax(paddle.matmul(tokens, tokens, transpose_y=True), axis=-1)
            tokens = paddle.matmul(attention, tokens).squeeze(1)
            return self.local(tokens.transpose([0, 2, 1]).reshape([1, 4, 4, 4]))

    seen = watch(Net(), paddle.randn([1, 3, 8, 8]))
    assert seen.splits == [Split(4, 2, 1)] and [weights.shape for weights in seen.attention] == [(1, 16, 16)]


def test_nothing_is_left_behind():
    network, x = build(), paddle.randn([1, 3, 32, 32])
    softmax, unfold = F.softmax, F.unfold
    with paddle.no_grad():
        before = network(x).numpy()
        watch(network, x)
        assert F.softmax is softmax and F.unfold is unfold
        assert not any(layer._forward_post_hooks for layer in network.sublayers(include_self=True))
        np.testing.assert_array_equal(network(x).numpy(), before)
    with pytest.raises(ValueError, match="48x48"):
        watch(network, paddle.randn([1, 3, 48, 48]))
    assert F.softmax is softmax and not any(layer._forward_post_hooks for layer in network.sublayers())


def test_weights_that_give_nan():
    network = build()
    network.blocks[1].mlp.fc1.bias.set_value(paddle.full_like(network.blocks[1].mlp.fc1.bias, float("nan")))
    with pytest.raises(UserError, match="blocks.1"):
        watch(network, paddle.randn([1, 3, 32, 32]))
