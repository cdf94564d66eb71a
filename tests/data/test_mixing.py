"""Mixup and cutmix: pixels and targets by hand, pairs, odd batches, and the distributions of what is drawn."""

import math

import data.mixing
import numpy as np
import paddle
import pytest
from data.mixing import Mix, Mixing, draw_box, mix_arrays, mix_images, mix_on_device, soft_targets
from errors import UserError

DRAWS = 10_000


def generator(seed=0):
    return np.random.default_rng((3, 1, seed))


def noise(count, size=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3)).astype(np.uint8)


def marked(count, size=4):
    """Pictures that are constant at ten times their position, which a box of cutmix therefore tells."""
    return np.repeat(np.arange(count) * 10, size * size * 3).reshape(count, size, size, 3).astype(np.uint8)


def both_ways(pixels, mix):
    """The batch mixed as on a CPU and as on a GPU, which must agree."""
    before = pixels.copy()
    on_device = mix_on_device(paddle.to_tensor(pixels), mix)
    assert on_device.dtype == paddle.uint8
    mixed = mix_arrays(pixels, mix)
    assert mixed.dtype == np.uint8
    np.testing.assert_array_equal(on_device.numpy(), mixed)
    np.testing.assert_array_equal(mix_images(paddle.to_tensor(pixels), mix).numpy(), mixed)
    np.testing.assert_array_equal(pixels, before)
    return mixed


# ---------------------------------------------------------------- pixels


def test_mixup_by_hand():
    first = [[[0, 100, 200], [255, 1, 3]], [[10, 20, 30], [4, 4, 255]]]
    second = [[[255, 100, 0], [0, 2, 1]], [[20, 10, 30], [8, 0, 255]]]
    mixed = both_ways(np.array([first, second], np.uint8), Mix(0.25))
    # 0.25 of the own pixel and 0.75 of the other's; 17.5 and 12.5 go to the even neighbour.
    assert mixed[0].tolist() == [[[191, 100, 50], [64, 2, 2]], [[18, 12, 30], [7, 1, 255]]]
    assert mixed[1].tolist() == [[[64, 100, 150], [191, 1, 2]], [[12, 18, 30], [5, 3, 255]]]


def test_halves_are_rounded_to_even():
    # All pairs of bytes at once: half of them end in .5, the case in which the versions of Paddle differ.
    pixels = np.array(np.meshgrid(range(256), range(256)), np.uint8)
    batch = np.stack([pixels] * 3, axis=-1)
    expected = np.rint(batch.astype(float).sum(axis=0) / 2)
    for mixed in both_ways(batch, Mix(0.5)):
        np.testing.assert_array_equal(mixed, expected)


@pytest.mark.parametrize("lam", [0.0, 1e-9, 0.123456789, 0.3, 0.6180339887, 0.99])
def test_every_pair_of_bytes_at_any_share(lam):
    pixels = np.array(np.meshgrid(range(256), range(256)), np.uint8)
    batch = np.stack([pixels] * 3, axis=-1)
    exact = batch * lam + batch[::-1].astype(float) * (1 - lam)
    assert np.abs(both_ways(batch, Mix(lam)) - exact).max() <= 0.5 + 1e-4


def test_cutmix_by_hand():
    first = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]
    second = [[[21, 22, 23], [24, 25, 26]], [[27, 28, 29], [30, 31, 32]]]
    batch = np.array([first, second], np.uint8)
    # The upper row; then the pixel at the upper right, then the lower left.
    mixed = both_ways(batch, Mix(0.5, (0, 1, 0, 2)))
    assert mixed.tolist() == [[second[0], first[1]], [first[0], second[1]]]
    mixed = both_ways(batch, Mix(0.75, (0, 1, 1, 2)))
    assert mixed.tolist() == [[[first[0][0], second[0][1]], first[1]], [[second[0][0], first[0][1]], second[1]]]
    mixed = both_ways(batch, Mix(0.75, (1, 2, 0, 1)))
    assert mixed.tolist() == [[first[0], [second[1][0], first[1][1]]], [second[0], [first[1][0], second[1][1]]]]


