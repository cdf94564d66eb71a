"""Densely connected blocks: T2T-ViT-Dense and ViT-Dense (paper, section 3.2 and Table 6)."""

import paddle
import paddle.nn.functional as F
from paddle import nn
from t2t import Block, Linear


class DenseBlock(Block):
    """t2t.Block that appends `growth` channels: x [B, N, dim] -> [B, N, dim + growth]."""

    def __init__(self, growth, dim, *arguments, **keywords):
        super().__init__(dim, *arguments, **keywords)
        self.dense_linear = Linear(dim, growth)

    def forward(self, x):
        return paddle.concat([x, self.dense_linear(super().forward(x))], axis=-1)


class Transition(nn.Layer):
    """Linear to half of the channels and GELU, x [B, N, dim] -> [B, N, dim // 2]."""

    def __init__(self, dim):
        super().__init__()
        self.linear = Linear(dim, dim // 2)

    def forward(self, x):
        return F.gelu(self.linear(x))


def dense_blocks(
    dim, depth, num_heads, mlp_ratio, qk_scale, drop_rate, attn_drop_rate, drop_path_rate, *, growth, stages
):
    """The layers of t2t.T2TViT.blocks and the channels after the last one.

    stages: blocks of each stage, `depth` in all, with a Transition between two stages. growth: channels that a block
    adds. Drop path depends on the stage only: drop_path_rate * stage / 11, stages counted from 0, as the official
    network takes the first four of twelve values.
    Raises ValueError where depth is not the sum of the stages, or the heads do not divide the channels of a block.
    """
    if depth != sum(stages):
        raise ValueError(f"depth={depth}: the stages {list(stages)} have {sum(stages)} blocks")
    layers = []
    for stage, count in enumerate(stages):
        if stage:
            layers.append(Transition(dim))
            dim //= 2
        for _ in range(count):
            if dim % num_heads:
                raise ValueError(f"num_heads={num_heads}: does not divide the {dim} channels of a block")
            rate = drop_path_rate * stage / 11
            layers.append(
                DenseBlock(growth, dim, num_heads, mlp_ratio, qk_scale, drop_rate, attn_drop_rate, rate)
            )
            dim += growth
    return layers, dim
