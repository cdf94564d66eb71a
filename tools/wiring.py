"""From a configuration to the objects that the commands work with: network, batches, class names.

The commands call this and engine/; neither data/ nor engine/ knows the configuration of the other.
"""

from pathlib import Path

from data.auto_augment import ColorJitter, auto_augment
from data.batches import Batches
from data.classes import IMAGENET_TABLE, ClassTable, imagenet_table, load_class_table
from data.dataset import ImageDataset
from data.erasing import RandomErasing
from data.listing import read_samples
from data.loader import build_loader
from data.mixing import Mixing
from data.transforms import EvalTransform, PaddedCropTransform, TrainTransform
from engine import distributed
from engine.arguments import SPLIT_KEYS, known_settings, run_folder_of
from engine.checkpoint import weights_of_best
from engine.config import load_config, project_path
from engine.ema import Ema
from engine.optim import build_optimizer, freeze
from engine.settings import plain
from errors import UserError
from models import ROWS, build_model
from weights.loading import initialise, load_weights
from weights.paddle_file import read_weights
from weights.record import DATA_KEYS, check_shapes, read_record, record_file

CLASSES_FILE = "classes.txt"
# Machines may keep their data in different places and read them in their own ways.
_OWN_SETTINGS = {
    "data.train_dir", "data.train_list", "data.val_dir", "data.val_list", "data.class_names", "data.workers",
    "data.use_shared_memory", "val.weights", "train.init", "train.teacher",
}  # fmt: skip


def start(config):
    """Select the device and join the other processes, if any. Returns a line for the log."""
    device = distributed.choose_device(config.device)
    distributed.init()
    distributed.check_same(common_settings(config), "start all machines with the same configuration and settings")
    return f"device: {device}; processes: {distributed.world_size()}"


def common_settings(config):
    """The settings by key that all processes of a run must share: those that its results or its steps depend on."""
    flat = {}
    for section, values in plain(config).items():
        flat.update({f"{section}.{key}": v for key, v in values.items()} if isinstance(values, dict) else {})
    return {name: value for name, value in flat.items() if name not in _OWN_SETTINGS}


def build_network(config):
    """The network of config.model with fresh weights."""
    model = config.model
    return build_model(
        model.name,
        img_size=model.img_size,
        num_classes=model.num_classes,
        drop_rate=model.drop_rate,
        attn_drop_rate=model.attn_drop_rate,
        drop_path_rate=model.drop_path,
        qk_scale=model.qk_scale,
        splits=tuple(zip(model.split_kernels, model.split_overlaps, model.split_paddings)),
    )


def freeze_and_optimize(network, config):
    """Freeze what train.freeze names and build the optimiser of the rest."""
    recipe = config.train
    freeze(network, recipe.freeze)
    return build_optimizer(
        network,
        optimizer=recipe.optimizer,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        decayed=recipe.decayed,
        momentum=recipe.momentum,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        eps=recipe.eps,
        clip_grad=recipe.clip_grad,
    )


def moving_average(network, config):
    """engine.ema.Ema of the network as it is now, or None where train.ema_decay is null."""
    recipe = config.train
    return None if recipe.ema_decay is None else Ema(network, recipe.ema_decay, recipe.ema_warmup)


def weights_kind(weights):
    """ema for averaged weights or raw, as their record or run tells, with a word where neither does."""
    record, run, name = read_record(weights), run_folder_of(weights), Path(weights).stem
    if record:
        return "ema" if record.dictionary == "state_dict_ema" else "raw"
    if run is None or name not in ("best", "last", "last_ema"):
        return "raw (nothing beside the file tells otherwise)"
    if name != "best":
        return "ema" if name == "last_ema" else "raw"
    # Earlier versions did not note it.
    averaged = load_config(run / "config.yaml").train.ema_decay is not None
    return weights_of_best(run) or ("ema" if averaged else "raw")


def load_network(config, weights):
    """The network of config.model with a weights file in evaluation mode, and the tensor count."""
    state = _recorded_state(weights)
    network = build_network(config)
    count = load_weights(network, state, source=weights)
    check_model(config, weights)
    network.eval()
    return network, count


def _recorded_state(weights):
    """The arrays of a weights file, which do not contradict its record."""
    state, record = read_weights(weights), read_record(weights)
    if record:
        check_shapes(record, weights, state)
        if record.model not in ROWS:
            raise UserError(f"{record_file(weights)}: model={record.model}: no such network; convert the weights again")
    return state


def start_from(network, config, weights):
    """Begin a training with a weights file (see weights.loading.initialise). Returns lines for the log."""
    start = initialise(network, _recorded_state(weights), source=weights)
    check_model(config, weights)
    notes = "".join(f"; {note}" for note in start.notes)
    yield f"init: {weights}: {start.loaded} tensors loaded{notes}"
    yield from data_notes(config, weights)


def check_model(config, weights):
    """Raise UserError where the run or record of `weights` names another network of the same shapes than the config.

    The number of heads and the scale of the attention leave no trace in the tensors.
    """
    known = known_settings(weights)
    if not known:
        return
    name, theirs, scale = config.model.name, known["model.name"], known["model.qk_scale"]
    if theirs in ROWS and name in ROWS and ROWS[theirs].factory is not ROWS[name].factory:
        raise UserError(f"model.name={name}: the weights {weights} are of {theirs}; set model.name={theirs}")
    if scale != config.model.qk_scale:
        raise UserError(
            f"model.qk_scale={config.model.qk_scale}: the weights {weights} go with {scale}; "
            f"set model.qk_scale={'null' if scale is None else scale}"
        )
    for key in SPLIT_KEYS:
        values = getattr(config.model, key), known[f"model.{key}"]
        here, there = (str(list(value)).replace(" ", "") for value in values)
        if here != there:
            raise UserError(f"model.{key}={here}: the weights {weights} go with {there}; set model.{key}={there}")


