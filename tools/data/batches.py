"""What the loops iterate over: decoded, checked, mixed, normalised batches on the device."""

from typing import NamedTuple, Optional

import numpy as np
import paddle

from data.loader import normalize

# Keep what is drawn for mixing and erasing apart from the shuffling (1) and from the crops, which share their seeds.
_MIXING_STREAM = (2,)
_ERASING_STREAM = (3,)


class Batch(NamedTuple):
    """A batch of one process.

    images: float32 [B, 3, S, S], normalised; labels: int64 [B]; indices: NumPy int64 [B], positions in the data set;
    failed: NumPy int64 [F], positions of undecodable images, which are in none of the others. F > 0 happens with
    data.on_error=skip only: otherwise the first undecodable image raises ImageError. B may be 0 then.
    targets: float32 [B, C] of mixed images, or None where the labels are the targets.
    """

    images: paddle.Tensor
    labels: paddle.Tensor
    indices: np.ndarray
    failed: np.ndarray
    targets: Optional[paddle.Tensor] = None


class Batches:
    """Iterates a loader of data.loader.build_loader as Batch.

    mixing: data.mixing.Mixing, which mixes whole batches of pixels, or None. erasing: data.erasing.RandomErasing,
    which comes after the normalisation, or None. What they draw depends on the data set's seed and on the epoch, for
    mixing on the step and process too, for erasing on the image.
    """

    def __init__(self, loader, mean, std, *, mixing=None, erasing=None):
        self.loader = loader
        self.mean, self.std = mean, std
        self.mixing, self.erasing = mixing, erasing
        self._epoch, self._start = 0, 0

    def __len__(self):
        return len(self.loader.batch_sampler)

    @property
    def samples(self):
        """Number of samples of the data set."""
        return len(self.loader.dataset)

    def set_epoch(self, epoch, start=0):
        """Choose the order and the augmentation of the next iteration, which leaves out the first `start` batches."""
        self._epoch, self._start = epoch, start
        self.loader.batch_sampler.set_epoch(epoch, start)

    def path(self, index):
        """File of sample `index`."""
        return self.loader.dataset.samples.path(index)

    def __iter__(self):
        device = paddle.device.get_device()
        for step, (images, labels, indices) in enumerate(self.loader, self._start):
            indices, failed = indices.numpy(), np.empty(0, np.int64)
            keep, count = self.loader.dataset.check_batch(labels.numpy(), indices)
            if count:
                failed, indices = indices[~keep], indices[keep]
                images, labels = (paddle.to_tensor(t.numpy()[keep], place=t.place) for t in (images, labels))
            if not len(indices):
                # Paddle 2.6 refuses to stack tensors without elements.
                empty = paddle.to_tensor(np.empty([0, 3, *images.shape[1:3]], np.float32))
                yield Batch(empty, labels.to(device), indices, failed)
                continue
            # Mixing is quicker on a card; on a CPU nothing moves.
            images, labels, targets = images.to(device), labels.to(device), None
            if self.mixing:
                images, targets = self.mixing(images, labels, self._generator(_MIXING_STREAM, step))
            images = normalize(images, self.mean, self.std)
            if self.erasing:
                images = self.erasing(images, [self._generator(_ERASING_STREAM, index) for index in indices.tolist()])
            yield Batch(images, labels, indices, failed, targets)

    def _generator(self, stream, number):
        seed, rank = self.loader.dataset.seed, self.loader.batch_sampler.local_rank
        key = (seed, self._epoch, number, *((rank,) if stream == _MIXING_STREAM else ()))
        return np.random.default_rng(np.random.SeedSequence(key, spawn_key=stream))
