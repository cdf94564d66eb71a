"""What happens to the pixels between decoding and the network, all of it on PIL pictures in 8 bits.

Resizing is Pillow's: it filters over the whole source area, which OpenCV and most GPU resizers do not, and the
published accuracies hang on that (0.1 to 1 % top-1). Mean and deviation are applied later, to whole batches
(data.loader.normalize).
"""

import math

import numpy as np
from errors import UserError
from PIL import Image

INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

# The official recipe draws the filter anew for each training image.
RANDOM = "random"

# Beyond this long:short ratio of a picture the resized long side is memory without use: the centre crop never
# shows it.
_LONGEST = 32

_ATTEMPTS = 10


class EvalTransform:
    """Picture -> uint8 [size, size, 3] for validation and prediction.

    resize "crop" (official): the short side to floor(size / crop_pct), then the centre size x size.
    resize "squash" (the earlier Paddle reproduction): straight to size x size, aspect ratio not kept.
    interpolation: "bilinear" or "bicubic". crop_pct in (0, 1], used by "crop" only.
    Raises UserError for values outside these.
    """

    def __init__(self, size=224, crop_pct=0.9, interpolation="bicubic", resize="crop"):
        _check_size(size)
        _check_choice("data.interpolation", interpolation, INTERPOLATIONS)
        _check_choice("data.resize", resize, ("crop", "squash"))
        if not 0 < crop_pct <= 1:
            raise UserError(f"data.crop_pct={crop_pct}: must be above 0 and at most 1")
        self.size = size
        self.interpolation = interpolation
        self.short_side = math.floor(size / crop_pct) if resize == "crop" else None

    def __call__(self, image):
        """image: PIL RGB of any size -> uint8 [size, size, 3]."""
        resample = INTERPOLATIONS[self.interpolation]
        if self.short_side is None:
            return np.array(image.resize((self.size, self.size), resample))
        image = _trim(image)
        image = image.resize(resized_size(image.size, self.short_side), resample)
        # Rounded to even at .5, as torchvision's CenterCrop.
        left = round((image.width - self.size) / 2)
        top = round((image.height - self.size) / 2)
        return np.array(image.crop((left, top, left + self.size, top + self.size)))

    def describe(self):
        """One line for the log."""
        if self.short_side is None:
            return f"Resize({self.size}x{self.size}, {self.interpolation})"
        return f"Resize({self.short_side}, {self.interpolation}) CenterCrop({self.size})"


class TrainTransform:
    """Picture and random generator -> uint8 [size, size, 3]: a random crop, resized, mirrored or not.

    scale: (low, high) share of the picture's area, within (0, 1]. ratio: (low, high) width:height of the crop.
    hflip: probability of mirroring. interpolation: "bilinear", "bicubic" or "random" (one of the two per picture).
    augment: what happens to the picture after that, such as data.auto_augment's RandAugment, or None.
    Raises UserError for values outside these.
    """

    def __init__(
        self, size=224, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), hflip=0.5, interpolation=RANDOM, augment=None
    ):
        _check_size(size)
        _check_choice("data.train_interpolation", interpolation, (*INTERPOLATIONS, RANDOM))
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
            raise UserError(f"data.scale={list(scale)}: must be two rising numbers above 0 and at most 1")
        if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1] < math.inf:
            raise UserError(f"data.ratio={list(ratio)}: must be two rising numbers above 0")
        _check_flip(hflip)
        self.size = size
        self.scale = tuple(scale)
        self.ratio = tuple(ratio)
        self.hflip = hflip
        self.interpolation = interpolation
        self.augment = augment

    def __call__(self, image, rng):
        """image: PIL RGB of any size; rng: numpy Generator -> uint8 [size, size, 3]."""
        left, top, width, height = random_box(image.size, self.scale, self.ratio, rng)
        resample = _draw_filter(self.interpolation, rng)
        # Crop first, then resize: with resize(box=...) the filter would see pixels outside the crop.
        image = image.crop((left, top, left + width, top + height)).resize((self.size, self.size), resample)
        return np.array(_augmented(_mirror(image, self.hflip, rng), self.augment, rng))

    def describe(self):
        """One line for the log."""
        scale, ratio = ("({:.4g}, {:.4g})".format(*pair) for pair in (self.scale, self.ratio))
        return (f"RandomResizedCrop({self.size}, scale={scale}, ratio={ratio}, {self.interpolation}) "
                f"HorizontalFlip({self.hflip:g}){_described(self.augment)}")


