"""The vocabulary of pickled NumPy arrays: what a dict of them asks for, and what stands for it here."""

import math
from collections import OrderedDict

import numpy as np

from weights.pickles import Dialect, Refused, Word, printable

LARGEST_SIDE = 2**40
MOST_AXES = 32


class _Dtype:
    """A dtype under construction: a code such as 'f4', then the byte order."""

    codes = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

    def __init__(self, code):
        if code not in self.codes:
            raise Refused(f"an array of dtype {printable(code)}" if type(code) is str else "a dtype without a name")
        self.dtype = np.dtype(code)

    def build(self, state, _):
        order, *structure = state[1:5]
        if order not in ("<", ">", "|", "=") or structure != [None, None, None]:
            raise ValueError(state)
        self.dtype = self.dtype.newbyteorder(order)

    def finished(self, _):
        raise Refused("a dtype without an array")


class _Array:
    """An array under construction; `array` is None until shape, dtype and bytes have come together."""

    def __init__(self):
        self.array = None

    def build(self, state, reader):
        _, shape, dtype, fortran, data = state
        data = reader.encode(data) if type(data) is str else data
        if type(shape) is not tuple or type(dtype) is not _Dtype or type(data) is not bytes:
            raise TypeError("array")
        if len(shape) > MOST_AXES or not all(type(side) is int and 0 <= side <= LARGEST_SIDE for side in shape):
            raise ValueError(shape)
        if math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise ValueError(shape)
        # A view of the bytes that were read, not a copy: many arrays over one piece of data cost nothing.
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")

    def finished(self, _):
        if self.array is None:
            raise ValueError("array")
        return self.array


def _reconstruct(arguments, _):
    if arguments[0] is not _NDARRAY:
        raise Refused("an array of another class")
    return _Array()


def _scalar(arguments, reader):
    made = _Array()
    made.build((1, (), arguments[0], False, arguments[1]), reader)
    return made


def _encode(arguments, reader):
    """Bytes as pickle protocol 2 writes them."""
    if arguments[1] != "latin1":
        raise Refused("a text encoding")
    return reader.encode(arguments[0])


def _ordered_dict(arguments, _):
    if arguments != ():
        raise Refused("an OrderedDict made by a call")
    return OrderedDict()


def _tuple(arguments, _):
    if type(arguments[0]) is not tuple:
        raise TypeError("tuple")
    return arguments[0]


# NumPy 2 moved its inner modules.
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NDARRAY = Word("numpy.ndarray")
ARRAY_NAMES = {
    "numpy ndarray": _NDARRAY,
    "numpy dtype": Word("numpy.dtype", call=lambda arguments, _: _Dtype(arguments[0])),
    "_codecs encode": Word("_codecs.encode", call=_encode),
    "collections OrderedDict": Word("collections.OrderedDict", call=_ordered_dict),
    **{f"{module} tuple": Word("tuple", call=_tuple) for module in ("builtins", "__builtin__")},
    **{f"{module} _reconstruct": Word("numpy._reconstruct", call=_reconstruct) for module in _MULTIARRAY},
    **{f"{module} scalar": Word("numpy.scalar", call=_scalar) for module in _MULTIARRAY},
}
ARRAYS = Dialect(ARRAY_NAMES)
