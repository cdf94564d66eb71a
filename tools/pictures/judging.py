"""Which feature maps show low-level structure and which are dead or too large (paper, Figure 2), by a stated rule.

The paper frames such maps by eye. Here a map is, among the channels of its layer,

    dead        if its standard deviation is at most DEAD times the layer's median one: next to nothing changes in it
    too large   if its largest absolute value is above LARGE times the layer's median one
    low-level   if it is neither, and the image's edges explain its fine structure: multiple correlation at least
                LOW_LEVEL

Edges are the differences of the grey image from left to right and from top to bottom and their size, as means over the
area of each cell of the map; any mixture of the three counts, so that a slanting edge does. Fine structure is what
differs from the mean of the 3x3 cells around: else a map that merely marks a textured object would pass. The edges are
taken at the cells or half a cell up and left, where overlapping splits and convolutions have their centres: for all
maps of a layer where they fit better on average. None of 1,024 maps of noise passes for a photo, but many maps of
untrained networks do: random filters find edges too.
"""

from typing import NamedTuple

import numpy as np
from PIL import Image

DEAD = 0.05
LARGE = 8.0
LOW_LEVEL = 0.5
# On fewer cells maps of noise pass, on 7x7 one in twenty.
SMALLEST_EDGES = 10
# One cell has no deviation at all.
SMALLEST = 2


class Verdict(NamedTuple):
    """Bool [C] for dead, large and low_level, at most one of them true for a channel; correlation float [C], 0 to 1.

    judged: whether the maps are large enough for `dead` and `large`; edges_judged: for `low_level`. Where they are
    not, all are False and the correlation 0.
    """

    dead: np.ndarray
    large: np.ndarray
    low_level: np.ndarray
    correlation: np.ndarray
    judged: bool
    edges_judged: bool


def judge(maps, pixels) -> Verdict:
    """Judge maps float [C, h, w], finite, of an image uint8 [S, S, 3] by the rule above."""
    maps = maps.astype(np.float64)
    side = min(maps.shape[1:])
    deviation, peak = maps.std(axis=(1, 2)), np.abs(maps).max(axis=(1, 2))
    judged, edges_judged = side >= SMALLEST, side >= SMALLEST_EDGES
    dead = judged & (deviation <= DEAD * np.median(deviation))
    large = judged & ~dead & (peak > LARGE * np.median(peak))
    correlation = _correlation(maps, pixels) if edges_judged else np.zeros(len(maps))
    low_level = ~dead & ~large & (correlation >= LOW_LEVEL)
    return Verdict(dead, large, low_level, correlation, judged, edges_judged)


def _correlation(maps, pixels):
    """Multiple correlation [C] of the fine structure with the edges, at the place where it is larger on average."""
    found = []
    for moved in (0, 0.5):
        planes = np.stack([shrink(plane, maps.shape[1:], moved) for plane in edges(pixels)])
        found.append(multiple_correlation(fine(maps), fine(planes)))
    return max(found, key=np.mean)


def edges(pixels):
    """Image uint8 [S, S, 3] -> float64 [3, S, S]: differences to the right and down, centred, and their size."""
    grey = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)
    down, right = np.gradient(grey)
    return np.stack([right, down, np.hypot(right, down)])


def shrink(plane, shape, moved=0.0):
    """Means over the area of each cell: float [S, S] -> [h, w]; moved: cells up and left, the border repeated."""
    up, left = (round(moved * size / cells) for size, cells in zip(plane.shape, shape))
    plane = np.pad(plane, ((up, 0), (left, 0)), mode="edge")[: plane.shape[0], : plane.shape[1]]
    image = Image.fromarray(plane.astype(np.float32))
    return np.asarray(image.resize(shape[::-1], Image.Resampling.BOX), dtype=np.float64)


def fine(maps):
    """Maps [C, h, w] less the mean of the 3x3 cells around each, the border repeated."""
    _, height, width = maps.shape
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)), mode="edge")
    return maps - sum(padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)) / 9


def multiple_correlation(maps, planes):
    """Correlation [C], 0 to 1, of each map [C, h, w] with the mixture of planes [P, h, w] that fits it best.

    0 for a map that does not vary.
    """
    maps, planes = (part.reshape(len(part), -1) for part in (maps, planes))
    maps, planes = (part - part.mean(axis=1, keepdims=True) for part in (maps, planes))
    # Least squares by directions at right angles; those without extent (an even image has no edges) are left out.
    directions, extent, _ = np.linalg.svd(planes.T, full_matrices=False)
    directions = directions[:, extent > 1e-9 * max(extent.max(), 1)]
    explained, all_of_it = ((maps @ directions) ** 2).sum(axis=1), (maps**2).sum(axis=1)
    return np.sqrt(np.divide(explained, all_of_it, out=np.zeros(len(maps)), where=all_of_it > 0))
