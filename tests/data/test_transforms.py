"""The official eval transform bit for bit, and a train transform that any picture survives."""

import hashlib

import numpy as np
import pytest
from data.transforms import EvalTransform, TrainTransform, _trim, random_box, resized_size
from errors import UserError
from PIL import Image


def photo(width=500, height=375, seed=3):
    noise = np.random.RandomState(seed).randint(0, 256, (15, 20, 3)).astype("uint8")
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)


@pytest.mark.parametrize("size, step", [(224, 8), (384, 16)])
def test_eval_equals_the_reference_bit_for_bit(shared_dir, size, step):
    reference = np.load(shared_dir / "golden" / "recipe.npz")
    image = photo()
    if hashlib.sha256(np.asarray(image).tobytes()).hexdigest() != str(reference["eval_image_seed3_hash"]):
        pytest.skip("this Pillow draws another test picture than the one the reference was made from")
    transform = EvalTransform(size, 0.9)
    assert list(resized_size(image.size, transform.short_side)) == reference[f"eval_resized_size{size}"].tolist()
    np.testing.assert_array_equal(transform(image)[::step, ::step], reference[f"eval_crop{size}"])


@pytest.mark.parametrize("size, crop_pct, short", [
    (224, 0.9, 248), (384, 0.9, 426), (384, 1.0, 384), (224, 0.875, 256), (64, 0.9, 71),
])
def test_short_side(size, crop_pct, short):
    transform = EvalTransform(size, crop_pct)
    assert transform.short_side == short
    assert transform.describe() == f"Resize({short}, bicubic) CenterCrop({size})"


def test_long_side_is_rounded_down():
    assert resized_size((500, 240), 248) == (516, 248)
    assert resized_size((240, 500), 248) == (248, 516)
    assert resized_size((500, 375), 248) == (330, 248)
    assert resized_size((7, 7), 248) == (248, 248)


def test_eval_crop_is_the_centre():
    image = photo(500, 240)
    whole = np.asarray(image.resize((516, 248), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(EvalTransform(224)(image), whole[12:236, 146:370])
    # (285 - 224) / 2 = 30.5 and (287 - 224) / 2 = 31.5: torchvision rounds both to the even neighbour.
    for width, left in ((285, 30), (287, 32)):
        image = photo(width, 224)
        np.testing.assert_array_equal(EvalTransform(224, 1.0)(image), np.asarray(image)[:, left:left + 224])


def test_eval_squash():
    transform = EvalTransform(224, interpolation="bilinear", resize="squash")
    expected = np.asarray(photo().resize((224, 224), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(transform(photo()), expected)
    assert transform.describe() == "Resize(224x224, bilinear)"


def test_rgb_order():
    red = Image.new("RGB", (300, 200), (255, 0, 0))
    for array in (EvalTransform(32)(red), EvalTransform(32, resize="squash")(red),
                  TrainTransform(32)(red, np.random.default_rng(0))):
        assert (array == (255, 0, 0)).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3), (20000, 1), (1, 20000), (4000, 3)])
def test_any_size_of_picture(size):
    image = Image.new("RGB", size, (10, 20, 30))
    arrays = [EvalTransform(224)(image), EvalTransform(224, resize="squash")(image)]
    arrays += [TrainTransform(224)(image, np.random.default_rng(seed)) for seed in range(20)]
    for array in arrays:
        assert array.shape == (224, 224, 3) and array.dtype == np.uint8
        assert array.flags["C_CONTIGUOUS"] and array.flags["WRITEABLE"]
        assert (array == (10, 20, 30)).all()


def test_trimming_keeps_the_centre():
    assert _trim(Image.new("RGB", (20000, 2))).size == (64, 2)
    assert _trim(Image.new("RGB", (3, 20000))).size == (3, 96)
    assert _trim(Image.new("RGB", (64, 2))).size == (64, 2)
    values = np.zeros((2, 400, 3), np.uint8)
    values[:, 200:] = 255
    array = EvalTransform(32)(Image.fromarray(values))
    assert array[:, :10].max() < 40 and array[:, 22:].min() > 215


def test_boxes_lie_inside_and_follow_scale_and_ratio():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box((500, 375), (0.08, 1.0), (3 / 4, 4 / 3), rng) for _ in range(4000)])
    left, top, width, height = boxes.T
    assert left.min() >= 0 and top.min() >= 0 and (left + width).max() <= 500 and (top + height).max() <= 375
    share, aspect = width * height / (500 * 375), width / height
    assert 0.078 < share.min() < 0.1 and share.max() <= 1
    assert 0.74 < aspect.min() < 0.77 and 1.3 < aspect.max() < 1.35
    # Boxes small enough always fit: there the area is uniform and the ratio symmetric around 1 in the logarithm.
    small = share < 0.4
    assert abs(share[small].mean() - 0.24) < 0.01 and abs(np.log(aspect[small]).mean()) < 0.02
    # Placed anywhere with equal chance: the free way is used to the half on average.
    assert abs((left[small] / (500 - width[small])).mean() - 0.5) < 0.03


