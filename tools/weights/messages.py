"""What the converter says about a file of weights, as lines of text."""

from weights.names import OFFICIAL
from weights.pickles import printable
from weights.sources import AVERAGED, BARE

# Names in a one-line message; all of them are in the lines before it.
MOST_NAMED = 5


def source_lines(source, choice):
    """What was found in a file and what of it is taken: lines for a sources.Source and sources.Choice."""
    found = ", ".join(f"{printable(name)} ({count} tensors)" for name, count in choice.found.items())
    yield f"source: {source.path}: {source.kind}, {source.path.stat().st_size:,} bytes"
    yield f"found: {found}; taken: {choice.dictionary}"
    if choice.dictionary not in (AVERAGED, BARE):
        what = f"{AVERAGED} is left" if AVERAGED in choice.found else f"there is no {AVERAGED}"
        yield f"note: {what}; these may be the raw weights, published accuracies are those of the averaged ones"
    mapped = "" if choice.naming.dialect == OFFICIAL else ", mapped to the official ones"
    prefix = f", '{choice.naming.prefix}' taken off" if choice.naming.prefix else ""
    yield f"names: {choice.naming.dialect}{mapped}{prefix}"
    for name in choice.dropped:
        yield f"dropped: {printable(name)}"
    dtypes = [tensor.dtype for tensor in choice.tensors.values()]
    for dtype in sorted(set(dtypes) - {"float32"}):
        yield f"note: {dtypes.count(dtype)} tensors are {dtype}; they are written as float32"


def misfits(choice, missing, extra, unlike):
    """Lines on all tensors that do not fit a network, and a summary in one line: (list of str, str, "" for none).

    missing, extra: dict official name -> shape; unlike: dict official name -> (shape in the file, shape needed).
    """
    theirs = choice.naming.names
    kinds = {
        "missing": [f"{name} {list(shape)}" for name, shape in missing.items()],
        "too much": [f"{printable(theirs[name])} {list(shape)}" for name, shape in extra.items()],
        "of another shape": [
            f"{printable(theirs[name])} {list(found)}, needed {list(needed)}"
            for name, (found, needed) in unlike.items()
        ],
    }
    lines = [f"{kind}: {item}" for kind, items in kinds.items() for item in items]
    parts = []
    for kind, items in kinds.items():
        more = f" and {len(items) - MOST_NAMED} more, listed above" if len(items) > MOST_NAMED else ""
        if items:
            parts.append(f"{len(items)} {kind} ({'; '.join(items[:MOST_NAMED])}{more})")
    return lines, ", ".join(parts)
