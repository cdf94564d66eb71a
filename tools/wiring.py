"""From a configuration to the objects that the commands work with: network, batches, class names.

The commands call this and engine/; neither data/ nor engine/ knows the configuration of the other.
"""

from data.batches import Batches
from data.classes import IMAGENET_TABLE, imagenet_table, load_class_table
from data.dataset import ImageDataset
from data.listing import read_samples
from data.loader import build_loader
from data.transforms import EvalTransform, TrainTransform
from engine import distributed
from engine.config import project_path
from errors import UserError
from models import build_model
from weights.loading import load_weights
from weights.paddle_file import read_weights

CLASSES_FILE = "classes.txt"


def start(config):
    """Select the device and join the other processes, if any. Returns a line for the log."""
    device = distributed.choose_device(config.device)
    distributed.init()
    return f"device: {device}; processes: {distributed.world_size()}"


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
    )


def load_network(config, weights):
    """The network of config.model with `weights` (a file or a run folder) in evaluation mode, and the tensor count."""
    state = read_weights(weights)
    network = build_network(config)
    count = load_weights(network, state, source=weights)
    network.eval()
    return network, count


def eval_transform(config):
    """The transform that val and predict share."""
    data = config.data
    return EvalTransform(config.model.img_size, data.crop_pct, data.interpolation, data.resize)


def train_batches(config):
    """Shuffled, augmented data.batches.Batches of this process."""
    data = config.data
    samples = read_samples(
        data.train_dir and project_path(data.train_dir),
        data.train_list and project_path(data.train_list),
        num_classes=config.model.num_classes,
        what="train",
    )
    transform = TrainTransform(config.model.img_size, data.scale, data.ratio, data.hflip, data.train_interpolation)
    return _batches(config, samples, transform, train=True)


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
    return Batches(loader, data.mean, data.std)


def class_table(config, run_folder):
    """data.classes.ClassTable of data.class_names, else of the run's class folders, else None (ids only).

    The shipped table, which configurations inherit, stands back for networks that have learnt other classes.
    """
    trained = trained_classes(config, run_folder)
    if not config.data.class_names:
        return trained
    path = project_path(config.data.class_names)
    if path.resolve() == IMAGENET_TABLE and (
        config.model.num_classes != 1000 or trained and trained.names != imagenet_table().wnids
    ):
        return trained
    return load_class_table(path, config.model.num_classes)


def trained_classes(config, run_folder):
    """ClassTable of the class folders that a run was trained on, in label order; None for list files or no run."""
    if run_folder is None or not (run_folder / CLASSES_FILE).is_file():
        return None
    return load_class_table(run_folder / CLASSES_FILE, config.model.num_classes)


def check_same_classes(config, run_folder, class_names):
    """Raise UserError where a run would go on with other class folders (list of str, None: a list file) than before."""
    trained = trained_classes(config, run_folder)
    if trained and class_names and trained.names != class_names:
        old, new = next((a, b) for a, b in zip(trained.names, class_names) if a != b)
        raise UserError(
            f"data.train_dir={config.data.train_dir}: its class folders are not those of the run in {run_folder} "
            f"({new!r}, formerly {old!r}); choose another output"
        )
