"""Token counts, receptive fields and ways, against values worked out by hand and against counting windows."""

import numpy as np
import pytest
from pictures.splits import Split, field, paths, stride_of, tokens_along

T2T = [Split(7, 4, 2), Split(3, 2, 1), Split(3, 2, 1)]
PATCH = [Split(16, 16, 0)]


@pytest.mark.parametrize(("size", "sides"), [(224, (56, 28, 14)), (384, (96, 48, 24)), (16, (4, 2, 1))])
def test_token_counts_of_the_paper(size, sides):
    for split, side in zip(T2T, sides):
        size = tokens_along(size, split)
        assert size == side


def test_token_count_of_paddle_unfold():
    import paddle.nn.functional as F
    from paddle import randn

    for size in (9, 16, 21):
        for split in (Split(7, 4, 2), Split(5, 3, 1), Split(4, 4, 0), Split(3, 1, 1)):
            columns = F.unfold(randn([1, 1, size, size]), split.kernel, strides=split.stride, paddings=split.padding)
            assert columns.shape[2] == tokens_along(size, split) ** 2


def test_field_of_one_token_by_hand():
    # One split: 7 pixels every 4 from -2 on. Two: tokens 2i-1 to 2i+1, of which the first starts at 4(2i-1)-2 = 8i-6.
    assert field(T2T[:1], 0) == (-2, 5) and field(T2T[:1], 3) == (10, 17)
    assert field(T2T[:2], 0) == (-6, 9) and field(T2T[:2], 2) == (10, 25)
    assert field(T2T, 0) == (-14, 17) and field(T2T, 7) == (98, 129)
    assert [field(T2T, 13)[0], field(T2T, 13)[1]] == [194, 225]
    assert field(PATCH, 3) == (48, 64)
    assert field([], 5) == (5, 6)


def test_strides():
    assert stride_of(T2T) == 16 and stride_of(T2T[:2]) == 8 and stride_of(PATCH) == 16 and stride_of([]) == 1


def test_ways_of_one_split_by_hand():
    # Windows of 3 every 2 with padding 1 over 5 positions: {-1,0,1}, {1,2,3}, {3,4,5}.
    split = [Split(3, 2, 1)]
    assert paths(5, split).tolist() == [1, 2, 1, 2, 1]
    assert paths(5, split, 1).tolist() == [0, 1, 1, 1, 0]
    # Two of them: 5 -> 3 -> 2 tokens; the last ones hold tokens {-1,0,1} and {1,2,3}, so token 1 counts twice.
    assert paths(5, split * 2).tolist() == [1, 3, 2, 3, 1]
    assert paths(5, split * 2, 0).tolist() == [1, 2, 1, 1, 0]


@pytest.mark.parametrize("splits", [T2T, PATCH, T2T[:2], [Split(5, 3, 2), Split(3, 1, 1)]])
def test_ways_are_what_unfolding_an_image_of_ones_counts(splits):
    # The gradient of the sum of one token's values with respect to a pixel counts the ways.
    import paddle
    import paddle.nn.functional as F

    image = paddle.ones([1, 1, 32, 32])
    image.stop_gradient = False
    x = image
    for split in splits:
        columns = F.unfold(x, split.kernel, strides=split.stride, paddings=split.padding)
        side = round(columns.shape[2] ** 0.5)
        x = columns.sum(axis=1).reshape([1, 1, side, side])
    row, column = side - 1, 0
    gradient = paddle.grad(x[0, 0, row, column], image, retain_graph=True)[0].numpy()[0, 0]
    np.testing.assert_array_equal(gradient, np.outer(paths(32, splits, row), paths(32, splits, column)))
    everything = paddle.grad(x.sum(), image)[0].numpy()[0, 0]
    np.testing.assert_array_equal(everything, np.outer(paths(32, splits), paths(32, splits)))


@pytest.mark.parametrize("index", [0, 3, 13])
def test_ways_fill_the_field_and_nothing_else(index):
    start, stop = field(T2T, index)
    reached = np.flatnonzero(paths(224, T2T, index))
    assert reached.tolist() == list(range(max(start, 0), min(stop, 224)))
