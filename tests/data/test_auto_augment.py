"""RandAugment and colour jitter against values worked out by hand from the recipe, and the odds of their draws."""

import math
import pickle

import numpy as np
import pytest
from data import auto_augment as module
from data.auto_augment import OPS, ColorJitter, RandAugment, auto_augment
from errors import UserError
from PIL import Image

POLICY = "rand-m9-mstd0.5-inc1"
MEAN = (0.485, 0.456, 0.406)
FILL = (124, 116, 104)
SIGNED_WARPS = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
ENHANCERS = ("Color", "Contrast", "Brightness", "Sharpness")
DRAWS = 10_000


def made(policy=POLICY, interpolation="bilinear"):
    return auto_augment(policy, 224, MEAN, interpolation)


def rng(*key):
    return np.random.default_rng((5, *key))


def photo(width=23, height=17, seed=1):
    """Noise around 100 with all channels different."""
    noise = np.random.RandomState(seed).randint(0, 256, (height, width, 3)) // [1, 2, 3]
    return Image.fromarray((noise + [0, 30, 60]).astype("uint8"))


def row(*values):
    """A picture one pixel high, the three channels alike."""
    return Image.fromarray(np.repeat(np.array([values], np.uint8)[..., None], 3, axis=2))


def outcomes(name, image, level=9, policy=POLICY, interpolation="bilinear"):
    """All different results of an operation over many generators."""
    augment = made(policy, interpolation)
    results = {augment.apply_op(name, image, level, rng(seed)).tobytes() for seed in range(32)}
    shape = (image.height, image.width, 3)
    return [np.frombuffer(result, np.uint8).reshape(shape).astype(int) for result in results]


def single(name, *values, level=9, policy=POLICY):
    """What becomes of the values of a row under an operation without choices."""
    (result,) = outcomes(name, row(*values), level, policy)
    assert (result == result[..., :1]).all()
    return result[0, :, 0].tolist()


def assert_outcomes(results, expected, tolerance=1):
    """Each expected array is one of the results and the other way round. NaN in the expected stands for anything."""
    assert len(results) == len(expected)
    for array in expected:
        known = ~np.isnan(array)
        gaps = [np.abs(result - array)[known].max() for result in results]
        assert min(gaps) <= tolerance
        results = [result for result, gap in zip(results, gaps) if gap != min(gaps)]
    assert not results


# Operations on values: the same at every pixel, no choices.


def test_invert():
    assert single("Invert", 0, 1, 100, 255) == [255, 254, 155, 0]


def test_auto_contrast_spreads_each_channel_by_itself():
    # 60..111 is stretched fivefold.
    assert single("AutoContrast", 60, 61, 70, 111) == [0, 5, 50, 255]
    # However few pixels have the extreme values.
    assert single("AutoContrast", 60, *[80] * 300, 111) == [0, *[100] * 300, 255]
    pixels = np.array([[[60, 0, 7], [111, 85, 7]]], np.uint8)
    (result,) = outcomes("AutoContrast", Image.fromarray(pixels))
    assert result.tolist() == [[[0, 0, 7], [255, 255, 7]]]