class PaddedCropTransform:
    """Picture and random generator -> uint8 [size, size, 3]: squashed, moved a little, mirrored or not.

    The official transfer recipe for CIFAR. The whole picture, resized to size x size, gets `padding` black pixels on
    each side, of which a random square of the same size is cut. Black is 0 before normalisation, as there.
    padding: 0 <= padding < size. hflip, interpolation, augment: as for TrainTransform. Raises UserError for others.
    """

    def __init__(self, size=224, padding=28, hflip=0.5, interpolation="bilinear", augment=None):
        _check_size(size)
        _check_choice("data.train_interpolation", interpolation, (*INTERPOLATIONS, RANDOM))
        if not 0 <= padding < size:
            raise UserError(f"data.padding={padding}: must be at least 0 and below model.img_size={size}")
        _check_flip(hflip)
        self.size = size
        self.padding = padding
        self.hflip = hflip
        self.interpolation = interpolation
        self.augment = augment

    def __call__(self, image, rng):
        """image: PIL RGB of any size; rng: numpy Generator -> uint8 [size, size, 3]."""
        image = image.resize((self.size, self.size), _draw_filter(self.interpolation, rng))
        left, top = (int(shift) for shift in rng.integers(-self.padding, self.padding + 1, size=2))
        # Pillow fills with black what a crop takes from outside the picture.
        image = image.crop((left, top, left + self.size, top + self.size))
        return np.array(_augmented(_mirror(image, self.hflip, rng), self.augment, rng))

    def describe(self):
        """One line for the log."""
        return (f"Resize({self.size}x{self.size}, {self.interpolation}) RandomCrop({self.size}, "
                f"padding={self.padding}) HorizontalFlip({self.hflip:g}){_described(self.augment)}")


def resized_size(size, short_side):
    """(width, height) -> (width, height) with the short side at `short_side`, the long one rounded down."""
    width, height = size
    if width <= height:
        return short_side, int(short_side * height / width)
    return int(short_side * width / height), short_side


def random_box(size, scale, ratio, rng):
    """Draw (left, top, width, height) inside a picture of `size` (width, height), as in Inception training.

    The area is uniform in `scale` and the ratio log-uniform; after ten boxes that do not fit, the largest centred
    box whose ratio is within bounds.
    """
    full_width, full_height = size
    for _ in range(_ATTEMPTS):
        area = full_width * full_height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= full_width and 0 < height <= full_height:
            left = int(rng.integers(full_width - width + 1))
            top = int(rng.integers(full_height - height + 1))
            return left, top, width, height
    aspect = min(max(full_width / full_height, ratio[0]), ratio[1])
    width = max(1, min(full_width, round(full_height * aspect)))
    height = max(1, min(full_height, round(full_width / aspect)))
    return (full_width - width) // 2, (full_height - height) // 2, width, height


def _draw_filter(interpolation, rng):
    if interpolation == RANDOM:
        interpolation = ("bilinear", "bicubic")[rng.integers(2)]
    return INTERPOLATIONS[interpolation]


def _mirror(image, probability, rng):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < probability else image


def _augmented(image, augment, rng):
    return augment(image, rng) if augment else image


def _described(augment):
    return f" {augment.describe()}" if augment else ""


def _trim(image):
    """Cut the ends off a picture so long that resizing it whole could exhaust the memory."""
    width, height = image.size
    longest = _LONGEST * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, width - longest) // 2, max(0, height - longest) // 2
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))


def _check_size(size):
    if not isinstance(size, int) or size < 1:
        raise UserError(f"model.img_size={size}: must be a whole number above 0")


def _check_flip(hflip):
    if not 0 <= hflip <= 1:
        raise UserError(f"data.hflip={hflip}: must be a probability, 0 to 1")


def _check_choice(key, value, choices):
    if value not in choices:
        raise UserError(f"{key}={value}: must be one of {', '.join(choices)}")
