"""Exact evaluation: every image counts once, whatever the number of processes and the batch size."""

import math
import time
from typing import NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F

from engine.distributed import gather_rows
from engine.runlog import clock


class Evaluation(NamedTuple):
    """top1, top5 in 0..1 (top5 is over all classes where there are fewer than five); loss: mean cross entropy.

    count: images evaluated; skipped: positions of undecodable images, which count nowhere.
    """

    top1: float
    top5: float
    loss: float
    count: int
    skipped: list


class _Tally:
    """Results by position in the data set; a position that comes again (the sampler's padding) overwrites itself."""

    def __init__(self, samples):
        self.seen = np.zeros(samples, bool)
        self.decoded = np.zeros(samples, bool)
        self.top1 = np.zeros(samples, bool)
        self.top5 = np.zeros(samples, bool)
        self.loss = np.zeros(samples, np.float64)

    def add(self, rows):
        """rows: float64 [R, 5] of position, prediction (-1: undecodable), label, 1 if among the top five, loss."""
        position = rows[:, 0].astype(np.int64)
        self.seen[position] = True
        decoded = rows[:, 1] >= 0
        self.decoded[position] = decoded
        # An undecodable image has -1 for both.
        self.top1[position] = decoded & (rows[:, 1] == rows[:, 2])
        self.top5[position] = rows[:, 3] == 1
        self.loss[position] = rows[:, 4]

    @property
    def accuracy(self):
        """Top-1 of the images seen so far."""
        return int(self.top1.sum()) / max(int(self.decoded.sum()), 1)

    def result(self):
        """The Evaluation. Integers are summed and divided once."""
        count = int(self.decoded.sum())
        divisor = max(count, 1)
        skipped = np.flatnonzero(self.seen & ~self.decoded).tolist()
        # fsum is exact, so the order in which processes deliver cannot show.
        return Evaluation(
            self.accuracy, int(self.top5.sum()) / divisor, math.fsum(self.loss[self.decoded]) / divisor, count, skipped
        )


@paddle.no_grad()
def evaluate(network, batches, *, log_every=10, log=None):
    """Evaluate `network` (logits [B, classes]) on data.batches.Batches, which every process iterates in its share.

    All processes get the same Evaluation. The loss is plain cross entropy, whatever the training loss is.
    log: engine.runlog.RunLog for a line every `log_every` steps, `Step [180/196], acc: 0.7163, read_time: 1.4773`.
    """
    training = network.training
    network.eval()
    tally, pending, steps = _Tally(batches.samples), [], len(batches)
    start = window = previous = time.perf_counter()
    read = 0.0
    for step, batch in enumerate(batches, 1):
        read += time.perf_counter() - previous
        pending.append(_rows(network, batch))
        if step % log_every == 0 or step == steps:
            tally.add(gather_rows(np.concatenate(pending)))
            now = time.perf_counter()
            if log:
                window_steps = (step - 1) % log_every + 1
                left = (now - start) / step * (steps - step)
                log.line(
                    f"Step [{step}/{steps}], acc: {tally.accuracy:.4f}, read_time: {read / window_steps:.4f}, "
                    f"step_time: {(now - window) / window_steps:.4f}, left: {clock(left)}"
                )
            pending, read, window = [], 0.0, now
        if log:
            log.progress(f"validating {step}/{steps}", step / steps)
        previous = time.perf_counter()
    if training:
        network.train()
    return tally.result()


def _rows(network, batch):
    rows = np.full([len(batch.indices) + len(batch.failed), 5], -1.0)
    rows[:, 0] = np.concatenate([batch.indices, batch.failed])
    if len(batch.indices):
        labels, logits = batch.labels, network(batch.images).astype("float32")
        best = logits.topk(min(5, logits.shape[1]), axis=1)[1]
        kept = rows[: len(batch.indices)]
        kept[:, 1] = best[:, 0].numpy()
        kept[:, 2] = labels.numpy()
        kept[:, 3] = (best == labels.unsqueeze(1)).any(axis=1).numpy()
        kept[:, 4] = F.cross_entropy(logits, labels, reduction="none").numpy().reshape(-1)
    return rows
