"""The networks of the paper's Table 7 at the size of T2T-ViT-7, so that a CPU can train them. None is published."""

from functools import partial
from typing import Callable, NamedTuple

import t2t


class Small(NamedTuple):
    """A small network. title: for tables. factory: as in models.registry.Row. counterpart: its row of Table 7."""

    title: str
    factory: Callable
    counterpart: str


# The same blocks behind each T2T module; the wide one has T2T-ViT-14-Wide's share of the blocks (2 of 7, as 4 of 14),
# the MLP ratio of T2T-ViT-7, and the width that gives as many parameters (+0.5 % with 10 classes at 64 px).
SMALL = {
    "t2t_vit_7_wo_t2t": Small(
        "without T2T", partial(t2t.t2t_vit_7, tokens_type="patch"), "t2t_vit_14_wo_t2t"
    ),
    "t2t_vit_c_7": Small("convolution", partial(t2t.t2t_vit_7, tokens_type="convolution"), "t2t_vit_c_14"),
    "t2t_vit_7": Small("T2T, deep and narrow (7 x 256)", t2t.t2t_vit_7, "t2t_vit_14"),
    "t2t_vit_7_wide": Small(
        "T2T, shallow and wide (2 x 472)", partial(t2t.t2t_vit_7, embed_dim=472, depth=2, num_heads=8),
        "t2t_vit_14_wide",
    ),
}  # fmt: skip
# What the paper compares: (network, the one it is measured against).
PAIRS = (("t2t_vit_7", "t2t_vit_7_wo_t2t"), ("t2t_vit_c_7", "t2t_vit_7_wo_t2t"), ("t2t_vit_7_wide", "t2t_vit_7"))
