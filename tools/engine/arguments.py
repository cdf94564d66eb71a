"""Command-line arguments that the commands share, and which configuration and weights they mean. Needs no Paddle."""

import argparse
from dataclasses import replace
from pathlib import Path

from errors import UserError
from weights.files import resolve_weights
from weights.record import DATA_KEYS, read_record, record_file

from engine.config import ROOT, load_config, project_path

DEFAULT_CONFIG = ROOT / "config" / "t2t_vit_7.yaml"


class Parser(argparse.ArgumentParser):
    """Reports mistakes in one line, as a UserError, and takes options and positional words in any order."""

    def error(self, message):
        """Called by argparse."""
        raise UserError(f"{message}; {self.prog} --help tells what there is")

    def parse_args(self, args=None, namespace=None):
        """As argparse's, but `a=1 --config C b=2` is understood too."""
        return self.parse_intermixed_args(args, namespace)


def add_config(parser, default="config/t2t_vit_7.yaml"):
    """--config FILE and key=value ..., which every command takes. default: words for the help text."""
    parser.add_argument("--config", metavar="FILE", help=f"YAML file (default: {default})")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, such as train.lr=1e-3")


def add_weights(parser):
    """--weights W, which val and predict take."""
    parser.add_argument(
        "--weights", metavar="W", help=".pdparams file or run folder (default: val.weights of the configuration)"
    )


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
        return load_config(DEFAULT_CONFIG, overrides, record=_settings_of(record), source=source), weights
    run = run_folder_of(weights)
    return load_config(run / "config.yaml" if run else DEFAULT_CONFIG, overrides), weights


def run_folder_of(weights):
    """The run folder that holds the file `weights`, or None where no config.yaml lies beside it."""
    folder = Path(weights).parent
    return folder if (folder / "config.yaml").is_file() else None


def starting_point(config):
    """(Config, Path or None) of a training: model.name settled, and the weights file that train.init means.

    A run folder with checkpoints goes on from these and needs train.init no more, which may be gone by then. Raises
    UserError for weights that are missing and for a network that nothing names.
    """
    output = project_path(config.output)
    if (output / "config.yaml").is_file() and any((output / "checkpoints").glob("epoch-*.npz")):
        return complete(config, output / "config.yaml", "output", ("name",)), None
    if config.train.init:
        init = resolve_weights(project_path(config.train.init))
        return complete(config, init, "train.init", ("name",)), init
    if config.model.name is None:
        raise UserError(
            "model.name is null and train.init is not set; give weights to start from, train.init=FILE_OR_RUN_FOLDER, "
            "or a network to train from scratch, model.name=t2t_vit_7"
        )
    return config, None


def complete(config, weights, key, names=("name", "num_classes")):
    """`config` with a model.name or model.num_classes of null replaced by what the record or run of `weights` says.

    With the name goes model.qk_scale, which belongs to it. key: what names the weights, for messages; names: which of
    the two to replace. Raises UserError where nothing tells.
    """
    model = config.model
    lacking = [name for name in names if getattr(model, name) is None]
    if not lacking:
        return config
    known = known_model(weights)
    if known is None:
        raise UserError(
            f"model.{lacking[0]} is null and {weights} ({key}) has neither a run's config.yaml nor a record beside it; "
            f"set model.{lacking[0]}=..."
        )
    changed = {name: known[name] for name in lacking}
    if "name" in changed and model.qk_scale is None:
        changed["qk_scale"] = known["qk_scale"]
    return replace(config, model=replace(model, **changed))


def known_model(weights):
    """name, img_size, num_classes, qk_scale of the network of a weights file as a dict, or None where nothing tells.

    Read from its record, else from the config.yaml of its run.
    """
    record, run = read_record(weights), run_folder_of(weights)
    if record is None and run is None:
        return None
    source = record or load_config(run / "config.yaml").model
    return {
        "name": record.model if record else source.name,
        "img_size": source.img_size,
        "num_classes": source.num_classes,
        "qk_scale": source.qk_scale,
    }


def _settings_of(record):
    settings = {
        "model.name": record.model, "model.img_size": record.img_size, "model.num_classes": record.num_classes,
        "model.qk_scale": record.qk_scale,
        # The target of the default configuration is another network's.
        "val.target_acc": None,
    }  # fmt: skip
    return {**settings, **{f"data.{key}": record.data[key] for key in DATA_KEYS}}
