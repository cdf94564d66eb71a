"""T2T-ViT with the token performer in the most literal Paddle form: the yardstick of the speed floors.

Every step is written as the paper and FACTS of the official network state it, one Paddle call per step, with no thought
for speed: a stacked projection sliced into its parts, `tile` for the class token, `split`, one `transpose` per
rearrangement. Parameter names are the official ones, so that `tools/t2t.py` and this network can be filled with the
same weights and compared. Used by tests and by tests/speed_floor.py; nothing of the product imports it.
"""

import math

import paddle
from paddle import nn


class PlainPerformer(nn.Layer):
    def __init__(self, dim, token_dim=64):
        super().__init__()
        self.token_dim = token_dim
        self.m = token_dim // 2
        self.kqv = nn.Linear(dim, 3 * token_dim)
        self.proj = nn.Linear(token_dim, token_dim)
        self.dp = nn.Dropout(0.1)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(token_dim)
        self.mlp = nn.Sequential(
            nn.Linear(token_dim, token_dim), nn.GELU(), nn.Linear(token_dim, token_dim), nn.Dropout(0.1)
        )
        self.w = self.create_parameter([self.m, token_dim])
        self.w.stop_gradient = True

    def features(self, x):
        squared = ((x * x).sum(axis=-1, keepdim=True) / 2).tile([1, 1, self.m])
        projected = paddle.einsum("bti,mi->btm", x, self.w)
        return paddle.exp(projected - squared) / math.sqrt(self.m)

    def forward(self, x):
        k, q, v = paddle.split(self.kqv(self.norm1(x)), 3, axis=-1)
        kp, qp = self.features(k), self.features(q)
        divisor = paddle.einsum("bti,bi->bt", qp, kp.sum(axis=1)).unsqueeze(2)
        kptv = paddle.einsum("bin,bim->bnm", v, kp)
        y = paddle.einsum("bti,bni->btn", qp, kptv) / (divisor.tile([1, 1, self.token_dim]) + 1e-8)
        y = v + self.dp(self.proj(y))
        return y + self.mlp(self.norm2(y))


class PlainAttention(nn.Layer):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias_attr=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape([B, N, 3, self.num_heads, C // self.num_heads]).transpose([2, 0, 3, 1, 4])
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = paddle.matmul(q * self.scale, k.transpose([0, 1, 3, 2]))
        attn = nn.functional.softmax(attn, axis=-1)
        return self.proj(paddle.matmul(attn, v).transpose([0, 2, 1, 3]).reshape([B, N, C]))


class PlainMlp(nn.Layer):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class PlainBlock(nn.Layer):
    def __init__(self, dim, num_heads, mlp_ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = PlainAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = PlainMlp(dim, int(dim * mlp_ratio))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainT2T(nn.Layer):
    def __init__(self, embed_dim, token_dim=64):
        super().__init__()
        self.soft_split0 = nn.Unfold(kernel_sizes=[7, 7], strides=[4, 4], paddings=[2, 2])
        self.soft_split1 = nn.Unfold(kernel_sizes=[3, 3], strides=[2, 2], paddings=[1, 1])
        self.soft_split2 = nn.Unfold(kernel_sizes=[3, 3], strides=[2, 2], paddings=[1, 1])
        self.attention1 = PlainPerformer(3 * 7 * 7, token_dim)
        self.attention2 = PlainPerformer(token_dim * 3 * 3, token_dim)
        self.project = nn.Linear(token_dim * 3 * 3, embed_dim)

    def forward(self, x):
        x = self.soft_split0(x).transpose([0, 2, 1])
        for attention, split in ((self.attention1, self.soft_split1), (self.attention2, self.soft_split2)):
            x = attention(x)
            B, T, C = x.shape
            x = x.transpose([0, 2, 1]).reshape([B, C, int(math.sqrt(T)), int(math.sqrt(T))])
            x = split(x).transpose([0, 2, 1])
        return self.project(x)


class PlainT2TViT(nn.Layer):
    """T2T-ViT-7 by default; drop path 0. Images [B, 3, S, S] float32 -> logits [B, num_classes]."""

    def __init__(self, img_size=224, embed_dim=256, depth=7, num_heads=4, mlp_ratio=2.0, num_classes=1000):
        super().__init__()
        self.tokens_to_token = PlainT2T(embed_dim)
        self.cls_token = self.create_parameter([1, 1, embed_dim])
        self.pos_embed = self.create_parameter([1, (img_size // 16) ** 2 + 1, embed_dim])
        self.pos_embed.stop_gradient = True
        self.blocks = nn.LayerList([PlainBlock(embed_dim, num_heads, mlp_ratio) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, x):
        x = self.tokens_to_token(x)
        x = paddle.concat([self.cls_token.tile([x.shape[0], 1, 1]), x], axis=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
