"""Soft splits of other kernels and overlaps: the paper's length of tokens, and networks built on it."""

import itertools

import numpy as np
import paddle
import pytest
import t2t
from commands import last_line, make_folders, mistake, run, settings
from errors import UserError
from models import build_model


def test_published_lengths():
    assert t2t.token_length(224, 224, 7, 3, 2) == (56 * 56, 56, 56)
    assert t2t.token_length(56, 28, 3, 1, 1) == (28 * 14, 28, 14)
    # A hard split has no overlap.
    assert t2t.token_length(224, 384, 16, 0, 0) == (14 * 24, 14, 24)
    for size in range(16, 400, 16):
        assert t2t.grid_sides(size) == [size // 4, size // 8, size // 16]


def test_length_is_that_of_the_split_itself():
    count = 0
    for height, width, kernel, overlap, padding in itertools.product((5, 8), (5, 9), (1, 2, 3, 5), range(3), range(3)):
        if overlap < kernel and padding < kernel and min(height, width) + 2 * padding >= kernel:
            tokens = t2t.soft_split(paddle.zeros([1, 2, height, width]), kernel, kernel - overlap, padding)
            length, rows, columns = t2t.token_length(height, width, kernel, overlap, padding)
            assert tokens.shape == [1, length, 2 * kernel * kernel] and length == rows * columns
            count += 1
    assert count > 60


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ((0, 0, 0), "kernel=0, overlap=0, padding=0: overlap and padding must be at least 0 and below the kernel"),
        ((3, 3, 0), "overlap=3, padding=0: overlap and padding must be"),
        ((3, -1, 0), "overlap=-1"),
        ((3, 1, 3), "padding=3"),
        ((3, 1, -1), "padding=-1"),
        ((11, 1, 2), "the window is larger than 6x8 with its padding"),
    ],
)  # fmt: skip
def test_what_is_no_split(split, words):
    with pytest.raises(ValueError) as caught:
        t2t.token_length(6, 8, *split)
    assert words in str(caught.value)


OTHERS = [
    # img_size, splits, sides of the grids
    (32, ((7, 3, 2), (3, 1, 1), (3, 0, 1)), [8, 4, 2]),
    (32, ((5, 1, 1), (3, 1, 1), (4, 2, 1)), [8, 4, 2]),
    (36, ((8, 4, 2), (4, 2, 1), (3, 2, 1)), [9, 4, 4]),
    (33, ((4, 0, 0), (2, 0, 0), (2, 0, 0)), [8, 4, 2]),
]


@pytest.mark.parametrize(("size", "splits", "sides"), OTHERS)
@pytest.mark.parametrize("tokens_type", ["performer", "transformer", "convolution"])
def test_networks_of_other_splits(size, splits, sides, tokens_type):
    assert t2t.grid_sides(size, splits) == sides
    network = t2t.T2TViT(
        size, tokens_type, embed_dim=32, depth=1, num_heads=2, num_classes=3, splits=[list(split) for split in splits]
    )
    assert network.pos_embed.shape == [1, 1 + sides[-1] ** 2, 32]
    if tokens_type != "convolution":
        kernels = [split[0] for split in splits]
        inputs = [3 * kernels[0] ** 2, 64 * kernels[1] ** 2, 64 * kernels[2] ** 2]
        module = network.tokens_to_token
        assert [module.attention1.norm1.weight.shape[0], module.attention2.norm1.weight.shape[0],
                module.project.weight.shape[0]] == inputs  # fmt: skip
    logits = network(paddle.rand([2, 3, size, size]))
    logits.sum().backward()
    assert logits.shape == [2, 3] and np.isfinite(logits.numpy()).all()


def test_published_splits_change_nothing():
    paddle.seed(0)
    first = t2t.t2t_vit_7(img_size=32)
    paddle.seed(0)
    second = t2t.t2t_vit_7(img_size=32, splits=[[7, 3, 2], [3, 1, 1], [3, 1, 1]])
    first.eval()
    second.eval()
    x = paddle.rand([1, 3, 32, 32])
    assert np.array_equal(first(x).numpy(), second(x).numpy())


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("t2t_vit_7", {"img_size": 36}, "img_size=36: T2T-ViT takes square images of a multiple of 16"),
        ("t2t_vit_7", {"img_size": 16, "splits": ((7, 3, 2), (3, 1, 1), (5, 1, 0))},
         "soft split 3 of img_size=16: kernel=5, overlap=1, padding=0: the window is larger than 2x2"),
        ("t2t_vit_7", {"splits": ((7, 3, 2), (3, 1, 1))}, "must be three times kernel, overlap and padding"),
        ("t2t_vit_7", {"splits": ((7, 3), (3, 1, 1), (3, 1, 1))}, "must be three times"),
        ("vit_s_16", {"splits": ((7, 3, 2), (3, 1, 1), (3, 2, 1))}, "this network has no soft splits"),
        ("mobilenet_v1", {"splits": ((7, 3, 2), (3, 1, 1), (3, 2, 1))}, "this network has no soft splits"),
    ],
)  # fmt: skip
def test_refusals(name, arguments, words):
    with pytest.raises(UserError) as caught:
        build_model(name, **arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_splits_of_a_configuration(tmp_path):
    make_folders(tmp_path / "train", ("ant", "bee"), count=2)
    make_folders(tmp_path / "val", ("ant", "bee"), count=1)
    chosen = {"model__num_classes": 2, "model__split_overlaps": "[3,1,0]", "train__epochs": 1}
    words = settings(tmp_path, tmp_path / "run", **chosen)
    assert run("train", *words).code == 0
    # Validation takes them from the run.
    assert "final val acc is:" in last_line(run("val", "--weights", tmp_path / "run", "device=cpu"))
    other = settings(tmp_path, tmp_path / "run", **{**chosen, "model__split_overlaps": "[3,1,1]"})
    mistake(run("train", *other), "model.split_overlaps=[3, 1, 1]", "choose another output")
    wrong = settings(tmp_path, tmp_path / "other", **{**chosen, "model__split_kernels": "[7,3,9]"})
    mistake(run("train", *wrong), "model t2t_vit_7: soft split 3 of img_size=16: kernel=9")
    assert not (tmp_path / "other").exists()
    # Nothing in the tensors would tell another training or a converted file that the network was one of its own.
    init = settings(tmp_path, tmp_path / "more", model__num_classes=2, train__init=tmp_path / "run")
    remedy = "set model.split_overlaps=[3,1,0]"
    mistake(run("train", *init), "model.split_overlaps=[3,1,1]: the weights", "go with [3,1,0]", remedy)
    refused = run("convert", tmp_path / "run", tmp_path / "w.pth")
    mistake(refused, "model.split_overlaps=[3, 1, 0]: only networks with the published soft splits")
    assert not (tmp_path / "w.pth").exists()