@pytest.mark.parametrize("mix", [Mix(0.25), Mix(0.75, (1, 3, 0, 2))])
@pytest.mark.parametrize("count", [2, 4, 6, 8])
def test_in_an_even_batch_nobody_is_his_own_partner(count, mix):
    mixed = both_ways(marked(count), mix)
    targets = soft_targets(paddle.arange(count), mix.lam, 0.0, count).numpy()
    for index in range(count):
        partner = count - 1 - index
        if mix.box:
            assert set(mixed[index].ravel().tolist()) == {10 * index, 10 * partner}
        else:
            assert set(mixed[index].ravel().tolist()) == {round(2.5 * index + 7.5 * partner)}
        assert partner != index
        assert np.flatnonzero(targets[index]).tolist() == sorted((index, partner))
        assert targets[index, partner] == pytest.approx(1 - mix.lam)


@pytest.mark.parametrize("mix", [Mix(0.3), Mix(0.75, (2, 6, 0, 4))])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_middle_of_an_odd_batch_stays_as_it_is(count, mix):
    pixels, middle = noise(count), count // 2
    mixed = both_ways(pixels, mix)
    np.testing.assert_array_equal(mixed[middle], pixels[middle])
    targets = soft_targets(paddle.arange(count), mix.lam, 0.1, 10).numpy()
    np.testing.assert_allclose(targets[middle], soft_targets(paddle.arange(count), 1.0, 0.1, 10)[middle], atol=1e-7)
    for index in set(range(count)) - {middle}:
        assert (mixed[index] != pixels[index]).any()
        assert targets[index, index] < 0.9


# ---------------------------------------------------------------- targets


def test_targets_by_hand():
    # Off 0.1 / 4, on 0.9 + 0.1 / 4; sample 0 keeps a quarter of class 1 and takes three quarters of class 3.
    targets = soft_targets(paddle.to_tensor([1, 2, 2, 3]), 0.25, 0.1, 4)
    assert targets.dtype == paddle.float32
    np.testing.assert_allclose(targets.numpy(), [
        [0.025, 0.25, 0.025, 0.7],
        [0.025, 0.025, 0.925, 0.025],
        [0.025, 0.025, 0.925, 0.025],
        [0.025, 0.7, 0.025, 0.25],
    ], atol=1e-7)  # fmt: skip


def test_official_values_of_smoothing():
    targets = soft_targets(paddle.to_tensor([7]), 1.0, 0.1, 1000).numpy()[0]
    assert targets[7] == pytest.approx(0.9001, abs=1e-7)
    np.testing.assert_allclose(np.delete(targets, 7), 0.0001, atol=1e-10)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_targets_sum_to_one(count, classes):
    mixing = Mixing(0.8, 1.0, prob=0.8, num_classes=classes)
    labels = paddle.to_tensor(np.random.RandomState(0).randint(0, classes, count))
    images = paddle.to_tensor(noise(count))
    for seed in range(20):
        mixed, targets = mixing(images, labels, generator(seed))
        assert (mixed.shape, mixed.dtype) == (images.shape, paddle.uint8)
        assert (targets.shape, targets.dtype) == ([count, classes], paddle.float32)
        assert np.abs(targets.numpy().astype(float).sum(axis=1) - 1).max() < 1e-6
        assert targets.numpy().min() >= 0


@pytest.mark.parametrize("switch", [0.0, 1.0])
def test_images_and_targets_are_mixed_alike(switch):
    # Black and white pictures tell the share of white in each.
    images = paddle.to_tensor(np.repeat([0, 255], 16 * 16 * 3).reshape(2, 16, 16, 3).astype("uint8"))
    mixing = Mixing(0.8, 1.0, switch_prob=switch, smoothing=0.0, num_classes=2)
    shares = []
    for seed in range(40):
        mixed, targets = mixing(images, paddle.to_tensor([0, 1]), generator(seed))
        white = mixed.numpy().mean(axis=(1, 2, 3)) / 255
        np.testing.assert_allclose(white, targets.numpy()[:, 1], atol=0.5 / 255 + 1e-6)
        shares.append(white[0])
    assert min(shares) < 0.1 and max(shares) > 0.6 and len(set(shares)) > 20


