"""From attention matrices to what one looks at: the class token's weights and attention rollout."""

import math

import numpy as np
from errors import UserError


def class_attention(attention):
    """Attention [h, N, N] -> (maps [h, g, g], own [h]): the class token's weights on the patches, g = sqrt(N - 1).

    own: the weight that it gives to itself; maps and own add up to 1. Raises UserError where N - 1 is no square number.
    """
    own, patches = attention[:, 0, 0], attention[:, 0, 1:]
    return _grid(patches), own


def rollout(attention):
    """Attention rollout, float64 [N, N], rows sum to 1, of a list of [h, N, N], the first block first.

    S. Abnar and W. Zuidema, "Quantifying Attention Flow in Transformers", 2020: the residual connection counts as
    much as the attention, A' = 0.5 A + 0.5 I with A the mean over the heads, rows normalised, and the blocks multiply,
    A'_L ... A'_2 A'_1. Row i tells what token i of the last block is made of.
    """
    product = np.eye(attention[0].shape[-1])
    for weights in attention:
        mixed = 0.5 * weights.astype(np.float64).mean(axis=0) + 0.5 * np.eye(weights.shape[-1])
        product = mixed / mixed.sum(axis=1, keepdims=True) @ product
    return product


def rollout_map(attention):
    """The class token's row of the rollout on the patches: float64 [g, g]."""
    return _grid(rollout(attention)[:1, 1:])[0]


def _grid(weights):
    """[K, g * g] -> [K, g, g], row by row."""
    side = math.isqrt(weights.shape[1])
    if side * side != weights.shape[1]:
        raise UserError(f"the network has {weights.shape[1] + 1} tokens, which are no square grid and a class token")
    return weights.reshape(-1, side, side)
