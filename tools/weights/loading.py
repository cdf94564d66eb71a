"""Arrays into a network: all tensors fit, or none is loaded."""

import math

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
        return "the shapes are transposed, as PyTorch stores them: convert the file first"
    file, model = _measure(state), _measure(own)
    if file != model:
        return f"the file is a network of {file}, the model one of {model}: set model.name to the weights' network"
    return "set model.name to the weights' network or use other weights"


def _measure(state):
    blocks = {name.split(".")[1] for name in state if name.startswith("blocks.")}
    width = state["cls_token"].shape[-1] if "cls_token" in state else "unknown"
    return f"{len(blocks)} blocks of width {width}"
