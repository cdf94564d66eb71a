"""The command that prints the paper's tables and draws its Figure 1."""

import csv
import io
import os
import re

import pytest
import t2t
from commands import mistake, run
from models import ROWS, cnn
from models.paper import TABLES
from PIL import Image

NUMERIC = re.compile(r"[+-]?\d+(\.\d+)?( %)?")


def parsed(text):
    """Markdown as dict number of table -> (headings, rows of cells, lines of the list below); asserts its form."""
    found = {}
    for number, part in re.findall(r"^## Table (\d): .*?\n\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S):
        grid, _, below = part.partition("\n\n")
        lines = grid.splitlines()
        assert all(line.startswith("|") and line.endswith("|") for line in lines)
        cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
        assert len({len(line) for line in cells}) == 1 and len({len(line) for line in lines}) == 1
        assert all(re.fullmatch(r"-{3,}:?", rule) for rule in cells[1]) and all(cells[0])
        right = [rule.endswith(":") for rule in cells[1]]
        # On the terminal too, numbers end and texts begin at the same place in every line.
        for line in (lines[0], *lines[2:]):
            for cell, is_number in zip(line[1:-1].split("|"), right):
                assert cell[0] == cell[-1] == " " and cell[-2 if is_number else 1] != " "
        found[int(number)] = cells[0], cells[2:], below.splitlines(), right
    return found


@pytest.fixture(scope="module")
def markdown():
    outcome = run("tables")
    assert (outcome.code, outcome.err) == (0, "")
    return parsed(outcome.out)


@pytest.fixture(scope="module")
def rows():
    """The rows of all tables as CSV gives them."""
    outcome = run("tables", "--format", "csv")
    assert (outcome.code, outcome.err) == (0, "")
    return list(csv.DictReader(io.StringIO(outcome.out), strict=True))


@pytest.mark.parametrize("number", TABLES)
def test_each_table_in_markdown(markdown, number):
    headings, cells, below, right = markdown[number]
    table = TABLES[number]
    model = headings.index("model")
    assert [line[model] for line in cells] == [row.title for row in table.rows]
    for line, row in zip(cells, table.rows):
        assert line[headings.index("name here")] == (f"`{row.name}`" if row.name else "-")
        assert line[headings.index("params printed, M")] == str(row.params)
        if row.built:
            assert line[headings.index("ours, M")] == f"{row.built.params / 1e6:.3f}"
        if row.remark:
            assert any(row.title in note and note.endswith(row.remark) for note in below), row.title
    # Numbers stand on the right, and no column is empty.
    for heading, column, is_number in zip(headings, zip(*cells), right):
        assert set(column) != {"-"}
        assert is_number == (heading not in ("type", "model", "name here", "T2T layers", "measured by"))
        assert not is_number or all(NUMERIC.fullmatch(cell) or cell in ("-", "128-736", "128-584") for cell in column)
    assert any("**difference**" in line for line in below) == (number == 7), "the meaning of the columns ends the text"


def test_columns_are_those_that_the_paper_has(markdown):
    assert {"depth", "hidden", "MLP", "T2T layers"} <= set(markdown[1][0])
    assert not {"top-1 published", "top-1 measured"} & set(markdown[1][0])
    assert {"CIFAR-10 published", "CIFAR-100 published"} <= set(markdown[5][0]) and "ours, G" not in markdown[5][0]
    assert {"type", "depth", "hidden", "change published"} <= set(markdown[6][0]) and "MLP" not in markdown[6][0]
    assert {"type", "change published"} <= set(markdown[7][0]) and "depth" not in markdown[7][0]


@pytest.mark.parametrize(("number", "line"), [
    (1, "T2T-ViT-7 | `t2t_vit_7` | Performer | 8 | 256 | 512 | 4.2 | 4.310 | +2.6 % | 1.1 | 1.156 | +5.1 %"),
    (2, "DeiT-small | - | 22.1 | - | - | 4.6 | - | - | 79.9 | - | -"),
    (2, "T2T-ViT-14↑384 | `t2t_vit_14_384` | 21.5 | 21.691 | +0.9 % | 17.1 | 16.418 | -4.0 % | 83.3 | 83.34 | "
        "PaddleViT, crop 1.0"),
    (3, "ResNet152* | `resnet152` | 60.2 | 60.193 | +0.0 % | 11.6 | 11.514 | -0.7 % | 80.8 | - | -"),
    (3, "T2T-ViT_t-19 | `t2t_vit_t_19` | 39.2 | 39.173 | -0.1 % | 9.8 | 9.808 | +0.1 % | 82.2 | 82.44 | "
        "pytorch-image-models PR 2426"),
    (5, "ViT-S/16 | `vit_s_16` | 48.6 | 48.754 | +0.3 % | 78.1 | - | - | 97.1 | 87.1"),
    (6, "CNN to ViT | ViT-SW | `vit_sw` | 4 | 1024 | 47.9 | 48.194 | +0.6 % | 9.9 | 9.570 | -3.3 % | 69.9 | -8.2 | - | "
        "-"),
])  # fmt: skip
def test_lines_by_hand(markdown, number, line):
    assert line.split(" | ") in markdown[number][1]


def test_equal_notes_stand_together(markdown):
    assert "- DeiT-small, DeiT-small-Distilled: Not built here; figures as printed." in markdown[2][2]


def test_csv_has_every_row_and_plain_numbers(rows):
    expected = [(number, row) for number, table in TABLES.items() for row in table.rows]
    assert len(rows) == len(expected) == 69
    text = {"table", "group", "model", "name", "t2t_layer", "hidden", "measured_by", "note"}
    for line, (number, row) in zip(rows, expected):
        assert None not in line and None not in line.values()
        assert (line["table"], line["model"], line["name"]) == (str(number), row.title, row.name or "")
        assert line["note"] == row.remark
        for key in set(line) - text:
            assert re.fullmatch(r"(-?\d+(\.\d+)?)?", line[key]), (key, line[key])
        for key, value in {"params_printed_m": row.params, "macs_printed_g": row.macs, "top1_published": row.top1,
                           "delta_published": row.delta, "depth": row.depth, "mlp": row.mlp,
                           "cifar10_published": row.cifar10, "cifar100_published": row.cifar100}.items():  # fmt: skip
            assert (float(line[key]) if line[key] else None) == value, key


def test_counts_and_differences_in_csv(rows):
    for line in rows:
        for own, printed, difference in (
            ("params_ours_m", "params_printed_m", "params_difference_percent"),
            ("macs_ours_g", "macs_printed_g", "macs_difference_percent"),
        ):
            counted = bool(line["name"]) and line[printed] != ""
            assert (line[own] != "", line[difference] != "") == (counted, counted)
            if counted:
                expected = (float(line[own]) / float(line[printed]) - 1) * 100
                assert float(line[difference]) == pytest.approx(expected, abs=1e-5)
        if line["name"]:
            assert round(float(line["params_ours_m"]) * 1e6) == ROWS[line["name"]].params


def test_only_published_and_measured_accuracies_are_marked(rows):
    assert {line["measured_by"] for line in rows} == {"", "pytorch-image-models PR 2426", "PaddleViT, crop 1.0"}
    for line in rows:
        assert (line["measured_by"] == "") == (line["top1_measured"] == "")
        assert line["top1_measured"] == "" or line["top1_published"] != ""


def test_chosen_tables_in_the_order_given():
    assert list(parsed(run("tables", 5, 2, 5).out)) == [5, 2]
    lines = list(csv.DictReader(io.StringIO(run("tables", "--format", "csv", 7, 1, 7).out)))
    assert [line["table"] for line in lines] == ["7"] * 6 + ["1"] * 9


def test_no_network_is_built(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("a network was built")

    monkeypatch.setattr(t2t.T2TViT, "__init__", refuse)
    monkeypatch.setattr(cnn.CNN, "__init__", refuse)
    assert run("tables").code == 0


@pytest.mark.parametrize(("name", "options", "form"), [
    ("tables.md", (), "markdown"), ("tables.csv", (), "csv"), ("TABLES.CSV", (), "csv"), ("tables", (), "markdown"),
    ("tables.csv", ("--format", "markdown"), "markdown"), ("tables.md", ("--format", "csv"), "csv"),
])  # fmt: skip
def test_output_file(tmp_path, monkeypatch, name, options, form):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("old")
    outcome = run("tables", 3, *options, "--output", name)
    assert outcome == (0, f"written: {name}\n", "")
    assert (tmp_path / name).read_text(encoding="utf-8") == run("tables", 3, "--format", form).out
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_figure_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = run("tables", "--figure", "f1.png")
    assert outcome == (0, "written: f1.png (1800x960)\n", "")
    with Image.open(tmp_path / "f1.png") as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (1800, 960))
    assert [file.name for file in tmp_path.iterdir()] == ["f1.png"]


def test_mistakes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe")
    mistake(run("tables", 8), "8: no such table", "Tables 1 to 7")
    mistake(run("tables", 1, "two"), "two: no such table")
    mistake(run("tables", 0), "0: no such table")
    mistake(run("tables", "--format", "xml"), "--format", "xml", "csv")
    mistake(run("tables", "--output", "gone/t.md"), "--output gone/t.md", "no such folder", "create it")
    mistake(run("tables", "--output", "folder.png"), "--output folder.png", "this is a folder")
    mistake(run("tables", "--output", ""), "--output", "folder")
    mistake(run("tables", "--output", "pipe"), "--output pipe", "device")
    mistake(run("tables", "--output", "~nobody-of-this-name/t.md"), "~nobody-of-this-name", "no such folder")
    mistake(run("tables", "--output", "t" * 300), "cannot write", "name too long")
    mistake(run("tables", "--figure", "gone/f.png"), "--figure gone/f.png", "no such folder")
    mistake(run("tables", "--figure", "folder.png"), "--figure folder.png", "this is a folder")
    mistake(run("tables", "--figure", "f.jpg"), "--figure f.jpg", ".png")
    mistake(run("tables", "--figure", ""), "--figure", ".png")
    for more in (("1",), ("--format", "csv"), ("--output", "t.md")):
        mistake(run("tables", "--figure", "f.png", *more), "--figure", "goes without")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.png", "pipe"] and (tmp_path / "pipe").is_fifo()
