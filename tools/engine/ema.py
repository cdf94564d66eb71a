"""The moving average of the weights, which the official recipe evaluates and keeps."""

import contextlib

import numpy as np
import paddle
from errors import UserError


class Ema:
    """Average of the tensors of `network` over its updates: average += (1 - d) * (value - average).

    It begins with the values that the network has now and takes in all floating-point tensors of its state_dict, in
    their own type (float32). Frozen ones stay as they are.

    decay: d in [0, 1); official 0.99996, whose average holds half of the initial weights after 17,300 updates.
    warmup: d = min(decay, (1 + t) / (10 + t)) for the update after t others, for runs that are shorter than that.
    Raises UserError for a decay out of range.
    """

    def __init__(self, network, decay, warmup=False):
        if not 0 <= decay < 1:
            raise UserError(f"train.ema_decay={decay}: must be at least 0 and below 1, for example 0.99996")
        self.network, self.decay, self.warmup = network, decay, warmup
        self.updates = 0
        self._swapped = False
        # The network's own tensors, which training changes in place. Those without gradient are among them: running
        # statistics look the same as frozen weights.
        self._values = {n: tensor for n, tensor in network.state_dict().items() if paddle.is_floating_point(tensor)}
        self._averages = {name: tensor.detach().clone() for name, tensor in self._values.items()}

    def rate(self):
        """d of the next update."""
        return min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay

    @paddle.no_grad()
    def update(self):
        """Take in the network's present values."""
        self._refuse_swapped()
        # The float32 factors of d * average + (1 - d) * value do not sum to 1: after 60,000 updates with the official d
        # that form is 6e-4 off, this one 7e-6. It also leaves frozen tensors as they are.
        share = 1 - self.rate()
        for name, average in self._averages.items():
            average.add_((self._values[name] - average).scale_(share))
        self.updates += 1

    @contextlib.contextmanager
    def swapped(self):
        """Within this context the network computes with the average; afterwards it has its own values bit for bit."""
        self._refuse_swapped()
        own = {name: value.detach().clone() for name, value in self._values.items()}
        self._swapped = True
        try:
            _copy(self._averages, self._values)
            yield self.network
        finally:
            _copy(own, self._values)
            self._swapped = False

    def _refuse_swapped(self):
        if self._swapped:
            raise RuntimeError("the network holds the average at the moment")

    def state_dict(self):
        """All tensors of the network by structured name, in its order, averaged where they are averaged."""
        return {name: self._averages.get(name, tensor) for name, tensor in self.network.state_dict().items()}

    def arrays(self):
        """What a checkpoint must hold: each average as `ema/NAME`, and the number of updates."""
        arrays = {f"ema/{name}": average.numpy() for name, average in self._averages.items()}
        return {"ema/updates": np.array(self.updates, "int64"), **arrays}

    def restore(self, arrays):
        """Put `arrays()` back bit for bit, found among others. Raises UserError when they do not fit; nothing changes.

        Without this, an average would go on from the raw weights.
        """
        wanted = {name: list(average.shape) for name, average in self._averages.items()}
        found = {key[len("ema/") :]: array for key, array in arrays.items() if key.startswith("ema/")}
        updates = found.pop("updates", None)
        if updates is None:
            raise UserError("train.ema_decay: the checkpoint holds no average; set it to null or choose another output")
        unfit = [n for n in {**wanted, **found} if n not in found or list(found[n].shape) != wanted.get(n)]
        if unfit:
            raise UserError(
                f"the checkpoint's average does not fit the network in {len(unfit)} tensors, such as {unfit[0]}; "
                "choose another output"
            )
        values = {name: paddle.to_tensor(array) for name, array in found.items()}
        _copy(values, self._averages)
        self.updates = updates.item()


def _copy(source, target):
    for name, tensor in target.items():
        paddle.assign(source[name], tensor)
