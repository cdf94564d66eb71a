"""Pickles read as data: for files from strangers that should hold nothing but numbers, text and arrays.

Unpickling runs whatever code the file names. The interpreter here walks the same instructions, knows only the names of
a dialect (a table: the file's name for a thing -> what stands for it here), calls nothing that the file names, and
allocates nothing before the bytes for it were read.
"""

import dataclasses
import io
import pickletools
from collections import OrderedDict
from typing import Callable, NamedTuple, Optional

import numpy as np

# Optimisers number their parameters.
LARGEST_KEY = 2**20
# Names, notes and whole configurations are shorter. Longer text may only be bytes in disguise (pickle protocol 2).
LONGEST_TEXT = 1 << 20
# Files of weights and training states nest some six levels deep; what follows the tree may recurse this far.
MOST_LEVELS = 60


class Refused(ValueError):
    """The pickle asks for something that the dialect does not allow; the text says for what."""


@dataclasses.dataclass(frozen=True)
class Word:
    """A global of a pickle: `call(arguments, reader)` and `new(arguments, reader)` are this project's own functions."""

    name: str
    call: Optional[Callable] = None
    new: Optional[Callable] = None


class Dialect(NamedTuple):
    """What one kind of file may ask for."""

    names: dict  # "module name" -> Word, or a plain value that stands for the global
    # paddle.save writes some 30 instructions for a tensor; the largest published network has some 300 tensors.
    instructions: int = 100_000
    keys: tuple = (str,)  # types of dictionary keys
    persistent: Optional[Callable] = None  # what a persistent id stands for: PyTorch's storages


def printable(text: str) -> str:
    """Text out of a file from a stranger, made fit for one line on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])


def read_pickle(data, dialect):
    """The object a pickle (protocol 2 to 4, 5 without arrays) describes: containers, text, bytes, numbers, arrays.

    `data` is bytes, or an mmap that stands at the pickle's start and is left at its end. Strings of Python 2 come as
    str, each byte a letter. Arrays come as read-only np.ndarray views of the bytes read, of bool, integer or float
    dtype. Raises Refused for a pickle that wants more than `dialect` allows, and ValueError, TypeError, IndexError,
    KeyError or OverflowError for one that is damaged or cut short.
    """
    return _Interpreter(dialect, len(data)).run(data)


class _Stream:
    """What pickletools reads from: it refuses text that would take four times its bytes before that is decoded."""

    texts = (b"X", b"\x8c", b"\x8d")  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8

    def __init__(self, data):
        self.source = data if hasattr(data, "read") else io.BytesIO(data)
        self.tell, self.readline = self.source.tell, self.source.readline
        self.instruction = None

    def read(self, count):
        data = self.source.read(count)
        if self.instruction is None:
            self.instruction = data
        elif (
            self.instruction in self.texts
            and count > LONGEST_TEXT
            # In UTF-8 letters beyond 255 begin with these bytes; bytes written as text have none.
            and (np.frombuffer(data, np.uint8) >= 0xC4).any()
        ):
            raise Refused("a very long text")
        return data


class _Interpreter:
    """Walks the instructions of a pickle and builds dicts, lists, tuples, text, numbers and the dialect's own."""

    _argument = {
        "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING",
    }  # fmt: skip
    _fresh = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
    _constant = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
    _tuple_size = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

    def __init__(self, dialect, size):
        self.dialect = dialect
        self.stack = []
        self.marks = []
        self.memo = {}
        # Encoding one long text again and again would turn a small file into any amount of memory.
        self.bytes_left = size

    def run(self, data):
        stream = _Stream(data)
        for count, (code, argument, _) in enumerate(pickletools.genops(stream)):
            stream.instruction = None
            if code.name == "STOP":
                return _Finisher(self.dialect.instructions).finish(self.stack.pop(), "", 0)[0]
            if count == self.dialect.instructions:
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

    def encode(self, text):
        """The bytes of a text whose letters stand for one byte each."""
        if type(text) is not str:
            raise TypeError("text")
        self.bytes_left -= len(text)
        if self.bytes_left < 0:
            raise Refused("more bytes than the file has")
        return text.encode("latin1")

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
        self._extend(self._take(1))

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
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError("not a dict")
        for key, value in zip(items[::2], items[1::2]):
            self._check_key(key)
            if key in target:
                raise Refused(f"the key '{printable(str(key))}' twice in one dictionary")
            target[key] = value

    def _check_key(self, key):
        kinds = self.dialect.keys
        if type(key) not in kinds:
            raise Refused(f"a dictionary key of type {type(key).__name__}")
        # Python's hashes of numbers collide at the will of who made the file, and a dictionary then takes for ever.
        if type(key) is int and not 0 <= key < LARGEST_KEY:
            raise Refused("a huge number as a dictionary key")

    def _global(self, argument):
        if argument not in self.dialect.names:
            raise Refused(printable(argument.replace(" ", ".")))
        self.stack.append(self.dialect.names[argument])

    def _stack_global(self, _):
        module, name = self._take(2)
        if type(module) is not str or type(name) is not str:
            raise TypeError("name")
        self._global(f"{module} {name}")

    def _reduce(self, _):
        self._make("call", "a call")

    def _newobj(self, _):
        self._make("new", "the pickle instruction NEWOBJ")

    def _make(self, how, words):
        target, arguments = self._take(2)
        if type(arguments) is not tuple:
            raise TypeError("arguments")
        function = getattr(target, how) if isinstance(target, Word) else None
        if function is None:
            raise Refused(words + (f" of {target.name}" if isinstance(target, Word) else ""))
        self.stack.append(function(arguments, self))

    def _build(self, _):
        target, state = self._take(2)
        # PyTorch hangs its version table on the OrderedDict of the weights; nothing of it is needed.
        if type(target) is not OrderedDict:
            if not hasattr(target, "build"):
                raise Refused("a change to an object")
            target.build(state, self)
        self.stack.append(target)

    def _persistent(self, _):
        if self.dialect.persistent is None:
            raise Refused("the pickle instruction BINPERSID")
        self.stack.append(self.dialect.persistent(*self._take(1)))

    _handlers = {
        "MARK": _mark, "TUPLE": _tuple, "APPEND": _append, "APPENDS": _appends, "SETITEM": _setitem,
        "SETITEMS": _setitems, "GLOBAL": _global, "STACK_GLOBAL": _stack_global, "REDUCE": _reduce,
        "NEWOBJ": _newobj, "BUILD": _build, "BINPERSID": _persistent,
    }  # fmt: skip


