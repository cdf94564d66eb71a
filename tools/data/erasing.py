"""Random erasing in pixel mode, as the official recipe does it: after normalisation and mixing, one box per picture."""

import math

import numpy as np
import paddle
from errors import UserError


class RandomErasing:
    """Fills a random box of some pictures with noise.

    prob: share of pictures that get a box. min_area, max_area: share of the picture that it covers, uniform between.
    min_aspect, max_aspect: height:width of the box, log-uniform between. attempts: how many boxes are drawn until one
    is smaller than the picture both ways; a picture without such a box stays whole. Raises UserError for other values.
    """

    def __init__(self, prob, min_area=0.02, max_area=1 / 3, min_aspect=0.3, max_aspect=1 / 0.3, attempts=10):
        if not 0 <= prob <= 1:
            raise UserError(f"data.reprob={prob}: must be a probability, 0 to 1")
        if not 0 < min_area <= max_area <= 1:
            raise UserError(f"data.reprob: areas {min_area} to {max_area} must be rising, above 0 and at most 1")
        if not 0 < min_aspect <= max_aspect < math.inf:
            raise UserError(f"data.reprob: aspects {min_aspect} to {max_aspect} must be rising and above 0")
        if attempts < 1:
            raise UserError(f"data.reprob: {attempts} attempts must be 1 or more")
        self.prob = prob
        self.area = (min_area, max_area)
        self.aspect = (min_aspect, max_aspect)
        self.attempts = attempts

    def __call__(self, images, rngs):
        """Erase in place.

        images: float32 tensor [B, 3, S, S], normalised; rngs: a numpy Generator for each picture, from which all that
        happens to it is drawn: made from (seed, epoch, index, a number that is not 0) it depends neither on the
        batch nor on the number of processes, nor repeats what other steps drew from (seed, epoch, index).
        Returns images; nothing but the boxes is written, their noise goes to the device at once.
        """
        count, channels, _, size = images.shape
        if len(rngs) != count:
            raise ValueError(f"{len(rngs)} generators for {count} pictures")
        boxes = [(index, box, rng) for index, rng in enumerate(rngs) if (box := self.draw(size, rng))]
        if not boxes:
            return images
        noise = [rng.standard_normal(channels * height * width, np.float32) for _, (_, _, height, width), rng in boxes]
        ends = np.cumsum([len(part) for part in noise]).tolist()
        noise = paddle.to_tensor(np.concatenate(noise), place=images.place)
        for (index, (top, left, height, width), _), start, end in zip(boxes, [0, *ends], ends):
            # Not through a view of one picture, which is quicker by little and a copy where views are switched off.
            images[index, :, top : top + height, left : left + width] = noise[start:end].reshape([-1, height, width])
        return images

    def draw(self, size, rng):
        """(top, left, height, width) in a picture of `size` pixels each way, or None where nothing is erased."""
        if rng.random() >= self.prob:
            return None
        for _ in range(self.attempts):
            area = size**2 * rng.uniform(*self.area)
            aspect = math.exp(rng.uniform(*map(math.log, self.aspect)))
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < height < size and 0 < width < size:
                top, left = int(rng.integers(size - height + 1)), int(rng.integers(size - width + 1))
                return top, left, height, width
        return None

    def describe(self):
        """One line for the log."""
        area, aspect = ("({:.3g}, {:.3g})".format(*pair) for pair in (self.area, self.aspect))
        return f"RandomErasing({self.prob:g}, pixel, area={area}, aspect={aspect})"
