"""The training loop: epochs of steps, an evaluation after each, checkpoints and logs."""

import math
import time
from typing import NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
from errors import UserError

from engine import checkpoint, distributed
from engine.evaluate import evaluate
from engine.rates import Rates
from engine.runlog import clock


class Best(NamedTuple):
    """The best epoch so far, counted from 1; epoch 0: none yet."""

    top1: float = 0.0
    epoch: int = 0


class NonFiniteLoss(UserError):
    """The loss or a weight became NaN or infinite; the files of earlier epochs are untouched."""


_REMEDY = "lower train.lr or set train.clip_grad=1.0 and start the same command again"


class Trainer:
    """Trains `network` on its process's share of the data.

    network: paddle.nn.Layer, images [B, 3, S, S] -> logits [B, classes]. optimizer: engine.optim.build_optimizer over
    its parameters. train, val: data.batches.Batches. config: engine.schema.Config. folder: engine.checkpoint.RunFolder,
    log: engine.runlog.RunLog; both are used by the first process only.
    """

    def __init__(self, network, optimizer, train, val, config, folder, log):
        self.network, self.optimizer = network, optimizer
        self.train, self.val = train, val
        self.config, self.folder, self.log = config, folder, log
        self.rates = Rates(network, config.train)
        self.model = distributed.wrap(network)
        self.first_epoch, self.best = 0, Best()

    def restore(self, state):
        """Go on from RunFolder.latest()'s state."""
        checkpoint.restore_training(self.network, self.optimizer, state["arrays"])
        self.first_epoch = state["meta"]["epoch"]
        self.best = Best(*state["meta"]["best"])
        if distributed.is_main():
            # The kill may have come between the checkpoint and these.
            self._keep_weights(self.first_epoch)

    def fit(self) -> Best:
        """Train up to config.train.epochs and return the best epoch. Raises NonFiniteLoss, UserError (data, disk)."""
        recipe = self.config.train
        self._check_agreement()
        started = time.perf_counter()
        for epoch in range(self.first_epoch, recipe.epochs):
            rate = self.rates.scale(epoch)
            self._train_epoch(epoch, rate, started)
            self._check_weights(epoch)
            if (epoch + 1) % recipe.val_every == 0 or epoch + 1 == recipe.epochs:
                self._validate(epoch)
            self._keep(epoch)
        return self.best

    def _check_agreement(self):
        # Processes that begin with different epochs would wait for each other for ever.
        epochs = distributed.gather_rows(np.array([self.first_epoch])).tolist()
        if len(set(epochs)) > 1:
            raise UserError(
                f"output={self.config.output}: the processes would go on after epochs {epochs}; put the run folder on "
                "a disk that all machines share"
            )

    # ------------------------------------------------------------------ one epoch

    def _train_epoch(self, epoch, rate, started):
        self.optimizer.set_lr(rate)
        self.network.train()
        self.train.set_epoch(epoch)
        meter = _Meter(self, epoch, rate, started)
        previous = time.perf_counter()
        for step, (images, labels, _, failed) in enumerate(self.train, 1):
            meter.read += time.perf_counter() - previous
            if not len(labels):
                raise UserError(f"{self.train.path(failed[0])}: a whole batch of images could not be decoded")
            # Keyed, so that dropout and drop path depend on the position in the run, not on what ran before.
            paddle.seed(_step_seed(self.config.train.seed, epoch, step, distributed.rank()))
            meter.add(step, *self._step(images, labels), len(labels), len(failed))
            previous = time.perf_counter()
            if step == meter.steps:
                break
        meter.close()

    def _step(self, images, labels):
        logits = self.model(images)
        loss = smoothed_cross_entropy(logits, labels, self.config.train.smoothing)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.detach(), (logits.detach().argmax(axis=1) == labels).sum()

    def _check_weights(self, epoch):
        # The last step's gradient can break the weights after a good loss; saved, they would break every resumed run.
        for name, parameter in self.network.named_parameters():
            if not paddle.isfinite(parameter).all().item():
                raise NonFiniteLoss(f"{name} is not finite after epoch {epoch + 1}; {_REMEDY}")

    def _validate(self, epoch):
        self.val.set_epoch(epoch)
        result = evaluate(self.network, self.val, log_every=self.config.val.log_every, log=self.log)
        if result.top1 > self.best.top1 or not self.best.epoch:
            self.best = Best(result.top1, epoch + 1)
        name = self.config.data.name
        self.log.line(
            f"{name} val acc is:{result.top1:.4f}, top5: {result.top5:.4f}, loss: {result.loss:.4f}, "
            f"images: {result.count}, best: {self.best.top1:.4f} (epoch {self.best.epoch})"
        )
        if result.skipped:
            self.log.line(f"{len(result.skipped)} undecodable validation image(s) left out of this accuracy")
        self.log.metrics(
            kind="val", epoch=epoch + 1, top1=result.top1, top5=result.top5, loss=result.loss, images=result.count,
            skipped=len(result.skipped),
        )  # fmt: skip
        self.log.curves(epoch + 1, val_acc=result.top1, val_top5=result.top5, val_loss=result.loss)

    def _keep(self, epoch):
        if not distributed.is_main():
            return
        meta = {
            "epoch": epoch + 1,
            "best": list(self.best),
            "train_images": self.train.samples,
            "config": checkpoint.plain(self.config),
        }
        # First the checkpoint, from which the weights can be written again.
        self.folder.save(checkpoint.training_arrays(self.network, self.optimizer), meta)
        self._keep_weights(epoch + 1)

    def _keep_weights(self, finished):
        if self.best.epoch == finished:
            self.folder.save_weights("best", self.network)
        self.folder.save_weights("last", self.network)


