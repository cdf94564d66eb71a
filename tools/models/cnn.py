"""The convolutional networks that the paper compares with, made of the blocks of paddle.vision.models."""

from functools import partial

from paddle import nn
from paddle.vision import models as vision
from t2t import SPLITS, Dropout, Linear


class CNN(nn.Layer):
    """Images [B, 3, S, S] float32 -> logits [B, num_classes].

    `blocks` is a list of layers as in t2t.T2TViT, the stem first, so that learning rates by layer, freezing and
    pictures of features find them under the names that all networks share; `head` is the classifier.

    Args:
        body: function without arguments that gives the layers and the channels after the last one.
        img_size: S, any positive number; the network itself takes images of every size.
        num_classes: width of the head; 0 leaves it out and returns the features [B, C].
        drop_rate: dropout in front of the head, in [0, 1).
        in_chans, attn_drop_rate, drop_path_rate, qk_scale, splits: what every network of the registry is asked for;
            only 3, 0, 0, None and SPLITS are possible.

    Raises:
        ValueError: a setting that such a network does not have.
    """

    def __init__(
        self,
        body,
        img_size=224,
        in_chans=3,
        num_classes=1000,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
        qk_scale=None,
        splits=SPLITS,
    ):
        super().__init__()
        if not isinstance(img_size, int) or img_size <= 0:
            raise ValueError(f"img_size={img_size}: must be a positive number of pixels")
        if in_chans != 3:
            raise ValueError(f"in_chans={in_chans}: the convolutional networks take three channels")
        if attn_drop_rate or qk_scale is not None:
            given = f"attn_drop_rate={attn_drop_rate}" if attn_drop_rate else f"qk_scale={qk_scale}"
            raise ValueError(f"{given}: this network has no attention; leave it out")
        if splits != SPLITS:
            raise ValueError(f"splits={splits}: this network has no soft splits; leave them out")
        if drop_path_rate:
            raise ValueError(f"drop_path_rate={drop_path_rate}: this network has no drop path; set model.drop_path=0")
        if not 0 <= drop_rate < 1:
            raise ValueError(f"drop_rate={drop_rate}: must be at least 0 and below 1")
        self.img_size, self.num_classes = img_size, num_classes
        layers, self.num_features = body()
        self.blocks = nn.LayerList(layers)
        self.drop = Dropout(drop_rate)
        self.head = Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    def forward_features(self, x, maps=False):
        """Images [B, 3, S, S] -> features [B, C], the means over the last maps.

        With maps=True the last maps of each stride instead, for heads of detection and segmentation: a dict with the
        strides as keys, {4: [B, 256, S/4, S/4] ... 32: [B, 2048, S/32, S/32]} for ResNet-50; MobileNets have 2 too.

        Raises:
            ValueError: maps=True and S no multiple of 32.
        """
        size, grids = x.shape[2], {}
        if maps and size % 32:
            raise ValueError(f"images are {size}x{size}: maps have whole strides on multiples of 32 pixels only")
        for block in self.blocks:
            x = block(x)
            if maps and x.ndim == 4:
                grids[size // x.shape[2]] = x
        if maps:
            return grids
        return x.mean(axis=[2, 3]) if x.ndim == 4 else x

    def forward(self, x):
        return self.head(self.drop(self.forward_features(x)))


def _resnet(build):
    network = build(num_classes=0)
    stem = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool)
    stages = (network.layer1, network.layer2, network.layer3, network.layer4)
    return [stem, *(block for stage in stages for block in stage)], 2048


def _mobilenet_v1():
    network = vision.mobilenet_v1(num_classes=0)
    return [network.conv1, *network.dwsl], 1024


def _mobilenet_v2(scale):
    network = vision.mobilenet_v2(scale=scale, num_classes=0)
    return list(network.features), network.last_channel


def _mobilenet_v3():
    network = vision.mobilenet_v3_large(num_classes=0)
    # The hidden layer of its classifier, which that class has only together with its head.
    neck = nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Flatten(), Linear(960, 1280), nn.Hardswish())
    return [network.conv, *network.blocks, network.lastconv, neck], 1280


resnet50 = partial(CNN, partial(_resnet, vision.resnet50))
resnet101 = partial(CNN, partial(_resnet, vision.resnet101))
resnet152 = partial(CNN, partial(_resnet, vision.resnet152))
resnext50 = partial(CNN, partial(_resnet, vision.resnext50_32x4d))
mobilenet_v1 = partial(CNN, _mobilenet_v1)
# Version 2 and 3 were published with this dropout.
mobilenet_v2 = partial(CNN, partial(_mobilenet_v2, 1.0), drop_rate=0.2)
mobilenet_v2_140 = partial(CNN, partial(_mobilenet_v2, 1.4), drop_rate=0.2)
mobilenet_v3 = partial(CNN, _mobilenet_v3, drop_rate=0.2)
