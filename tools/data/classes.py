"""From a class id to its name: the shipped ImageNet table, or a user's own label file.

Two formats, told apart by the first line of data:

* a table, `id<TAB>wnid<TAB>name` per line, ids 0, 1, 2, ... in order (`lit_data/imagenet_classes.tsv`);
* a label file, one name per line; the line number counted from 0 is the id.

Lines at the top that start with `# ` are comments. Callers without a table print ids only: names of
ImageNet must never be shown for the classes of somebody's own data.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from errors import UserError

IMAGENET_TABLE = Path(__file__).resolve().parents[2] / "lit_data" / "imagenet_classes.tsv"
COMMENT = "# "


@dataclass(frozen=True)
class ClassTable:
    """Names of the classes 0 ... N-1 and, for a table with WordNet ids, those too.

    names: N strings. wnids: N strings such as "n01440764", or None.
    """

    names: list
    wnids: Optional[list] = None


def load_class_table(path, num_classes):
    """Read a table or a label file of exactly `num_classes` classes into a `ClassTable`.

    Raises UserError naming the file, and the line where there is one, if it cannot be read as UTF-8 text, has another
    number of lines than `num_classes`, an empty line, or a table line that is not `id<TAB>wnid<TAB>name` in order.
    """
    rows = _read_lines(path)
    if len(rows) != num_classes:
        raise UserError(
            f"class names {path}: {len(rows)} lines, expected {num_classes} (one per class of the model); "
            "give a file with one line per class or set model.num_classes"
        )
    for number, row in rows:
        if not row.strip():
            raise UserError(f"class names {path}, line {number}: empty; every class needs a name")
    if "\t" not in rows[0][1]:
        return ClassTable([row.strip() for _, row in rows])
    return _parse_table(path, rows)


def imagenet_table():
    """The `ClassTable` of the 1,000 ImageNet-1k classes that ships with the project (id 0 is n01440764)."""
    return load_class_table(IMAGENET_TABLE, 1000)


def save_class_names(names, path):
    """Write `names` (a sequence of str, id order) as a label file that `load_class_table` reads back unchanged.

    Raises UserError for a name that one line cannot hold. An existing file is replaced only once the new one is whole.
    """
    for index, name in enumerate(names):
        if name != name.strip() or not name or any(mark in name for mark in "\t\r\n") or name.startswith(COMMENT):
            raise UserError(
                f"class {index}: name {name!r} cannot be a line of {path}; use a name without tabs, line breaks, "
                f"blanks at its ends or a leading {COMMENT!r}"
            )
    path = Path(path)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    os.replace(unfinished, path)


def _read_lines(path):
    """The file's lines as (line number from 1, text) without the comments at its top and the line breaks at its end."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"class names {path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"class names {path}: cannot be read ({error.strerror}); check the path") from error
    # str.splitlines would also break at characters that a name may hold.
    rows = list(enumerate(text.rstrip("\n").split("\n"), start=1)) if text.strip() else []
    while rows and rows[0][1].startswith(COMMENT):
        del rows[0]
    return rows


def _parse_table(path, rows):
    names, wnids = [], []
    for expected, (number, row) in enumerate(rows):
        fields = [field.strip() for field in row.split("\t")]
        if len(fields) != 3 or not all(fields) or fields[0] != str(expected):
            raise UserError(
                f"class names {path}, line {number}: {row!r}, expected id<TAB>wnid<TAB>name with id {expected}; "
                "mend the line, or give plain names without tabs"
            )
        wnids.append(fields[1])
        names.append(fields[2])
    return ClassTable(names, wnids)
