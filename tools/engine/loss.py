"""The training losses."""

import paddle
import paddle.nn.functional as F


def soft_cross_entropy(logits, targets):
    """Mean cross entropy of logits [B, C] of any float type against targets float32 [B, C] whose rows sum to 1.

    Returns a float32 tensor of shape []; computed in float32 also within auto_cast.
    """
    # Not F.cross_entropy: in Paddle 2.6 its mean looks for ignored labels, for which it waits for the GPU. Nor
    # F.log_softmax, whose gradient is 40 times as slow on a CPU. Both stop at log-probabilities of -64 there.
    with paddle.amp.auto_cast(enable=False):
        logits = logits.astype("float32")
        logits = logits - logits.detach().max(axis=1, keepdim=True)
        return (logits.exp().sum(axis=1).log() - (targets * logits).sum(axis=1)).mean()


class LabelLoss:
    """The loss of a training from its labels alone, smoothed by `smoothing` in [0, 1) where they are not mixed."""

    def __init__(self, smoothing):
        self.smoothing = smoothing

    def targets(self, batch):
        """What the logits of a data.batches.Batch are compared with: float32 [B, C] of mixed images, int64 [B] else."""
        return batch.labels if batch.targets is None else batch.targets

    def __call__(self, logits, targets):
        """Mean over the batch, float32 []; logits [B, C] of any float type, targets as `targets` gives them."""
        if targets.ndim == 1:
            return smoothed_cross_entropy(logits, targets, self.smoothing)
        return soft_cross_entropy(logits, targets)


def smoothed_cross_entropy(logits, labels, smoothing):
    """Mean cross entropy of logits [B, C] against labels [B] int64 with 1 - s + s/C on the label and s/C elsewhere."""
    return soft_cross_entropy(logits, F.label_smooth(F.one_hot(labels, logits.shape[1]), epsilon=smoothing))
