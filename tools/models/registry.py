"""One row per published name: how it is built, and the figures that are locked to it by tests.

Parameters are exact: `params` counts every tensor of the network but the running statistics of BatchNorm (the paper's
and the official README's convention), `trainable` leaves out the frozen position table and random features. `macs` is
what models.macs.count_macs gives for one image: every matrix product and convolution, attention products included, and
five per element of a LayerNorm, the rule that gives the published figures.
"""

from functools import partial
from typing import Callable, NamedTuple, Optional

import t2t

from models import cnn, vit
from models.dense import dense_blocks
from models.ghost import GhostAttention, GhostMlp
from models.se import SEAttention

_README = "official README"
# CNN designs in T2T-ViT, as the official code of the same names has them.
_t2t_vit_14_se = partial(t2t.t2t_vit_14, blocks=vit.blocks_of(attention=SEAttention))
_t2t_vit_16_ghost = partial(
    t2t.t2t_vit_14, depth=16, blocks=vit.blocks_of(attention=GhostAttention, mlp=GhostMlp)
)
_t2t_vit_dense = partial(
    t2t.T2TViT, embed_dim=128, depth=19, num_heads=8, mlp_ratio=2.0,
    blocks=partial(dense_blocks, growth=64, stages=(3, 6, 6, 4)),
)  # fmt: skip


class Row(NamedTuple):
    """A published network.

    name: what `build_model` and `model.name` take. title: how the paper writes it. factory: called with keyword
    arguments of t2t.T2TViT or models.cnn.CNN. img_size: pixels of the published accuracy. params, trainable: exact
    counts with 1000 classes. macs: multiply-adds in G for one image. published_*: as printed by the source, millions
    and G; None where the source has no number. top1: published ImageNet top-1 in percent. note: what the source leaves
    open and what was chosen, or where it disagrees.
    """

    name: str
    title: str
    factory: Callable
    img_size: int
    params: int
    trainable: int
    macs: float
    published_params: Optional[float]
    published_macs: Optional[float]
    top1: Optional[float]
    source: str
    note: str = ""

    @property
    def params_difference(self):
        """Parameters less the published ones, in percent of these; None where none are published."""
        return _percent(self.params / 1e6, self.published_params)

    @property
    def macs_difference(self):
        """Multiply-adds less the published ones, in percent of these; None where none are published."""
        return _percent(self.macs, self.published_macs)


def _percent(own, published):
    return None if published is None else 100 * (own - published) / published


_WITHOUT_TABLE = "The paper's count leaves the position table out."
_RECIPE = "With the recipe of T2T-ViT (starred in the paper)"

