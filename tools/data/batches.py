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
    data.on_error=skip only: otherwise the first undecodable image raises ImageError. B may be 0 then in an evaluation.
    targets: float32 [B, C] of mixed images, or None where the labels are the targets.
    share: number of samples that the step's gradient is the mean over, undecodable ones included, of all processes
    together and divided by their number; None: B. counted: how many of the B images count; None: B. It is B or 0: a
    process that has no image of its own in a training step, since the last images of the epoch were not enough or none
    could be decoded, gets a blank one of no sample to compute with.
    """

    images: paddle.Tensor
    labels: paddle.Tensor
    indices: np.ndarray
    failed: np.ndarray
    targets: Optional[paddle.Tensor] = None
    share: Optional[float] = None
    counted: Optional[int] = None


class Batches:
    """Iterates a loader of data.loader.build_loader as Batch.

    mixing: data.mixing.Mixing, which mixes whole batches of pixels, or None. erasing: data.erasing.RandomErasing,
    which comes after the normalisation, or None. What they draw depends on the data set's seed and on the epoch, for
    mixing on the step too, for erasing on the image. So all processes mix alike in a step, and since each holds both
    partners (see EpochBatchSampler), a total batch is mixed in the same way by any number of processes with even
    batches of their own. In the official code each process draws its own share; there the result depends on that.

    A training data set's images that the sampler repeats to give each process as many are left out again.
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

    def fingerprint(self):
        """Hexadecimal digest of the list of images and labels, of the pixels where they come from a CIFAR archive."""
        return self.loader.dataset.samples.fingerprint()

    def set_epoch(self, epoch, start=0):
        """Choose the order and the augmentation of the next iteration, which leaves out the first `start` batches."""
        self._epoch, self._start = epoch, start
        self.loader.batch_sampler.set_epoch(epoch, start)

    def path(self, index):
        """File of sample `index`."""
        return self.loader.dataset.samples.path(index)

    def __iter__(self):
        device = paddle.device.get_device()
        dataset, sampler = self.loader.dataset, self.loader.batch_sampler
        for step, (images, labels, indices) in enumerate(self.loader, self._start):
            indices, failed = indices.numpy(), np.empty(0, np.int64)
            own = len(indices)
            if dataset.train and step + 1 == len(self):
                own -= sampler.repeats
                images, labels, indices = images[:own], labels[:own], indices[:own]
            keep, count = dataset.check_batch(labels.numpy(), indices)
            if count:
                failed, indices = indices[~keep], indices[keep]
                images, labels = (paddle.to_tensor(t.numpy()[keep], place=t.place) for t in (images, labels))
            counted = len(indices)
            if not counted and not dataset.train:
                # Paddle 2.6 refuses to stack tensors without elements.
                empty = paddle.to_tensor(np.empty([0, 3, *images.shape[1:3]], np.float32))
                yield Batch(empty, labels.to(device), indices, failed)
                continue
            if not counted:
                # The other processes wait for this one's part in the backward pass.
                images, labels = paddle.zeros([1, *images.shape[1:]], "uint8"), paddle.zeros([1], "int64")
                indices = np.zeros(1, np.int64)
            # Mixing is quicker on a card; on a CPU nothing moves.
            images, labels, targets = images.to(device), labels.to(device), None
            if self.mixing:
                images, targets = self.mixing(images, labels, self._generator(_MIXING_STREAM, step))
            images = normalize(images, self.mean, self.std)
            if self.erasing:
                images = self.erasing(images, [self._generator(_ERASING_STREAM, index) for index in indices.tolist()])
            yield Batch(images, labels, indices, failed, targets, sampler.share(step), counted)

    def _generator(self, stream, number):
        key = np.random.SeedSequence((self.loader.dataset.seed, self._epoch, number), spawn_key=stream)
        return np.random.default_rng(key)
