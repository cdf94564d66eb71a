"""Command-line arguments that the commands share, and which configuration and weights they mean. Needs no Paddle."""

import argparse
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from errors import UserError
from weights.files import resolve_weights
from weights.paddle_file import read_weights
from weights.record import DATA_KEYS, read_record, record_file

from engine.config import ROOT, load_config, project_path
from engine.schema import KEYS

DEFAULT_CONFIG = ROOT / "config" / "t2t_vit_7.yaml"


class Parser(argparse.ArgumentParser):
    """Reports mistakes in one line, as a UserError, and takes options and positional words in any order."""

    def error(self, message):
        """Called by argparse."""
        # argparse counts the settings, of which there may be none, among what is required.
        raise UserError(f"{message.replace(', key=value', '')}; {self.prog} --help tells what there is")

    def parse_args(self, args=None, namespace=None):
        """As argparse's, but `a=1 --config C b=2` is understood too."""
        return self.parse_intermixed_args(args, namespace)


def command_line(tool, *words):
    """A command of tools/ with these words, as it can be typed in the current directory."""
    python = short_path(sys.executable) if shutil.which("python") != sys.executable else "python"
    return shlex.join([python, short_path(ROOT / "tools" / tool), *map(str, words)])


def short_path(path):
    """A path as short as it can be written in the current directory."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def add_config(parser, default="config/t2t_vit_7.yaml"):
    """--config FILE and key=value ..., which every command takes. default: words for the help text."""
    parser.add_argument("--config", metavar="FILE", help=f"YAML file (default: {default})")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, such as train.lr=1e-3")


def add_weights(parser):
    """--weights W, which val and predict take."""
    parser.add_argument(
        "--weights", metavar="W", help=".pdparams file or run folder (default: val.weights of the configuration)"
    )


def words_and_settings(words):
    """Positional words of a command that takes files: (files, settings); a file's name may look like key=value."""
    settings = [word for word in words if _is_setting(word)]
    return [word for word in words if word not in settings], settings


def _is_setting(word):
    key, equals, _ = word.partition("=")
    return bool(equals) and not Path(word).exists() and key.replace(".", "").replace("_", "").isalnum()


def settle(config_file, weights, overrides):
    """Configuration and weights file: (Config, Path), for val and predict.

    Without a configuration file, weights of a run come with the run's own configuration, and converted weights with
    the settings of their record. config_file, weights: as given on the command line, or None; relative to the working
    directory, while val.weights in the configuration is relative to the project's root. Raises UserError for either
    that is missing.
    """
    if weights is None:
        config = load_config(config_file or DEFAULT_CONFIG, overrides)
        weights = resolve_weights(project_path(config.val.weights) if config.val.weights else "")
        return complete(config, weights, "val.weights"), weights
    weights = resolve_weights(weights)
    if config_file:
        return complete(load_config(config_file, overrides), weights, "--weights"), weights
    record = read_record(weights)
    if record:
        source = record_file(weights).name
        # The target of the default configuration is another network's.
        settings = {**known_settings(weights), "val.target_acc": None}
        return load_config(DEFAULT_CONFIG, overrides, record=settings, source=source), weights
    run = run_folder_of(weights)
    return load_config(run / "config.yaml" if run else DEFAULT_CONFIG, overrides), weights


def run_folder_of(weights):
    """The run folder that holds the file `weights`, or None where no config.yaml lies beside it."""
    folder = Path(weights).parent
    return folder if (folder / "config.yaml").is_file() else None


def starting_point(config):
    """(Config, Path or None) of a training: nulls replaced, and the weights file that train.init means.

    A run folder with checkpoints goes on from these and needs train.init no more, which may be gone by then. Raises
    UserError for weights that are missing and for a network that nothing names.
    """
    output = project_path(config.output)
    if (output / "config.yaml").is_file() and any((output / "checkpoints").glob("epoch-*.npz")):
        return complete(config, output / "config.yaml", "output", leave="model.num_classes"), None
    if config.train.init:
        init = resolve_weights(project_path(config.train.init))
        return complete(config, init, "train.init", leave="model.num_classes"), init
    if config.model.name is None:
        raise UserError(
            "model.name is null and train.init is not set; give weights to start from, train.init=FILE_OR_RUN_FOLDER, "
            "or a network to train from scratch, model.name=t2t_vit_7"
        )
    return complete(config, None, "train.init", leave="model.num_classes"), None


# Of the section model; they leave no trace in the names of the tensors.
SPLIT_KEYS = ("split_kernels", "split_overlaps", "split_paddings")
# Keys that may be null, and whether there is no going on where nothing tells their value.
_NULLABLE = {
    "model.name": True, "model.num_classes": True, "model.img_size": False, "data.mean": False, "data.std": False,
}  # fmt: skip


def complete(config, weights, key, leave=None):
    """`config` with null for keys of _NULLABLE replaced by what the record or run of `weights` says.

    With the network's name goes model.qk_scale, which belongs to it. Where nothing tells, image size, mean and
    deviation become the defaults, which are ImageNet's. key: what names the weights, for messages; leave: a key to
    leave alone. Raises UserError where nothing tells the network or the number of classes.
    """
    lacking = [name for name in _NULLABLE if name != leave and _value(config, name) is None]
    if not lacking:
        return config
    known = known_settings(weights) if weights else {}
    changed = {}
    for name in lacking:
        if not known and _NULLABLE[name]:
            # A file that is no weights at all is the likelier mistake.
            read_weights(weights)
            raise UserError(
                f"{name} is null, and {weights} ({key}) has neither a record nor a run's config.yaml beside it; "
                f"set {name}={'t2t_vit_7 or another name of tools/list_models.py' if name == 'model.name' else 'N'}"
            )
        changed[name] = known.get(name, KEYS[name].default)
    if "model.name" in changed and config.model.qk_scale is None:
        changed["model.qk_scale"] = known["model.qk_scale"]
    for name, value in changed.items():
        section, _, leaf = name.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{leaf: value})})
    return config


def known_settings(weights):
    """What goes with a weights file, as dict full key -> value; empty where nothing tells.

    The network's keys and those of the data section that val and predict need, from the file's record, else from the
    config.yaml of its run.
    """
    record, run = read_record(weights), run_folder_of(weights)
    if record:
        data = {name: tuple(value) if isinstance(value, list) else value for name, value in record.data.items()}
        model = {name: getattr(record, name) for name in ("img_size", "num_classes", "qk_scale")}
        # Only networks with the published splits are converted.
        splits = {name: KEYS[f"model.{name}"].default for name in SPLIT_KEYS}
        return _full_keys({"name": record.model, **model, **splits}, data)
    if run:
        config = load_config(run / "config.yaml")
        names = ("name", "img_size", "num_classes", "qk_scale", *SPLIT_KEYS)
        model = {name: getattr(config.model, name) for name in names}
        return _full_keys(model, {name: getattr(config.data, name) for name in DATA_KEYS})
    return {}


def _full_keys(model, data):
    chosen = {f"data.{name}": data[name] for name in DATA_KEYS}
    return {**{f"model.{name}": value for name, value in model.items()}, **chosen}


def _value(config, name):
    section, _, leaf = name.partition(".")
    return getattr(getattr(config, section), leaf)