# ---------------------------------------------------------------- what is drawn


def test_the_same_generator_gives_the_same_batch():
    images, labels = paddle.to_tensor(noise(6)), paddle.arange(6)
    mixing = Mixing(num_classes=6)
    for seed in range(10):
        once, again = (mixing(images, labels, generator(seed)) for _ in range(2))
        for a, b in zip(once, again):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert len({mixing.draw(224, generator(seed)) for seed in range(100)}) == 100


def drawn(**settings):
    rng = generator()
    mixing = Mixing(**settings)
    return [mixing.draw(224, rng) for _ in range(DRAWS)]


def close(values, mean, deviation):
    """Whether the mean of `values` is within 3 standard errors of `mean`."""
    return abs(np.mean(values) - mean) < 3 * deviation / math.sqrt(len(values))


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 4.0])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_lam_follows_beta(alpha, kind, monkeypatch):
    given = []
    monkeypatch.setattr(data.mixing, "draw_box", lambda size, lam, rng: given.append(lam) or (0, 1, 0, 1))
    mixes = drawn(**{"mixup_alpha": 0.0, "cutmix_alpha": 0.0, f"{kind}_alpha": alpha})
    lam = np.array(given if kind == "cutmix" else [mix.lam for mix in mixes])
    assert len(lam) == DRAWS and len(given) == (DRAWS if kind == "cutmix" else 0)
    variance = 1 / (4 * (2 * alpha + 1))
    # Kurtosis of a symmetric beta, for the standard error of the variance.
    kurtosis = 3 - 6 / (2 * alpha + 3)
    assert close(lam, 0.5, math.sqrt(variance))
    assert close((lam - 0.5) ** 2, variance, variance * math.sqrt(kurtosis - 1))
    assert lam.min() >= 0 and lam.max() <= 1


@pytest.mark.parametrize("prob, switch", [(1.0, 0.5), (0.7, 0.3), (0.0, 0.5), (1.0, 0.0), (1.0, 1.0)])
def test_frequencies_of_mixing_and_of_switching(prob, switch):
    mixes = drawn(mixup_alpha=0.8, cutmix_alpha=1.0, prob=prob, switch_prob=switch)
    mixed = [mix.lam < 1 or mix.box is not None for mix in mixes]
    assert close(mixed, prob, math.sqrt(prob * (1 - prob)) + 1e-9)
    cut = [mix.box is not None for mix, is_mixed in zip(mixes, mixed) if is_mixed]
    if cut:
        assert close(cut, switch, math.sqrt(switch * (1 - switch)) + 1e-9)


def test_one_alpha_alone_ignores_the_switch():
    assert all(mix.box for mix in drawn(mixup_alpha=0.0, cutmix_alpha=1.0, switch_prob=0.0))
    assert not any(mix.box for mix in drawn(mixup_alpha=0.8, cutmix_alpha=0.0, switch_prob=1.0))
    assert set(drawn(mixup_alpha=0.0, cutmix_alpha=0.0)) == {Mix()}


@pytest.mark.parametrize("size, lam", [(224, 0.4), (224, 0.9), (32, 0.05), (7, 0.5)])
def test_area_and_place_of_the_box(size, lam):
    rng = generator()
    boxes = np.array([draw_box(size, lam, rng) for _ in range(DRAWS)])
    assert boxes.min() >= 0 and boxes.max() <= size
    # The length along one side for each of the `size` equally likely centres.
    half = int(size * math.sqrt(1 - lam)) // 2
    lengths = np.array([min(c + half, size) - max(c - half, 0) for c in range(size)])
    heights, widths = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    assert close(heights, lengths.mean(), lengths.std()) and close(widths, lengths.mean(), lengths.std())
    areas = np.outer(lengths, lengths)
    assert close(heights * widths, areas.mean(), areas.std())
    assert set(heights.tolist()) <= set(lengths.tolist())
    # Both sides are drawn, each for itself, and all borders are met.
    assert abs(np.corrcoef(boxes[:, 0] + boxes[:, 1], boxes[:, 2] + boxes[:, 3])[0, 1]) < 3 / math.sqrt(DRAWS)
    assert boxes.min(axis=0).tolist() == [0, half, 0, half]
    assert boxes.max(axis=0).tolist() == [size - 1 - half, size, size - 1 - half, size]


