"""What the loops iterate over: decoded, checked, normalised batches on the device."""

import numpy as np
import paddle

from data.loader import normalize


class Batches:
    """Iterates a loader of data.loader.build_loader as (images, labels, indices, failed).

    images: float32 [B, 3, S, S], normalised; labels: int64 [B]; indices: NumPy int64 [B], positions in the data set;
    failed: NumPy int64 [F], positions of undecodable images, which are in none of the others. F > 0 happens with
    data.on_error=skip only: otherwise the first undecodable image raises ImageError. B may be 0 then.
    """

    def __init__(self, loader, mean, std):
        self.loader = loader
        self.mean, self.std = mean, std

    def __len__(self):
        return len(self.loader.batch_sampler)

    @property
    def samples(self):
        """Number of samples of the data set."""
        return len(self.loader.dataset)

    def set_epoch(self, epoch, start=0):
        """Choose the order and the augmentation of the next iteration, which leaves out the first `start` batches."""
        self.loader.batch_sampler.set_epoch(epoch, start)

    def path(self, index):
        """File of sample `index`."""
        return self.loader.dataset.samples.path(index)

    def __iter__(self):
        for images, labels, indices in self.loader:
            indices, failed = indices.numpy(), np.empty(0, np.int64)
            keep, count = self.loader.dataset.check_batch(labels.numpy(), indices)
            if count:
                failed, indices = indices[~keep], indices[keep]
                images, labels = (paddle.to_tensor(t.numpy()[keep], place=t.place) for t in (images, labels))
            if len(indices):
                images = normalize(images, self.mean, self.std)
            else:
                # Paddle 2.6 refuses to stack tensors without elements.
                images = paddle.to_tensor(np.empty([0, 3, *images.shape[1:3]], np.float32))
            yield images, labels.to(paddle.device.get_device()), indices, failed
