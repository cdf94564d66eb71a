"""Print Tables 1 to 7 of the paper with this project's counts beside the printed ones, or draw its Figure 1.

`python tools/tables.py 3 4 --format csv --output tables.csv`; `python tools/tables.py --figure figure1.png`. No network
is built: the counts are those that tests lock to the code.
"""

import csv
import io
import os
import sys
from pathlib import Path
from typing import Callable, NamedTuple

from engine.arguments import Parser, short_path
from errors import UserError, run_command
from startup import import_paddle

NUMBERS = tuple("1234567")
FORMATS = ("markdown", "csv")
LEGEND = """\
- **printed**: in the paper. **ours**: this project's exact count, locked by tests, with frozen tensors. **difference**:
  ours less printed, in percent of printed; up to half of the last printed digit is rounding.
- **MACs** of one image: matrix products, those of the attention included, convolutions, and five operations per element
  of a LayerNorm. What the paper counts besides, where it prints more, is not known.
- **top-1** and other accuracies, in percent: **published** in the paper; **measured** by others, *measured by*, on the
  official weights. This project has measured none of them: no log in log/ holds an accuracy on these data sets.
- A dash: not printed, not measured, or no network of this project."""


class Column(NamedTuple):
    """A column: its key in CSV, its heading in Markdown, the value of a row or None, and that as a Markdown cell."""

    key: str
    heading: str
    value: Callable
    shape: Callable = "{}".format
    number: bool = True


def percent(own, printed):
    """`own` less `printed` in percent of `printed`, or None where either lacks."""
    return None if own is None or printed is None else 100 * (own - printed) / printed


def percentage(value):
    """Text with sign and one digit; what rounds to nothing is +0.0."""
    return f"{round(value, 1) + 0.0:+.1f} %"


COLUMNS = (
    Column("group", "type", lambda row: row.group, number=False),
    Column("model", "model", lambda row: row.title, number=False),
    Column("name", "name here", lambda row: row.name, "`{}`".format, number=False),
    Column("t2t_layer", "T2T layers", lambda row: row.layer, number=False),
    Column("depth", "depth", lambda row: row.depth),
    Column("hidden", "hidden", lambda row: row.hidden),
    Column("mlp", "MLP", lambda row: row.mlp),
    Column("params_printed_m", "params printed, M", lambda row: row.params),
    Column("params_ours_m", "ours, M", lambda row: row.own_params, "{:.3f}".format),
    Column("params_difference_percent", "difference", lambda row: percent(row.own_params, row.params), percentage),
    Column("macs_printed_g", "MACs printed, G", lambda row: row.macs),
    Column("macs_ours_g", "ours, G", lambda row: row.own_macs, "{:.3f}".format),
    Column("macs_difference_percent", "difference", lambda row: percent(row.own_macs, row.macs), percentage),
    Column("top1_published", "top-1 published", lambda row: row.top1),
    Column("delta_published", "change published", lambda row: row.delta, "{:+.1f}".format),
    Column("top1_measured", "top-1 measured", lambda row: row.measured and row.measured.top1, "{:.2f}".format),
    Column("measured_by", "measured by", lambda row: row.measured and row.measured.by, number=False),
    Column("cifar10_published", "CIFAR-10 published", lambda row: row.cifar10),
    Column("cifar100_published", "CIFAR-100 published", lambda row: row.cifar100),
)


def parse(argv):
    """The arguments, checked before anything is loaded. Raises UserError."""
    parser = Parser(prog="tables.py", description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="N", help="numbers of tables, 1 to 7 (default: all)")
    parser.add_argument("--format", choices=FORMATS, help="default: csv for an --output named .csv, else markdown")
    parser.add_argument("--output", metavar="FILE", help="file to write instead, replaced if it is there")
    parser.add_argument("--figure", metavar="PNG", help="draw Figure 1 into this file, replaced likewise")
    args = parser.parse_args(argv)
    unknown = [word for word in args.tables if word not in NUMBERS]
    if unknown:
        raise UserError(f"{unknown[0]}: no such table; the paper has Tables 1 to 7")
    if args.figure is not None and (args.tables or args.format or args.output is not None):
        parser.error("argument --figure: goes without tables, --format and --output")
    if args.figure is not None and Path(args.figure).suffix.lower() != ".png":
        raise UserError(f"--figure {args.figure}: the picture is a PNG; let the name end in .png")
    args.output, args.figure = (place(args, option) for option in ("output", "figure"))
    return args


