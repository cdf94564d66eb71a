"""Parameters, and multiply-adds of one forward pass, by rules that give the published figures."""

from contextlib import ExitStack
from unittest import mock

import numpy as np
import paddle
import t2t
from paddle import nn


def is_statistic(name):
    """Whether a tensor's structured name is that of a running mean or variance of BatchNorm.

    Paddle lists them among the parameters, as tensors that are not trained; published counts leave them out.
    """
    return name.rpartition(".")[2] in ("_mean", "_variance")


def count_parameters(model):
    """(all, trainable) elements of the parameters of `model`, without statistics. LazyGuard suffices to build it."""
    sizes = [
        (int(np.prod(p.shape)), not p.stop_gradient) for name, p in model.named_parameters() if not is_statistic(name)
    ]
    return sum(size for size, _ in sizes), sum(size for size, trainable in sizes if trainable)


def count_macs(model, img_size, in_chans=3):
    """MACs of one image [1, in_chans, img_size, img_size] through `model`, a whole number.

    Matrix products (those of the attention too) and convolutions count their multiply-adds and a LayerNorm five per
    element, as fvcore does; other operations, BatchNorm among them, count nothing. The paper's and the official
    README's figures come out of this rule. Counters that look at Linear layers alone give 10 to 20 % less.
    The products are seen as they happen, so a new network needs no formula of its own.
    """
    total = [0]
    matmul, linear = paddle.matmul, nn.functional.linear

    def counted_matmul(x, y, transpose_x=False, transpose_y=False, name=None):
        out = matmul(x, y, transpose_x, transpose_y)
        total[0] += _size(out) * x.shape[-2 if transpose_x else -1]
        return out

    def counted_linear(x, weight, bias=None, name=None):
        out = linear(x, weight, bias)
        total[0] += _size(out) * weight.shape[0]
        return out

    def convolved(layer, inputs, out):
        total[0] += _size(out) * int(np.prod(layer.weight.shape[1:]))

    def normalised(layer, inputs, out):
        total[0] += 5 * _size(out)

    training = model.training
    model.eval()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(paddle, "matmul", counted_matmul))
        stack.enter_context(mock.patch.object(nn.functional, "linear", counted_linear))
        for layer in model.sublayers(include_self=True):
            if isinstance(layer, (nn.Conv1D, nn.Conv2D)):
                stack.callback(layer.register_forward_post_hook(convolved).remove)
            elif isinstance(layer, nn.LayerNorm):
                stack.callback(layer.register_forward_post_hook(normalised).remove)
        # The CPU forms replace sums by products, which no published figure counts.
        stack.enter_context(mock.patch.object(t2t, "CPU_FORMS", False))
        stack.enter_context(paddle.no_grad())
        model(paddle.zeros([1, in_chans, img_size, img_size]))
    if training:
        model.train()
    return total[0]


def _size(tensor):
    return int(np.prod(tensor.shape))