class _Finisher:
    """Puts arrays in the place of those under construction, and sees that the tree ends and is no larger than read.

    A pickle may use one part many times, part of itself even. Who follows the tree would follow such a part each time.
    """

    def __init__(self, most):
        self.most = most
        self.done = {}

    def finish(self, value, name, level):
        """The finished value and the number of values in it; `name` is the nearest dictionary key above."""
        if value is None or type(value) in (str, bytes, int, float, bool):
            return value, 1
        if level == MOST_LEVELS:
            raise Refused(f"more than {level} levels of nesting")
        if id(value) not in self.done:
            # The entry keeps `value` alive, for Python reuses the id of what is gone.
            self.done[id(value)] = (value, *self._fresh(value, name, level + 1))
        return self.done[id(value)][1:]

    def _fresh(self, value, name, level):
        if isinstance(value, dict):
            pairs = [(key, self.finish(item, str(key), level)) for key, item in value.items()]
            return {key: item for key, (item, _) in pairs}, self._count(pair for _, pair in pairs)
        if type(value) in (list, tuple):
            pairs = [self.finish(item, name, level) for item in value]
            return type(value)(item for item, _ in pairs), self._count(pairs)
        if hasattr(value, "attributes"):
            value.attributes, count = self.finish(value.attributes, name, level)
            return value, count
        if not hasattr(value, "finished"):
            raise Refused(f"{value.name} as a value" if isinstance(value, Word) else "a value of unknown kind")
        return value.finished(name), 1

    def _count(self, pairs):
        total = 1 + sum(count for _, count in pairs)
        if total > self.most:
            raise Refused(f"more than {self.most} values")
        return total
