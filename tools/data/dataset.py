"""Samples as a paddle Dataset of uint8 pixels, with randomness keyed by (seed, epoch, index)."""

import numpy as np
import paddle
from errors import UserError

from data.decode import ImageError

# Stands in the label's place for an image that could not be decoded. Real labels are never negative.
FAILED = -1


class ImageDataset(paddle.io.Dataset):
    """Items are asked for by (epoch, index); see `__getitem__`.

    samples: what data.listing.read_samples gives. transform: image -> uint8 [S, S, 3], or (image, rng) -> the same
    when train. seed: whole number from 0. on_error: "stop" or "skip", what `check_batch` does about undecodable images.
    Raises UserError for other values.
    """

    def __init__(self, samples, transform, *, train, seed, on_error="stop"):
        super().__init__()
        if seed < 0:
            raise UserError(f"train.seed={seed}: must be 0 or more")
        if on_error not in ("stop", "skip"):
            raise UserError(f"data.on_error={on_error}: must be one of stop, skip")
        self.samples = samples
        self.transform = transform
        self.train = train
        self.seed = seed
        self.on_error = on_error

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, key):
        """(epoch, index) -> (uint8 [S, S, 3], int64 label, int64 index).

        What a training image looks like depends on (seed, epoch, index) alone, whatever the worker, the order,
        the number of processes or the point of resuming. An undecodable image gives zeros and label FAILED: an
        exception raised in a worker would reach the main process as a traceback in text, without its type.
        """
        epoch, index = key
        try:
            image = self.samples.image(index)
        except ImageError:
            size = self.transform.size
            return np.zeros((size, size, 3), np.uint8), np.int64(FAILED), np.int64(index)
        if self.train:
            pixels = self.transform(image, np.random.default_rng((self.seed, epoch, index)))
        else:
            pixels = self.transform(image)
        return pixels, self.samples.labels[index], np.int64(index)

    def check_batch(self, labels, indices):
        """Find the undecodable images of a loaded batch; call it in the main process, for every batch.

        labels, indices: int64 [B], arrays or tensors, as the loader gave them.
        Returns (keep, failed): bool [B], False for an undecodable image, and the number of these.
        Raises ImageError naming the first one when on_error is "stop".
        """
        keep = np.asarray(labels) != FAILED
        failed = int(keep.size - keep.sum())
        if failed and self.on_error == "stop":
            raise self.explain(int(np.asarray(indices)[~keep][0]))
        return keep, failed

    def explain(self, index):
        """Return the ImageError that sample `index` gives, decoding it again."""
        try:
            self.samples.image(index)
        except ImageError as error:
            return ImageError(f"{error}; replace the file, or set data.on_error=skip to leave such images out")
        return ImageError(
            f"{self.samples.path(index)}: could not be read a moment ago, but can be now; is the disk or network "
            "unstable?"
        )
