"""Attention and MLP that make part of their channels by cheap operations (T2T-ViT-16-Ghost and ViT-Ghost, Table 6).

A cheap operation is a depthwise convolution of kernel 1, one factor for each channel. The layers follow the official
network, whose weights have the shape of a Conv1d's, [C, 1, 1].
"""

import paddle
import paddle.nn.functional as F
from paddle import nn
from t2t import Attention, Dropout, Linear


class CheapOperation(nn.Conv1D):
    """A factor for each channel, x [B, N, C] -> [B, N, C]; weight [C, 1, 1], at first from U(-1, 1) as in PyTorch."""

    def __init__(self, channels):
        uniform = paddle.ParamAttr(initializer=nn.initializer.Uniform(-1.0, 1.0))
        super().__init__(channels, channels, 1, groups=channels, weight_attr=uniform, bias_attr=False)

    def forward(self, x):
        # The convolution itself would want [B, C, N], two copies for a product.
        return x * self.weight.flatten()


class GhostAttention(Attention):
    """t2t.Attention whose q, k and v are projected to half of their channels, which give the other half cheaply."""

    def build_projections(self, dim):
        for name in "qkv":
            setattr(self, name, Linear(dim, dim // 2, bias=False))
            setattr(self, f"cheap_operation_{name}", CheapOperation(dim // 2))
        self.proj = Linear(dim, dim)

    def project_in(self, x):
        """x [B, N, D] -> q, k, v, each [B, N, D]: the projected channels first."""
        for name in "qkv":
            half = getattr(self, name)(x)
            yield paddle.concat([half, getattr(self, f"cheap_operation_{name}")(half)], axis=-1)


class GhostMlp(nn.Layer):
    """MLP of hidden_dim channels, a third of them projected: x [B, N, D] -> [B, N, D].

    y1 = gelu(fc1 x), y2 = gelu(w2 y1), y3 = gelu(w3 y1), fc2 of the three; hidden_dim must be 3 D, as in the official
    network, where fc1 is square.
    """

    def __init__(self, dim, hidden_dim, drop_rate=0.0):
        super().__init__()
        if hidden_dim != 3 * dim:
            raise ValueError(f"mlp_ratio={hidden_dim / dim:g}: the Ghost MLP has three parts of embed_dim, so it is 3")
        self.fc1 = Linear(dim, dim)
        self.cheap_operation2 = CheapOperation(dim)
        self.cheap_operation3 = CheapOperation(dim)
        self.fc2 = Linear(hidden_dim, dim)
        self.drop = Dropout(drop_rate)

    def forward(self, x):
        first = F.gelu(self.fc1(x))
        parts = [first, F.gelu(self.cheap_operation2(first)), F.gelu(self.cheap_operation3(first))]
        return self.drop(self.fc2(self.drop(paddle.concat(parts, axis=-1))))
