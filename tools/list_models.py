"""Print the networks: parameters, multiply-adds and published accuracy. `python tools/list_models.py "t2t_vit_t_*"`."""

import sys

from engine.arguments import Parser
from errors import UserError, run_command
from startup import import_paddle

HEADER = ("name", "paper", "size", "params", "trainable", "MACs", "published", "difference", "top-1", "source")


def main(argv=None):
    """Print one row per name that matches the pattern. Raises UserError when none does."""
    parser = Parser(prog="list_models.py", description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*", help='shell pattern, such as "t2t_vit_t_*" (default: all)')
    args = parser.parse_args(argv)
    import_paddle()
    from models import ROWS, list_models

    names = list_models(args.pattern)
    if not names:
        raise UserError(f"{args.pattern}: no model has such a name; there are {', '.join(ROWS)}")
    table = [HEADER, *(cells(ROWS[name]) for name in names)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print("\nparams and MACs are this project's, published the source's. MACs count, for one image, matrix products,")
    print("those of the attention included, convolutions, and five operations per element of a LayerNorm. difference:")
    print("params and MACs against the published ones; up to half of the last digit printed there is rounding.")
    notes = [f"{name}: {ROWS[name].note}" for name in names if ROWS[name].note]
    if notes:
        print("", *notes, sep="\n")
    return 0


def cells(row):
    """The texts of one registry row, in the order of HEADER."""
    return (
        row.name,
        row.title,
        str(row.img_size),
        f"{row.params:,}",
        f"{row.trainable:,}",
        f"{row.macs:.3f} G",
        f"{row.published_params} M, {row.published_macs} G",
        f"{row.params_difference:+.1f} %, {row.macs_difference:+.1f} %",
        f"{row.top1}",
        row.source,
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
