"""Command-line arguments that the commands share, and which configuration and weights they mean. Needs no Paddle."""

import argparse
from pathlib import Path

from errors import UserError
from weights.files import resolve_weights

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
    """Configuration and weights file: (Config, Path). Weights of a run come with the run's own configuration.

    config_file, weights: as given on the command line, or None; relative to the working directory, while val.weights
    in the configuration is relative to the project's root. Raises UserError for either that is missing.
    """
    if weights is None:
        config = load_config(config_file or DEFAULT_CONFIG, overrides)
        return config, resolve_weights(project_path(config.val.weights) if config.val.weights else "")
    weights = resolve_weights(weights)
    run = run_folder_of(weights)
    return load_config(config_file or (run / "config.yaml" if run else DEFAULT_CONFIG), overrides), weights


def run_folder_of(weights):
    """The run folder that holds the file `weights`, or None where no config.yaml lies beside it."""
    folder = Path(weights).parent
    return folder if (folder / "config.yaml").is_file() else None
