"""Every configuration key: its type, its default and the values it may take.

The dataclasses are the schema. `config.py` turns files and `key=value` arguments into them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, Optional, get_type_hints


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `open_low` and `open_high` leave the bound itself out."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value):
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self):
        words = []
        if self.low > -math.inf:
            words.append(f"{'above' if self.open_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            words.append(f"{'below' if self.open_high else 'at most'} {self.high:g}")
        return " and ".join(words)


POSITIVE = Range(0, open_low=True)
NOT_NEGATIVE = Range(0)
AT_LEAST_ONE = Range(1)
PROBABILITY = Range(0, 1)
# A rate of 1 would drop everything and divide by zero when the rest is scaled up.
DROP_RATE = Range(0, 1, open_high=True)
SHARE = Range(0, 1, open_low=True)


def _key(default, allowed=None, choices=()):
    return field(default=default, metadata={"allowed": allowed, "choices": choices})


@dataclass(frozen=True)
class ModelConfig:
    """The network. `name` is a row of the model registry, `img_size` the side of its square input in pixels.

    In a training, `name` and `img_size` null mean those of train.init, and `num_classes` null as many as
    data.train_dir has; the run's config.yaml then holds what was found. `split_*` are kernel, overlap and padding of
    the three soft splits; with others than these the network is one of its own.
    """

    name: Optional[str] = _key("t2t_vit_7")
    img_size: Optional[int] = _key(224, Range(16, 4096))
    num_classes: Optional[int] = _key(1000, Range(2, 1_000_000))
    drop_rate: float = _key(0.0, DROP_RATE)
    attn_drop_rate: float = _key(0.0, DROP_RATE)
    drop_path: float = _key(0.1, DROP_RATE)
    qk_scale: Optional[float] = _key(None, POSITIVE)
    split_kernels: tuple[int, int, int] = _key((7, 3, 3), Range(1, 64))
    split_overlaps: tuple[int, int, int] = _key((3, 1, 1), Range(0, 63))
    split_paddings: tuple[int, int, int] = _key((2, 1, 1), Range(0, 63))


@dataclass(frozen=True)
class DataConfig:
    """Where the images are and how they become tensors. Paths are relative to the project's root.

    `train_crop` resized: a random share of the picture (`scale`, `ratio`), resized; padded: the whole picture squashed
    to the square, with `padding` black pixels on each side, of which a random square is cut. `mean` and `std` null mean
    those of train.init.
    """

    name: str = _key("ImageNet")
    train_dir: str = _key("")
    train_list: Optional[str] = _key(None)
    val_dir: str = _key("")
    val_list: Optional[str] = _key(None)
    class_names: Optional[str] = _key(None)
    workers: int = _key(4, NOT_NEGATIVE)
    resize: str = _key("crop", choices=("crop", "squash"))
    crop_pct: float = _key(0.9, SHARE)
    interpolation: str = _key("bicubic", choices=("bilinear", "bicubic"))
    train_interpolation: str = _key("random", choices=("bilinear", "bicubic", "random"))
    train_crop: str = _key("resized", choices=("resized", "padded"))
    padding: int = _key(28, NOT_NEGATIVE)
    scale: tuple[float, float] = _key((0.08, 1.0), SHARE)
    ratio: tuple[float, float] = _key((0.75, 4 / 3), POSITIVE)
    hflip: float = _key(0.5, PROBABILITY)
    auto_augment: Optional[str] = _key(None)
    color_jitter: float = _key(0.0, NOT_NEGATIVE)
    reprob: float = _key(0.0, PROBABILITY)
    mean: Optional[tuple[float, float, float]] = _key((0.485, 0.456, 0.406), PROBABILITY)
    std: Optional[tuple[float, float, float]] = _key((0.229, 0.224, 0.225), POSITIVE)
    on_error: str = _key("stop", choices=("stop", "skip"))
    use_shared_memory: bool = _key(True)
    drop_last: bool = _key(True)


@dataclass(frozen=True)
class TrainConfig:
    """The recipe. `batch_size` counts images of one process. Learning rates are used as given, unless `lr_base_batch`
    names the total batch that they are meant for: then they grow with the batch.

    `init` is a weights file or a run folder to start from, relative to the project's root. `freeze` holds patterns
    (fnmatch) of parameter names. `backbone_lr_scale` multiplies the peak rate of all but the head; `layer_decay` the
    whole curve of a layer, once for each layer between it and the head. `teacher` is a weights file or a run folder
    like `init`; engine.distillation tells what the keys `distill*` mean.
    """

    init: str = _key("")
    freeze: tuple[str, ...] = _key(())
    optimizer: str = _key("adamw", choices=("adamw", "sgd"))
    epochs: int = _key(310, AT_LEAST_ONE)
    batch_size: int = _key(128, AT_LEAST_ONE)
    lr: float = _key(1e-3, POSITIVE)
    lr_base_batch: Optional[int] = _key(None, AT_LEAST_ONE)
    backbone_lr_scale: float = _key(1.0, SHARE)
    layer_decay: Optional[float] = _key(None, SHARE)
    weight_decay: float = _key(0.03, NOT_NEGATIVE)
    decayed: str = _key("matrices", choices=("matrices", "all"))
    schedule: str = _key("epoch", choices=("epoch", "step"))
    schedule_start: int = _key(0, NOT_NEGATIVE)
    warmup_epochs: int = _key(10, NOT_NEGATIVE)
    warmup_prefix: bool = _key(False)
    warmup_lr: float = _key(1e-6, NOT_NEGATIVE)
    min_lr: float = _key(1e-5, NOT_NEGATIVE)
    cooldown_epochs: int = _key(10, NOT_NEGATIVE)
    smoothing: float = _key(0.1, DROP_RATE)
    teacher: str = _key("")
    distill: str = _key("hard", choices=("hard", "soft"))
    distill_alpha: float = _key(0.5, PROBABILITY)
    distill_temperature: float = _key(3.0, POSITIVE)
    mixup_alpha: float = _key(0.0, NOT_NEGATIVE)
    cutmix_alpha: float = _key(0.0, NOT_NEGATIVE)
    mixup_prob: float = _key(1.0, PROBABILITY)
    mixup_switch_prob: float = _key(0.5, PROBABILITY)
    ema_decay: Optional[float] = _key(None, DROP_RATE)
    ema_warmup: bool = _key(False)
    accumulate: int = _key(1, AT_LEAST_ONE)
    clip_grad: Optional[float] = _key(None, POSITIVE)
    momentum: float = _key(0.9, DROP_RATE)
    beta1: float = _key(0.9, DROP_RATE)
    beta2: float = _key(0.999, DROP_RATE)
    eps: float = _key(1e-8, POSITIVE)
    seed: int = _key(42, Range(0, 2**32 - 1))
    amp: str = _key("off", choices=("off", "fp16", "bf16"))
    log_every: int = _key(50, AT_LEAST_ONE)
    val_every: int = _key(1, AT_LEAST_ONE)
    max_steps: Optional[int] = _key(None, AT_LEAST_ONE)
    keep: int = _key(2, AT_LEAST_ONE)
    save_steps: Optional[int] = _key(None, AT_LEAST_ONE)
    max_hours: Optional[float] = _key(None, POSITIVE)


@dataclass(frozen=True)
class ValConfig:
    """Evaluation. `target_acc` is a top-1 accuracy between 0 and 1 that a whole evaluation must reach.

    `target_images` is the number of images that the target was measured on; it is judged on that many only. It is
    not inherited by a target of the command line, nor by that of a file which names validation data too.
    """

    batch_size: int = _key(128, AT_LEAST_ONE)
    weights: str = _key("")
    target_acc: Optional[float] = _key(None, SHARE)
    target_images: Optional[int] = _key(None, AT_LEAST_ONE)
    log_every: int = _key(10, AT_LEAST_ONE)


@dataclass(frozen=True)
class Config:
    """A whole run: four sections, the run folder (relative to the project's root) and the device."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    val: ValConfig = field(default_factory=ValConfig)
    output: str = _key("output/t2t_vit_7")
    device: str = _key("auto", choices=("auto", "cpu", "gpu"))


# The recipe's warm-up plus its cool-down. A run no longer than this is a trial: it may end inside the warm-up.
TRIAL_EPOCHS = 20


class Key(NamedTuple):
    """One key of the schema: type, default, allowed numbers (or None), allowed words (or empty)."""

    type: Any
    default: Any
    allowed: Optional[Range]
    choices: tuple


def _collect(cls, prefix=""):
    hints = get_type_hints(cls)
    for item in fields(cls):
        if is_dataclass(hints[item.name]):
            yield from _collect(hints[item.name], f"{item.name}.")
        else:
            yield prefix + item.name, Key(hints[item.name], item.default, **item.metadata)


SECTIONS = {name: hint for name, hint in get_type_hints(Config).items() if is_dataclass(hint)}
KEYS = dict(_collect(Config))


def build(values: dict) -> Config:
    """Config from full key names (`train.lr`) to values of the right type; absent keys take their default."""
    parts = {section: {} for section in SECTIONS}
    top = {}
    for name, value in values.items():
        section, _, leaf = name.rpartition(".")
        (parts[section] if section else top)[leaf] = value
    return Config(**{section: SECTIONS[section](**part) for section, part in parts.items()}, **top)


def problems(values: dict) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong with its value) for values that have the right type. `values` holds every key."""
    for name, key in KEYS.items():
        value = values[name]
        if value is None:
            continue
        if key.choices and value not in key.choices:
            yield name, f"must be one of {', '.join(key.choices)}"
        if key.allowed and any(item not in key.allowed for item in (value if type(value) is tuple else (value,))):
            yield name, f"must be {key.allowed}"
    for name in ("model.name", "data.name", "output"):
        if values[name] is not None and not values[name].strip():
            yield name, "must not be empty"
    yield from _joint_problems(values)


def _joint_problems(values):
    size = values["model.img_size"]
    if size is not None and size % 16:
        # Soft splits of 4, 2 and 2 pixels: any other size gives a token grid the position table does not have.
        below = size // 16 * 16
        yield "model.img_size", f"must be a multiple of 16; the nearest are {below} and {below + 16}"
    for name in ("data.scale", "data.ratio"):
        if values[name][0] > values[name][1]:
            yield name, "must be written smaller number first"
    rate, scale = values["train.lr"], values["train.backbone_lr_scale"]
    peak = f"train.lr={rate:g}" + (f" x train.backbone_lr_scale={scale:g}" if scale < 1 else "")
    for name in ("train.warmup_lr", "train.min_lr"):
        if values[name] > rate * scale:
            yield name, f"must not be above {peak}"
    epochs, warmup, cooldown = (values[f"train.{name}"] for name in ("epochs", "warmup_epochs", "cooldown_epochs"))
    if epochs > TRIAL_EPOCHS and warmup + cooldown >= epochs:
        yield "train.epochs", (
            f"must be above train.warmup_epochs + train.cooldown_epochs = {warmup + cooldown}"
            f" (only runs of at most {TRIAL_EPOCHS} epochs may end inside the warm-up)"
        )
