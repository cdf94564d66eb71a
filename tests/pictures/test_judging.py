"""The rule for framed maps on made maps whose verdict is known."""

import numpy as np
import pytest
from pictures.judging import edges, fine, judge, multiple_correlation, shrink


def disc(size=64):
    """A bright disc on a dark ground."""
    y, x = np.mgrid[:size, :size]
    inside = np.hypot(y - size / 2 + 3, x - size / 2) < size / 4
    grey = np.where(inside, 220, 30) + np.random.default_rng(0).integers(0, 5, (size, size))
    return np.repeat(grey[..., None], 3, axis=2).astype("uint8")


def noise(count, side):
    return np.random.default_rng(1).standard_normal((count, side, side))


def test_dead_and_too_large_among_the_channels_of_the_layer():
    maps = noise(8, 6)
    maps[2] = 3.0
    maps[3] *= 0.025
    maps[5] *= 20
    # As large as that everywhere, with the usual deviation.
    maps[6] += 16 * np.abs(maps).max()
    verdict = judge(maps, disc())
    assert np.flatnonzero(verdict.dead).tolist() == [2, 3]
    assert np.flatnonzero(verdict.large).tolist() == [5, 6]
    # The rule compares within the layer: all of it times a thousand is the same.
    again = judge(maps * 1000, disc())
    assert (again.dead == verdict.dead).all() and (again.large == verdict.large).all()


def test_thresholds_are_where_they_are_said_to_be():
    maps = np.repeat(noise(1, 6), 5, axis=0)
    for factor, dead in ((0.0505, False), (0.0495, True)):
        maps[0] = maps[1] * factor
        assert judge(maps, disc()).dead.tolist() == [dead] + [False] * 4
    maps[0] = maps[1]
    for factor, large in ((8.08, True), (7.92, False)):
        maps[0] = maps[1] * factor
        assert judge(maps, disc()).large.tolist() == [large] + [False] * 4


def test_a_correlation_of_one_half_is_enough():
    # From noise alone to an edge alone, so finely that some lie close to either side.
    edge, grain = shrink(edges(disc())[0], (16, 16)), noise(1, 16)[0]
    maps = np.stack([part * edge / edge.std() + (1 - part) * grain for part in np.linspace(0, 1, 400)])
    verdict = judge(maps, disc())
    assert verdict.low_level.tolist() == (verdict.correlation >= 0.5).tolist()
    assert np.abs(verdict.correlation - 0.5).min() < 0.005 and verdict.low_level.any() and not verdict.low_level.all()


def test_a_layer_that_is_dead_as_a_whole():
    verdict = judge(np.ones((3, 12, 12)), disc())
    assert verdict.dead.all() and not verdict.large.any() and not verdict.low_level.any()


@pytest.mark.parametrize("side", [16, 32, 64])
def test_edges_are_found_and_the_object_itself_is_not(side):
    pixels = disc()
    right, down, size = (shrink(plane, (side, side)) for plane in edges(pixels))
    grey = shrink(pixels[..., 0].astype(float), (side, side))
    maps = np.stack([right, down, size, -right, 0.6 * right - 0.8 * down, grey, *noise(30, side)])
    # Of comparable size, or the rule for values too large would catch them.
    maps /= maps.std(axis=(1, 2), keepdims=True)
    verdict = judge(maps, pixels)
    assert verdict.edges_judged
    # Sharp edges on an even ground are peaks, and may be too large besides.
    assert np.flatnonzero(verdict.low_level | verdict.large).tolist() == [0, 1, 2, 3, 4]
    assert verdict.correlation[:5] == pytest.approx(1, abs=1e-6) and verdict.correlation[5] < 0.3


def test_marking_a_textured_object_is_no_edge():
    pixels = np.full((64, 64, 3), 128, "uint8")
    pixels[20:44, 20:44] = np.random.default_rng(2).integers(0, 256, (24, 24, 1))
    _, _, size = (shrink(plane, (16, 16)) for plane in edges(pixels))
    y, x = np.mgrid[:16, :16]
    blob = np.exp(-((y - 7.5) ** 2 + (x - 7.5) ** 2) / 12)
    maps = np.stack([blob / blob.std(), *noise(9, 16)])
    assert np.corrcoef(blob.ravel(), size.ravel())[0, 1] > 0.7
    assert not judge(maps, pixels).low_level.any()


def test_a_layer_half_a_cell_up_and_left_is_found_too():
    pixels = disc()
    right, _, size = (shrink(plane, (16, 16), 0.5) for plane in edges(pixels))
    grey = shrink(pixels[..., 0].astype(float), (16, 16), 0.5)
    maps = np.stack([right, size, grey, *noise(9, 16)])
    maps /= maps.std(axis=(1, 2), keepdims=True)
    correlation = judge(maps, pixels).correlation
    assert correlation[:2] == pytest.approx(1, abs=1e-6)
    # One place for the whole layer: a moved picture of the object is no edge.
    assert correlation[2] < 0.3
    # Moved by 2 pixels of 4: each cell starts two pixels earlier.
    plane = np.arange(64.0 * 64).reshape(64, 64)
    moved = shrink(plane, (16, 16), 0.5)
    assert moved[3, 5] == pytest.approx(plane[10:14, 18:22].mean())
    assert shrink(plane, (16, 16))[3, 5] == pytest.approx(plane[12:16, 20:24].mean())


@pytest.mark.parametrize("side", [10, 14, 28, 56])
def test_noise_is_no_structure(side, root):
    from data.decode import decode_rgb
    from data.transforms import EvalTransform

    photo = EvalTransform(224)(decode_rgb(root / "lit_data" / "cat.jpg"))
    verdict = judge(noise(1024, side), photo)
    assert not verdict.low_level.any() and not verdict.dead.any() and not verdict.large.any()


def test_grids_too_small_to_judge():
    small = judge(noise(20, 9), disc())
    assert small.judged and not small.edges_judged and not small.low_level.any()
    single = judge(noise(20, 1), disc())
    assert not single.judged and not single.dead.any() and not single.large.any()
    pixel = np.zeros((1, 1, 3), "uint8")
    assert not judge(noise(20, 1), pixel).judged, "an image of one pixel has no edges at all"


def test_an_even_image_has_no_edges():
    assert not judge(noise(20, 16), np.full((64, 64, 3), 90, "uint8")).correlation.any()


def test_at_most_one_verdict():
    maps = np.stack([edges(disc())[2], *0.001 * noise(9, 64)])
    verdict = judge(maps, disc())
    assert verdict.large[0] and not verdict.low_level[0]
    assert (verdict.dead.astype(int) + verdict.large + verdict.low_level).max() == 1


def test_multiple_correlation_is_that_of_least_squares():
    maps, planes = noise(4, 6), np.random.default_rng(5).standard_normal((3, 6, 6))
    for value, target in zip(multiple_correlation(maps, planes), maps):
        columns = np.column_stack([np.ones(36), *(plane.ravel() for plane in planes)])
        fitted = columns @ np.linalg.lstsq(columns, target.ravel(), rcond=None)[0]
        assert value == pytest.approx(np.corrcoef(fitted, target.ravel())[0, 1], abs=1e-9)


def test_fine_structure_by_hand():
    maps = np.zeros((1, 3, 3))
    maps[0, 1, 1] = 9
    assert fine(maps)[0].tolist() == [[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]]
    assert not fine(np.ones((1, 4, 4))).any()
