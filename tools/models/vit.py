"""Plain ViT: the network of t2t.T2TViT with one hard 16x16 split and a learned position table.

Parameter names are those of T2TViT: `tokens_to_token.project` is the patch embedding, [3·16·16, D]. Where the paper
leaves something open, models.registry says what was chosen.
"""

from functools import partial

import paddle
from paddle import nn
from t2t import Attention, Block, LayerNorm, Linear, T2TViT, uniform_blocks

from models.dense import dense_blocks
from models.ghost import GhostAttention, GhostMlp
from models.se import SEAttention


class BiasedAttention(Attention):
    """t2t.Attention with biases in the projection to q, k and v, as ViT-B and ViT-L have them."""

    def build_projections(self, dim):
        super().build_projections(dim)
        self.qkv = Linear(dim, 3 * dim)


def learned_positions(length, dim):
    """ParamAttr of a position table that is trained; N(0, 0.02) at first."""
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.02))


def blocks_of(**layers):
    """The `blocks` of T2TViT with other layers in t2t.Block: attention, mlp, norm."""
    return partial(uniform_blocks, block=partial(Block, **layers))


# Of the original ViT, whose weights need it.
_norm = partial(LayerNorm, epsilon=1e-6)
_vit = partial(T2TViT, tokens_type="patch", positions=learned_positions)
_original = partial(_vit, mlp_ratio=4.0, norm=_norm, blocks=blocks_of(attention=BiasedAttention, norm=_norm))

vit_s_16 = partial(_vit, embed_dim=768, depth=8, num_heads=8, mlp_ratio=3.0)
vit_b_16 = partial(_original, embed_dim=768, depth=12, num_heads=12)
vit_l_16 = partial(_original, embed_dim=1024, depth=24, num_heads=16)
vit_dn = partial(_vit, embed_dim=384, depth=16, num_heads=6, mlp_ratio=3.0)
vit_sw = partial(_vit, embed_dim=1024, depth=4, num_heads=16, mlp_ratio=3.5)
vit_se = partial(vit_s_16, blocks=blocks_of(attention=SEAttention))
vit_resnext = partial(vit_s_16, num_heads=32)
vit_ghost = partial(vit_s_16, blocks=blocks_of(attention=GhostAttention, mlp=GhostMlp))
vit_dense = partial(
    _vit, embed_dim=128, depth=19, num_heads=8, mlp_ratio=4.0,
    blocks=partial(dense_blocks, growth=80, stages=(8, 2, 3, 6)),
)  # fmt: skip
