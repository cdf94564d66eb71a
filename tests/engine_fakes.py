"""Stand-ins that the tests of the engine share: batches from arrays, small networks, a log that remembers."""

import hashlib
import re

import numpy as np
import paddle
import t2t
from data.batches import Batch
from data.loader import EpochBatchSampler
from engine.checkpoint import RunFolder
from engine.ema import Ema
from engine.loop import Trainer
from engine.optim import build_optimizer, freeze
from engine.schema import build
from paddle import nn


class ArrayBatches:
    """data.batches.Batches from arrays: images [n, ...] float32, labels [n]; `failed`: positions nobody can decode."""

    def __init__(self, images, labels, batch_size, *, world=1, rank=0, shuffle=False, drop_last=False, failed=()):
        self.images, self.labels = np.asarray(images, "float32"), np.asarray(labels, "int64")
        self.failed = np.asarray(failed, "int64")
        self.sampler = EpochBatchSampler(
            range(len(self.labels)), batch_size, world=world, rank=rank, shuffle=shuffle, drop_last=drop_last, seed=3
        )
        self.seen = []

    def __len__(self):
        return len(self.sampler)

    @property
    def samples(self):
        return len(self.labels)

    def fingerprint(self):
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()

    def set_epoch(self, epoch, start=0):
        self.sampler.set_epoch(epoch, start)

    def path(self, index):
        return f"/images/{index}.png"

    def __iter__(self):
        for batch in self.sampler:
            indices = np.array([index for _, index in batch])
            self.seen.append(indices.tolist())
            bad = np.isin(indices, self.failed)
            good = indices[~bad]
            yield Batch(paddle.to_tensor(self.images[good]), paddle.to_tensor(self.labels[good]), good, indices[bad])


class Lookup(nn.Layer):
    """A network whose logits are the images: [B, C] -> [B, C]. It keeps what it gave out and in which mode."""

    def __init__(self):
        super().__init__()
        # Trainable, so that the outputs would carry a gradient where it is not switched off.
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.0))
        self.outputs, self.modes = [], []

    def forward(self, x):
        out = x * self.scale
        self.outputs.append(out)
        self.modes.append(self.training)
        return out


def small_network(classes=3, drop=0.5):
    """Images [B, 3, 8, 8] -> logits [B, classes], with a dropout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(drop), nn.Linear(16, classes)
    )


def small_convnet(classes=10):
    """Images [B, 3, 32, 32] -> logits [B, classes], fast."""
    return nn.Sequential(nn.Conv2D(3, 8, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, classes))


def small_t2t(classes=3, size=16, **options):
    """A T2T-ViT of two narrow blocks, with the frozen tensors and the dropouts of the published ones."""
    return t2t.T2TViT(size, num_classes=classes, embed_dim=32, depth=2, num_heads=2, token_dim=64, **options)


def pictures(count, classes=3, size=8, seed=0):
    """Learnable noise: images float32 [count, 3, size, size] that depend on their labels int64 [count]."""
    random = np.random.RandomState(seed)
    labels = np.arange(count) % classes
    images = random.standard_normal((count, 3, size, size)) + labels[:, None, None, None] - 1
    return images.astype("float32"), labels


class ListLog:
    """engine.runlog.RunLog that keeps lines, metrics and curve points in lists."""

    def __init__(self):
        self.lines, self.objects, self.points = [], [], []

    def line(self, text):
        self.lines.append(text)

    def metrics(self, **values):
        self.objects.append(values)

    def curves(self, step, **values):
        self.points.append((step, values))

    def progress(self, text, fraction):
        assert 0 <= fraction <= 1

    def positions(self):
        return {}

    def of(self, kind):
        """Metrics objects of one kind."""
        return [values for values in self.objects if values["kind"] == kind]

    def matching(self, pattern):
        return [line for line in self.lines if re.search(pattern, line)]


def make_config(**values):
    """A configuration for short runs; `train__epochs=3` sets train.epochs."""
    keys = {
        "train.epochs": 2, "train.warmup_epochs": 0, "train.cooldown_epochs": 0, "train.lr": 1e-2, "train.log_every": 1,
        "train.smoothing": 0.1, "data.name": "Made", "model.num_classes": 3,
    }  # fmt: skip
    keys.update({name.replace("__", "."): value for name, value in values.items()})
    return build(keys)


def make_trainer(folder, config, train, val, network=None, log=None, extras=(), ema_decay=None,
                 distillation=None):
    """A Trainer as tools/train.py wires it; the network follows from train.seed."""
    if network is None:
        paddle.seed(config.train.seed)
        network = small_network()
    recipe = config.train
    freeze(network, recipe.freeze)
    optimizer = build_optimizer(
        network, lr=recipe.lr, weight_decay=recipe.weight_decay, optimizer=recipe.optimizer, decayed=recipe.decayed,
        momentum=recipe.momentum, beta1=recipe.beta1, beta2=recipe.beta2, eps=recipe.eps, clip_grad=recipe.clip_grad,
    )  # fmt: skip
    run_folder = RunFolder(folder)
    run_folder.create(config)
    return Trainer(network, optimizer, train, val, config, run_folder, log if log is not None else ListLog(),
                   None if ema_decay is None else Ema(network, ema_decay), extras, distillation)


def weights_of(network):
    """Every tensor of a network as an array, by structured name."""
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


def assert_same(first, second):
    """Two dicts of arrays are equal bit for bit."""
    assert list(first) == list(second)
    for name in first:
        assert first[name].dtype == second[name].dtype, name
        assert first[name].tobytes() == second[name].tobytes(), name


def checkpoint_names(folder):
    """Names of the files that an engine.checkpoint.RunFolder keeps states in."""
    return sorted(file.name for file in folder.checkpoints.iterdir() if file.name not in ("latest", "best"))
