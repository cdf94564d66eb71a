"""Arrays into a network: all tensors fit, or none is loaded. Fine-tuning may begin with another head and image size."""

import math
from typing import NamedTuple

import numpy as np

from weights.files import WeightsError
from weights.pickles import printable


def load_weights(model, state, *, source) -> int:
    """Copy `state` (dict name -> np.ndarray) into a paddle.nn.Layer and return the number of tensors.

    Strict: every name of the model is there, no other one, with the model's shape and the same kind of dtype; values
    are cast to the parameter's dtype. Otherwise raises WeightsError and leaves the model as it was. `source` names
    the weights in messages.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    unlike = {
        name: (tuple(state[name].shape), tuple(own[name].shape))
        for name in own
        if name in state and tuple(state[name].shape) != tuple(own[name].shape)
    }
    retyped = [name for name in own if name in state and not _same_kind(state[name], own[name])]
    settings = [] if missing or unexpected or retyped else _wrong_settings(unlike)
    if settings:
        raise WeightsError(f"weights {source}: " + "; ".join(settings))
    if missing or unexpected or unlike or retyped:
        parts = [_listed("missing", missing), _listed("unexpected", unexpected)]
        parts.append(_listed("of another shape", [f"{n}: file {f}, model {m}" for n, (f, m) in unlike.items()]))
        parts.append(_listed("of another type", [f"{n}: {state[n].dtype}" for n in retyped]))
        facts = ", ".join(part for part in parts if part)
        raise WeightsError(f"weights {source} do not fit the model: {facts}; {_advice(state, own, unlike)}")
    for name, tensor in own.items():
        tensor.set_value(_cast(state[name], _dtype_name(tensor)))
    return len(own)


def _dtype_name(tensor):
    return str(tensor.dtype).rpartition(".")[2]


def _same_kind(array, tensor):
    name = _dtype_name(tensor)
    # NumPy has no bfloat16: Paddle stores its bits as uint16.
    if name.startswith("float"):
        return array.dtype.kind == "f" or array.dtype == np.uint16
    return not name.startswith("bfloat") and array.dtype.kind in "iub"


def _cast(array, name):
    if name.startswith("float") and array.dtype.kind == "u":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(name)


def _wrong_settings(unlike):
    """What to set in the configuration where only the head or the position table differ in length; else nothing."""
    found = []
    for name, (file, model) in unlike.items():
        if name in ("head.weight", "head.bias") and file[:-1] == model[:-1]:
            found.append(
                f"the weights have {file[-1]} classes, the config says model.num_classes={model[-1]};"
                f" set model.num_classes={file[-1]} or use other weights"
            )
        elif name == "pos_embed" and file[-1:] == model[-1:] and _image_size(file) and _image_size(model):
            found.append(
                f"the weights are for images of {_image_size(file)} px ({file[1]} tokens), the config says"
                f" model.img_size={_image_size(model)} ({model[1]} tokens); set model.img_size={_image_size(file)}"
            )
        else:
            return []
    return list(dict.fromkeys(found))


def _image_size(shape):
    """Image side for a position table [1, 1 + (side/16)^2, D], or 0 where the shape is no such table."""
    if len(shape) != 3 or shape[0] != 1 or shape[1] < 2:
        return 0
    side = math.isqrt(shape[1] - 1)
    return side * 16 if side * side == shape[1] - 1 else 0


def _listed(what, items):
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(printable(item) for item in items[:5])}{more})" if items else ""


def _advice(state, own, unlike):
    if unlike and all(file == model[::-1] for file, model in unlike.values()):
        return "the shapes are transposed, as PyTorch stores them: convert the file they were made from anew"
    file, model = _measure(state), _measure(own)
    if file != model:
        return f"the file is a network of {file}, the model one of {model}: set model.name to the weights' network"
    return "set model.name to the weights' network or use other weights"


def _measure(state):
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    width = state["cls_token"].shape[-1] if "cls_token" in state else "unknown"
    return f"{len(blocks)} blocks of width {width}"


# ---------------------------------------------------------------- where fine-tuning begins

HEAD = ("head.weight", "head.bias")
POSITIONS = "pos_embed"


class Start(NamedTuple):
    """What `initialise` did. loaded: tensors taken from the weights; notes: one line each, fit for the log."""

    loaded: int
    notes: list


def initialise(network, state, *, source) -> Start:
    """Begin training `network` (paddle.nn.Layer) with the arrays of `state` (dict name -> np.ndarray).

    As strict as `load_weights`, with two exceptions, each told in the notes. Where the number of classes differs, the
    head keeps its fresh values. Where the image size differs, the position table is resized (`resize_positions`).
    Raises WeightsError for what does not fit and for values that are not finite; the network is then as it was.
    """
    own = network.state_dict()
    state, notes = dict(state), []
    for name, array in state.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WeightsError(f"weights {source}: {printable(name)} holds NaN or infinity; use other weights")
    kept = _keep_head(own, state)
    if kept:
        notes.append(kept)
    loaded = len(own) - (len(HEAD) if kept else 0)
    before, after = (_image_size(tuple(table[POSITIONS].shape)) if POSITIONS in table else 0 for table in (state, own))
    if before and after and before != after:
        state[POSITIONS] = resize_positions(state[POSITIONS], after // 16)
        notes.append(
            f"{POSITIONS} resized from {before // 16}x{before // 16} to {after // 16}x{after // 16} tokens "
            f"({before} -> {after} px, bicubic)"
        )
    load_weights(network, state, source=source)
    return Start(loaded, notes)


def _keep_head(own, state):
    """Put the network's own head into `state` where the file's is one for another number of classes; a note or ''."""
    if not all(name in state and name in own for name in HEAD):
        return ""
    shapes = [(tuple(state[name].shape), tuple(own[name].shape)) for name in HEAD]
    if any(file[:-1] != model[:-1] for file, model in shapes) or len({file[-1] for file, _ in shapes}) > 1:
        return ""
    (file, model), _ = shapes
    if file[-1] == model[-1]:
        return ""
    state.update({name: own[name].numpy() for name in HEAD})
    return f"head re-initialised ({file[-1]} -> {model[-1]} classes)"


def resize_positions(table, side):
    """Position table float [1, 1 + n * n, D] -> float32 [1, 1 + side * side, D]; the class token's row stays.

    Bicubic as in the official utils.resize_pos_embed (align_corners False), which is one matrix product along each
    axis. Paddle's interpolate is not used: it leaves bicubic where a side is 1 (PaddlePaddle issue 46214).
    A table of that size already is returned unchanged. Raises WeightsError for one that is no square grid.
    """
    before = _image_size(tuple(table.shape)) // 16
    if not before:
        raise WeightsError(f"{POSITIONS} of shape {tuple(table.shape)} is no table of a square grid; use other weights")
    if before == side:
        return table
    width = table.shape[-1]
    grid = table[0, 1:].astype("float64").reshape(before, before, width)
    rows = _bicubic(before, side)
    grid = np.einsum("yi,xj,ijd->yxd", rows, rows, grid, optimize=True)
    return np.concatenate([table[:, :1], grid.reshape(1, side * side, width)], axis=1).astype("float32")


def _bicubic(before, after):
    """Matrix float64 [after, before] that resamples a line of `before` values by cubic convolution, a = -0.75.

    R. Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 4; ends are repeated.
    """
    a = -0.75
    centre = (np.arange(after) + 0.5) * before / after - 0.5
    first = np.floor(centre).astype(int) - 1
    matrix = np.zeros((after, before))
    for tap in range(4):
        distance = np.abs(centre - (first + tap))
        near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
        weight = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        np.add.at(matrix, (np.arange(after), np.clip(first + tap, 0, before - 1)), weight)
    return matrix