def test_fallback_is_the_largest_centred_box():
    rng = np.random.default_rng(0)
    # A 1000 x 10 picture holds no box of half its area and ratio 1.
    assert random_box((1000, 10), (0.5, 1.0), (1.0, 1.0), rng) == (495, 0, 10, 10)
    assert random_box((10, 1000), (0.5, 1.0), (0.5, 2.0), rng) == (0, 490, 10, 20)
    assert random_box((1000, 10), (0.9, 1.0), (0.5, 2.0), rng) == (490, 0, 20, 10)


def test_train_crops_before_it_resizes():
    image, size = photo(), 48
    for interpolation in ("bilinear", "bicubic"):
        transform = TrainTransform(size, hflip=0, interpolation=interpolation)
        left, top, width, height = random_box(image.size, transform.scale, transform.ratio, np.random.default_rng(5))
        crop = image.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((size, size), getattr(Image.Resampling, interpolation.upper())))
        np.testing.assert_array_equal(transform(image, np.random.default_rng(5)), expected)


def test_random_interpolation_is_either_of_the_two():
    image = photo()
    single = {name: TrainTransform(32, hflip=0, interpolation=name) for name in ("bilinear", "bicubic")}
    either = TrainTransform(32, hflip=0, interpolation="random")
    seen = []
    for seed in range(60):
        array = either(image, np.random.default_rng(seed))
        seen += [name for name, one in single.items() if (one(image, np.random.default_rng(seed)) == array).all()]
    assert len(seen) == 60 and 15 < seen.count("bicubic") < 45


def test_flip_probability():
    image = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (200, 1, 3)))
    for hflip, low, high in ((0, 0, 0), (1, 200, 200), (0.5, 70, 130), (0.1, 5, 40)):
        transform = TrainTransform(16, hflip=hflip)
        arrays = [transform(image, np.random.default_rng(seed)).astype(int) for seed in range(200)]
        assert low <= sum(array[0, 0, 0] > array[0, -1, 0] for array in arrays) <= high


def test_train_describes_itself():
    assert TrainTransform(224).describe() == ("RandomResizedCrop(224, scale=(0.08, 1), ratio=(0.75, 1.333), random) "
                                              "HorizontalFlip(0.5)")


@pytest.mark.parametrize("make, key", [
    (lambda: EvalTransform(0), "model.img_size=0"),
    (lambda: EvalTransform(22.4), "model.img_size=22.4"),
    (lambda: EvalTransform(224, 0), "data.crop_pct=0"),
    (lambda: EvalTransform(224, 1.1), "data.crop_pct=1.1"),
    (lambda: EvalTransform(interpolation="random"), "data.interpolation=random"),
    (lambda: EvalTransform(resize="pad"), "data.resize=pad"),
    (lambda: TrainTransform(-1), "model.img_size=-1"),
    (lambda: TrainTransform(scale=(0.5, 0.1)), "data.scale="),
    (lambda: TrainTransform(scale=(0, 1)), "data.scale="),
    (lambda: TrainTransform(scale=(0.5, 1.5)), "data.scale="),
    (lambda: TrainTransform(scale=(0.5,)), "data.scale="),
    (lambda: TrainTransform(ratio=(2, 1)), "data.ratio="),
    (lambda: TrainTransform(ratio=(0, 1)), "data.ratio="),
    (lambda: TrainTransform(hflip=2), "data.hflip=2"),
    (lambda: TrainTransform(interpolation="lanczos"), "data.train_interpolation=lanczos"),
])
def test_impossible_values_are_named(make, key):
    with pytest.raises(UserError, match=key):
        make()
