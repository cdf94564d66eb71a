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


def smoothed_cross_entropy(logits, labels, smoothing):
    """Mean cross entropy of logits [B, C] against labels [B] int64 with 1 - s + s/C on the label and s/C elsewhere."""
    return soft_cross_entropy(logits, F.label_smooth(F.one_hot(labels, logits.shape[1]), epsilon=smoothing))
