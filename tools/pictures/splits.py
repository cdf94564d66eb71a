"""Which pixels a token comes from, worked out from the windows of the splits. Along one axis; windows are square."""

from typing import NamedTuple

import numpy as np
from t2t import token_length


class Split(NamedTuple):
    """Windows of `kernel` x `kernel`, one every `stride`, over a picture with `padding` zeros on each side."""

    kernel: int
    stride: int
    padding: int


def tokens_along(size, split):
    """Tokens along an axis of `size` positions (paper, equation 3, square root): 224 pixels with 7/4/2 give 56."""
    _, rows, _ = token_length(size, size, split.kernel, split.kernel - split.stride, split.padding)
    return rows


def tokens_along_all(size, splits):
    """Positions along an axis before the first split and after each: [size, ...]."""
    sides = [size]
    for split in splits:
        sides.append(tokens_along(sides[-1], split))
    return sides


def field(splits, index):
    """(start, stop) of the positions that token `index` of the last of `splits` comes from, before the edge cuts it.

    Positions are those of the input of the first split, pixels; a start below 0 and a stop above the size reach into
    the padding. With the splits of T2T (7/4/2, 3/2/1, 3/2/1) token i has (16 i - 14, 16 i + 17), 31 pixels.
    """
    start, stop = index, index + 1
    for split in reversed(splits):
        start, stop = start * split.stride - split.padding, (stop - 1) * split.stride - split.padding + split.kernel
    return start, stop


def paths(size, splits, index=None):
    """In how many ways each position reaches token `index` of the last split, or any token: int64 [size].

    A way is a chain of windows, one for each split, each holding the one before. In two dimensions the ways multiply:
    np.outer of rows and columns.
    """
    sizes = tokens_along_all(size, splits)
    ways = np.ones(sizes[-1], np.int64)
    if index is not None:
        ways = (np.arange(sizes[-1]) == index).astype(np.int64)
    for split, length in zip(reversed(splits), reversed(sizes[:-1])):
        padded = np.zeros(length + 2 * split.padding, np.int64)
        for token, count in enumerate(ways):
            padded[token * split.stride : token * split.stride + split.kernel] += count
        ways = padded[split.padding : split.padding + length]
    return ways


def stride_of(splits):
    """Pixels from one token of the last split to the next."""
    stride = 1
    for split in splits:
        stride *= split.stride
    return stride
