"""Networks by their published names: `build_model("t2t_vit_14")`, `list_models("t2t_vit_t_*")`, `identify(shapes)`."""

import difflib
import fnmatch

from errors import UserError

from models.ablation import SMALL
from models.identify import Match, identify
from models.registry import ROWS, Row

__all__ = ["ROWS", "Match", "Row", "build_model", "identify", "list_models"]


def list_models(pattern="*"):
    """Names that match the shell pattern, in the order of the paper's tables."""
    return [name for name in ROWS if fnmatch.fnmatch(name, pattern)]


def build_model(name, **kwargs):
    """Build the network `name` with keyword arguments of t2t.T2TViT (img_size defaults to the published one).

    The convolutional networks take those that models.cnn.CNN lists. The small ones of models.ablation have names too.
    Raises UserError for an unknown name (with the nearest one) and for arguments that the network refuses.
    """
    if name not in ROWS and name not in SMALL:
        near = difflib.get_close_matches(name, ROWS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ROWS)}"
        raise UserError(f"model.name={name}: no such model; {hint}")
    row = ROWS.get(name)
    kwargs.setdefault("img_size", row.img_size if row else 224)
    try:
        return (row or SMALL[name]).factory(**kwargs)
    except ValueError as error:
        raise UserError(f"model {name}: {error}") from error