def place(args, option):
    """The absolute path that an option names, or None. Raises UserError where no file can be put."""
    given = getattr(args, option)
    if given is None:
        return None
    # Other than pathlib's, these take names that are too long and homes of nobody.
    path = os.path.abspath(os.path.expanduser(given))
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"--{option} {given}: this is a folder or a device; name a file")
    if not os.path.isdir(os.path.dirname(path)):
        raise UserError(f"--{option} {given}: no such folder: {os.path.dirname(path)}; create it or choose another")
    return Path(path)


def main(argv=None):
    """Print or write the tables, or draw the figure. Raises UserError."""
    args = parse(argv)
    import_paddle()
    from models.paper import TABLES

    if args.figure:
        draw(args.figure)
        return 0
    chosen = [TABLES[int(word)] for word in dict.fromkeys(args.tables or NUMBERS)]
    suffix = Path(args.output or "").suffix.lower()
    text = (as_csv if (args.format or suffix[1:]) == "csv" else as_markdown)(chosen)
    if args.output is None:
        print(text, end="")
        return 0
    from weights.atomic import whole_file

    with whole_file(args.output) as partial:
        partial.write_bytes(text.encode("utf-8"))
    print(f"written: {short_path(args.output)}")
    return 0


def as_csv(tables):
    """The tables below one another as CSV with one header: empty where nothing is printed, numbers without units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", *(column.key for column in COLUMNS), "note"])
    for table in tables:
        for row in table.rows:
            values = (column.value(row) for column in COLUMNS)
            plain = (round(value, 6) + 0.0 if isinstance(value, float) else value for value in values)
            writer.writerow([table.number, *plain, row.remark])
    return out.getvalue()


def as_markdown(tables):
    """The tables as Markdown, each with its notes below, and what the columns mean at the end."""
    parts = []
    for table in tables:
        parts += [f"## Table {table.number}: {table.title}", "\n".join(grid(table)), "\n".join(notes(table))]
    return "\n\n".join(part for part in [*parts, LEGEND] if part) + "\n"


def grid(table):
    """Lines of a Markdown table, aligned for the terminal, without the columns that hold nothing in this table."""
    columns, texts = [], []
    for column in COLUMNS:
        values = [column.value(row) for row in table.rows]
        if any(value not in (None, "") for value in values):
            columns.append(column)
            texts.append(["-" if value in (None, "") else column.shape(value) for value in values])
    cells = [[column.heading, *text] for column, text in zip(columns, texts)]
    widths = [max(map(len, column)) for column in cells]
    rule = "|".join("-" * (width + 1) + (":" if column.number else "-") for column, width in zip(columns, widths))
    sides = [str.rjust if column.number else str.ljust for column in columns]
    lines = [" | ".join(side(*pair) for side, *pair in zip(sides, line, widths)) for line in zip(*cells)]
    return [f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])]


def notes(table):
    """Lines of a Markdown list: what disagrees or is open in the rows, equal remarks together."""
    found = {}
    for row in table.rows:
        if row.remark:
            found.setdefault(row.remark, []).append(row.title)
    return [f"- {', '.join(titles)}: {remark}" for remark, titles in found.items()]


def draw(path):
    """Draw Figure 1 into a PNG file and print its name."""
    from models import paper
    from pictures import figure1
    from weights.atomic import whole_file

    picture = figure1.draw(paper.FIGURE_1_TITLE, paper.FIGURE_1_NOTE, paper.figure_1(), paper.FIGURE_1_LOOSE)
    with whole_file(path) as partial:
        picture.save(partial, "PNG")
    print(f"written: {short_path(path)} ({picture.width}x{picture.height})")


if __name__ == "__main__":
    sys.exit(run_command(main))
