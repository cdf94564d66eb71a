"""One training step for full and mixed precision: forward, backward and, at the end of a window, the update."""

import contextlib

import numpy as np
import paddle
from errors import UserError

_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Below this the gradients are not finite at any scale, and a run would go on for days without learning.
LOWEST_SCALE = 1e-3
_SCALER = {"scale": "float32", "incr_count": "int64"}


class ScaleCollapse(UserError):
    """Mixed precision found no loss scale at which the gradients are finite."""


def check_amp(amp):
    """Raise UserError unless the selected device computes in `amp`: "off", "fp16" or "bf16".

    Paddle's auto_cast would warn and go on in float32; on a CPU it does nothing for either type.
    """
    if amp == "off":
        return
    device = paddle.get_device()
    if not device.startswith("gpu"):
        raise UserError(f"train.amp={amp}: needs a GPU, but the device is {device}; set train.amp=off")
    if amp == "fp16" and not paddle.amp.is_float16_supported():
        raise UserError("train.amp=fp16: needs a card of compute capability 7.0 or higher; set train.amp=off")
    if amp == "bf16" and not paddle.amp.is_bfloat16_supported():
        raise UserError("train.amp=bf16: needs a card of compute capability 8.0 or higher; set train.amp=fp16")


class TrainingStep:
    """Trains `model` by micro-batches; `accumulate` of them make a window, which ends with one optimiser step.

    The gradient of a window is that of its samples as one batch: each micro-batch counts by its number of samples. In
    DataParallel models that holds for the samples of all processes together; they are exchanged once per window.

    model: paddle.nn.Layer, images [B, 3, S, S] -> logits [B, C]; it may be wrapped by paddle.DataParallel.
    loss: logits of any float type, targets -> mean over the batch, a float32 scalar.
    amp: "off"; "fp16" (O1 with dynamic loss scaling that begins at `init_scale`), "bf16" (O1); see `check_amp`.
    ema: engine.ema.Ema or None; updated after each optimiser step.
    """

    def __init__(self, model, optimizer, loss, *, amp="off", accumulate=1, ema=None, init_scale=2.0**16):
        if accumulate < 1:
            raise UserError(f"train.accumulate={accumulate}: must be at least 1")
        check_amp(amp)
        self.model, self.optimizer, self.loss, self.ema = model, optimizer, loss, ema
        self.amp, self.accumulate = amp, accumulate
        self._scaler, self._scale = None, None
        if amp == "fp16":
            # It never lowers the scale itself: it would print a line in each process, and there Paddle 3.3.1 fails with
            # NumPy 2.4 and later.
            self._scaler = paddle.amp.GradScaler(init_loss_scaling=init_scale, decr_every_n_nan_or_inf=2**31)
            self._scale = float(init_scale)
        self.skipped = 0  # updates left out by fp16, since this object was made
        self._batches = self._samples = self._nominal = 0

    @property
    def at_boundary(self):
        """Whether no gradient of an unfinished window is held; only then do arrays() tell the whole state."""
        return self._batches == 0

    @property
    def loss_scale(self):
        """The scale of the loss in fp16, else None."""
        return self._scale

    def __call__(self, images, targets, last=False, share=None, counted=None):
        """Learn from one micro-batch and return its mean loss, a scalar, and logits [B, C], both without graph.

        share: samples of this micro-batch that the gradient is the mean over, those of all processes divided by the
        number of processes; None: B. counted: how many of them are here, None: B. They differ where the processes'
        micro-batches are of different sizes; then this one's loss counts counted / share times in the average.
        last: the epoch's last micro-batch, which ends its window also where that is incomplete. It must be told here,
        not afterwards: processes exchange gradients within the backward pass. Raises ScaleCollapse.
        """
        ends = last or self._batches + 1 == self.accumulate
        # Forward and backward: Paddle arms the exchange of gradients in the forward pass.
        with contextlib.nullcontext() if ends or not hasattr(self.model, "no_sync") else self.model.no_sync():
            with self._auto_cast():
                logits = self.model(images)
            loss = self.loss(logits, targets)
            counted = len(targets) if counted is None else counted
            self._backward(loss, counted, counted if share is None else share, ends)
        if ends:
            self._batches = self._samples = 0
            self._update()
        return loss.detach(), logits.detach()

    def _auto_cast(self):
        if self.amp == "off":
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(level="O1", dtype=_DTYPES[self.amp])

    def _backward(self, loss, samples, share, ends):
        """Add the gradient of samples * loss / (shares of the window)."""
        if not self._batches:
            # The size of the window if all is as in its first batch; the end of the window corrects it.
            self._nominal = share * (1 if ends else self.accumulate)
        self._batches += 1
        self._samples += share
        if ends and self._samples != self._nominal:
            self._scale_gradients(self._nominal / self._samples)
            self._nominal = self._samples
        if samples != self._nominal:
            loss = loss * (samples / self._nominal)
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    @paddle.no_grad()
    def _scale_gradients(self, factor):
        # Before the last backward pass, that is before other processes add theirs, whose factors may differ.
        for parameter in self.model.parameters():
            if not parameter.stop_gradient and parameter.grad is not None:
                parameter.grad.scale_(factor)

    def _update(self):
        if self._scaler is None:
            self.optimizer.step()
            done = True
        else:
            done = self._scaled_update()
        self.optimizer.clear_grad()
        if done and self.ema is not None:
            self.ema.update()

    def _scaled_update(self):
        """Whether the gradients were finite and the optimiser made its step."""
        self._scaler.step(self.optimizer)
        self._scaler.update()
        state = self._scaler.state_dict()
        self._scale = state["scale"].item()
        if not state["decr_count"]:
            return True
        self.skipped += 1
        self._set_scaler(state, self._scale / 2)
        if self._scale < LOWEST_SCALE:
            raise ScaleCollapse(
                f"train.amp=fp16: the loss scale fell to {self._scale:.3g}, and the gradients are still not finite; "
                "lower train.lr, set train.clip_grad=1.0, or use train.amp=bf16 or off"
            )
        return False

    def _set_scaler(self, state, scale, **counts):
        self._scale = scale
        self._scaler.load_state_dict({**state, **counts, "scale": np.array([scale], "float32")})

    def arrays(self):
        """What a checkpoint must hold: in fp16 the scaler's state, else nothing. RuntimeError inside a window."""
        if not self.at_boundary:
            raise RuntimeError("gradients of an unfinished window are not part of a checkpoint")
        if self._scaler is None:
            return {}
        state = self._scaler.state_dict()
        return {f"scaler/{name}": np.asarray(state[name], dtype).reshape([]) for name, dtype in _SCALER.items()}

    def restore(self, arrays):
        """Put `arrays()` back, found among others. A run that had no scaler before begins with the initial scale."""
        found = {name: arrays[f"scaler/{name}"].item() for name in _SCALER if f"scaler/{name}" in arrays}
        if self._scaler is None or not found:
            return
        if len(found) < len(_SCALER):
            missing = next(name for name in _SCALER if name not in found)
            raise UserError(f"the checkpoint lacks scaler/{missing} of train.amp=fp16; choose another output")
        self._set_scaler(self._scaler.state_dict(), **found)
