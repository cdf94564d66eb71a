"""Arguments that the commands share, and which configuration and weights they mean."""

import shutil

import pytest
from engine.arguments import Parser, add_config, add_weights, run_folder_of, settle
from engine.config import ConfigError, load_config, save_config
from errors import UserError
from weights.files import WeightsError
from weights.paddle_file import save_weights


@pytest.fixture
def parser():
    parser = Parser(prog="some.py")
    add_config(parser)
    add_weights(parser)
    return parser


@pytest.fixture
def run(tmp_path, root):
    """A run folder of a network at 32 px."""
    folder = tmp_path / "run"
    folder.mkdir()
    save_config(load_config(root / "config" / "t2t_vit_7.yaml", ["model.img_size=32"]), folder / "config.yaml")
    for name in ("best", "last"):
        save_weights({"x": [1.0]}, folder / name)
    return folder


def test_order_of_words_is_free(parser):
    for words in ("--config C a=1 b=2 --weights W", "a=1 --weights W b=2 --config C", "a=1 b=2 --config=C --weights=W"):
        args = parser.parse_args(words.split())
        assert (args.config, args.weights, args.overrides) == ("C", "W", ["a=1", "b=2"]), words
    args = parser.parse_args([])
    assert (args.config, args.weights, args.overrides) == (None, None, [])


@pytest.mark.parametrize("words", ["--nonsense", "--config", "a=1 --weights", "--weights W --nonsense=3 a=1"])
def test_mistakes_are_one_line_that_names_the_help(parser, words):
    with pytest.raises(UserError, match=r"--(nonsense|config|weights).*; some\.py --help") as caught:
        parser.parse_args(words.split())
    assert "\n" not in str(caught.value)


def test_help_ends_well_and_names_everything(parser, capsys):
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("--config FILE", "--weights W", "key=value", "config/t2t_vit_7.yaml"))


def test_weights_of_a_run_bring_its_configuration(run, monkeypatch):
    for given in (run, f"{run}/", run / "best", run / "best.pdparams"):
        config, weights = settle(None, given, ["data.name=X"])
        assert (config.model.img_size, config.data.name) == (32, "X")
        assert weights == run / "best.pdparams" and run_folder_of(weights) == run
    assert settle(None, run / "last", [])[1] == run / "last.pdparams"
    monkeypatch.chdir(run.parent)
    assert settle(None, "run", [])[1] == run / "best.pdparams", "--weights is relative to the working directory"


def test_a_given_configuration_wins_over_that_of_the_run(run, root):
    config, weights = settle(root / "config" / "quickstart.yaml", run, [])
    assert config.data.name == "Digits" and weights == run / "best.pdparams"


def test_weights_outside_of_a_run_take_the_default(run, tmp_path):
    shutil.move(run / "last.pdparams", tmp_path / "w.pdparams")
    config, weights = settle(None, tmp_path / "w", [])
    assert config.model.img_size == 224 and config.data.name == "ImageNet"
    assert weights == tmp_path / "w.pdparams" and run_folder_of(weights) is None


def test_weights_of_the_configuration_start_at_the_root(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    monkeypatch.setattr("engine.config.ROOT", run.parent / "root")
    shutil.copytree(run, run.parent / "root" / "output" / "r")
    config, weights = settle(None, None, ["val.weights=output/r"])
    assert weights == run.parent / "root" / "output" / "r" / "best.pdparams"
    assert config.model.img_size == 224, "the configuration stays the default"


def test_what_is_missing_is_told(run, tmp_path):
    with pytest.raises(WeightsError, match="no weights given: .*README"):
        settle(None, None, ["val.weights="])
    with pytest.raises(WeightsError, match=f"weights not found: {tmp_path / 'no'}"):
        settle(None, tmp_path / "no", [])
    with pytest.raises(ConfigError, match="configuration file not found"):
        settle(tmp_path / "no.yaml", run, [])
    with pytest.raises(ConfigError, match="data.nam"):
        settle(None, run, ["data.nam=X"])
