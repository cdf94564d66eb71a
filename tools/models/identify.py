"""Which row of the registry weights belong to, from the names and shapes of their tensors.

The rows hold exact parameter counts, so the count alone leaves one or a few of them; a network built for each, without
values, then has to agree in every name and shape.
"""

import math
from typing import NamedTuple, Optional

import paddle

from models.macs import is_statistic
from models.registry import ROWS

PADDLE, PYTORCH = "Paddle", "PyTorch"
# Rows that are compared name by name where none has the right count.
NEAREST = 6
# Beyond it a position table is taken for damaged: the table of a network is computed when the network is built.
LARGEST_IMAGE = 2048


class Differences(NamedTuple):
    """How weights differ from a network.

    missing, extra: dict name -> shape. unlike: dict name -> (shape in the weights, shape they should have, in the
    weights' own layout). layout: PADDLE or PYTORCH, as the Linear weights that are not square have it; None where
    there are none.
    """

    missing: dict
    extra: dict
    unlike: dict
    layout: Optional[str]

    def __len__(self):
        return len(self.missing) + len(self.extra) + len(self.unlike)


class Match(NamedTuple):
    """A row and how well it fits.

    name: of the row. img_size, num_classes: as the weights have them. alike: names of rows of other networks with the
    same names and shapes. names: of all tensors, in the network's order; linear: those of the Linear weights.
    """

    name: str
    img_size: int
    num_classes: int
    alike: list
    names: list
    linear: set
    differences: Differences


def identify(shapes, *, model=None, hint=None) -> Match:
    """The row for `shapes` (dict official name -> tuple), or the nearest one: look at `.differences`.

    model: take this row and no other. hint: a name that decides between rows with the same names and shapes; it need
    not be one of the registry. Rows of one network for several image sizes are told apart by the position table.
    Raises UserError for an unknown `model`.
    """
    if model is not None:
        return _match(model, shapes)
    exact = sorted(exact_rows(shapes), key=lambda name: _preference(name, _image_size(shapes), hint))
    matches = [_match(name, shapes) for name in exact]
    fitting = [match for match in matches if not match.differences]
    if fitting:
        by_network = {}
        for match in fitting:
            by_network.setdefault(ROWS[match.name].factory, match)
        best, *others = by_network.values()
        return best._replace(alike=[other.name for other in others])
    near = sorted(ROWS, key=lambda name: abs(_excess(name, shapes)))[:NEAREST]
    matches += [_match(name, shapes) for name in near if name not in exact]
    return min(matches, key=lambda match: len(match.differences))


def exact_rows(shapes):
    """Names of the rows whose parameter count is that of `shapes`, whatever the image size and number of classes."""
    return [name for name in ROWS if _excess(name, shapes) == 0]


def linear_weights(network):
    """Names of the weights that Paddle keeps as [in, out] and PyTorch as [out, in]."""
    layers = network.named_sublayers(include_self=True)
    return {f"{name}.weight".lstrip(".") for name, layer in layers if isinstance(layer, paddle.nn.Linear)}


def compare(network, shapes) -> Differences:
    """How `shapes` (dict official name -> tuple, in either layout) differ from a paddle.nn.Layer.

    The layout is that of most Linear weights that are not square; those of the other layout count as unlike.
    """
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    linear = linear_weights(network)
    oblong = [name for name in own if name in linear and name in shapes and own[name] != own[name][::-1]]
    turned = sum(shapes[name] == own[name][::-1] for name in oblong)
    straight = sum(shapes[name] == own[name] for name in oblong)
    layout = None if turned == straight == 0 else PYTORCH if turned > straight else PADDLE
    wanted = {name: own[name][::-1] if layout == PYTORCH and name in linear else own[name] for name in own}
    return Differences(
        missing={name: wanted[name] for name in own if name not in shapes},
        extra={name: shapes[name] for name in shapes if name not in own},
        unlike={name: (shapes[name], wanted[name]) for name in own if shapes.get(name, wanted[name]) != wanted[name]},
        layout=layout,
    )


def _match(name, shapes):
    # The package imports this module before it has build_model.
    from models import build_model

    img_size = _image_size(shapes) or (ROWS[name].img_size if name in ROWS else 224)
    num_classes = _classes(shapes)
    # Names and shapes only: filling a large network with random values takes seconds.
    with paddle.LazyGuard():
        network = build_model(name, img_size=img_size, num_classes=num_classes)
    names = list(network.state_dict())
    return Match(name, img_size, num_classes, [], names, linear_weights(network), compare(network, shapes))


def _preference(name, img_size, hint):
    """Sort key among rows of one parameter count: the hint's network, the image size, the hint's very name."""
    row = ROWS[name]
    return (hint not in ROWS or row.factory is not ROWS[hint].factory, row.img_size != img_size, name != hint)


def _excess(name, shapes):
    """Parameters of `shapes` less those of a row, both without head and position table."""
    row, classes, width = ROWS[name], _classes(shapes), _width(shapes)
    # The head of a dense network is wider than its class token.
    last = _width(shapes, ("norm.weight", "cls_token"))
    head_width = math.prod(shapes["head.weight"]) // classes if "head.weight" in shapes else last
    found = sum(
        math.prod(shape)
        for key, shape in shapes.items()
        if not (key.startswith("head.") or key == "pos_embed" or is_statistic(key))
    )
    expected = row.params - 1000 * (head_width + 1) - ((row.img_size // 16) ** 2 + 1) * width
    return found - expected


def _width(shapes, tensors=("cls_token", "pos_embed", "norm.weight")):
    """Channels of the tokens by the first of `tensors` that is there, 0 where none is."""
    shape = next((shapes[name] for name in tensors if shapes.get(name)), (0,))
    return shape[-1]


def _classes(shapes):
    return math.prod(shapes.get("head.bias", (1000,))) or 1000


def _image_size(shapes):
    """Pixels for the position table [1, 1 + (side/16)^2, D]; 0 where there is none or it is no such table."""
    shape = shapes.get("pos_embed", ())
    if len(shape) != 3 or shape[1] < 2:
        return 0
    side = math.isqrt(shape[1] - 1)
    return side * 16 if side * side == shape[1] - 1 and side * 16 <= LARGEST_IMAGE else 0
