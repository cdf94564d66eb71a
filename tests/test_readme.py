"""Both READMEs against the code: the model table, and that the files and settings they name exist."""

import re

import pytest
from engine.config import load_config
from engine.schema import KEYS
from models import ROWS

READMES = ("README.md", "README_cn.md")


@pytest.fixture(params=READMES)
def text(request, root):
    return (root / request.param).read_text(encoding="utf-8")


def test_the_model_table_is_the_registry(text):
    lines = [line for line in text.splitlines() if re.match(r"\| `\w+` \|", line)]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    expected = [
        (r.name, r.title, r.img_size, f"{r.params:,}", f"{r.trainable:,}", f"{r.macs:.3f} G") for r in ROWS.values()
    ]
    assert [row[:6] for row in rows] == [[str(cell) for cell in row] for row in expected]
    assert [float(row[7].split()[0]) for row in rows] == [r.top1 for r in ROWS.values()]


def test_files_that_are_named_exist(text, root):
    named = set(re.findall(r"\b(?:scripts|tools|config|tests|lit_data|log)/[\w./-]*\w", text))
    assert len(named) > 15
    missing = [name for name in named if not (root / name).exists() and not name.startswith("config/NAME")]
    assert not missing


def test_settings_that_are_named_exist(text):
    keys = set(re.findall(r"\b(?:model|data|train|val)\.(?!log|sh|txt)[a-z_]+", text))
    assert keys and not [key for key in keys if key not in KEYS]


def test_commands_name_configurations_that_load(text, root):
    for name in set(re.findall(r"config/(\w+)\.yaml", text)) - {"NAME"}:
        assert load_config(root / "config" / f"{name}.yaml")


def test_each_release_file_has_its_commands(text, root):
    rows = re.findall(r"\| `(\S+)\.pth\.tar` \| `bash scripts/convert\.sh (\S+) (\S+)` "
                      r"\| `bash scripts/val\.sh (\S+) \$IMAGENET` \| ([\d.]+) \|", text)  # fmt: skip
    assert len(rows) == len(set(rows)) == 11
    for name, source, target, config_file, top1 in rows:
        assert source == f"{name}.pth.tar" and name.startswith(f"{top1}_")
        config = load_config(root / config_file)
        # What convert writes is what val reads, and the target is the published figure less a small allowance.
        assert config.val.weights == target and config.val.target_images == 50000
        assert 0 < float(top1) / 100 - config.val.target_acc < 0.0015
        size = 384 if name.startswith("83.3") else 224
        assert (config.model.img_size, config.model.num_classes) == (size, 1000)
        family = "t_" if "ViTt" in name else ""
        assert config.model.name == f"t2t_vit_{family}{name.rpartition('_')[2]}"


def test_no_placeholder_is_left(text):
    assert not re.findall(r"[A-Z]+_[A-Z]+_?[A-Z]*(?:LINE|TABLE|ACC)\b", text)
