"""Rollout and class attention on matrices small enough to multiply by hand."""

import numpy as np
import pytest
from errors import UserError
from pictures.attention import class_attention, rollout, rollout_map


def test_rollout_of_two_blocks_of_three_tokens_by_hand():
    first = np.array([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    second = np.array([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    # 0.5 A + 0.5 I: [[.5, .5, 0], [0, .5, .5], [.5, 0, .5]] and [[.75, .25, 0], [0, 1, 0], [0, 0, 1]].
    # Their product, the second block on the left.
    expected = [[0.375, 0.5, 0.125], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]
    np.testing.assert_allclose(rollout([first, second]), expected, atol=1e-12)
    # The other order gives something else.
    assert not np.allclose(rollout([second, first]), expected)


def test_rollout_takes_the_mean_of_the_heads():
    heads = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    np.testing.assert_allclose(rollout([heads]), [[0.75, 0.25], [0.25, 0.75]], atol=1e-12)


def test_rows_of_a_rollout_sum_to_one():
    rng = np.random.default_rng(0)
    blocks = [rng.dirichlet(np.ones(10), size=(3, 10)).astype("float32") for _ in range(5)]
    product = rollout(blocks)
    assert product.dtype == np.float64 and product.min() >= 0
    np.testing.assert_allclose(product.sum(axis=1), 1, atol=1e-12)
    # float32 rows that miss 1 by a little are put right.
    np.testing.assert_allclose(rollout([block * 1.01 for block in blocks]).sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(rollout_map(blocks).ravel(), product[0, 1:], atol=0)


def test_class_token_row_by_row():
    attention = np.zeros((2, 5, 5))
    attention[0, 0] = [0.2, 0.1, 0.2, 0.3, 0.2]
    attention[1, 0] = [0.0, 1.0, 0.0, 0.0, 0.0]
    # What patches give to the class token does not count.
    attention[:, 1:, 0] = 9
    maps, own = class_attention(attention)
    assert maps.tolist() == [[[0.1, 0.2], [0.3, 0.2]], [[1.0, 0.0], [0.0, 0.0]]] and own.tolist() == [0.2, 0.0]


def test_tokens_that_are_no_grid():
    with pytest.raises(UserError, match="4 tokens"):
        class_attention(np.ones((1, 4, 4)) / 4)
