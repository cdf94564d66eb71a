"""RandAugment and colour jitter: random changes of training pictures, all of them PIL RGB pictures in 8 bits.

The operations, their levels and their draws are those of timm 0.3.4, with which the official networks were trained.
Every draw comes from the generator that the caller hands in. Pictures keep their size and mode.
"""

import re

from errors import UserError
from PIL import Image, ImageEnhance, ImageOps

from data.transforms import INTERPOLATIONS, RANDOM

MAX_LEVEL = 10

# What a policy is made of: name -> (what it is, least and greatest value, whether whole, value when left out).
_PARTS = {
    "m": ("magnitude", 0, MAX_LEVEL, False, None),
    "mstd": ("its deviation", 0, MAX_LEVEL, False, 0.0),
    "inc": ("1: a greater magnitude always changes more", 0, 1, True, 0),
    "n": ("operations", 1, 15, True, 2),
    "p": ("probability of each", 0, 1, False, 0.5),
}


def auto_augment(policy, size, mean, interpolation):
    """Make the RandAugment that a policy such as "rand-m9-mstd0.5-inc1" names.

    policy: "rand" and, in any order, parts of a name and a number: m (magnitude, 0 to 10; must be there), mstd (its
    deviation, 0 to 10, else 0), inc (0 or 1, else 0), n (operations per picture, 1 to 15, else 2), p (probability of
    each, 0 to 1, else 0.5).
    size: side of the pictures in pixels, for `describe`. mean: three numbers in 0..1, colour of what comes into sight
    at the edges. interpolation: "bilinear", "bicubic" or "random" (one of the two for each operation).
    Raises UserError for anything else.
    """
    kind, *parts = policy.split("-")
    if kind != "rand":
        raise _refusal(policy, f"{kind!r} is not known")
    values = {}
    for part in parts:
        match = re.fullmatch(r"([a-z]+)([0-9]+(?:\.[0-9]+)?)", part)
        if match is None or match[1] not in _PARTS:
            raise _refusal(policy, f"the part {part!r} is not known")
        name, (_, least, greatest, whole, _) = match[1], _PARTS[match[1]]
        if name in values:
            raise _refusal(policy, f"the part {part!r} gives {name} a second time")
        value = float(match[2])
        if not least <= value <= greatest or whole and value != int(value):
            raise _refusal(policy, f"the part {part!r} is out of range")
        values[name] = int(value) if whole else value
    if "m" not in values:
        raise _refusal(policy, "the part m is missing")
    values = {name: values.get(name, default) for name, (*_, default) in _PARTS.items()}
    return RandAugment(magnitude=values["m"], deviation=values["mstd"], increasing=bool(values["inc"]),
                       count=values["n"], probability=values["p"], size=size, mean=mean, interpolation=interpolation)


class RandAugment:
    """Picture and random generator -> changed picture; `auto_augment` makes one from its written form.

    `count` operations are drawn from OPS, uniformly and with replacement. Each is applied with `probability`, at a
    level drawn from N(magnitude, deviation) and clipped to 0..10. With `increasing` a greater level changes more in
    every operation; without it greater levels posterize and solarize less, and colour, contrast, brightness and
    sharpness run from nearly none (level 0) over the picture itself (5) to nearly twice as much (10).
    size, mean, interpolation: as for `auto_augment`. Raises UserError for an unknown interpolation.
    """

    def __init__(self, *, magnitude, deviation, increasing, count, probability, size, mean, interpolation):
        if interpolation not in (*INTERPOLATIONS, RANDOM):
            raise UserError(f"data.train_interpolation={interpolation}: must be one of "
                            f"{', '.join((*INTERPOLATIONS, RANDOM))}")
        self.magnitude = magnitude
        self.deviation = deviation
        self.increasing = increasing
        self.count = count
        self.probability = probability
        self.size = size
        self.interpolation = interpolation
        self.filters = tuple(INTERPOLATIONS.values()) if interpolation == RANDOM else (INTERPOLATIONS[interpolation],)
        self.fill = tuple(min(255, round(255 * value)) for value in mean)

    def __call__(self, image, rng):
        """image: PIL RGB; rng: numpy Generator -> PIL RGB of the same size."""
        for choice in rng.integers(len(OPS), size=self.count):
            if rng.random() < self.probability:
                level = min(max(rng.normal(self.magnitude, self.deviation), 0), MAX_LEVEL)
                image = self.apply_op(OPS[choice], image, level, rng)
        return image

    def apply_op(self, name, image, level, rng):
        """Apply one operation of OPS at a level in 0..10; rng draws its sign and filter, where it has them."""
        share = level / MAX_LEVEL
        if name in _WARPS:
            greatest, warp = _WARPS[name]
            resample = self.filters[rng.integers(len(self.filters))]
            return warp(image, _signed(greatest * share, rng), resample=resample, fillcolor=self.fill)
        if name in _ENHANCERS:
            change = _signed(0.9 * share, rng) if self.increasing else 1.8 * share - 0.9
            return _ENHANCERS[name](image).enhance(1 + change)
        return _POINTWISE[name](image, share, self.increasing)

    def describe(self):
        """One line for the log."""
        shift = round(_WARPS["TranslateXRel"][0] * self.magnitude / MAX_LEVEL * self.size)
        return (f"RandAugment({self.count} of {len(OPS)} operations, p={self.probability:g}, magnitude "
                f"{self.magnitude:g} +- {self.deviation:g}, {'' if self.increasing else 'not '}increasing, shifts of "
                f"{shift} px, fill={self.fill}, {self.interpolation})")


