"""Mixup and cutmix of whole batches with their soft targets, as the official recipe does them (timm 0.3.4, batch mode).

Sample i is mixed with sample B-1-i and one share `lam` holds for the batch. The middle sample of an odd batch meets
itself: it stays as it is and keeps its own target.
"""

import math
from typing import NamedTuple, Optional

import numpy as np
import paddle
import paddle.nn.functional as F
from errors import UserError

# float32 holds no fractions from here on: adding it and taking it away rounds, halves to even, as np.rint does.
# paddle.round differs between the versions of Paddle there.
_ROUNDS = float(2**23)


class Mix(NamedTuple):
    """How a batch is mixed: each sample's own share, and for cutmix the box of the other one's pixels.

    lam: 0 to 1, 1 leaves the batch as it is. box: None for mixup, or (top, bottom, left, right) in pixels, the ends
    excluded.
    """

    lam: float = 1.0
    box: Optional[tuple] = None


class Mixing:
    """Batch -> mixed batch with soft targets.

    mixup_alpha, cutmix_alpha: from 0, of the Beta(alpha, alpha) that shares are drawn from; 0 turns that one off.
    prob: share of batches that are mixed. switch_prob: share of cutmix among them when both are on. smoothing: label
    smoothing within the targets, from 0 and below 1. num_classes: width of the targets. Raises UserError otherwise.
    """

    def __init__(self, mixup_alpha=0.8, cutmix_alpha=1.0, prob=1.0, switch_prob=0.5, smoothing=0.1, num_classes=1000):
        for key, alpha in (("mixup", mixup_alpha), ("cutmix", cutmix_alpha)):
            if not 0 <= alpha < math.inf:
                raise UserError(f"train.{key}_alpha={alpha}: must be 0 or more; 0 turns {key} off")
        for key, value in (("mixup_prob", prob), ("mixup_switch_prob", switch_prob)):
            if not 0 <= value <= 1:
                raise UserError(f"train.{key}={value}: must be a probability, 0 to 1")
        if not 0 <= smoothing < 1:
            raise UserError(f"train.smoothing={smoothing}: must be at least 0 and below 1")
        if not isinstance(num_classes, int) or num_classes < 1:
            raise UserError(f"model.num_classes={num_classes}: must be a whole number above 0")
        self.mixup_alpha, self.cutmix_alpha = mixup_alpha, cutmix_alpha
        self.prob, self.switch_prob = prob, switch_prob
        self.smoothing, self.num_classes = smoothing, num_classes

    def __call__(self, images, labels, rng):
        """Mix a batch of B >= 1 samples, even or odd.

        images: uint8 tensor [B, S, S, 3]; labels: int64 tensor [B] within 0..num_classes-1; rng: numpy Generator.
        Returns (images uint8 [B, S, S, 3], targets float32 [B, num_classes]) on the devices of the two, which no
        step waits for. An unmixed batch comes back as it is, with smoothed targets.
        """
        mix = self.draw(images.shape[1], rng)
        if mix.lam < 1:
            images = mix_images(images, mix)
        return images, soft_targets(labels, mix.lam, self.smoothing, self.num_classes)

    def draw(self, size, rng):
        """How to mix the next batch of pictures of `size` pixels each way -> Mix."""
        both = self.mixup_alpha > 0 and self.cutmix_alpha > 0
        if not self.mixup_alpha + self.cutmix_alpha or rng.random() >= self.prob:
            return Mix()
        if self.cutmix_alpha > 0 and (not both or rng.random() < self.switch_prob):
            box = draw_box(size, rng.beta(self.cutmix_alpha, self.cutmix_alpha), rng)
            top, bottom, left, right = box
            # The share that is really kept: the box was rounded, and clipped at the borders.
            return Mix(1 - (bottom - top) * (right - left) / size**2, box)
        return Mix(rng.beta(self.mixup_alpha, self.mixup_alpha))

    def describe(self):
        """One line for the log."""
        kinds = [f"{name}({alpha:g})" for name, alpha in (("Mixup", self.mixup_alpha), ("CutMix", self.cutmix_alpha))
                 if alpha]  # fmt: skip
        if not kinds or not self.prob:
            return f"no mixing, label smoothing {self.smoothing:g}"
        switch = f", switch {self.switch_prob:g}" if len(kinds) == 2 else ""
        return f"{' '.join(kinds)} prob {self.prob:g}{switch}, label smoothing {self.smoothing:g}"


def draw_box(size, lam, rng):
    """(top, bottom, left, right) of a box that covers about 1 - lam of a picture of `size` pixels each way.

    Its centre is uniform over the picture, so that a part may lie outside and is clipped.
    """
    half = int(size * math.sqrt(1 - lam)) // 2
    row, column = (int(centre) for centre in rng.integers(size, size=2))
    return max(0, row - half), min(size, row + half), max(0, column - half), min(size, column + half)


def mix_images(images, mix):
    """uint8 tensor [B, S, S, 3], Mix with lam below 1 -> uint8 tensor of the same shape; means are rounded."""
    if images.place.is_cpu_place():
        # Two to five times as fast as Paddle's kernels for flips, slices and arrays of this size on a CPU.
        return paddle.to_tensor(mix_arrays(images.numpy(), mix), place=images.place)
    return mix_on_device(images, mix)


def mix_arrays(pixels, mix):
    """`mix_images` for a uint8 array."""
    if mix.box:
        top, bottom, left, right = mix.box
        mixed = pixels.copy()
        mixed[:, top:bottom, left:right] = pixels[::-1, top:bottom, left:right]
        return mixed
    mixed = np.empty_like(pixels)
    own, other = np.float32(mix.lam), np.float32(1 - mix.lam)
    # Picture by picture the floats stay in the cache.
    for to, a, b in zip(mixed, pixels, pixels[::-1]):
        to[:] = np.rint(a.astype(np.float32) * own + b.astype(np.float32) * other)
    return mixed


def mix_on_device(images, mix):
    """`mix_images` of few kernels without a transfer; the same bytes as `mix_arrays`."""
    # flip knows no uint8.
    own = images.astype("float32")
    other = own.flip(0)
    if mix.box:
        top, bottom, left, right = mix.box
        own[:, top:bottom, left:right] = other[:, top:bottom, left:right]
    else:
        own = own * mix.lam + other * (1 - mix.lam)
        own = (own + _ROUNDS) - _ROUNDS
    return own.astype("uint8")


def soft_targets(labels, lam, smoothing, num_classes):
    """labels int64 [B] -> float32 [B, num_classes]: smoothed one-hot rows, mixed as the images are.

    smoothing / C everywhere, 1 - smoothing more on the label; lam of it and 1 - lam of the partner's.
    """
    targets = _smoothed(labels, smoothing, num_classes)
    if lam < 1:
        targets = targets * lam + _smoothed(labels.flip(0), smoothing, num_classes) * (1 - lam)
    return targets


def _smoothed(labels, smoothing, num_classes):
    return paddle.scale(F.one_hot(labels, num_classes), scale=1 - smoothing, bias=smoothing / num_classes)
