"""Random erasing: one box of noise in some pictures, its share, shape and place, and what it depends on."""

import math

import numpy as np
import paddle
import pytest
from data.erasing import RandomErasing
from errors import UserError

DRAWS = 10_000


def generators(count, epoch=0):
    return [np.random.default_rng((5, epoch, index, 1)) for index in range(count)]


def blank(count, size=32):
    return paddle.full([count, 3, size, size], 100.0)


def erased(picture):
    """(top, left, height, width) of what is no longer 100 in [3, S, S], which must be a full box, or None."""
    changed = picture != 100
    if not changed.any():
        return None
    np.testing.assert_array_equal(changed, np.broadcast_to(changed[0], changed.shape))
    rows, columns = np.flatnonzero(changed[0].any(axis=1)), np.flatnonzero(changed[0].any(axis=0))
    box = (rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)
    assert changed[0].sum() == box[2] * box[3]
    return tuple(int(value) for value in box)


def close(values, mean, deviation):
    """Whether the mean of `values` is within 3 standard errors of `mean`."""
    return abs(np.mean(values) - mean) < 3 * deviation / math.sqrt(len(values))


def test_the_drawn_boxes_and_nothing_else_are_erased():
    erasing, images = RandomErasing(0.5), blank(40)
    result = erasing(images, generators(40))
    found = [erased(picture) for picture in result.numpy()]
    assert found == [erasing.draw(32, rng) for rng in generators(40)]
    assert 10 < sum(box is not None for box in found) < 30
    np.testing.assert_array_equal(images.numpy(), result.numpy())


@pytest.mark.parametrize("prob", [0.0, 0.25, 1.0])
def test_number_of_erased_pictures(prob):
    erasing = RandomErasing(prob)
    hits = [erasing.draw(224, rng) is not None for rng in generators(1000)]
    assert close(hits, prob, math.sqrt(prob * (1 - prob)) + 1e-9)
    assert sum(erased(picture) is not None for picture in erasing(blank(8), generators(8)).numpy()) == sum(hits[:8])


def test_area_aspect_and_place():
    erasing, rng, size = RandomErasing(1.0), np.random.default_rng(1), 224
    boxes = np.array([erasing.draw(size, rng) for _ in range(DRAWS)])
    top, left, height, width = boxes.T
    area, aspect = height * width / size**2, np.log(height / width)
    # A box too tall or too wide is drawn anew, so the largest areas keep to aspects near 1: that they are uniform and
    # log-uniform holds where sqrt(area * aspect) < 1 for all aspects, below area 0.3.
    fits = area < 0.3
    low, high = 0.02, 0.3
    assert close(area[fits], (low + high) / 2, (high - low) / math.sqrt(12))
    assert close((area[fits] - 0.16) ** 2, 0.28**2 / 12, 0.28**2 / 12 * math.sqrt(0.8))
    span = math.log(1 / 0.3)
    assert close(aspect[fits], 0, span / math.sqrt(3))
    assert close(aspect[fits] ** 2, span**2 / 3, span**2 / 3 * math.sqrt(0.8))
    # Of the tenth of all boxes with areas 0.3 to 1/3 few were refused.
    share = (1 / 3 - 0.3) / (1 / 3 - 0.02)
    assert close(~fits, share, math.sqrt(share)) and area.max() <= 1 / 3 + 0.005
    assert area.min() >= 0.02 - 0.002 and np.abs(aspect).max() < span + 0.06
    for start, length in ((top, height), (left, width)):
        assert start.min() == 0 and (start + length).max() == size and length.max() < size
        # Uniform among the places where the box fits.
        assert close(start / (size - length), 0.5, 1 / math.sqrt(12))
    assert abs(np.corrcoef(top + height / 2, left + width / 2)[0, 1]) < 3 / math.sqrt(DRAWS)


