"""Pickles read as data: for files from strangers that should hold nothing but named arrays.

Unpickling runs whatever code the file names. The interpreter here walks the same instructions, knows only the few that
dicts of NumPy arrays need, calls nothing that the file names, and allocates nothing before the bytes for it were read.
"""

import enum
import math
import pickletools

import numpy as np

# paddle.save writes some 30 instructions for a tensor; the largest published network has some 300 tensors.
MOST_INSTRUCTIONS = 100_000
LARGEST_SIDE = 2**40
MOST_AXES = 32


class Refused(ValueError):
    """The pickle asks for something that named arrays never need; the text says for what."""


def read_pickle(data: bytes):
    """The object a pickle (protocol 2 to 5) describes, made of dict, list, tuple, str, bytes, numbers and arrays.

    Arrays come as read-only np.ndarray views of the file's bytes, of bool, integer or float dtype. Raises Refused for
    a pickle that wants more, and ValueError, TypeError, IndexError or KeyError for one that is damaged or cut short.
    """
    return _Interpreter(len(data)).run(data)


def printable(text: str) -> str:
    """Text out of a file from a stranger, made fit for one line on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])


class _Name(enum.Enum):
    """The globals a dict of arrays needs. They are only ever compared, never looked up or called."""

    RECONSTRUCT = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    SCALAR = enum.auto()
    ENCODE = enum.auto()
    ORDERED_DICT = enum.auto()
    TUPLE = enum.auto()


_NAMES = {
    "numpy.core.multiarray _reconstruct": _Name.RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _Name.RECONSTRUCT,
    "numpy.core.multiarray scalar": _Name.SCALAR,
    "numpy._core.multiarray scalar": _Name.SCALAR,
    "numpy ndarray": _Name.NDARRAY,
    "numpy dtype": _Name.DTYPE,
    "_codecs encode": _Name.ENCODE,
    "collections OrderedDict": _Name.ORDERED_DICT,
    "builtins tuple": _Name.TUPLE,
    "__builtin__ tuple": _Name.TUPLE,
}


class _Dtype:
    """A dtype under construction: a code such as 'f4', then the byte order."""

    codes = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

    def __init__(self, code):
        if code not in self.codes:
            raise Refused(f"an array of dtype {printable(code)}" if type(code) is str else "a dtype without a name")
        self.dtype = np.dtype(code)

    def build(self, state):
        order, *structure = state[1:5]
        if order not in ("<", ">", "|", "=") or structure != [None, None, None]:
            raise ValueError(state)
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array under construction; `array` is None until shape, dtype and bytes have come together."""

    def __init__(self):
        self.array = None

    def build(self, state):
        _, shape, dtype, fortran, data = state
        if type(shape) is not tuple or type(dtype) is not _Dtype or type(data) is not bytes:
            raise TypeError("array")
        if len(shape) > MOST_AXES or not all(type(side) is int and 0 <= side <= LARGEST_SIDE for side in shape):
            raise ValueError(shape)
        if math.prod(shape) * dtype.dtype.itemsize != len(data):
            raise ValueError(shape)
        # A view of the bytes that were read, not a copy: many arrays over one piece of data cost nothing.
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if fortran else "C")


def _finished(value):
    """Put arrays in the place of those under construction: values of a dict, and of the pairs in it."""
    if type(value) is dict:
        return {name: _finished(item) if type(item) is not dict else item for name, item in value.items()}
    if type(value) is tuple and len(value) == 2:
        return tuple(item.array if isinstance(item, _Array) else item for item in value)
    return value.array if isinstance(value, _Array) else value


class _Interpreter:
    """Walks the instructions of a pickle and builds dicts, lists, tuples, text, numbers and arrays, nothing else."""

    _argument = {
        "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    }  # fmt: skip
    _fresh = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
    _constant = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
    _tuple_size = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

    def __init__(self, size):
        self.stack = []
        self.marks = []
        self.memo = {}
        # Encoding one long text again and again would turn a small file into any amount of memory.
        self.bytes_left = size

    def run(self, data):
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name == "STOP":
                return _finished(self.stack.pop())
            if count == MOST_INSTRUCTIONS:
                raise Refused(f"more than {count} instructions")
            self._step(code.name, argument)
        raise ValueError("no end")

    def _step(self, name, argument):
        if name in self._argument:
            self.stack.append(argument)
        elif name in self._constant:
            self.stack.append(self._constant[name])
        elif name in self._fresh:
            self.stack.append(self._fresh[name]())
        elif name in self._tuple_size:
            self.stack.append(tuple(self._take(self._tuple_size[name])))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name not in ("PROTO", "FRAME"):
            if name not in self._handlers:
                raise Refused(f"the pickle instruction {name}")
            self._handlers[name](self, argument)

    def _take(self, count):
        if count > len(self.stack):
            raise IndexError(count)
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def _since_mark(self):
        return self._take(len(self.stack) - self.marks.pop())

    def _mark(self, _):
        self.marks.append(len(self.stack))

    def _tuple(self, _):
        self.stack.append(tuple(self._since_mark()))

    def _append(self, _):
        (item,) = self._take(1)
        self._extend([item])

    def _appends(self, _):
        self._extend(self._since_mark())

    def _extend(self, items):
        if type(self.stack[-1]) is not list:
            raise TypeError("not a list")
        self.stack[-1].extend(items)

    def _setitem(self, _):
        self._update(self._take(2))

    def _setitems(self, _):
        self._update(self._since_mark())

    def _update(self, items):
        if type(self.stack[-1]) is not dict or not all(type(key) is str for key in items[::2]):
            raise TypeError("not a dict with names for keys")
        self.stack[-1].update(zip(items[::2], items[1::2]))

    def _global(self, argument):
        if argument not in _NAMES:
            raise Refused(printable(argument.replace(" ", ".")))
        self.stack.append(_NAMES[argument])

    def _stack_global(self, _):
        module, name = self._take(2)
        if type(module) is not str or type(name) is not str:
            raise TypeError("name")
        self._global(f"{module} {name}")

    def _reduce(self, _):
        target, arguments = self._take(2)
        if type(arguments) is not tuple:
            raise TypeError("arguments")
        if target is _Name.RECONSTRUCT and arguments[0] is _Name.NDARRAY:
            made = _Array()
        elif target is _Name.SCALAR:
            made = _Array()
            made.build((1, (), arguments[0], False, arguments[1]))
        elif target is _Name.DTYPE:
            made = _Dtype(arguments[0])
        elif target is _Name.ENCODE and arguments[1] == "latin1":
            made = self._encode(arguments[0])
        elif target is _Name.ORDERED_DICT and arguments == ():
            made = {}
        elif target is _Name.TUPLE and type(arguments[0]) is tuple:
            made = arguments[0]
        else:
            raise Refused("a call")
        self.stack.append(made)

    def _encode(self, text):
        """Bytes as pickle protocol 2 writes them."""
        if type(text) is not str:
            raise TypeError("text")
        self.bytes_left -= len(text)
        if self.bytes_left < 0:
            raise Refused("more bytes than the file has")
        return text.encode("latin1")

    def _build(self, _):
        target, state = self._take(2)
        if not isinstance(target, (_Array, _Dtype)):
            raise Refused("a change to an object")
        target.build(state)
        self.stack.append(target)

    _handlers = {
        "MARK": _mark,
        "TUPLE": _tuple,
        "APPEND": _append,
        "APPENDS": _appends,
        "SETITEM": _setitem,
        "SETITEMS": _setitems,
        "GLOBAL": _global,
        "STACK_GLOBAL": _stack_global,
        "REDUCE": _reduce,
        "BUILD": _build,
    }