class ColorJitter:
    """Picture and random generator -> picture of other brightness, contrast and saturation, in random order.

    Each of the three factors is uniform in [1 - strength, 1 + strength], never below 0. torchvision's
    ColorJitter(strength, strength, strength). Raises UserError for a negative strength.
    """

    def __init__(self, strength):
        if not 0 <= strength < float("inf"):
            raise UserError(f"data.color_jitter={strength}: must be a number from 0")
        self.strength = strength

    def __call__(self, image, rng):
        """image: PIL RGB; rng: numpy Generator -> PIL RGB of the same size."""
        for choice in rng.permutation(len(_JITTERED)):
            factor = rng.uniform(max(0, 1 - self.strength), 1 + self.strength)
            image = _ENHANCERS[_JITTERED[choice]](image).enhance(factor)
        return image

    def describe(self):
        """One line for the log."""
        return f"ColorJitter({self.strength:g})"


def _refusal(policy, problem):
    parts = ", ".join(f"{name} ({least} to {greatest}, {what})" for name, (what, least, greatest, *_) in _PARTS.items())
    return UserError(f"data.auto_augment={policy}: {problem}; accepted are rand and parts of {parts}, "
                     "as in rand-m9-mstd0.5-inc1")


def _signed(value, rng):
    return -value if rng.random() < 0.5 else value


def _auto_contrast(image, share, increasing):
    return ImageOps.autocontrast(image)


def _equalize(image, share, increasing):
    return ImageOps.equalize(image)


def _invert(image, share, increasing):
    return ImageOps.invert(image)


def _posterize(image, share, increasing):
    bits = 4 - int(share * 4) if increasing else int(share * 4)
    # No bits at the end of the scale: a black picture, as in timm. ImageOps.posterize of Pillow 13 refuses it.
    return _mapped(image, [value >> (8 - bits) << (8 - bits) for value in range(256)])


def _solarize(image, share, increasing):
    threshold = int(share * 256)
    return ImageOps.solarize(image, 256 - threshold if increasing else threshold)


def _solarize_add(image, share, increasing):
    added = int(share * 110)
    return _mapped(image, [min(255, value + added) if value < 128 else value for value in range(256)])


def _mapped(image, table):
    return image.point(table * len(image.getbands()))


def _shear_x(image, amount, **how):
    return _affine(image, (1, amount, 0, 0, 1, 0), how)


def _shear_y(image, amount, **how):
    return _affine(image, (1, 0, 0, amount, 1, 0), how)


def _translate_x(image, amount, **how):
    return _affine(image, (1, 0, amount * image.width, 0, 1, 0), how)


def _translate_y(image, amount, **how):
    return _affine(image, (1, 0, 0, 0, 1, amount * image.height), how)


def _affine(image, matrix, how):
    # The matrix leads from places in the result to places in the picture.
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **how)


_POINTWISE = {
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Invert": _invert,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "SolarizeAdd": _solarize_add,
}

_ENHANCERS = {
    "Color": ImageEnhance.Color,
    "Contrast": ImageEnhance.Contrast,
    "Brightness": ImageEnhance.Brightness,
    "Sharpness": ImageEnhance.Sharpness,
}

# Greatest amount, at level 10: degrees, shares of the other axis, shares of the same axis.
_WARPS = {
    "Rotate": (30, Image.Image.rotate),
    "ShearX": (0.3, _shear_x),
    "ShearY": (0.3, _shear_y),
    "TranslateXRel": (0.45, _translate_x),
    "TranslateYRel": (0.45, _translate_y),
}

_JITTERED = ("Brightness", "Contrast", "Color")

OPS = (*_POINTWISE, *_ENHANCERS, *_WARPS)
