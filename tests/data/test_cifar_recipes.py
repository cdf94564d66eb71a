"""The shipped CIFAR files hold the official transfer recipe, and the loader makes of it what the recipe says."""

import dataclasses

import numpy as np
import pytest
from data.transforms import EvalTransform, PaddedCropTransform
from engine.config import load_config
from engine.schedule import learning_rate
from engine.schema import DataConfig, ModelConfig, TrainConfig


@pytest.mark.parametrize("name, classes, target", [("cifar10", 10, 0.974), ("cifar100", 100, 0.883)])
def test_recipe(root, name, classes, target):
    config = load_config(root / "config" / f"finetune_{name}.yaml")
    archive = f"cifar-{classes}-python.tar.gz"
    assert config.model == ModelConfig(name="t2t_vit_14", num_classes=classes)
    assert (config.model.img_size, config.model.drop_path) == (224, 0.1)
    expected = DataConfig(
        name=f"CIFAR-{classes}", train_dir=archive, val_dir=archive, resize="squash", interpolation="bilinear",
        train_interpolation="bilinear", train_crop="padded", padding=28, hflip=0.5, mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )  # fmt: skip
    assert config.data == expected
    assert (config.data.train_list, config.data.val_list, config.data.class_names) == (None, None, None)
    expected = TrainConfig(
        init="output/t2t_vit_14.pdparams", optimizer="sgd", momentum=0.9, weight_decay=5e-4, decayed="all", lr=0.05,
        batch_size=64, epochs=60, warmup_epochs=0, cooldown_epochs=0, min_lr=2e-4, backbone_lr_scale=0.01,
        smoothing=0.0, clip_grad=None, layer_decay=None, freeze=(),
    )  # fmt: skip
    # Neither is part of the official recipe's file.
    assert dataclasses.replace(config.train, seed=expected.seed, log_every=expected.log_every) == expected
    assert (config.val.target_acc, config.val.target_images) == (target, 10_000)
    assert config.output == config.val.weights == f"output/finetune_{name}"


def test_rates_are_those_of_the_official_cosine(root):
    train = load_config(root / "config" / "finetune_cifar10.yaml").train
    for peak in (train.lr, train.lr * train.backbone_lr_scale):
        for epoch in range(60):
            rate = learning_rate(epoch, lr=peak, epochs=train.epochs, warmup_epochs=train.warmup_epochs,
                                 warmup_lr=train.warmup_lr, min_lr=train.min_lr, cooldown_epochs=train.cooldown_epochs)
            # torch.optim.lr_scheduler.CosineAnnealingLR(T_max=60, eta_min=2e-4), stepped once an epoch.
            assert rate == pytest.approx(2e-4 + (peak - 2e-4) * (1 + np.cos(np.pi * epoch / 60)) / 2, rel=1e-12)


def test_transforms_describe_the_official_ones(root):
    config = load_config(root / "config" / "finetune_cifar10.yaml")
    data, size = config.data, config.model.img_size
    assert PaddedCropTransform(size, data.padding, data.hflip, data.train_interpolation).describe() == (
        "Resize(224x224, bilinear) RandomCrop(224, padding=28) HorizontalFlip(0.5)")
    assert EvalTransform(size, data.crop_pct, data.interpolation, data.resize).describe() == "Resize(224x224, bilinear)"