def data_notes(config, weights):
    """Lines on data settings that the weights' record or run has and `config` has otherwise; these may be meant so."""
    known = known_settings(weights)
    for key in DATA_KEYS if known else ():
        here, there = getattr(config.data, key), known[f"data.{key}"]
        if here != there:
            yield f"note: data.{key}={here} here, {there} where the weights were trained"


def eval_transform(config):
    """The transform that val and predict share."""
    data = config.data
    return EvalTransform(config.model.img_size, data.crop_pct, data.interpolation, data.resize)


def train_batches(config):
    """Shuffled, augmented data.batches.Batches of this process. model.num_classes may be null."""
    data = config.data
    samples = read_samples(
        data.train_dir and project_path(data.train_dir),
        data.train_list and project_path(data.train_list),
        num_classes=config.model.num_classes,
        what="train",
    )
    size, filters, augment = config.model.img_size, data.train_interpolation, _augment(config)
    if data.train_crop == "padded":
        transform = PaddedCropTransform(size, data.padding, data.hflip, filters, augment)
    else:
        transform = TrainTransform(size, data.scale, data.ratio, data.hflip, filters, augment)
    return _batches(config, samples, transform, train=True)


def _augment(config):
    """RandAugment or, where there is none, colour jitter (the official recipe leaves jitter out beside it), or None."""
    data = config.data
    if data.auto_augment:
        return auto_augment(data.auto_augment, config.model.img_size, data.mean, data.train_interpolation)
    return ColorJitter(data.color_jitter) if data.color_jitter else None


def _mixing(config, num_classes):
    recipe = config.train
    if not recipe.mixup_alpha and not recipe.cutmix_alpha:
        return None
    return Mixing(
        recipe.mixup_alpha, recipe.cutmix_alpha, recipe.mixup_prob, recipe.mixup_switch_prob, recipe.smoothing,
        num_classes,
    )  # fmt: skip


def eval_batches(config, class_names=None):
    """Validation data.batches.Batches of this process; class_names: order of the class folders, as in training."""
    data = config.data
    samples = read_samples(
        data.val_dir and project_path(data.val_dir),
        data.val_list and project_path(data.val_list),
        num_classes=config.model.num_classes,
        class_names=class_names,
        what="val",
    )
    return _batches(config, samples, eval_transform(config), train=False)


def _batches(config, samples, transform, *, train):
    data, seed = config.data, config.train.seed
    place = data.train_dir if train else data.val_dir
    if distributed.world_size() > 1:
        images = {f"data.{'train' if train else 'val'}_dir={place}": samples.fingerprint()}
        distributed.check_same(images, "all machines need the same images")
    loader = build_loader(
        ImageDataset(samples, transform, train=train, seed=seed, on_error=data.on_error),
        batch_size=config.train.batch_size if train else config.val.batch_size,
        shuffle=train,
        seed=seed,
        rank=distributed.rank(),
        world=distributed.world_size(),
        drop_last=train and data.drop_last,
        workers=data.workers,
        use_shared_memory=data.use_shared_memory,
    )
    if not train:
        return Batches(loader, data.mean, data.std)
    erasing = RandomErasing(data.reprob) if data.reprob else None
    return Batches(loader, data.mean, data.std, mixing=_mixing(config, samples.num_classes), erasing=erasing)


def unseen_classes(val):
    """A line on classes that the validation folders have no image of, which may be a mistake; none for lists."""
    samples = val.loader.dataset.samples
    if samples.class_names:
        present = set(samples.labels.tolist())
        absent = [name for number, name in enumerate(samples.class_names) if number not in present]
        if absent:
            yield f"note: no validation image of {len(absent)} class(es), such as {absent[0]!r}"


def class_table(config, weights):
    """data.classes.ClassTable of data.class_names, else of what `weights` have learnt, else None (ids only).

    The shipped table, which configurations inherit, stands back for networks that have learnt other classes.
    """
    trained = trained_classes(config, weights)
    if not config.data.class_names:
        return trained
    path = project_path(config.data.class_names)
    if path.resolve() == IMAGENET_TABLE and (
        config.model.num_classes != 1000 or trained and trained.names != imagenet_table().wnids
    ):
        return trained
    return load_class_table(path, config.model.num_classes)


def trained_classes(config, weights):
    """ClassTable of the class folders that `weights` were trained on, in label order; None where nothing tells.

    weights: a file, in whose record or run folder the names are, or None.
    """
    record = read_record(weights) if weights else None
    if record:
        return ClassTable(record.classes) if record.classes else None
    run_folder = run_folder_of(weights) if weights else None
    if run_folder is None or not (run_folder / CLASSES_FILE).is_file():
        return None
    return load_class_table(run_folder / CLASSES_FILE, config.model.num_classes)


def check_same_classes(config, run_folder, class_names):
    """Raise UserError where a run would go on with other class folders (list of str, None: a list file) than before."""
    trained = trained_classes(config, run_folder / "last.pdparams")
    if trained and class_names and trained.names != class_names:
        old, new = next((a, b) for a, b in zip(trained.names, class_names) if a != b)
        raise UserError(
            f"data.train_dir={config.data.train_dir}: its class folders are not those of the run in {run_folder} "
            f"({new!r}, formerly {old!r}); choose another output"
        )
