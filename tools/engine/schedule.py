"""The learning rate as a pure function of the epoch."""

import math


def learning_rate(epoch, *, lr, epochs, warmup_epochs, warmup_lr, min_lr, cooldown_epochs):
    """Rate in force during `epoch` (from 0): the official schedule, which changes once per epoch.

    Linear from warmup_lr in epoch 0 towards lr; from epoch `warmup_epochs` on a cosine from lr to min_lr that counts
    its epochs from 0, not from the end of the warm-up (so there is a small step down when it takes over); min_lr in
    the last `cooldown_epochs`. `epochs` is the total, cool-down included: 310 for the published models.
    """
    if epoch < warmup_epochs:
        return warmup_lr + epoch * (lr - warmup_lr) / warmup_epochs
    cosine_epochs = epochs - cooldown_epochs
    if epoch >= cosine_epochs:
        return min_lr
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * epoch / cosine_epochs))
