"""The learning rate as a pure function of the place in the training, counted in epochs."""

import math


def learning_rate(epoch, *, lr, epochs, warmup_epochs, warmup_lr, min_lr, cooldown_epochs, warmup_prefix=False):
    """Rate in force at `epoch`, which counts from 0 and may be a fraction. Whole numbers give the official schedule.

    Linear from warmup_lr in epoch 0 towards lr; from epoch `warmup_epochs` on a cosine from lr to min_lr that counts
    its epochs from 0, not from the end of the warm-up (so there is a small step down when it takes over); min_lr in
    the last `cooldown_epochs`. `epochs` is the total, cool-down included: 310 for the published models.
    warmup_prefix: the cosine begins at the end of the warm-up, with lr, as in the earlier Paddle reproduction.
    """
    if epoch < warmup_epochs:
        return warmup_lr + epoch * (lr - warmup_lr) / warmup_epochs
    cosine_epochs = epochs - cooldown_epochs
    if epoch >= cosine_epochs:
        return min_lr
    before = warmup_epochs if warmup_prefix else 0
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * (epoch - before) / (cosine_epochs - before)))
