"""Parameter values that follow from official names alone, as the reference tensors were made with.

See the README beside the reference tensors: a seed from the name, shapes in PyTorch's layout ([out, in] for Linear).
"""

import zlib

import numpy as np
import paddle


def official_value(name, shape):
    """float32 value of parameter `name`; shape in PyTorch's layout."""
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith(".w"):
        value = 0.7 * noise
    elif name == "cls_token":
        value = 0.5 * noise
    elif len(shape) == 1:
        value = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
    else:
        value = noise / np.sqrt(np.prod(shape[1:])) * (0.25 if name.endswith("kqv.weight") else 1.0)
    return value.astype("float32")


def linear_weights(network):
    """Names of the parameters that Paddle stores transposed."""
    return {
        f"{name}.weight" for name, layer in network.named_sublayers() if isinstance(layer, paddle.nn.Linear)
    }


def fill(network):
    """Set every parameter except the position table to its official value, and return the network."""
    transposed = linear_weights(network)
    for name, parameter in network.named_parameters():
        if name == "pos_embed":
            continue
        shape = tuple(parameter.shape)
        value = official_value(name, shape[::-1] if name in transposed else shape)
        parameter.set_value(value.T if name in transposed else value)
    return network


def images(batch=2, size=224):
    """The input of the reference tensors, float32 [batch, 3, size, size]."""
    return np.random.RandomState(20210128).standard_normal((batch, 3, size, size)).astype("float32")
