"""The learning rate of each parameter as a pure function of the place in the training: head, backbone, layers."""

import math

from engine.schedule import learning_rate


class Rates:
    """The rates of the parameters of `network` (structured names as in t2t.T2TViT) under `recipe` (TrainConfig).

    The head, `head.*`, has the schedule of recipe.lr; everything else has a peak of recipe.lr *
    recipe.backbone_lr_scale. Both curves start at warmup_lr and end at min_lr, as the official fine-tuning gives its
    groups one lowest rate. recipe.layer_decay multiplies the whole curve, ends included, once for each layer from the
    parameter's up to the head's; see `distance`. With recipe.lr_base_batch the whole curve is multiplied by
    total_batch, the images of an optimiser's step over all processes, / lr_base_batch (linear scaling).
    """

    def __init__(self, network, recipe, total_batch):
        self.recipe, self.total_batch = recipe, total_batch
        self.scaling = total_batch / recipe.lr_base_batch if recipe.lr_base_batch else 1.0
        self.parameters = dict(network.named_parameters())
        blocks = [int(name.split(".")[1]) for name in self.parameters if name.startswith("blocks.")]
        self.depth = max(blocks, default=-1) + 1

    def place(self, epoch, step, steps):
        """Where in the schedule, in epochs, batch `step` (from 1) of `steps` stands in `epoch` (from 0).

        It moves from step to step of the optimiser with recipe.schedule "step", else from epoch to epoch.
        """
        place = epoch + self.recipe.schedule_start
        if self.recipe.schedule == "epoch":
            return place
        window = self.recipe.accumulate
        return place + (step - 1) // window / math.ceil(steps / window)

    def distance(self, name):
        """Layers between a parameter and the head: 0 for head and norm, 1 for the last block, depth + 1 at the image.

        This is the numbering of BEiT and timm.
        """
        part, _, rest = name.partition(".")
        if part in ("norm", "head"):
            return 0
        return self.depth - int(rest.split(".")[0]) if part == "blocks" else self.depth + 1

    def peak(self, name):
        """The rate that a parameter's curve starts to fall from."""
        return self._scheduled_peak(name) * self.scaling * self._factor(name)

    def of(self, name, place):
        """Rate of a parameter at a `place`."""
        return self._curve(self._scheduled_peak(name), place) * self._factor(name)

    def head(self, place):
        """Rate of the head at a `place`: the optimiser's own and the one in the log."""
        return self._curve(self.recipe.lr, place)

    def scale(self, place):
        """Set the factors that the parameters' rates have at `place` to the optimiser's; returns that one, the head's.

        Paddle's optimisers multiply their rate by the factor for step and decay; at exactly 1 they leave that out.
        """
        head = self.head(place)
        for name, parameter in self.parameters.items():
            # A head at 0 means a rate of 0 for all.
            parameter.optimize_attr["learning_rate"] = self.of(name, place) / head if head else 1.0
        return head

    def describe(self):
        """Lines on linear scaling, where there is any, and on the trained parameters' peaks, where these differ."""
        return [*self._scaling_line(), *self._groups_line()]

    def _scaling_line(self):
        base = self.recipe.lr_base_batch
        if base:
            yield (
                f"train.lr_base_batch={base}: all rates are multiplied by {self.total_batch} / {base} = "
                f"{self.scaling:g}; lr {self.recipe.lr * self.scaling:g} instead of {self.recipe.lr:g}"
            )

    def _groups_line(self):
        groups = {}
        for name, parameter in self.parameters.items():
            if not parameter.stop_gradient:
                groups.setdefault(self.peak(name), []).append(name)
        if len(groups) < 2:
            return []
        rates = sorted(groups, reverse=True)
        if len(rates) > 3:
            inner = sum(len(groups[rate]) for rate in rates[1:-1])
            between = f"{inner} tensors in {len(rates) - 2} groups between"
            parts = [_group(groups, rates[0]), between, _group(groups, rates[-1])]
        else:
            parts = [_group(groups, rate) for rate in rates]
        return [f"peak rates: {'; '.join(parts)}"]

    def _scheduled_peak(self, name):
        return self.recipe.lr * (1.0 if name.startswith("head.") else self.recipe.backbone_lr_scale)

    def _factor(self, name):
        decay = self.recipe.layer_decay
        return 1.0 if decay is None else decay ** self.distance(name)

    def _curve(self, peak, place):
        recipe = self.recipe
        return self.scaling * learning_rate(
            place,
            lr=peak,
            epochs=recipe.epochs,
            warmup_epochs=recipe.warmup_epochs,
            warmup_lr=recipe.warmup_lr,
            min_lr=recipe.min_lr,
            cooldown_epochs=recipe.cooldown_epochs,
            warmup_prefix=recipe.warmup_prefix,
        )


def _group(groups, rate):
    names = groups[rate]
    tops = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return f"{rate:g} for {len(names)} tensors ({', '.join(tops)})"
