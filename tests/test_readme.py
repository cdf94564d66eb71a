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
    lines = [line for line in text.splitlines() if line.startswith("| `t2t_")]
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


def test_no_placeholder_is_left(text):
    assert not re.findall(r"[A-Z]+_[A-Z]+_?[A-Z]*(?:LINE|TABLE|ACC)\b", text)