def test_equalize_makes_shares_of_values_equal():
    pixels = np.repeat(np.array([10, 12, 30, 200], np.uint8), 255).reshape(30, 34)
    image = Image.fromarray(np.stack([pixels, 255 - pixels, pixels // 2], axis=2))
    (result,) = outcomes("Equalize", image)
    # 1020 pixels less the last value's 255, by 255 steps: 3 pixels to a step.
    red = dict(zip(pixels.ravel().tolist(), result[..., 0].ravel().tolist()))
    assert red == {10: 0, 12: 85, 30: 170, 200: 255}
    np.testing.assert_array_equal(result[..., 1], 255 - result[..., 0])
    np.testing.assert_array_equal(result[..., 2], result[..., 0])


@pytest.mark.parametrize(
    ("policy", "level", "expected"),
    [
        (POLICY, 9, [0, 0, 128, 128]),  # 4 - int(3.6) = 1 bit
        (POLICY, 5, [0, 64, 128, 192]),  # 2 bits
        (POLICY, 0, [0, 112, 128, 240]),  # 4 bits
        (POLICY, 10, [0, 0, 0, 0]),  # none
        ("rand-m9", 9, [0, 96, 128, 224]),  # int(3.6) = 3 bits
        ("rand-m9", 0, [0, 0, 0, 0]),
    ],
)
def test_posterize_keeps_the_upper_bits(policy, level, expected):
    assert single("Posterize", 1, 127, 130, 255, level=level, policy=policy) == expected


@pytest.mark.parametrize(
    ("policy", "level", "threshold"),
    [(POLICY, 9, 26), (POLICY, 10, 0), (POLICY, 0, 256), ("rand-m9", 9, 230), ("rand-m9", 0, 0)],
)
def test_solarize_inverts_from_its_threshold(policy, level, threshold):
    values = (0, 25, 26, 100, 229, 230, 255)
    expected = [value if value < threshold else 255 - value for value in values]
    assert single("Solarize", *values, level=level, policy=policy) == expected


@pytest.mark.parametrize("policy", [POLICY, "rand-m9"])
@pytest.mark.parametrize(("level", "added"), [(9, 99), (10, 110), (0, 0), (5, 55)])
def test_solarize_add_brightens_the_dark_half(policy, level, added):
    expected = [added, 28 + added, 127 + added, 128, 255]
    assert single("SolarizeAdd", 0, 28, 127, 128, 255, level=level, policy=policy) == expected


# Enhancers: a factor of 1.81 or 0.19 away from a picture without the quality.


def luma(pixels):
    return pixels @ [0.299, 0.587, 0.114]


def without(name, pixels):
    """The picture that factor 0 gives, worked out from its definition."""
    if name == "Brightness":
        return np.zeros_like(pixels)
    if name == "Color":
        return np.repeat(luma(pixels)[..., None], 3, axis=2)
    if name == "Contrast":
        return np.full_like(pixels, round(luma(pixels).mean()))
    smooth = pixels.copy()
    height, width, _ = pixels.shape
    around = sum(pixels[y : y + height - 2, x : x + width - 2] for y in range(3) for x in range(3))
    smooth[1:-1, 1:-1] = (around + 4 * pixels[1:-1, 1:-1]) / 13
    return smooth


def enhanced(name, pixels, factor):
    plain = without(name, pixels)
    return np.clip(plain + factor * (pixels - plain), 0, 255)


@pytest.mark.parametrize("name", ENHANCERS)
@pytest.mark.parametrize(("level", "factors"), [(9, (1.81, 0.19)), (10, (1.9, 0.1)), (4, (1.36, 0.64))])
def test_enhancers_go_both_ways(name, level, factors):
    pixels = np.asarray(photo()).astype(float)
    # The plain picture is rounded, then weighed by up to 0.9, then the result is cut off: up to 2 together.
    assert_outcomes(outcomes(name, photo(), level), [enhanced(name, pixels, factor) for factor in factors], 2)


@pytest.mark.parametrize("name", ENHANCERS)
@pytest.mark.parametrize(("level", "factor"), [(9, 1.72), (5, 1.0), (0, 0.1)])
def test_enhancers_without_inc_have_one_way(name, level, factor):
    pixels = np.asarray(photo()).astype(float)
    assert_outcomes(outcomes(name, photo(), level, "rand-m9"), [enhanced(name, pixels, factor)], 2)


def test_brightness_to_the_value():
    # Results are cut off, not rounded: 18.1, 181, 255; 1.9, 19, 47.5.
    results = sorted(result[0, :, 0].tolist() for result in outcomes("Brightness", row(10, 100, 250)))
    assert results == [[1, 19, 47], [18, 181, 255]]


# Warps: a picture whose red is x and whose green is y tells where each pixel came from.

WIDTH, HEIGHT = 200, 160


def places():
    """(x, y) of the pixels' middles and the picture that holds them."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return x + 0.5, y + 0.5, Image.fromarray(np.stack([x, y, np.full_like(x, 7)], axis=2).astype("uint8"))


def warped(source_x, source_y):
    """The picture whose pixels come from the places given; nothing is said about those within a pixel of an edge."""
    pixels = np.stack([source_x - 0.5, source_y - 0.5, np.full_like(source_x, 7)], axis=2)
    inside = (source_x > 0) & (source_x < WIDTH) & (source_y > 0) & (source_y < HEIGHT)
    pixels[~inside] = FILL
    from_edge = np.minimum(np.minimum(abs(source_x), abs(source_x - WIDTH)),
                           np.minimum(abs(source_y), abs(source_y - HEIGHT)))  # fmt: skip
    pixels[from_edge < 1.5] = np.nan
    return pixels


def rotated(degrees):
    """Counterclockwise about the middle, as one sees it."""
    x, y, _ = places()
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = x - WIDTH / 2, y - HEIGHT / 2
    return warped(cos * x - sin * y + WIDTH / 2, sin * x + cos * y + HEIGHT / 2)


def sheared_x(amount):
    x, y, _ = places()
    return warped(x + amount * y, y)


def sheared_y(amount):
    x, y, _ = places()
    return warped(x, y + amount * x)


WARPS = {"Rotate": (rotated, 30), "ShearX": (sheared_x, 0.3), "ShearY": (sheared_y, 0.3)}


@pytest.mark.parametrize("policy", [POLICY, "rand-m9"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("name", "amount"), [("Rotate", 27), ("ShearX", 0.27), ("ShearY", 0.27)])
def test_rotation_and_shear_at_nine(name, amount, interpolation, policy):
    expected = [WARPS[name][0](amount), WARPS[name][0](-amount)]
    assert min(np.isnan(array).mean() for array in expected) < 0.05
    assert_outcomes(outcomes(name, places()[2], 9, policy, interpolation), expected)


@pytest.mark.parametrize("level", [10, 3])
@pytest.mark.parametrize("name", WARPS)
def test_rotation_and_shear_grow_with_the_level(name, level):
    warp, greatest = WARPS[name]
    amount = greatest * level / 10
    assert_outcomes(outcomes(name, places()[2], level), [warp(amount), warp(-amount)])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("name", "axis", "level", "shift"), [
    ("TranslateXRel", 1, 9, 81),  # 0.405 of 200
    ("TranslateXRel", 1, 10, 90),
    ("TranslateYRel", 0, 10, 72),  # 0.45 of 160
    ("TranslateYRel", 0, 5, 36),
])  # fmt: skip
def test_whole_shifts_are_exact(name, axis, level, shift, interpolation):
    pixels = np.asarray(places()[2]).astype(float)
    fill = np.broadcast_to(np.array(FILL, float), pixels.shape)
    up, down = np.roll(pixels, -shift, axis), np.roll(pixels, shift, axis)
    if axis == 1:
        up[:, -shift:], down[:, :shift] = fill[:, -shift:], fill[:, :shift]
    else:
        up[-shift:], down[:shift] = fill[-shift:], fill[:shift]
    assert_outcomes(outcomes(name, places()[2], level, interpolation=interpolation), [up, down], 0)


def test_translate_y_at_nine_is_its_share_of_the_height():
    x, y, image = places()
    # 0.405 of 160 is 64.8: between two rows.
    assert_outcomes(outcomes("TranslateYRel", image), [warped(x, y + 64.8), warped(x, y - 64.8)])


@pytest.mark.parametrize("name", SIGNED_WARPS)
def test_fill_follows_the_mean(name):
    white = Image.new("RGB", (40, 40), "white")
    for mean, fill in ((MEAN, FILL), ((0, 0.5, 1), (0, 128, 255))):
        colours = auto_augment(POLICY, 40, mean, "bicubic").apply_op(name, white, 9, rng()).getcolors()
        assert fill in {colour for _, colour in colours}
        assert sum(count for count, colour in colours if colour == (255, 255, 255)) > 500


@pytest.mark.parametrize("name", SIGNED_WARPS)
def test_random_interpolation_takes_either_filter(name):
    image = photo(31, 29)
    either = {interpolation: {result.tobytes() for result in outcomes(name, image, interpolation=interpolation)}
              for interpolation in ("bilinear", "bicubic", "random")}  # fmt: skip
    assert len(either["bilinear"]) == len(either["bicubic"]) == 2
    assert not either["bilinear"] & either["bicubic"]
    assert either["random"] == either["bilinear"] | either["bicubic"]


def test_fifteen_operations():
    assert set(OPS) == {"AutoContrast", "Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd", *ENHANCERS,
                        *SIGNED_WARPS}  # fmt: skip
    assert len(OPS) == 15


# The draws.


class Recorder(RandAugment):
    """Notes the operations instead of applying them."""

    def apply_op(self, name, image, level, rng):
        self.noted[-1].append((name, level))
        return image


def record(policy=POLICY, draws=DRAWS):
    """What is applied to each of many pictures: lists of (name, level)."""
    augment = made(policy)
    augment.__class__ = Recorder
    augment.noted = []
    for seed in range(draws):
        augment.noted.append([])
        augment(None, rng(seed))
    return augment.noted


@pytest.fixture(scope="module")
def noted():
    return record()


def assert_share(count, total, share):
    """Within three standard errors."""
    assert abs(count / total - share) <= 3 * math.sqrt(share * (1 - share) / total)


def test_each_of_two_operations_is_applied_half_the_time(noted):
    counts = np.bincount([len(picture) for picture in noted], minlength=3)
    for count, share in zip(counts, (0.25, 0.5, 0.25)):
        assert_share(count, DRAWS, share)
    assert len(counts) == 3


def test_operations_are_drawn_uniformly_with_replacement(noted):
    names = [name for picture in noted for name, _ in picture]
    for name in OPS:
        assert_share(names.count(name), len(names), 1 / 15)
    pairs = [picture for picture in noted if len(picture) == 2]
    assert_share(sum(first[0] == second[0] for first, second in pairs), len(pairs), 1 / 15)


def test_levels_are_normal_about_nine_and_clipped_at_ten(noted):
    levels = np.array([level for picture in noted for _, level in picture])
    # Of N(9, 0.5) what lies beyond 2 deviations is moved to 10: moments of the clipped normal distribution.
    density, tail = math.exp(-2) / math.sqrt(2 * math.pi), math.erfc(math.sqrt(2)) / 2
    lost = density - 2 * tail
    lost_square = (1 - tail) - 2 * density + 4 * tail  # E[min(z, 2)^2]
    mean, deviation = 9 - 0.5 * lost, 0.5 * math.sqrt(lost_square - lost**2)
    assert abs(levels.mean() - mean) <= 3 * deviation / math.sqrt(len(levels))
    assert abs(levels.std() - deviation) <= 3 * deviation / math.sqrt(2 * len(levels))
    assert levels.max() == 10
    assert_share((levels == 10).sum(), len(levels), tail)
    assert_share((levels < 9).sum(), len(levels), 0.5)


def test_levels_of_two_operations_are_drawn_apart(noted):
    pairs = np.array([[level for _, level in picture] for picture in noted if len(picture) == 2])
    assert abs(np.corrcoef(pairs.T)[0, 1]) <= 3 / math.sqrt(len(pairs))


def test_parts_of_the_policy_take_effect():
    assert {level for picture in record("rand-m4", 200) for _, level in picture} == {4}
    assert {len(picture) for picture in record("rand-m4-n5-p1", 50)} == {5}
    assert {len(picture) for picture in record("rand-m4-p0", 50)} == {0}
    levels = [level for picture in record("rand-m0-mstd3", 500) for _, level in picture]
    assert min(levels) == 0 and levels.count(0) < 0.6 * len(levels)
    applied = sum(map(len, record("rand-m9-n3-p0.2", 2000)))
    assert_share(applied, 6000, 0.2)


# One of each kind; that the others have both signs is seen above.
@pytest.mark.parametrize("name", ["TranslateXRel", "Brightness"])
def test_signs_are_even(name):
    augment, image = made(interpolation="random"), photo(8, 8)
    results = [augment.apply_op(name, image, 9, rng(seed)).tobytes() for seed in range(DRAWS)]
    counts = sorted(results.count(result) for result in set(results))
    # Two signs, and for warps two filters.
    assert len(counts) == (4 if name in SIGNED_WARPS else 2)
    for count in counts:
        assert_share(count, DRAWS, 1 / len(counts))


def test_one_generator_state_gives_one_picture():
    augment, image = made(interpolation="random"), photo()
    first = [augment(image, rng(seed)).tobytes() for seed in range(100)]
    assert first == [augment(image, rng(seed)).tobytes() for seed in range(100)]
    assert len(set(first)) > 50


def test_global_generators_are_left_alone():
    before = pickle.dumps(np.random.get_state())
    made(interpolation="random")(photo(), rng())
    ColorJitter(0.4)(photo(), rng())
    assert pickle.dumps(np.random.get_state()) == before


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
@pytest.mark.parametrize("size", [(224, 224), (1, 1), (2, 2), (1, 300), (301, 7)])
def test_any_picture_keeps_size_and_mode(size, interpolation):
    for image in (photo(*size), Image.new("RGB", size, (9, 9, 9)), Image.new("RGB", size, "black")):
        before = image.tobytes()
        for policy in (POLICY, "rand-m9-inc0"):
            for name in OPS:
                for level in (0, 9, 10):
                    result = made(policy, interpolation).apply_op(name, image, level, rng())
                    assert (result.size, result.mode) == (size, "RGB")
        result = ColorJitter(0.4)(image, rng())
        assert (result.size, result.mode) == (size, "RGB")
        assert image.tobytes() == before


def test_copies_for_workers_do_the_same():
    for augment in (made(interpolation="random"), ColorJitter(0.4)):
        copy = pickle.loads(pickle.dumps(augment))
        assert copy.describe() == augment.describe()
        for seed in range(20):
            assert copy(photo(), rng(seed)).tobytes() == augment(photo(), rng(seed)).tobytes()


# What is written in a configuration.


def test_the_official_policy_is_read():
    augment = made()
    assert (augment.magnitude, augment.deviation, augment.increasing) == (9, 0.5, True)
    assert (augment.count, augment.probability, augment.fill) == (2, 0.5, FILL)
    assert augment.describe() == ("RandAugment(2 of 15 operations, p=0.5, magnitude 9 +- 0.5, increasing, "
                                  "shifts of 91 px, fill=(124, 116, 104), bilinear)")  # fmt: skip


def test_other_parts_in_any_order():
    augment = made("rand-inc0-n3-p0.25-mstd1-m7.5", "random")
    assert (augment.magnitude, augment.deviation, augment.increasing) == (7.5, 1, False)
    assert (augment.count, augment.probability) == (3, 0.25)
    plain = made("rand-m5")
    assert (plain.deviation, plain.increasing, plain.count, plain.probability) == (0, False, 2, 0.5)
    assert "not increasing" in plain.describe()


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        ("original-mstd0.5", "'original' is not known"),
        ("", "'' is not known"),
        ("rand-m9-w0", "'w0' is not known"),
        ("rand-m9-inc", "'inc' is not known"),
        ("rand-m9--inc1", "'' is not known"),
        ("rand-m9-", "'' is not known"),
        ("rand-m9 -inc1", "'m9 ' is not known"),
        ("rand-M9", "'M9' is not known"),
        ("rand-m1e1", "'m1e1' is not known"),
        ("rand-m٩", "'m٩' is not known"),
        ("rand-m11", "'m11' is out of range"),
        ("rand-m9-mstd101", "'mstd101' is out of range"),
        ("rand-m9-inc2", "'inc2' is out of range"),
        ("rand-m9-inc0.5", "'inc0.5' is out of range"),
        ("rand-m9-n0", "'n0' is out of range"),
        ("rand-m9-n2.5", "'n2.5' is out of range"),
        ("rand-m9-p1.5", "'p1.5' is out of range"),
        ("rand-m" + "9" * 400, "is out of range"),
        ("rand-m9-m8", "'m8' gives m a second time"),
        ("rand", "the part m is missing"),
        ("rand-mstd0.5", "the part m is missing"),
    ],
)
def test_other_policies_are_refused(policy, part):
    with pytest.raises(UserError) as caught:
        made(policy)
    message = str(caught.value)
    assert message.startswith(f"data.auto_augment={policy}: ") and part in message
    assert "as in rand-m9-mstd0.5-inc1" in message and "\n" not in message
    assert all(f"{name} (" in message for name in ("m", "mstd", "inc", "n", "p"))


def test_other_filters_are_refused():
    with pytest.raises(UserError, match="data.train_interpolation=nearest: must be one of bilinear, bicubic, random"):
        made(interpolation="nearest")


# Colour jitter.


def test_jitter_of_nothing_changes_nothing():
    for seed in range(10):
        assert ColorJitter(0)(photo(), rng(seed)).tobytes() == photo().tobytes()


def jitters(monkeypatch, strength, draws=DRAWS):
    """(order, factors by name) of many draws, with the enhancers replaced by notes."""
    notes = []

    def noting(name):
        class Note:
            def __init__(self, image):
                self.image = image

            def enhance(self, factor):
                notes[-1].append((name, factor))
                return self.image

        return Note

    with monkeypatch.context() as patch:
        for name in ENHANCERS:
            patch.setitem(module._ENHANCERS, name, noting(name))
        for seed in range(draws):
            notes.append([])
            ColorJitter(strength)(None, rng(seed))
    return [tuple(name for name, _ in note) for note in notes], [dict(note) for note in notes]


def test_jitter_draws_order_and_factors(monkeypatch):
    orders, factors = jitters(monkeypatch, 0.4)
    assert {frozenset(order) for order in orders} == {frozenset({"Brightness", "Contrast", "Color"})}
    assert len(set(orders)) == 6
    for order in set(orders):
        assert_share(orders.count(order), DRAWS, 1 / 6)
    table = np.array([[factor[name] for name in ("Brightness", "Contrast", "Color")] for factor in factors])
    assert table.min() >= 0.6 and table.max() <= 1.4
    deviation = 0.8 / math.sqrt(12)
    for column in table.T:
        assert abs(column.mean() - 1) <= 3 * deviation / math.sqrt(DRAWS)
        # The fourth moment of the uniform distribution makes this error smaller than a normal one.
        assert abs(column.std() - deviation) <= 3 * deviation * math.sqrt(0.8 / (4 * DRAWS))
    assert np.abs(np.corrcoef(table.T) - np.eye(3)).max() <= 3 / math.sqrt(DRAWS)


def test_jitter_factors_stop_at_zero(monkeypatch):
    factors = [value for factor in jitters(monkeypatch, 3, 300)[1] for value in factor.values()]
    assert 0 <= min(factors) < 0.1 and 3.9 < max(factors) <= 4


def test_jitter_applies_its_factors_in_order():
    for seed in range(12):
        generator = rng(seed)
        order = [("Brightness", "Contrast", "Color")[choice] for choice in generator.permutation(3)]
        expected = np.asarray(photo()).astype(float)
        for name in order:
            expected = np.floor(enhanced(name, expected, generator.uniform(0.6, 1.4)))
        result = np.asarray(ColorJitter(0.4)(photo(), rng(seed))).astype(float)
        assert np.abs(result - expected).max() <= 4


@pytest.mark.parametrize("strength", [-0.1, float("nan"), float("inf")])
def test_jitter_of_other_strengths_is_refused(strength):
    with pytest.raises(UserError, match=f"data.color_jitter={strength}: must be a number from 0"):
        ColorJitter(strength)


def test_jitter_describes_itself():
    assert ColorJitter(0.4).describe() == "ColorJitter(0.4)"
