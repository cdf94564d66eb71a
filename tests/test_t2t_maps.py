"""Feature maps of T2TViT for other heads: strides, shapes, order, and that nothing else changes."""

import numpy as np
import paddle
import pytest
from t2t import T2TViT

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5, "token_dim": 8}


def build(img_size=32, seed=0, **more):
    paddle.seed(seed)
    network = T2TViT(img_size=img_size, **{**SMALL, **more})
    network.eval()
    return network


@pytest.mark.parametrize(("tokens_type", "strides"), [
    ("performer", [4, 8, 16]), ("transformer", [4, 8, 16]), ("convolution", [4, 8, 16]), ("patch", [16]),
])  # fmt: skip
@pytest.mark.parametrize("size", [16, 48])
def test_shapes(tokens_type, strides, size):
    maps = build(size, tokens_type=tokens_type).forward_features(paddle.randn([2, 3, size, size]), maps=True)
    assert list(maps) == strides
    for stride, grid in maps.items():
        assert grid.shape == [2, 24 if stride == 16 else 8, size // stride, size // stride]


@pytest.mark.parametrize("tokens_type", ["performer", "transformer", "convolution", "patch"])
def test_values_are_the_tokens_row_by_row(tokens_type):
    network = build(tokens_type=tokens_type)
    seen = {}
    keep = lambda name: lambda layer, inputs, out: seen.__setitem__(name, out.numpy())  # noqa: E731
    module = network.tokens_to_token
    if tokens_type in ("performer", "transformer"):
        module.attention1.register_forward_post_hook(keep(4))
        module.attention2.register_forward_post_hook(keep(8))
    network.blocks[-1].register_forward_post_hook(keep(16))
    x = paddle.randn([2, 3, 32, 32])
    with paddle.no_grad():
        maps = {stride: grid.numpy() for stride, grid in network.forward_features(x, maps=True).items()}
        seen[16] = network.norm(paddle.to_tensor(seen[16])).numpy()[:, 1:]
        if tokens_type == "convolution":
            out = [module.soft_split0(x), module.soft_split1(module.soft_split0(x))]
            seen[4], seen[8] = (maps.flatten(2).transpose([0, 2, 1]).numpy() for maps in out)
    for stride, tokens in seen.items():
        side = 32 // stride
        for row in range(side):
            for column in range(side):
                expected = tokens[:, row * side + column]
                np.testing.assert_allclose(maps[stride][:, :, row, column], expected, atol=1e-6)


def test_other_splits_have_other_strides():
    # 48 pixels: windows of 5 every 3, then 3 every 2 twice: 16, 8 and 4 tokens along a side.
    network = build(48, splits=((5, 2, 1), (3, 1, 1), (3, 1, 1)))
    maps = network.forward_features(paddle.randn([2, 3, 48, 48]), maps=True)
    assert {stride: grid.shape[1:] for stride, grid in maps.items()} == {3: [8, 16, 16], 6: [8, 8, 8], 12: [24, 4, 4]}


def test_without_maps_nothing_changes():
    network, x = build(), paddle.randn([2, 3, 32, 32])
    with paddle.no_grad():
        plain = network.forward_features(x)
        assert plain.shape == [2, 24]
        np.testing.assert_array_equal(plain.numpy(), network.forward_features(x, maps=False).numpy())
        np.testing.assert_array_equal(network.head(plain).numpy(), network(x).numpy())


def test_a_head_on_all_maps_trains_every_part():
    network = build()
    network.train()
    maps = network.forward_features(paddle.randn([2, 3, 32, 32]), maps=True)
    sum(grid.square().mean() for grid in maps.values()).backward()
    trained = {name for name, parameter in network.named_parameters() if not parameter.stop_gradient}
    moved = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert trained - moved == {"head.weight", "head.bias"}


def test_size_is_checked():
    with pytest.raises(ValueError, match="48x48"):
        build(32).forward_features(paddle.randn([1, 3, 48, 48]), maps=True)
