"""Class tables: the shipped one, users' own label files, and what is refused."""

import pytest
from data.classes import IMAGENET_TABLE, ClassTable, imagenet_table, load_class_table, save_class_names
from errors import UserError


def refused(path, num_classes, *parts):
    """The one-line message of the UserError that `load_class_table` must raise; it must hold all `parts`."""
    with pytest.raises(UserError) as caught:
        load_class_table(path, num_classes)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), *parts):
        assert part in message
    return message


def test_imagenet_table_has_the_published_order():
    table = imagenet_table()
    assert len(table.names) == len(table.wnids) == 1000
    assert (table.wnids[0], table.names[0]) == ("n01440764", "tench, Tinca tinca")
    assert (table.wnids[999], table.names[999]) == ("n15075141", "toilet tissue, toilet paper, bathroom tissue")
    assert (table.wnids[282], table.names[282]) == ("n02123159", "tiger cat")
    assert table.wnids == sorted(set(table.wnids))


def test_imagenet_table_names_its_source_and_licence():
    first = IMAGENET_TABLE.read_text(encoding="utf-8").split("\n")[0]
    assert first.startswith("# ") and "timm" in first and "Apache-2.0" in first


def test_label_file_of_ones_own(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_bytes("\ufeff# my classes\r\nred fox\r\nwhippet\u2028hound\r\n #3\r\n".encode())
    assert load_class_table(path, 3) == ClassTable(["red fox", "whippet\u2028hound", "#3"], None)


@pytest.mark.parametrize(("text", "lines"), [("a\nb\n", 2), ("a\nb\nc\nd\n", 4), ("", 0), ("\n\n", 0), ("# only\n", 0)])
def test_wrong_number_of_lines(tmp_path, text, lines):
    path = tmp_path / "labels.txt"
    path.write_text(text, encoding="utf-8")
    refused(path, 3, f"{lines} lines", "expected 3")


def test_imagenet_names_never_serve_another_number_of_classes():
    refused(IMAGENET_TABLE, 10, "1000 lines", "expected 10")


def test_empty_line(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("# top\na\n  \nc\n", encoding="utf-8")
    refused(path, 3, "line 3", "empty")


@pytest.mark.parametrize("second", ["2\tn2\tb", "1\tn1", "1 n1 b", "1\t\tb", "1\tn1\tb\textra"])
def test_broken_table_line(tmp_path, second):
    path = tmp_path / "table.tsv"
    path.write_text(f"0\tn0\ta\n{second}\n", encoding="utf-8")
    refused(path, 2, "line 2", "with id 1")


def test_unreadable_files(tmp_path):
    refused(tmp_path / "absent.txt", 2, "No such file")
    refused(tmp_path, 2, "cannot be read")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("bär\nwolf\n".encode("latin-1"))
    refused(latin, 2, "not UTF-8", "byte 1")


def test_saved_names_read_back_unchanged(tmp_path):
    names = ["crane", "crane", "#7", "猫", "tiger cat, tabby", "whippet\u2028hound"]
    path = tmp_path / "names.txt"
    path.write_text("old", encoding="utf-8")
    save_class_names(names, path)
    assert load_class_table(path, len(names)) == ClassTable(names, None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["names.txt"]


@pytest.mark.parametrize("name", ["", "a\tb", "a\nb", "a\rb", " a", "a ", "# a"])
def test_names_that_a_line_cannot_hold(tmp_path, name):
    path = tmp_path / "names.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(UserError, match="class 1"):
        save_class_names(["fine", name], path)
    assert path.read_text(encoding="utf-8") == "old"