# fmt: off
_ROWS = (
    Row("t2t_vit_7", "T2T-ViT-7", t2t.t2t_vit_7, 224,
        4_310_222, 4_255_694, 1.156, 4.3, 1.1, 71.7, "Table 4",
        "Table 1 prints 8 blocks and 4.2 M; the official code has 7."),
    Row("t2t_vit_10", "T2T-ViT-10", t2t.t2t_vit_10, 224,
        5_889_230, 5_834_702, 1.527, 5.9, 1.5, 75.2, _README),
    Row("t2t_vit_12", "T2T-ViT-12", t2t.t2t_vit_12, 224,
        6_941_902, 6_887_374, 1.775, 6.9, 1.8, 76.5, "Table 4"),
    Row("t2t_vit_14", "T2T-ViT-14", t2t.t2t_vit_14, 224,
        21_545_550, 21_465_806, 4.800, 21.5, 4.8, 81.5, "Tables 2, 3"),
    Row("t2t_vit_19", "T2T-ViT-19", t2t.t2t_vit_19, 224,
        39_177_422, 39_085_070, 8.502, 39.2, 8.5, 81.9, "Table 3"),
    Row("t2t_vit_24", "T2T-ViT-24", t2t.t2t_vit_24, 224,
        64_105_934, 64_000_974, 13.692, 64.1, 13.8, 82.3, "Table 3"),
    Row("t2t_vit_t_14", "T2T-ViT_t-14", t2t.t2t_vit_t_14, 224,
        21_541_070, 21_465_422, 6.105, 21.5, 6.1, 81.7, "Table 3"),
    Row("t2t_vit_t_19", "T2T-ViT_t-19", t2t.t2t_vit_t_19, 224,
        39_172_942, 39_084_686, 9.808, 39.2, 9.8, 82.4, _README,
        "Table 3 prints 82.2; the released weights were measured at 82.44."),
    Row("t2t_vit_t_24", "T2T-ViT_t-24", t2t.t2t_vit_t_24, 224,
        64_101_454, 64_000_590, 14.997, 64.1, 15.0, 82.6, "Table 3"),
    Row("t2t_vit_14_384", "T2T-ViT-14↑384", t2t.t2t_vit_14, 384,
        21_691_470, 21_465_806, 16.418, 21.7, 17.1, 83.3, "Table 2",
        "21.7 M is from the official README, Table 2 prints 21.5 M; what its 17.1 G count is not known."),
    Row("t2t_vit_14_resnext", "T2T-ViT-14-ResNeXt", t2t.t2t_vit_14_resnext, 224,
        21_545_550, 21_465_806, 4.800, 21.5, 4.8, 81.5, "Table 6"),
    Row("t2t_vit_14_wide", "T2T-ViT-14-Wide", t2t.t2t_vit_14_wide, 224,
        25_156_302, 25_000_910, 5.241, 25.0, 5.4, 78.8, "Table 7",
        "Table 6 prints 77.9, 25.1 M, 5.0 G and 14 blocks for what seems to be this network; the official code has 4."),
    Row("t2t_vit_c_14", "T2T-ViT_c-14", t2t.t2t_vit_c_14, 224,
        21_421_992, 21_346_344, 4.597, 21.3, 4.6, 80.8, "Table 7"),
    Row("t2t_vit_14_wo_t2t", "T2T-ViT-14 without T2T", t2t.t2t_vit_14_wo_t2t, 224,
        21_449_320, 21_373_672, 4.553, 21.1, 4.2, 79.5, "Table 7",
        "21.1 M is the count without any patch embedding; what its 4.2 G count is not known."),
    Row("t2t_vit_14_se", "T2T-ViT-14-SE", _t2t_vit_14_se, 224,
        21_803_598, 21_723_854, 4.800, 21.9, 4.9, 81.6, "Table 6"),
    Row("t2t_vit_dense", "T2T-ViT-Dense", _t2t_vit_dense, 224,
        23_647_062, 23_617_750, 5.295, 23.7, 5.5, 80.6, "Table 6"),
    Row("t2t_vit_16_ghost", "T2T-ViT-16-Ghost", _t2t_vit_16_ghost, 224,
        16_253_262, 16_173_518, 3.819, 16.3, 3.7, 79.5, "Table 6",
        "Table 6 prints depth 14; its count is that of the official code, which has 16 blocks."),
    Row("vit_s_16", "ViT-S/16", vit.vit_s_16, 224,
        48_754_408, 48_754_408, 9.901, 48.6, 10.1, 78.1, "Table 2", _WITHOUT_TABLE),
    Row("vit_b_16", "ViT-B/16", vit.vit_b_16, 224,
        86_567_656, 86_567_656, 17.582, 86.4, 17.6, 79.8, "Table 2",
        f"{_WITHOUT_TABLE} Table 1 prints 86.8 M. Biases in qkv and LayerNorm epsilon 1e-6 as in the original ViT."),
    Row("vit_l_16", "ViT-L/16", vit.vit_l_16, 224,
        304_326_632, 304_326_632, 61.603, 304.3, 63.6, 81.1, "Table 2",
        "Biases in qkv and LayerNorm epsilon 1e-6 as in the original ViT."),
    Row("vit_dn", "ViT-DN", vit.vit_dn, 224,
        24_405_352, 24_405_352, 5.195, 24.5, 5.5, 79.0, "Table 6",
        "MLP ratio and heads are not published; 3 and 6 as in T2T-ViT-14. The printed figures equal those of 16 blocks "
        "behind a T2T module (24.50 M, 5.4 G)."),
    Row("vit_sw", "ViT-SW", vit.vit_sw, 224,
        48_193_512, 48_193_512, 9.570, 47.9, 9.9, 69.9, "Table 6",
        "MLP ratio and heads are not published; 3.5 fits the count best (3: 44.0 M, 4: 52.4 M), 16 heads of 64 "
        "channels."),
    Row("vit_dense", "ViT-Dense", vit.vit_dense, 224,
        46_638_696, 46_638_696, 9.651, 46.7, 9.7, 76.8, "Table 6",
        "Only 19 blocks and 128 to 736 channels are published; growth 80, stages of 8, 2, 3, 6 blocks and MLP ratio 4 "
        "fit count, MACs and last width best."),
    Row("vit_se", "ViT-SE", vit.vit_se, 224,
        49_344_232, 49_344_232, 9.902, 49.2, 10.2, 78.4, "Table 6",
        f"{_WITHOUT_TABLE} The reduction is not published; 16 as in T2T-ViT-14-SE fits."),
    Row("vit_resnext", "ViT-ResNeXt", vit.vit_resnext, 224,
        48_754_408, 48_754_408, 9.901, 48.6, 10.1, 78.0, "Table 6", _WITHOUT_TABLE),
    Row("vit_ghost", "ViT-Ghost", vit.vit_ghost, 224,
        32_248_552, 32_248_552, 6.652, 32.1, 6.9, 73.7, "Table 6",
        f"{_WITHOUT_TABLE} Sizes are not published; ViT-S/16 with the layers of T2T-ViT-16-Ghost fits."),
    Row("resnet50", "ResNet50", cnn.resnet50, 224,
        25_557_032, 25_557_032, 4.089, 25.5, 4.3, 79.1, "Table 3", f"{_RECIPE}; its authors published 76.2."),
    Row("resnet101", "ResNet101", cnn.resnet101, 224,
        44_549_160, 44_549_160, 7.801, 44.6, 7.9, 79.9, "Table 3", f"{_RECIPE}; its authors published 77.4."),
    Row("resnet152", "ResNet152", cnn.resnet152, 224,
        60_192_808, 60_192_808, 11.514, 60.2, 11.6, 80.8, "Table 3", f"{_RECIPE}; its authors published 78.3."),
    Row("resnext50", "ResNeXt50", cnn.resnext50, 224,
        25_028_904, 25_028_904, 4.230, 25.0, 4.3, 79.9, "Table 6", f"{_RECIPE}; 32 groups of 4 channels."),
    Row("mobilenet_v1", "MobileNetV1 1.0x", cnn.mobilenet_v1, 224,
        4_231_976, 4_231_976, 0.569, 4.2, 0.6, 70.8, "Table 4", f"{_RECIPE}."),
    Row("mobilenet_v2", "MobileNetV2 1.0x", cnn.mobilenet_v2, 224,
        3_504_872, 3_504_872, 0.301, 3.5, 0.3, 72.8, "Table 4", f"{_RECIPE}."),
    Row("mobilenet_v2_140", "MobileNetV2 1.4x", cnn.mobilenet_v2_140, 224,
        6_108_776, 6_108_776, 0.582, 6.9, 0.6, 75.6, "Table 4",
        f"{_RECIPE}. The paper's count is the one of its authors, 0.8 M above that of the layers."),
    Row("mobilenet_v3", "MobileNetV3", cnn.mobilenet_v3, 224,
        5_483_032, 5_483_032, 0.217, 5.4, 0.2, 75.2, "Table 4", "The large one, 1.0x, as its authors published it."),
)
# fmt: on
ROWS = {row.name: row for row in _ROWS}
