"""The official transfer transform: squashed, padded with black, cut at random, mirrored or not."""

import numpy as np
import paddle
import pytest
from data.loader import normalize
from data.transforms import PaddedCropTransform
from errors import UserError
from PIL import Image


def photo(width=32, height=32, low=1, seed=3):
    """Noise without black pixels, so that black is padding."""
    noise = np.random.RandomState(seed).randint(low, 256, (height, width, 3)).astype("uint8")
    return Image.fromarray(noise)


def rng(seed):
    return np.random.default_rng((7, 0, seed))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(32, 32), (50, 20), (1, 1), (3, 400)])
def test_without_padding_it_is_the_plain_resize(interpolation, size):
    image = photo(*size)
    expected = np.asarray(image.resize((48, 48), getattr(Image.Resampling, interpolation.upper())))
    transform = PaddedCropTransform(48, 0, hflip=0, interpolation=interpolation)
    for seed in range(5):
        np.testing.assert_array_equal(transform(image, rng(seed)), expected)
    mirrored = PaddedCropTransform(48, 0, hflip=1, interpolation=interpolation)
    np.testing.assert_array_equal(mirrored(image, rng(0)), expected[:, ::-1])


def shift_of(array, resized, padding):
    """Where in the padded picture `array` was cut, found by comparing all places."""
    size = len(resized)
    padded = np.zeros((size + 2 * padding, size + 2 * padding, 3), np.uint8)
    padded[padding : padding + size, padding : padding + size] = resized
    places = [(left, top) for left in range(2 * padding + 1) for top in range(2 * padding + 1)
              if np.array_equal(padded[top : top + size, left : left + size], array)]  # fmt: skip
    assert len(places) == 1
    return places[0]


def test_places_are_uniform_and_borders_black():
    size, padding, draws = 16, 3, 2000
    transform = PaddedCropTransform(size, padding, hflip=0)
    image = photo(size, size)
    resized = np.asarray(image)
    places = np.array([shift_of(transform(image, rng(seed)), resized, padding) for seed in range(draws)])
    for axis in (0, 1):
        counts = np.bincount(places[:, axis], minlength=2 * padding + 1)
        assert len(counts) == 7
        # Chi-square with 6 degrees of freedom: above 22.5 once in a thousand.
        assert ((counts - draws / 7) ** 2 / (draws / 7)).sum() < 22.5
    assert len({tuple(place) for place in places}) == 49
    assert abs(np.corrcoef(places.T)[0, 1]) < 0.08


def test_resizing_comes_before_padding():
    """The padding counts pixels of the network's input, and no black is smeared into the picture."""
    transform = PaddedCropTransform(224, 28, hflip=0)
    image = Image.new("RGB", (32, 32), (200, 100, 50))
    widths = set()
    for seed in range(40):
        array = transform(image, rng(seed))
        black = (array == 0).all(-1)
        assert (array[~black] == (200, 100, 50)).all()
        columns, rows = black.all(0).sum(), black.all(1).sum()
        assert black.sum() == 224 * 224 - (224 - columns) * (224 - rows)
        widths |= {int(columns), int(rows)}
    assert max(widths) <= 28 and max(widths) > 20 and len(widths) > 15


def test_mirroring_comes_after_cutting():
    """A mirrored picture is the mirrored cut: its place is drawn as without mirroring."""
    image = photo(32, 32)
    plain, mirrored = (PaddedCropTransform(32, 4, hflip=hflip) for hflip in (0, 1))
    for seed in range(20):
        np.testing.assert_array_equal(mirrored(image, rng(seed)), plain(image, rng(seed))[:, ::-1])


def test_flip_probability():
    image = Image.fromarray(np.tile(np.arange(32, dtype=np.uint8)[None, :, None], (32, 1, 3)))
    for hflip, low, high in ((0, 0, 0), (1, 300, 300), (0.5, 120, 180), (0.1, 12, 50)):
        transform = PaddedCropTransform(32, 0, hflip)
        arrays = [transform(image, rng(seed)).astype(int) for seed in range(300)]
        assert low <= sum(array[0, 0, 0] > array[0, -1, 0] for array in arrays) <= high


def test_black_is_padded_before_normalisation():
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    array = PaddedCropTransform(16, 15, hflip=0)(photo(), rng(1))
    black = (array == 0).all(-1)
    assert black.any()
    pixels = normalize(paddle.to_tensor(array[None]), mean, std).numpy()[0]
    for channel in range(3):
        assert np.allclose(pixels[channel][black], -mean[channel] / std[channel], atol=1e-6)


def test_the_same_key_gives_the_same_pixels():
    transform, image = PaddedCropTransform(32, 4, interpolation="random"), photo(40, 30)
    first = transform(image, rng(5))
    np.random.seed(0)
    transform(image, rng(6))
    np.testing.assert_array_equal(transform(image, rng(5)), first)
    assert first.dtype == np.uint8 and first.shape == (32, 32, 3)
    assert first.flags["C_CONTIGUOUS"] and first.flags["WRITEABLE"]
    assert len({transform(image, rng(seed)).tobytes() for seed in range(20)}) > 14


def test_random_interpolation_is_either_of_the_two():
    image = photo(20, 20)
    both = {name: PaddedCropTransform(32, 0, 0, name)(image, rng(0)).tobytes() for name in ("bilinear", "bicubic")}
    either = PaddedCropTransform(32, 0, 0, "random")
    seen = [either(image, rng(seed)).tobytes() for seed in range(60)]
    assert set(seen) == set(both.values()) and 15 < seen.count(both["bicubic"]) < 45


@pytest.mark.parametrize("make, text", [
    (lambda: PaddedCropTransform(0), "model.img_size=0"),
    (lambda: PaddedCropTransform(32, -1), "data.padding=-1: must be at least 0 and below model.img_size=32"),
    (lambda: PaddedCropTransform(16), "data.padding=28"),
    (lambda: PaddedCropTransform(32, 32), "data.padding=32"),
    (lambda: PaddedCropTransform(hflip=1.5), "data.hflip=1.5"),
    (lambda: PaddedCropTransform(interpolation="lanczos"), "data.train_interpolation=lanczos"),
])  # fmt: skip
def test_impossible_values_are_named(make, text):
    with pytest.raises(UserError, match=text):
        make()
