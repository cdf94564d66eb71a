"""The running figures of one epoch: sums over all processes, the lines that tell them, and what a checkpoint keeps."""

import math
import time

import numpy as np
import paddle
from errors import UserError

from engine import distributed
from engine.runlog import clock

REMEDY = "lower train.lr or set train.clip_grad=1.0 and start the same command again"


class NonFiniteLoss(UserError):
    """The loss or a weight became NaN or infinite; the files of earlier steps are untouched."""


class Meter:
    """Sums over an epoch. Losses stay on the device until a line is due, so that no step waits for the last one.

    trainer: engine.loop.Trainer. state: what `state()` gave when the epoch was interrupted, or None at its start.
    `step` is the number of steps done, `steps` that of the epoch, `rate` the learning rate in force.
    """

    def __init__(self, trainer, epoch, started, state=None):
        self.trainer, self.epoch, self.started = trainer, epoch, started
        self.rate = 0.0
        self.steps = trainer.steps
        self.step, self.closed = 0, False
        # loss x images, correct, images, skipped: over all processes up to the last line, and of this one since then.
        self.totals, self._sums = np.zeros(4), np.zeros(4)
        # The latter of every process, as last gathered.
        self._rows = np.zeros([distributed.world_size(), 4])
        if state:
            self._restore(state)
        self._pending, self._bad = [], (0, 0.0)
        self._start_window()

    def _restore(self, state):
        self.step, self.closed = state["step"], state["closed"]
        self.totals, rows = np.array(state["totals"]), np.array(state["rows"])
        if len(rows) == len(self._rows):
            self._rows = rows
        else:
            self._rows[0] = rows.sum(axis=0)
        self._sums = self._rows[distributed.rank()].copy()

    def state(self):
        """The figures as plain values; call `settle` before."""
        return {
            "step": self.step, "closed": self.closed, "totals": self.totals.tolist(), "rows": self._rows.tolist(),
        }  # fmt: skip

    def _start_window(self):
        self._window, self._window_step = time.perf_counter(), self.step
        self._window_images = self._rows[:, 2].sum()
        self.read = 0.0

    def add(self, loss, correct, images, failed):
        """Count a step of this process: mean loss and number of correct answers as tensors, the number of images that
        count, and the positions of undecodable ones in the data set.
        """
        self.step += 1
        self._pending.append((loss, correct, images, failed))

    @property
    def line_due(self):
        """Whether the step just added is one that is told."""
        return self.step % self.trainer.config.train.log_every == 0 or self.step == self.steps

    def settle(self, code=0):
        """Bring the sums of all processes up to date, in one collective; returns the largest `code` of any process.

        Raises NonFiniteLoss, or UserError when no process had an image in a step, in all processes alike.
        """
        first, pending = self.step - len(self._pending) + 1, self._pending
        if self._pending:
            losses, hits, images, failed = zip(*self._pending)
            # Two transfers for all steps, not two for each.
            losses, hits = paddle.stack(losses).numpy().tolist(), paddle.stack(hits).numpy().tolist()
            for step, row in enumerate(zip(losses, hits, images, map(len, failed)), first):
                self._count(step, *row)
        self._pending = []
        gathered = distributed.gather_rows(
            np.array([[*self._sums, *self._bad, code, *(images for _, _, images, _ in pending)]], "float64")
        )
        self._check_images(first, gathered[:, 7:].sum(axis=0), pending)
        bad = gathered[gathered[:, 4] > 0]
        if len(bad):
            step, value = bad[bad[:, 4].argmin(), 4:6].tolist()
            raise NonFiniteLoss(f"loss is {value} in epoch {self.epoch + 1}, step {step:.0f}; {REMEDY}")
        self._rows = gathered[:, :4]
        return int(gathered[:, 6].max())

    def _check_images(self, first, counts, pending):
        for step, count, (*_, failed) in zip(range(first, self.step + 1), counts, pending):
            if not count:
                # None only in a process that had none to decode.
                which = f"{self.trainer.train.path(failed[0])}: " if failed else ""
                raise UserError(f"{which}a whole batch of images could not be decoded in epoch {self.epoch + 1}, step "
                                f"{step}")

    def _count(self, step, loss, correct, images, skipped):
        # Images that do not count are there for the others' sake only; see data.batches.Batch.
        if images:
            if not math.isfinite(loss) and not self._bad[0]:
                self._bad = step, loss
            self._sums += (loss * images, correct, images, skipped)
        else:
            self._sums[3] += skipped

    def write(self):
        """Tell the figures; call `settle` before."""
        trainer, now = self.trainer, time.perf_counter()
        self.totals += self._rows.sum(axis=0)
        steps = self.step - self._window_step
        wall, read = (now - self._window) / steps, self.read / steps
        speed = (self._rows[:, 2].sum() - self._window_images) / (now - self._window)
        loss, acc = self.totals[:2] / self.totals[2]
        epochs, best = trainer.config.train.epochs, trainer.best
        trainer.log.line(
            f"Epoch [{self.epoch + 1}/{epochs}], Step [{self.step}/{self.steps}], Loss: {loss:.4f},acc: {acc:.4f}, "
            f"read_time: {read:.4f}, train_time: {wall - read:.4f}, lr: {short(self.rate)}, images/s: {speed:.1f}, "
            f"left: {clock((self.steps - self.step) * wall)} epoch, {clock(self._run_left(now))} run"
            + f", best: {best.top1:.4f}" * bool(best.epoch)
        )
        total = trainer.steps_before + self.step
        trainer.log.metrics(
            kind="train", epoch=self.epoch + 1, step=self.step, total_step=total, loss=loss, acc=acc, lr=self.rate,
            read_time=read, train_time=wall - read, images_per_s=speed,
        )  # fmt: skip
        trainer.log.curves(
            total, train_loss=loss, train_acc=acc, train_lr=self.rate, train_read_time=read,
            train_step_time=wall - read, train_images_per_s=speed,
        )  # fmt: skip
        self._sums, self._rows = np.zeros(4), np.zeros_like(self._rows)
        self._start_window()

    def _run_left(self, now):
        here = self.epoch + self.step / self.steps
        return (now - self.started) / (here - self.trainer.begun) * (self.trainer.config.train.epochs - here)

    def close(self):
        """Tell the figures of the whole epoch."""
        # A batch that has grown may have left no step to do, and so no line that took these in.
        self.totals += self._rows.sum(axis=0)
        self._rows = np.zeros_like(self._rows)
        loss, acc = self.totals[:2] / self.totals[2]
        epochs, skipped = self.trainer.config.train.epochs, int(self.totals[3])
        note = f", skipped images: {skipped}" if skipped else ""
        log = self.trainer.log
        log.line(f"Epoch [{self.epoch + 1}/{epochs}], avg_Loss: {loss:.4f}, avg_acc: {acc:.4f}{note}")
        log.metrics(kind="epoch", epoch=self.epoch + 1, loss=loss, acc=acc, lr=self.rate, skipped=skipped)
        self.closed = True


def short(value):
    """A learning rate with up to six decimals and no trailing zeros: 0.0009, 0.000001."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
