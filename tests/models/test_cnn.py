"""The convolutional networks: the layers of paddle.vision.models, and settings that they do not have."""

import numpy as np
import paddle
import pytest
from errors import UserError
from models import build_model
from models.cnn import CNN
from paddle.vision import models as vision

# Name of the row, Paddle's builder, and the number of blocks: the stem, the published ones, and what follows them.
TWINS = [
    ("resnet50", vision.resnet50, 1 + 16), ("mobilenet_v1", vision.mobilenet_v1, 1 + 13),
    ("mobilenet_v2", vision.mobilenet_v2, 1 + 17 + 1), ("mobilenet_v3", vision.mobilenet_v3_large, 1 + 15 + 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "build", "count"), TWINS)
def test_features_are_those_of_paddles_network(name, build, count):
    theirs, ours = build(num_classes=7), build_model(name, num_classes=7, img_size=32)
    values = [tensor.numpy() for tensor in theirs.state_dict().values()]
    own = list(ours.state_dict().values())
    assert [list(value.shape) for value in values] == [tensor.shape for tensor in own]
    for tensor, value in zip(own, values):
        tensor.set_value(value)
    ours.eval()
    theirs.eval()
    x = paddle.rand([2, 3, 32, 32])
    np.testing.assert_allclose(ours(x).numpy(), theirs(x).numpy(), atol=1e-5, rtol=1e-4)
    assert len(ours.blocks) == count
    assert ours.forward_features(x).shape == [2, ours.num_features]


def test_any_image_size_runs():
    network = build_model("mobilenet_v1", num_classes=3)
    network.eval()
    for size in (32, 47, 224):
        assert network(paddle.zeros([1, 3, size, size])).shape == [1, 3]
    assert build_model("mobilenet_v1", num_classes=0)(paddle.zeros([2, 3, 32, 32])).shape == [2, 1024]


@pytest.mark.parametrize(("name", "channels"), [
    ("resnet50", {4: 256, 8: 512, 16: 1024, 32: 2048}), ("mobilenet_v1", {2: 64, 4: 128, 8: 256, 16: 512, 32: 1024}),
    ("mobilenet_v2", {2: 16, 4: 24, 8: 32, 16: 96, 32: 1280}),
    ("mobilenet_v3", {2: 16, 4: 24, 8: 40, 16: 112, 32: 960}),
])  # fmt: skip
def test_maps_are_the_last_of_each_stride(name, channels):
    network = build_model(name, num_classes=3)
    network.eval()
    seen = []
    for block in network.blocks:
        block.register_forward_post_hook(lambda layer, inputs, output: seen.append(output))
    x = paddle.rand([2, 3, 64, 64])
    maps = network.forward_features(x, maps=True)
    assert {stride: grid.shape for stride, grid in maps.items()} == {
        stride: [2, count, 64 // stride, 64 // stride] for stride, count in channels.items()
    }
    for grid in maps.values():
        np.testing.assert_array_equal(grid, [out for out in seen if out.shape[2:] == grid.shape[2:]][-1])
    with pytest.raises(ValueError, match="multiples of 32"):
        network.forward_features(paddle.rand([1, 3, 48, 48]), maps=True)


def test_dropout_is_in_front_of_the_head():
    network = build_model("mobilenet_v1", num_classes=3, drop_rate=0.5)
    seen = []
    network.head.register_forward_post_hook(lambda layer, inputs, output: seen.append(inputs[0].numpy()))
    features = paddle.ones([4, 1024])
    network.forward_features = lambda x: features
    network(None)
    assert set(np.unique(seen[0]).round(2)) == {0, 2} and 0.4 < (seen[0] == 0).mean() < 0.6
    network.eval()
    network(None)
    assert (seen[1] == 1).all()
    assert [build_model(name).drop.p for name in ("mobilenet_v2", "mobilenet_v3", "mobilenet_v1")] == [0.2, 0.2, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"drop_path_rate": 0.1}, "model mobilenet_v1: drop_path_rate=0.1: this network has no drop path; "
                                  "set model.drop_path=0"),
        ({"attn_drop_rate": 0.1}, "attn_drop_rate=0.1: this network has no attention"),
        ({"qk_scale": 0.1}, "qk_scale=0.1: this network has no attention"),
        ({"in_chans": 1}, "in_chans=1: the convolutional networks take three channels"),
        ({"img_size": 0}, "img_size=0: must be a positive number"),
        ({"img_size": 32.0}, "img_size=32.0: must be"),
        ({"drop_rate": 1}, "drop_rate=1: must be at least 0 and below 1"),
    ],
)  # fmt: skip
def test_other_settings_are_refused_in_one_line(arguments, words):
    with pytest.raises(UserError) as caught:
        build_model("mobilenet_v1", **arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_refusals_come_before_any_layer_is_built():
    def body():
        raise AssertionError

    with pytest.raises(ValueError, match="drop path"):
        CNN(body, drop_path_rate=0.1)
