"""Batches for one process out of many: who takes which samples in which epoch, and how pixels reach the network."""

import ctypes
import functools
import os
import signal
import warnings

import numpy as np
import paddle
from errors import UserError
from paddle.io.multiprocess_utils import _cleanup_mmap

# Keeps the shuffling apart from the augmentation: both are seeded with (seed, epoch).
_SHUFFLE_STREAM = (1,)

# Batches a worker may have under way; the DataLoader's own default.
_PREFETCH = 2

_SHM = "/dev/shm"

# Option of Linux's prctl: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1


class EpochBatchSampler(paddle.io.DistributedBatchSampler):
    """Splits each epoch into global batches, and each global batch into one equal block per process.

    The order of epoch e is a permutation drawn from (seed, e), or 0, 1, 2 ... without shuffling. Global batch g is
    order[g * world * batch_size : (g + 1) * world * batch_size], so its content does not depend on how many processes
    share it. They share it from both ends: process 0 takes its first and its last samples, the last process the
    middle, each in the batch's order. So the sample opposite to another one, with which data.mixing mixes it, is the
    same for any number of processes that leaves them even blocks.

    The last global batch may be incomplete. It is filled up to a multiple of `world` by repeating samples from the
    start of the order (over and over if there are fewer samples than processes) and split evenly: every process has
    the same number of batches, of the same sizes. `repeats` says how many samples at the end of this process's last
    batch are such repeats, which count neither in training nor in an evaluation. With drop_last the incomplete batch
    is left out, unless it is the only one; then `kept_incomplete` is True.

    Yields lists of (epoch, index): the workers that live on between epochs hold copies of the dataset, and would
    never hear of a new epoch otherwise. set_epoch(e, start=k) leaves out the first k batches of epoch e, for a run
    that goes on in its middle; the length stays that of the whole epoch.
    """

    def __init__(self, dataset, batch_size, *, world=1, rank=0, shuffle=False, drop_last=False, seed=0):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: must be 1 or more")
        if not 0 <= rank < world:
            raise UserError(f"rank={rank}: must be from 0 to {world - 1}, the number of processes being {world}")
        if len(dataset) == 0:
            raise UserError("the data set is empty")
        super().__init__(dataset, batch_size, num_replicas=world, rank=rank, shuffle=shuffle, drop_last=drop_last)
        self.seed = seed
        self._full, self._rest = divmod(len(dataset), world * batch_size)
        self.kept_incomplete = bool(drop_last and self._rest and not self._full)
        if drop_last and self._full:
            self._rest = 0
        self._last_size = -(-self._rest // world)
        self._start = 0
        self._cancelled = False

    @property
    def repeats(self):
        """Number of samples at the end of this process's last batch that repeat earlier ones, 0 .. last size."""
        return self._last_size - len(self._block(self._rest, self._last_size))

    def share(self, batch):
        """Samples of the global batch with this number that are no repeats, divided by the number of processes."""
        return self.batch_size if batch < self._full else self._rest / self.nranks

    def _block(self, count, size):
        """This process's up to `size` places, rising, in a global batch of `count` samples."""
        places = np.arange(count)
        from_both_ends = np.stack([places, places[::-1]], axis=1).reshape(-1)[:count]
        return np.sort(from_both_ends[self.local_rank * size:(self.local_rank + 1) * size])

    def __len__(self):
        return self._full + bool(self._last_size)

    def set_epoch(self, epoch, start=0):
        """Choose the epoch of the next iterations and the batch of this process, from 0, that they begin with."""
        super().set_epoch(epoch)
        self._start = start

    def __iter__(self):
        self._cancelled = False
        epoch, order, total = self.epoch, self._order(), self.nranks * self.batch_size
        block = self._block(total, self.batch_size)
        for batch in range(self._start, self._full):
            if self._cancelled:
                return
            yield [(epoch, index) for index in order[batch * total + block].tolist()]
        if self._last_size and self._start < len(self) and not self._cancelled:
            block = self._full * total + self._block(self._rest, self._last_size)
            first = self.local_rank * self._last_size + len(block) - self._rest
            filling = np.arange(first, first + self._last_size - len(block)) % len(order)
            yield [(epoch, index) for index in order[np.concatenate([block, filling])].tolist()]

    def cancel(self):
        """End the iteration under way; the next one is whole again."""
        self._cancelled = True

    def _order(self):
        if not self.shuffle:
            return np.arange(len(self.dataset))
        key = np.random.SeedSequence((self.seed, self.epoch), spawn_key=_SHUFFLE_STREAM)
        return np.random.default_rng(key).permutation(len(self.dataset))


class EpochLoader(paddle.io.DataLoader):
    """A DataLoader that may be left early, with workers that live on. One iteration at a time.

    Paddle reads a batch or two ahead in C++ and keeps them when the loop breaks; its next epoch would begin with
    them, or fail with "pop from empty list" (seen in 2.6.2 and 3.3.1). So what an abandoned iteration still has
    under way is fetched and dropped before the next one starts.
    """

    _running = None

    def __iter__(self):
        if self._running is not None:
            self.batch_sampler.cancel()
            for _ in self._running:
                pass
        if not self.num_workers:
            return self._in_this_thread()
        self._running = super().__iter__()
        return self._running

    def _in_this_thread(self):
        # Paddle decodes in a thread even without workers, and waits for ever when that ends by an exception.
        for keys in self.batch_sampler:
            columns = zip(*(self.dataset[key] for key in keys))
            yield [paddle.to_tensor(np.stack(column), place=paddle.CPUPlace()) for column in columns]

    def close(self):
        """End the workers. Without it they live until the process ends, even if the loader is dropped.

        Paddle has no public way; this is the method it calls itself at exit, with its timeout in seconds per worker.
        """
        if self._running is not None:
            self._running._try_shutdown_all(1)
            self._running = self._iterator = None


def build_loader(dataset, *, batch_size, shuffle, seed, rank, world, drop_last, workers, use_shared_memory=True):
    """Make the EpochLoader over `dataset` (data.dataset.ImageDataset) for this process.

    batch_size: per process. workers: decoding processes, 0 = decode in this one.
    Its batches are [uint8 [B, S, S, 3], int64 labels [B], int64 indices [B]] on the CPU; call
    `loader.batch_sampler.set_epoch(e)` before each epoch. Where /dev/shm is too small for the batches under way, they
    go through pipes instead, with a RuntimeWarning that says so.
    Raises UserError for impossible numbers.
    """
    if workers < 0:
        raise UserError(f"data.workers={workers}: must be 0 or more")
    sampler = EpochBatchSampler(dataset, batch_size, world=world, rank=rank, shuffle=shuffle, drop_last=drop_last,
                                seed=seed)
    if use_shared_memory and workers:
        shortage = shared_memory_shortage(batch_size, dataset.transform.size, workers)
        if shortage:
            warnings.warn(shortage, RuntimeWarning, stacklevel=2)
            use_shared_memory = False
    return EpochLoader(
        dataset,
        batch_sampler=sampler,
        places=[paddle.CPUPlace()],
        num_workers=workers,
        # Workers made anew each epoch cost time at every start and, in some Paddle versions, memory that grows.
        persistent_workers=workers > 0,
        prefetch_factor=_PREFETCH,
        use_shared_memory=use_shared_memory,
        # It copies batches to the device ahead of time; these stay on the CPU. No thread limit is set for the workers:
        # they run Pillow and NumPy copies only, one busy thread each.
        use_buffer_reader=False,
        worker_init_fn=functools.partial(_begin_worker, os.getpid()),
    )


def _begin_worker(parent, _):
    """Set a worker apart from the signals of its process group, and tie its life to that of `parent`.

    Ctrl-C and the launcher's SIGTERM go to the whole group. The training then goes on to a step where it can be saved,
    and needs its workers until then. When it is killed they must end too; Paddle means to look after that, but waits
    for work without the time limit that it looks around after (2.6.2 and 3.3.1).
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, _end_worker)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if os.getppid() != parent:
        _end_worker()


def _end_worker(*_):
    # Batches that nobody has fetched would stay in shared memory.
    _cleanup_mmap()
    os._exit(0)


def shared_memory_shortage(batch_size, size, workers, free=None):
    """Say in one line that /dev/shm cannot hold the batches under way, or return None.

    size: side of the images in pixels. free: bytes to be had, None = ask the system. Without room a worker dies of a
    bus error, minutes or hours into the run.
    """
    if free is None:
        try:
            stat = os.statvfs(_SHM)
        except OSError:
            return None
        free = stat.f_bavail * stat.f_frsize
    # Every worker's prefetched batches, the one in the loop's hands and the one on its way there.
    needed = batch_size * size * size * 3 * (workers * _PREFETCH + 2)
    if needed <= free:
        return None
    return (f"{_SHM} has {free >> 20} MiB free and {workers} workers may need {needed >> 20} MiB: batches go through "
            f"pipes, which is slower; enlarge it (docker run --shm-size) or set data.use_shared_memory=false")


def normalize(images, mean, std):
    """uint8 tensor [B, H, W, 3] -> float32 [B, 3, H, W], (x / 255 - mean) / std per channel, on the current device.

    mean, std: three numbers each, for values in 0..1.
    """
    device = paddle.device.get_device()
    if device != "cpu":
        # The loader's batches lie on the CPU, and operators run where their input lies. Bytes are quick to move.
        images = images.to(device)
    # One multiply-add per channel plane is 4 to 5 times as fast on a CPU as a transpose with broadcast constants.
    planes = [
        paddle.scale(images[..., channel].astype("float32"), scale=1 / (255 * s), bias=-m / s)
        for channel, (m, s) in enumerate(zip(mean, std))
    ]
    return paddle.stack(planes, axis=1)
