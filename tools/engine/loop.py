"""The training loop: epochs of steps, an evaluation after each, checkpoints and logs."""

import contextlib
import time
from typing import NamedTuple

import numpy as np
import paddle

from engine import checkpoint, distributed
from engine.agreement import check_agreement, share_statistics
from engine.evaluate import evaluate
from engine.interrupt import Interrupt, Stopped
from engine.loss import LabelLoss
from engine.meter import REMEDY, Meter, NonFiniteLoss
from engine.rates import Rates
from engine.settings import code_version, plain
from engine.step import TrainingStep

# Several processes ask each other every so many steps whether one of them was told to stop.
_AGREE_EVERY = 10


class Best(NamedTuple):
    """The best epoch so far, counted from 1; epoch 0: none yet."""

    top1: float = 0.0
    epoch: int = 0


class Trainer:
    """Trains `network` on its process's share of the data.

    network: paddle.nn.Layer, images [B, 3, S, S] -> logits [B, classes]. optimizer: engine.optim.build_optimizer over
    its parameters. train, val: data.batches.Batches. config: engine.schema.Config. folder: engine.checkpoint.RunFolder,
    log: engine.runlog.RunLog; both are used by the first process only. ema: engine.ema.Ema of the network or None; with
    it both kinds of weights are evaluated, and the average decides which epoch is best and is kept as its weights.
    extras: objects with a state of their own, which checkpoints keep too, besides the step's and the average's:
    arrays() -> dict of NumPy arrays, restore(dict) with the arrays of all extras; one that has `at_boundary` is saved
    only when that is true. distillation: engine.distillation.Distillation or None: the labels alone teach.

    After `fit`, `stopped` is the Stopped of a training that ended early as it was asked to, else None.
    """

    def __init__(self, network, optimizer, train, val, config, folder, log, ema=None, extras=(), distillation=None):
        self.network, self.optimizer = network, optimizer
        self.train, self.val = train, val
        self.config, self.folder, self.log = config, folder, log
        self._listed = train.fingerprint()
        self.rates = Rates(network, config.train, self._global_batch * config.train.accumulate)
        self.ema = ema
        self.loss = distillation or LabelLoss(config.train.smoothing)
        # `wrap` does it for the network. The average may have begun with other weights.
        distributed.broadcast(ema.state_dict() if ema else {})
        self.step = TrainingStep(
            distributed.wrap(network), optimizer, self.loss, amp=config.train.amp,
            accumulate=config.train.accumulate, ema=ema,
        )  # fmt: skip
        self.extras = (self.step, *(part for part in (ema, distillation) if part), *extras)
        self.interrupt = Interrupt(config.train.max_hours)
        self.stopped = None
        self.first_epoch, self.best = 0, Best()
        # Where this process began, in epochs, and the steps of the run before the epoch under way.
        self.begun, self.steps_before = 0.0, 0
        self._state, self._save_due, self._code = None, False, 0
        # Tensors as restored, until the first step: Paddle creates the moments then, and tells none before.
        self._restored = None

    @property
    def steps(self):
        """Steps of an epoch."""
        limit = self.config.train.max_steps
        return min(len(self.train), limit) if limit else len(self.train)

    @property
    def place(self):
        """Finished epochs and the steps of the epoch under way, where `fit` begins."""
        return [self.first_epoch, self._state["step"] if self._state else 0]

    def tensors(self):
        """Everything that a checkpoint would hold now, by name."""
        arrays = dict(self._restored or checkpoint.training_arrays(self.network, self.optimizer))
        for extra in self.extras:
            arrays.update({f"extra/{name}": array for name, array in extra.arrays().items()})
        return arrays

    @property
    def _global_batch(self):
        return self.config.train.batch_size * distributed.world_size()

    def restore(self, state):
        """Go on from RunFolder.latest()'s state. Returns lines for the log."""
        checkpoint.restore_training(self.network, self.optimizer, state["arrays"])
        arrays = {name[len("extra/"):]: v for name, v in state["arrays"].items() if name.startswith("extra/")}
        for extra in self.extras:
            extra.restore(arrays)
        self._restored = {name: v for name, v in state["arrays"].items() if not name.startswith("extra/")}
        meta = state["meta"]
        self.first_epoch, self.best = meta["epoch"], Best(*meta["best"])
        # Earlier versions did not count the steps.
        total = meta.get("total_steps", self.first_epoch * self.steps)
        notes, step = [], 0
        other_kind = not self.ema and any(name.startswith("ema/") for name in arrays)
        if other_kind and self.best.epoch:
            notes.append("best.pdparams holds averaged weights and stays until raw ones are better")
        if meta.get("step"):
            step, note = self._place(meta)
            notes.append(f"going on in epoch {self.first_epoch + 1} after step {step} from {state['file']}{note}")
            self._state = {**meta["meter"], "step": step}
        else:
            notes.append(f"going on after epoch {self.first_epoch} from {state['file']}")
            if distributed.is_main() and not other_kind:
                # The kill may have come between the checkpoint and these.
                self._keep_weights(self.first_epoch)
        self.steps_before, self.begun = total - step, self.first_epoch + step / self.steps
        return notes

    def _place(self, meta):
        """Steps done in the epoch under way, counted in batches of now, and a note where the batch has changed."""
        if meta["meter"]["closed"]:
            return self.steps, ""
        if meta["global_batch"] == self._global_batch:
            return min(meta["step"], self.steps), ""
        # The order of the images does not depend on the batch.
        done = meta["step"] * meta["global_batch"]
        step = min(done // self._global_batch, self.steps)
        note = f" (the total batch was {meta['global_batch']}, now {self._global_batch}"
        again = done - step * self._global_batch
        return step, f"{note}; {again} images of the epoch come again)" if again else f"{note})"

    def fit(self) -> Best:
        """Train up to config.train.epochs and return the best epoch. Raises NonFiniteLoss, UserError (data, disk)."""
        check_agreement(self)
        started = time.perf_counter()
        with self.interrupt:
            try:
                for epoch in range(self.first_epoch, self.config.train.epochs):
                    self._fit_epoch(epoch, started)
            except Stopped as stopped:
                self.stopped = stopped
        return self.best

    def _fit_epoch(self, epoch, started):
        recipe = self.config.train
        meter = self._train_epoch(epoch, started)
        self._check_weights(epoch)
        if (epoch + 1) % recipe.val_every == 0 or epoch + 1 == recipe.epochs:
            self._validate(epoch, meter)
        self.steps_before += meter.steps
        file = self._keep(epoch)
        if epoch + 1 < recipe.epochs:
            code = self._agreed()
            if code:
                raise self.interrupt.stopped(code, file)

    # ------------------------------------------------------------------ one epoch

    def _train_epoch(self, epoch, started):
        """Do the steps of an epoch that are left; returns its Meter."""
        state, self._state = self._state, None
        meter = Meter(self, epoch, started, state)
        self._set_rate(epoch, meter, max(meter.step, 1))
        self.network.train()
        if meter.step < meter.steps:
            self.train.set_epoch(epoch, meter.step)
            self._steps(epoch, meter)
        if not meter.closed:
            meter.close()
        return meter

    def _steps(self, epoch, meter):
        previous = time.perf_counter()
        for step, batch in enumerate(self.train, meter.step + 1):
            images, labels, failed = batch.images, batch.labels, batch.failed
            meter.read += time.perf_counter() - previous
            # Keyed, so that dropout and drop path depend on the position in the run, not on what ran before.
            paddle.seed(_step_seed(self.config.train.seed, epoch, step, distributed.rank()))
            if self.config.train.schedule == "step":
                self._set_rate(epoch, meter, step)
            targets = self.loss.targets(batch)
            distributed.meet()
            loss, logits = self.step(images, targets, step == meter.steps, batch.share, batch.counted)
            counted = len(labels) if batch.counted is None else batch.counted
            meter.add(loss, (logits.argmax(axis=1) == labels).sum(), counted, failed.tolist())
            self._restored = None
            self._after_step(epoch, meter)
            self.log.progress(f"epoch {epoch + 1} step {step}/{meter.steps}", step / meter.steps)
            previous = time.perf_counter()
            if step == meter.steps:
                break

    def _set_rate(self, epoch, meter, step):
        rate = self.rates.scale(self.rates.place(epoch, step, meter.steps))
        self.optimizer.set_lr(rate)
        meter.rate = rate

    def _after_step(self, epoch, meter):
        """Tell the figures, save, or stop, where that is due; all processes decide alike."""
        every, alone = self.config.train.save_steps, distributed.world_size() == 1
        code = self.interrupt.code()
        self._save_due |= bool(every) and meter.step % every == 0
        asked = code if alone else meter.step % _AGREE_EVERY == 0
        if not (asked or meter.line_due or self._save_due or self._code):
            return
        self._code = meter.settle(code)
        if meter.line_due:
            meter.write()
        # After the last step the epoch's own checkpoint is near, and `_validate` asks again.
        if meter.step == meter.steps or not all(getattr(extra, "at_boundary", True) for extra in self.extras):
            return
        if self._code:
            raise self._stop(epoch, meter, self._code)
        if self._save_due:
            self._save(epoch, meter)

    def _check_weights(self, epoch, step=None):
        # The last step's gradient can break the weights after a good loss; saved, they would break every resumed run.
        for name, parameter in self.network.named_parameters():
            if not paddle.isfinite(parameter).all().item():
                place = f"epoch {epoch + 1}" + ("" if step is None else f", step {step}")
                raise NonFiniteLoss(f"{name} is not finite after {place}; {REMEDY}")

    def _validate(self, epoch, meter):
        share_statistics(self.network, self.ema)
        results = {"raw": self._evaluate(epoch, meter, contextlib.nullcontext())}
        if self.ema:
            results["ema"] = self._evaluate(epoch, meter, self.ema.swapped())
        for kind, result in results.items():
            deciding = kind == ("ema" if self.ema else "raw")
            if deciding and (result.top1 > self.best.top1 or not self.best.epoch):
                self.best = Best(result.top1, epoch + 1)
            self._tell(epoch, kind, result, f", best: {self.best.top1:.4f} (epoch {self.best.epoch})" * deciding)

    def _evaluate(self, epoch, meter, weights):
        """Evaluate within the context `weights`; when asked to stop, leave it first and then save."""
        self.val.set_epoch(epoch)
        try:
            with weights:
                batches = _Watched(self.val, self._agreed)
                return evaluate(self.network, batches, log_every=self.config.val.log_every, log=self.log)
        except _Asked as asked:
            raise self._stop(epoch, meter, asked.code) from None

    def _tell(self, epoch, kind, result, best):
        self.log.line(
            f"{self.config.data.name} val acc is:{result.top1:.4f}, top5: {result.top5:.4f}, loss: {result.loss:.4f}, "
            f"images: {result.count}, weights: {kind}{best}"
        )
        if result.skipped:
            self.log.line(f"{len(result.skipped)} undecodable validation image(s) left out of this accuracy")
        self.log.metrics(
            kind="val", weights=kind, epoch=epoch + 1, top1=result.top1, top5=result.top5, loss=result.loss,
            images=result.count, skipped=len(result.skipped),
        )  # fmt: skip
        prefix = "val" if kind == "raw" else "ema"
        values = {"acc": result.top1, "top5": result.top5, "loss": result.loss}
        self.log.curves(epoch + 1, **{f"{prefix}_{name}": value for name, value in values.items()})

    # ------------------------------------------------------------------ keeping and stopping

    def _keep(self, epoch):
        """Save after a finished epoch; returns the checkpoint's file in the first process."""
        # First the checkpoint, from which the weights can be written again.
        file = self._save(epoch + 1)
        if distributed.is_main():
            self._keep_weights(epoch + 1)
        return file

    def _keep_weights(self, finished):
        if self.best.epoch == finished:
            self.folder.save_weights("best", self.ema or self.network)
            self.folder.note_best(self.best, "ema" if self.ema else "raw")
        self.folder.save_weights("last", self.network)
        if self.ema:
            self.folder.save_weights("last_ema", self.ema)

    def _save(self, finished, meter=None):
        """Write a checkpoint after so many epochs and the steps of `meter`; returns its file in the first process."""
        self._save_due = False
        if meter:
            self._check_weights(finished, meter.step)
        if not distributed.is_main():
            return None
        meta = {
            "epoch": finished,
            "step": meter.step if meter else 0,
            "total_steps": self.steps_before + (meter.step if meter else 0),
            "global_batch": self._global_batch,
            "meter": meter and meter.state(),
            "best": list(self.best),
            "train_images": self.train.samples,
            "train_list": self._listed,
            "config": plain(self.config),
            "code": code_version(),
            "logs": self.log.positions(),
        }
        return self.folder.save(self.tensors(), meta, self.config.train.keep)

    def _agreed(self):
        """The largest code to stop of any process; a collective."""
        return distributed.gather_rows(np.array([self.interrupt.code()])).max().item()

    def _stop(self, epoch, meter, code):
        """Save in the middle of an epoch; the Stopped to raise."""
        self.log.line(f"{self.interrupt.reason(code)}: stopping in epoch {epoch + 1} after step {meter.step}")
        file = self._save(epoch, meter)
        # The launcher ends all processes when one ends, so none does before the first one has saved.
        self._agreed()
        return self.interrupt.stopped(code, file)


class _Asked(Exception):
    """A wish to stop, noticed in the middle of an evaluation."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class _Watched:
    """Batches that call `code` before some of them, the same ones in every process, and raise _Asked if it is not 0."""

    def __init__(self, batches, code):
        self.batches, self.code = batches, code

    def __len__(self):
        return len(self.batches)

    @property
    def samples(self):
        return self.batches.samples

    def __iter__(self):
        every = 1 if distributed.world_size() == 1 else _AGREE_EVERY
        for number, batch in enumerate(self.batches):
            code = self.code() if number % every == 0 else 0
            if code:
                raise _Asked(code)
            yield batch


def _step_seed(seed, epoch, step, rank):
    return int(np.random.SeedSequence((seed, epoch, step, rank)).generate_state(1)[0])
