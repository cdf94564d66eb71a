"""One row per published name: how it is built, and the figures that are locked to it by tests.

Parameters are exact: `params` counts every tensor of the network (the paper's and the official README's convention),
`trainable` leaves out the frozen position table and random features. `macs` is what models.macs.count_macs gives for
one image: every matrix product and convolution, attention products included, and five per element of a LayerNorm, the
rule that gives the published figures.
"""

from typing import Callable, NamedTuple, Optional

import t2t

_README = "official README"


class Row(NamedTuple):
    """A published network.

    name: what `build_model` and `model.name` take. title: how the paper writes it. factory: called with keyword
    arguments of t2t.T2TViT. img_size: pixels of the published accuracy. params, trainable: exact counts with 1000
    classes. macs: multiply-adds in G for one image. published_*: as printed by the source, millions and G; None where
    the source has no number. top1: published ImageNet top-1 in percent.
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


# fmt: off
_ROWS = (
    Row("t2t_vit_7", "T2T-ViT-7", t2t.t2t_vit_7, 224,
        4_310_222, 4_255_694, 1.156, 4.3, 1.1, 71.7, "Table 4"),
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
        39_172_942, 39_084_686, 9.808, 39.2, 9.8, 82.4, _README),
    Row("t2t_vit_t_24", "T2T-ViT_t-24", t2t.t2t_vit_t_24, 224,
        64_101_454, 64_000_590, 14.997, 64.1, 15.0, 82.6, "Table 3"),
    Row("t2t_vit_14_384", "T2T-ViT-14↑384", t2t.t2t_vit_14, 384,
        21_691_470, 21_465_806, 16.418, 21.7, 17.1, 83.3, "Table 2"),
    Row("t2t_vit_14_resnext", "T2T-ViT-14-ResNeXt", t2t.t2t_vit_14_resnext, 224,
        21_545_550, 21_465_806, 4.800, 21.5, 4.8, 81.5, "Table 6"),
    Row("t2t_vit_14_wide", "T2T-ViT-14-Wide", t2t.t2t_vit_14_wide, 224,
        25_156_302, 25_000_910, 5.241, 25.0, 5.4, 78.8, "Table 7"),
    Row("t2t_vit_c_14", "T2T-ViT_c-14", t2t.t2t_vit_c_14, 224,
        21_421_992, 21_346_344, 4.597, 21.3, 4.6, 80.8, "Table 7"),
    Row("t2t_vit_14_wo_t2t", "T2T-ViT-14 without T2T", t2t.t2t_vit_14_wo_t2t, 224,
        21_449_320, 21_373_672, 4.553, 21.1, 4.2, 79.5, "Table 7"),
)
# fmt: on
ROWS = {row.name: row for row in _ROWS}