def test_noise_is_normal_per_pixel_and_channel():
    values = []
    for picture in RandomErasing(1.0)(blank(16, 64), generators(16)).numpy():
        top, left, height, width = erased(picture)
        box = picture[:, top : top + height, left : left + width].astype(float)
        values.append(box.ravel())
        if height * width > 200:
            assert np.abs(np.corrcoef(box.reshape(3, -1))[np.triu_indices(3, 1)]).max() < 4 / math.sqrt(height * width)
    values = np.concatenate(values)
    assert len(set(values.tolist())) > 0.99 * len(values)
    assert close(values, 0, 1) and close(values**2, 1, math.sqrt(2)) and close(values**4, 3, math.sqrt(96))


def test_a_picture_is_erased_alike_in_any_batch():
    erasing = RandomErasing(0.6)
    whole = erasing(blank(12), generators(12)).numpy()
    parts = [erasing(blank(6), generators(12)[start::2]).numpy() for start in (0, 1)]
    np.testing.assert_array_equal(whole[0::2], parts[0])
    np.testing.assert_array_equal(whole[1::2], parts[1])
    alone = [erasing(blank(1), [rng]).numpy()[0] for rng in generators(12)]
    np.testing.assert_array_equal(whole, alone)
    np.testing.assert_array_equal(whole, erasing(blank(12), generators(12)).numpy())
    assert (whole != erasing(blank(12), generators(12, epoch=1)).numpy()).any()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tiny_pictures_keep_a_part(size):
    for rng in generators(200):
        box = RandomErasing(1.0).draw(size, rng)
        if box:
            assert min(box[2:]) > 0 and max(box[2:]) < size
        else:
            assert size < 3


def test_ten_attempts_and_no_more():
    # At aspect 4 a box of that area is taller than the picture.
    never = RandomErasing(1.0, min_area=0.9, max_area=0.95, min_aspect=4, max_aspect=4)
    images = never(blank(4), generators(4))
    assert [erased(picture) for picture in images.numpy()] == [None] * 4
    # Only boxes of half the picture that are nearly square fit; one that does not is drawn anew.
    seldom = {"min_area": 0.5, "max_area": 0.6, "min_aspect": 0.1, "max_aspect": 10}
    rng = np.random.default_rng(2)
    once, ten = (
        np.mean([RandomErasing(1.0, **seldom, attempts=n).draw(224, rng) is None for _ in range(DRAWS)])
        for n in (1, 10)
    )
    # Log aspects within log(0.55) on average, of log(10).
    assert close([once], 1 - math.log(1 / 0.55) / math.log(10), 0.5 / math.sqrt(DRAWS))
    expected = once**10
    # The standard error of `once` is multiplied by the derivative of its tenth power.
    assert abs(ten - expected) < 3 * math.sqrt((expected + 100 * once**18 * once * (1 - once)) / DRAWS)


@pytest.mark.parametrize("settings, said", [
    ({"prob": 1.1}, "data.reprob=1.1: must be a probability"),
    ({"prob": -0.1}, "data.reprob=-0.1"),
    ({"prob": math.nan}, "data.reprob=nan"),
    ({"prob": 0.5, "min_area": 0.0}, "areas 0.0 to"),
    ({"prob": 0.5, "min_area": 0.5}, "areas 0.5 to"),
    ({"prob": 0.5, "max_area": 1.5}, "to 1.5"),
    ({"prob": 0.5, "min_aspect": 0}, "aspects 0 to"),
    ({"prob": 0.5, "min_aspect": 2, "max_aspect": 1}, "aspects 2 to 1"),
    ({"prob": 0.5, "max_aspect": math.inf}, "to inf"),
    ({"prob": 0.5, "attempts": 0}, "0 attempts"),
])  # fmt: skip
def test_values_outside_the_ranges_are_refused(settings, said):
    with pytest.raises(UserError) as error:
        RandomErasing(**settings)
    assert "data.reprob" in str(error.value) and said in str(error.value) and "\n" not in str(error.value)


def test_one_generator_per_picture_is_asked_for():
    with pytest.raises(ValueError, match="3 generators for 4 pictures"):
        RandomErasing(1.0)(blank(4), generators(3))


def test_description():
    assert RandomErasing(0.25).describe() == "RandomErasing(0.25, pixel, area=(0.02, 0.333), aspect=(0.3, 3.33))"