class _Meter:
    """Sums over an epoch. Losses stay on the device until a line is due, so that no step waits for the last one."""

    def __init__(self, trainer, epoch, rate, started):
        self.trainer, self.epoch, self.rate, self.started = trainer, epoch, rate, started
        limit = trainer.config.train.max_steps
        self.steps = min(len(trainer.train), limit) if limit else len(trainer.train)
        self.totals = np.zeros(4)  # loss x images, correct, images, skipped; over all processes
        self.pending = []
        self.read = 0.0
        self.begun = self.window = time.perf_counter()

    def add(self, step, loss, correct, images, skipped):
        self.pending.append((loss, correct, images, skipped))
        if step % self.trainer.config.train.log_every == 0 or step == self.steps:
            self._report(step)
        self.trainer.log.progress(f"epoch {self.epoch + 1} step {step}/{self.steps}", step / self.steps)

    def _report(self, step):
        sums = np.zeros(4)
        for offset, (loss, correct, images, skipped) in enumerate(self.pending, step - len(self.pending) + 1):
            value = loss.item()
            if not math.isfinite(value):
                raise NonFiniteLoss(f"loss is {value} in epoch {self.epoch + 1}, step {offset}; {_REMEDY}")
            sums += (value * images, correct.item(), images, skipped)
        gathered = distributed.gather_rows(sums[None])
        self.totals += gathered.sum(axis=0)
        self._write(step, len(self.pending), gathered[:, 2].sum())
        self.pending, self.read, self.window = [], 0.0, time.perf_counter()

    def _write(self, step, steps, images):
        trainer, now = self.trainer, time.perf_counter()
        wall, read = (now - self.window) / steps, self.read / steps
        loss, acc = self.totals[:2] / self.totals[2]
        epochs = trainer.config.train.epochs
        epoch_left = (self.steps - step) * wall
        done = self.epoch - trainer.first_epoch + step / self.steps
        run_left = (now - self.started) / done * (epochs - trainer.first_epoch - done)
        speed = images / (now - self.window)
        trainer.log.line(
            f"Epoch [{self.epoch + 1}/{epochs}], Step [{step}/{self.steps}], Loss: {loss:.4f},acc: {acc:.4f}, "
            f"read_time: {read:.4f}, train_time: {wall - read:.4f}, lr: {short(self.rate)}, "
            f"images/s: {speed:.1f}, left: {clock(epoch_left)} epoch, {clock(run_left)} run"
        )
        trainer.log.metrics(
            kind="train", epoch=self.epoch + 1, step=step, loss=loss, acc=acc, lr=self.rate, read_time=read,
            train_time=wall - read, images_per_s=speed,
        )  # fmt: skip
        trainer.log.curves(
            self.epoch * self.steps + step, train_loss=loss, train_acc=acc, train_lr=self.rate, train_read_time=read,
            train_step_time=wall - read, train_images_per_s=speed,
        )  # fmt: skip

    def close(self):
        loss, acc = self.totals[:2] / self.totals[2]
        epochs, skipped = self.trainer.config.train.epochs, int(self.totals[3])
        note = f", skipped images: {skipped}" if skipped else ""
        log = self.trainer.log
        log.line(f"Epoch [{self.epoch + 1}/{epochs}], avg_Loss: {loss:.4f}, avg_acc: {acc:.4f}{note}")
        log.metrics(kind="epoch", epoch=self.epoch + 1, loss=loss, acc=acc, lr=self.rate, skipped=skipped)


def smoothed_cross_entropy(logits, labels, smoothing):
    """Mean cross entropy of logits [B, C] against labels [B] int64 with 1 - s + s/C on the label and s/C elsewhere."""
    logits = logits.astype("float32")
    if not smoothing:
        return F.cross_entropy(logits, labels)
    target = F.label_smooth(F.one_hot(labels, logits.shape[1]), epsilon=smoothing)
    return F.cross_entropy(logits, target, soft_label=True)


def short(value):
    """A learning rate with up to six decimals and no trailing zeros: 0.0009, 0.000001."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _step_seed(seed, epoch, step, rank):
    return int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1)[0])
