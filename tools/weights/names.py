"""Names of tensors in the files of other ports to the official names, which are those of this project.

One row per dialect; a further port is a further row. Nothing here looks at values or shapes.
"""

import re
from typing import NamedTuple

from weights.files import WeightsError
from weights.pickles import printable

OFFICIAL = "official"
# Put in front of every name by torch.nn.DataParallel and by torch.compile, once for each time a network is wrapped.
_WRAPPERS = ("module.", "_orig_mod.")


class Dialect(NamedTuple):
    """How one port names its tensors.

    title: its name for the log. mark: pattern that only its names match. rules: patterns and replacements, applied one
    after the other to every name.
    """

    title: str
    mark: str
    rules: tuple


# fmt: off
DIALECTS = (
    Dialect("PaddleViT", r"^patch_embed\.attn[12]\.", (
        (r"^patch_embed\.attn([12])\.", r"tokens_to_token.attention\1."),
        (r"^patch_embed\.proj\.", "tokens_to_token.project."),
    )),
    Dialect("timm", r"^patch_embed\.attention[12]\.", (
        (r"^patch_embed\.", "tokens_to_token."),
    )),
    Dialect("mmpretrain", r"^backbone\.(cls_token$|encoder\.|tokens_to_token\.)", (
        (r"^backbone\.", ""),
        (r"^encoder\.", "blocks."),
        (r"^head\.layers\.head\.", "head."),
        (r"\.ln([12])\.", r".norm\1."),
        (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
        (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
    )),
)
# fmt: on


class Naming(NamedTuple):
    """What the names of a file mean.

    dialect: title of the port. prefix: what was in front of every name, "" for nothing. names: official name -> name
    in the file, in the file's order.
    """

    dialect: str
    prefix: str
    names: dict


def official_names(found) -> Naming:
    """Translate the names of a file (an iterable of str).

    A name that no rule of the dialect touches stays as it is. Raises WeightsError where two tensors would get one name.
    """
    found = list(found)
    prefix = _common_prefix(found)
    bare = [name[len(prefix) :] for name in found]
    dialect = next((row for row in DIALECTS if any(re.search(row.mark, name) for name in bare)), None)
    names = {}
    for theirs, name in zip(found, bare):
        for pattern, replacement in dialect.rules if dialect else ():
            name = re.sub(pattern, replacement, name)
        if name in names:
            raise WeightsError(
                f"{printable(names[name])} and {printable(theirs)} are both {printable(name)} in the official names; "
                "leave one of them out with --drop"
            )
        names[name] = theirs
    return Naming(dialect.title if dialect else OFFICIAL, prefix, names)


def _common_prefix(names):
    """All wrappers in front of every one of the names, as text."""
    prefix = ""
    while names:
        wrapper = next((word for word in _WRAPPERS if all(name.startswith(word, len(prefix)) for name in names)), None)
        if wrapper is None:
            break
        prefix += wrapper
    return prefix