def test_lam_of_cutmix_is_what_the_clipped_box_leaves():
    size, covered = 224, []
    for mix in drawn(mixup_alpha=0.0, cutmix_alpha=1.0):
        top, bottom, left, right = mix.box
        assert mix.lam == 1 - (bottom - top) * (right - left) / size**2
        covered.append(1 - mix.lam)
    # Beta(1, 1) is uniform, so that the side is cut to k whole pixels with probability ((k+1)^2 - k^2) / size^2;
    # then the mean over all centres.
    sides, centres = np.arange(size), np.arange(size)
    half = (sides // 2)[:, None]
    lengths = (np.minimum(centres + half, size) - np.maximum(centres - half, 0)) / size
    weights = (2 * sides + 1) / size**2
    mean = (weights * lengths.mean(axis=1) ** 2).sum()
    square = (weights * (lengths**2).mean(axis=1) ** 2).sum()
    assert close(covered, mean, math.sqrt(square - mean**2))


def test_a_box_of_no_pixels_leaves_the_batch_as_it_is():
    mixing = Mixing(0.0, 1e-4, num_classes=4)
    images, seen = paddle.to_tensor(noise(2)), set()
    for seed in range(20):
        mixed, targets = mixing(images, paddle.to_tensor([0, 3]), generator(seed))
        if mixing.draw(8, generator(seed)).lam == 1:
            seen.add("whole")
            np.testing.assert_array_equal(mixed.numpy(), images.numpy())
            np.testing.assert_allclose(targets.numpy(), soft_targets(paddle.to_tensor([0, 3]), 1.0, 0.1, 4).numpy())
    assert seen == {"whole"}


def test_unmixed_batches_get_smoothed_labels():
    images, labels = paddle.to_tensor(noise(4)), paddle.to_tensor([2, 0, 1, 2])
    mixed, targets = Mixing(prob=0.0, smoothing=0.3, num_classes=3)(images, labels, generator())
    assert mixed is images
    np.testing.assert_allclose(targets.numpy(), np.eye(3)[[2, 0, 1, 2]] * 0.7 + 0.1, atol=1e-7)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("settings, key", [
    ({"mixup_alpha": -0.1}, "train.mixup_alpha=-0.1"),
    ({"mixup_alpha": math.nan}, "train.mixup_alpha=nan"),
    ({"cutmix_alpha": math.inf}, "train.cutmix_alpha=inf"),
    ({"prob": 1.5}, "train.mixup_prob=1.5"),
    ({"switch_prob": -1}, "train.mixup_switch_prob=-1"),
    ({"smoothing": 1.0}, "train.smoothing=1.0"),
    ({"smoothing": -0.1}, "train.smoothing=-0.1"),
    ({"num_classes": 0}, "model.num_classes=0"),
    ({"num_classes": 2.5}, "model.num_classes=2.5"),
])  # fmt: skip
def test_values_outside_the_ranges_are_refused(settings, key):
    with pytest.raises(UserError) as error:
        Mixing(**settings)
    assert str(error.value).startswith(key + ": must be") and "\n" not in str(error.value)


def test_descriptions():
    assert Mixing().describe() == "Mixup(0.8) CutMix(1) prob 1, switch 0.5, label smoothing 0.1"
    assert Mixing(0.2, 0.0, smoothing=0.0).describe() == "Mixup(0.2) prob 1, label smoothing 0"
    assert Mixing(0, 0.5, prob=0.9).describe() == "CutMix(0.5) prob 0.9, label smoothing 0.1"
    assert Mixing(prob=0).describe() == Mixing(0, 0).describe() == "no mixing, label smoothing 0.1"
