"""One forward pass watched from outside: feature maps by layer, attention by block, soft splits.

Nothing of the network is changed or computed twice. Layers are seen through hooks, the attention is what softmax gives,
and the splits are the calls that make tokens of an image; so a new network needs no code here.
"""

import math
from contextlib import ExitStack
from typing import NamedTuple
from unittest import mock

import numpy as np
import paddle
import paddle.nn.functional as F
from errors import UserError
from paddle import nn
from t2t import T2TModule, TokenPerformer, TokenTransformer

from pictures.splits import Split

# Layers that stand for their parts: a picture shows what each part gives.
_ENTERED = (nn.LayerList, T2TModule)
_NORMS = (nn.LayerNorm, nn.BatchNorm2D)


class Observed(NamedTuple):
    """What one image caused.

    layers: dict layer name -> float32 [C, h, w], in the order of the pass: the stages of the T2T module and the
    blocks, the class token left out. attention: for each block float32 [h, N, N], rows sum to 1, heads h, N tokens
    with the class token first; empty for a network without. splits: list of pictures.splits.Split, empty for a network
    without tokens. mixing: whether tokens attend to each other between the splits.
    """

    layers: dict
    attention: list
    splits: list
    mixing: bool


def watch(network, images) -> Observed:
    """Run `network` (in evaluation mode) on images [1, 3, S, S] float32 and return what was seen.

    Raises UserError where a layer gives NaN or infinity.
    """
    layers, attention, splits = {}, [], []
    softmax, unfold = F.softmax, F.unfold

    def seen_softmax(x, axis=-1, dtype=None, name=None):
        out = softmax(x, axis, dtype, name)
        if out.ndim == 4 and out.shape[2] == out.shape[3]:
            attention.append(_array(out)[0])
        return out

    def seen_unfold(x, kernel_sizes, strides=1, paddings=0, dilations=1, name=None):
        splits.append(Split(kernel_sizes, strides, paddings))
        return unfold(x, kernel_sizes, strides, paddings, dilations, name)

    def seen_convolution(layer, inputs, out):
        # Convolutions behind the first attention belong to a block.
        if not attention:
            splits.append(Split(layer.weight.shape[-1], *(_one(each) for each in (layer._stride, layer._padding))))

    def seen_layer(name):
        def hook(layer, inputs, out):
            grid = to_maps(_array(out)) if isinstance(out, paddle.Tensor) else None
            if grid is not None:
                layers[name] = grid[0]

        return hook

    with ExitStack() as stack:
        for name, layer in _shown(network):
            stack.callback(layer.register_forward_post_hook(seen_layer(name)).remove)
        for layer in network.sublayers():
            if isinstance(layer, nn.Conv2D):
                stack.callback(layer.register_forward_post_hook(seen_convolution).remove)
        stack.enter_context(mock.patch.object(F, "softmax", seen_softmax))
        stack.enter_context(mock.patch.object(F, "unfold", seen_unfold))
        stack.enter_context(paddle.no_grad())
        network(images)
    for name, grid in layers.items():
        if not np.isfinite(grid).all():
            raise UserError(f"layer {name} gives NaN or infinity for this image; use other weights")
    mixing = any(isinstance(layer, (TokenPerformer, TokenTransformer)) for layer in network.sublayers())
    return Observed(layers, attention, splits if attention else [], mixing)


def to_maps(values):
    """What a layer gives as maps [B, C, h, w]: maps as they are, tokens [B, N, C] row by row; None for anything else.

    N is a square number, or one more: then the first token is the class token and is left out.
    """
    if values.ndim == 4:
        return values
    if values.ndim != 3:
        return None
    count = values.shape[1]
    side = math.isqrt(count)
    if side * side != count:
        side = math.isqrt(count - 1)
        if side * side != count - 1:
            return None
        values = values[:, 1:]
    return values.transpose(0, 2, 1).reshape(-1, values.shape[2], side, side)


def _shown(layer, prefix=""):
    """(name, layer) of the layers whose output is shown: those with weights other than norms, lists entered."""
    for name, child in layer.named_children():
        name = f"{prefix}{name}"
        if isinstance(child, _ENTERED):
            yield from _shown(child, f"{name}.")
        elif not isinstance(child, _NORMS) and child.parameters():
            yield name, child


def _array(tensor):
    return tensor.astype("float32").numpy()


def _one(value):
    """A setting of a convolution that Paddle keeps as a number or as a list, the same for both axes."""
    return value[0] if isinstance(value, (list, tuple)) else value
