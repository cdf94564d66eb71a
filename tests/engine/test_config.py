"""Configuration: overlays, coercion, and one line for every mistake."""

import dataclasses
import subprocess
import sys

import pytest
from engine.config import ConfigError, load_config, project_path, save_config
from engine.schema import Config


@pytest.fixture
def write(tmp_path):
    """Write a YAML file into the test's folder and return its path."""

    def write_file(text, name="run.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write_file


def message(path, *overrides):
    """The one line that the loading ends with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_importing_needs_no_paddle(root):
    code = "import sys; import engine.config; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root / "tools", timeout=60).returncode == 0


# ---------------------------------------------------------------- overlays and round trip


def test_later_layers_win(write):
    write("train: {lr: 0.1, epochs: 50}\ndata: {name: Base}\n", "base.yaml")
    write("base: base.yaml\ntrain: {lr: 0.2, seed: 1}\n", "middle.yaml")
    file = write("base: middle.yaml\ntrain:\n  seed: 2\nval:\n")
    config = load_config(file, ["train.seed=3", "train.seed=4", "device=cpu", "val.weights=a=b"])
    assert (config.train.lr, config.train.epochs, config.train.seed) == (0.2, 50, 4)
    assert (config.data.name, config.device, config.val.weights) == ("Base", "cpu", "a=b")
    assert config.model == Config().model


def test_base_is_relative_to_its_file_and_path_to_the_working_directory(write, tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    write("train: {seed: 5}\n")
    write("base: ../run.yaml\ndata: {name: Deep}\n", "deep/over.yaml")
    monkeypatch.chdir(tmp_path / "deep")
    assert load_config("over.yaml").train.seed == 5


def test_base_cycle_and_missing_base(write, tmp_path):
    write("base: b.yaml\n", "a.yaml")
    write("base: a.yaml\n", "b.yaml")
    assert "leads back to itself" in message(tmp_path / "a.yaml")
    text = message(write("base: gone.yaml\n"))
    assert str(tmp_path / "gone.yaml") in text and "run.yaml names as base" in text
    assert "base=5" in message(write("base: 5\n"))


def test_saved_file_reads_back_equal(write, tmp_path, root):
    for source in (write("{}"), *sorted((root / "config").glob("*.yaml"))):
        for overrides in ((), ("train.lr=3e-7", "train.warmup_lr=1e-9", "train.min_lr=0", "train.clip_grad=1")):
            config = load_config(source, overrides)
            save_config(config, tmp_path / "saved.yaml")
            assert load_config(tmp_path / "saved.yaml") == config
    odd = load_config(source, ["output=null", "data.name=true: # [x", "val.weights= é 'a\"", "data.val_list=1e3"])
    save_config(odd, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == odd
    assert [file.name for file in tmp_path.glob("*partial*")] == []


def test_save_to_a_bad_place_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        save_config(Config(), tmp_path / "gone" / "config.yaml")
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        save_config(Config(), tmp_path / "config.yaml")
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_config_is_frozen_and_paths_start_at_the_root(root):
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().train.lr = 1
    assert project_path("lit_data/x") == root / "lit_data" / "x"
    assert str(project_path("/data/x")) == "/data/x"
    with pytest.raises(ConfigError, match="empty"):
        project_path("")


# ---------------------------------------------------------------- coercion


def test_numbers_written_as_text_become_numbers(write):
    config = load_config(write("train: {lr: 1e-3, weight_decay: 5e-2, min_lr: '1e-5', clip_grad: 1, seed: '7'}\n"))
    assert (config.train.lr, config.train.weight_decay, config.train.min_lr) == (1e-3, 5e-2, 1e-5)
    assert type(config.train.clip_grad) is float and config.train.seed == 7


@pytest.mark.parametrize("text", ["0.5,1", "[0.5,1]", "[ 0.5 , 1.0 ]", "5e-1, 1"])
def test_lists_on_the_command_line(write, text):
    assert load_config(write("{}"), [f"data.scale={text}"]).data.scale == (0.5, 1.0)


@pytest.mark.parametrize("text", ["null", "none", "None", "", "~"])
def test_nothing_for_optional_keys(write, text):
    file = write("train: {clip_grad: 1.0, max_steps: 3}\nval: {target_acc: 0.5}\ndata: {val_list: a}\n")
    keys = ("train.clip_grad", "train.max_steps", "val.target_acc", "data.val_list")
    config = load_config(file, [f"{key}={text}" for key in keys])
    assert (config.train.clip_grad, config.train.max_steps, config.val.target_acc) == (None, None, None)
    assert config.data.val_list is None


def test_booleans_and_the_words_yaml_reads_as_booleans(write):
    config = load_config(write("data: {drop_last: false}\ntrain: {amp: off}\n"), ["data.use_shared_memory=False"])
    assert (config.data.drop_last, config.data.use_shared_memory, config.train.amp) == (False, False, "off")


@pytest.mark.parametrize(
    ("yaml_text", "parts"),
    [
        ("train: {lr: fast}", ["train.lr=fast", "finite number"]),
        ("train: {lr: .nan}", ["train.lr=nan", "finite number"]),
        ("train: {lr: .inf}", ["train.lr=inf", "finite number"]),
        ("train: {lr: 1e999}", ["train.lr=1e999", "finite number"]),
        ("train: {lr: true}", ["train.lr=True", "finite number"]),
        ("train: {lr: null}", ["train.lr=null", "finite number"]),
        ("train: {clip_grad: [1]}", ["train.clip_grad=[1]", "finite number", "or null"]),
        ("train: {epochs: true}", ["train.epochs=True", "whole number"]),
        ("train: {epochs: 3.0}", ["train.epochs=3.0", "whole number"]),
        ("train: {epochs: 1e2}", ["train.epochs=1e2", "whole number"]),
        ("data: {drop_last: 1}", ["data.drop_last=1", "true or false"]),
        ("data: {drop_last: 'yes'}", ["data.drop_last=yes", "true or false"]),
        ("data: {name: 5}", ["data.name=5", "text"]),
        ("data: {train_dir: }", ["data.train_dir=null", "text"]),
        ("data: {scale: 0.5}", ["data.scale=0.5", "list of 2"]),
        ("data: {scale: [0.5, 1, 1]}", ["data.scale=[0.5, 1, 1]", "list of 2"]),
        ("data: {mean: [0.5, x, 1]}", ["data.mean", "list of 3"]),
        ("data: {mean: [0.5, .nan, 1]}", ["data.mean", "list of 3"]),
        ("data: {mean: {a: 1}}", ["data.mean", "list of 3"]),
    ],
)
def test_wrong_type_names_key_value_source_and_type(write, yaml_text, parts):
    text = message(write(yaml_text))
    assert all(part in text for part in [*parts, "run.yaml"]), text


def test_wrong_type_on_the_command_line(write):
    text = message(write("{}"), "train.epochs=ten")
    assert text == "train.epochs=ten (command line): expected a whole number"


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("train.epochs=0", "at least 1"),
        ("train.batch_size=0", "at least 1"),
        ("val.batch_size=-1", "at least 1"),
        ("train.lr=0", "above 0"),
        ("train.weight_decay=-0.1", "at least 0"),
        ("train.smoothing=1", "below 1"),
        ("train.max_steps=0", "at least 1"),
        ("train.seed=-1", "at least 0"),
        ("train.min_lr=0.5", "train.lr=0.001"),
        ("train.warmup_lr=0.5", "train.lr=0.001"),
        ("data.workers=-1", "at least 0"),
        ("data.crop_pct=0", "above 0 and at most 1"),
        ("data.crop_pct=1.5", "above 0 and at most 1"),
        ("data.hflip=1.1", "at least 0 and at most 1"),
        ("data.std=1,1,0", "above 0"),
        ("data.scale=1,0.5", "smaller number first"),
        ("data.scale=0,1", "above 0"),
        ("data.ratio=2,1", "smaller number first"),
        ("data.interpolation=nearest", "bilinear, bicubic"),
        ("data.resize=pad", "crop, squash"),
        ("data.on_error=ignore", "stop, skip"),
        ("device=tpu", "auto, cpu, gpu"),
        ("model.num_classes=1", "at least 2"),
        ("model.drop_path=1", "below 1"),
        ("model.img_size=200", "192 and 208"),
        ("model.img_size=0", "at least 16"),
        ("val.target_acc=71.56", "at most 1"),
        ("output=", "empty"),
    ],
)
def test_value_out_of_range(write, override, part):
    text = message(write("{}"), override)
    assert text.startswith(override.split("=")[0] + "=") and part in text and "command line" in text


def test_a_bad_default_of_a_joint_rule_says_where_it_comes_from(write):
    assert "train.min_lr=1e-05 (default): must not be above train.lr=1e-06" in message(write("{}"), "train.lr=1e-6")


def test_warmup_and_cooldown_must_leave_room_except_in_trials(write):
    file = write("{}")
    for epochs in (1, 2, 20, 21, 310):
        assert load_config(file, [f"train.epochs={epochs}"]).train.epochs == epochs
    text = message(file, "train.epochs=21", "train.warmup_epochs=11")
    assert "train.epochs=21" in text and "= 21" in text and "at most 20" in text


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("value", ["O1", "on", "true", "O2"])
def test_mixed_precision_has_three_spellings(write, value):
    assert "must be one of off, fp16, bf16" in message(write(f"train: {{amp: {value}}}"))


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("lr=1", "did you mean train.lr?"),
        ("train.epoch=1", "did you mean train.epochs?"),
        ("data.batch_size=1", "did you mean train.batch_size or val.batch_size?"),
        ("model.zzz=1", "keys of model: name, img_size"),
        ("foo.bar=1", "sections: model, data, train, val"),
        ("base=x", "sections:"),
        ("train=5", "write train.key=value"),
        ("train.lr", "expected section.key=value"),
        ("--lr", "expected section.key=value"),
    ],
)
def test_unknown_keys_on_the_command_line(write, override, hint):
    text = message(write("{}"), override)
    assert hint in text and "command line" in text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("train: {epoch: 1}", ["unknown key 'train.epoch'", "run.yaml", "train.epochs"]),
        ("trian: {epochs: 1}", ["unknown key 'trian'", "run.yaml", "did you mean train?"]),
        ("train.lr: 1", ["unknown key 'train.lr'", "write 'lr:' under 'train:'"]),
        ("1: 2", ["unknown key '1'"]),
        ("train: 5", ["train=5", "is a section"]),
        ("train: {lr: 1, lr: 2}", ["line 1", "'lr' is written twice"]),
        ("train:\n  lr: 1\ndata:\n  name: a\ntrain:\n  seed: 2\n", ["line 5", "'train' is written twice"]),
        ("- a\n- b\n", ["expected sections"]),
        ("", ["expected sections", "null"]),
        ("train:\n  lr: [1\nval: 2\n", ["run.yaml, line 3", "not valid YAML"]),
        ("train:\n\tlr: 1\n", ["run.yaml, line 2", "not valid YAML"]),
        ("data: {name: !!python/object/apply:os.system [ls]}", ["line 1", "not valid YAML"]),
        ("data: {name: 2024-13-45}", ["not valid YAML"]),
        ("a: 1\n---\nb: 1\n", ["not valid YAML"]),
    ],
)
def test_mistakes_in_files(write, text, parts):
    found = message(write(text))
    assert all(part in found for part in parts), found


def test_files_that_are_no_configuration(tmp_path, write):
    (tmp_path / "photo.yaml").write_bytes(b"\xff\xd8\xff\xe0 no text")
    assert "not a text file" in message(tmp_path / "photo.yaml")
    (tmp_path / "zero.yaml").write_bytes(b"a: \x00\x01")
    assert "not a text file" in message(tmp_path / "zero.yaml")
    assert "cannot read" in message(tmp_path)


def test_missing_file_names_the_nearest(tmp_path, root):
    text = message(tmp_path / "t2t_vit7.yaml")
    assert str(tmp_path / "t2t_vit7.yaml") in text and str(root / "config" / "t2t_vit_7.yaml") in text
    assert str(root / "config") in message(tmp_path / "qqqqq.yaml")
