"""What a weights file of another framework holds: a tree of plain values with tensors at its leaves."""

from typing import Callable, NamedTuple

import numpy as np

from weights.files import WeightsError
from weights.pickled_arrays import LARGEST_SIDE
from weights.pickles import printable

# dtypes that are handed out -> NumPy's dtype of the stored bytes; NumPy has no bfloat16, so its bits are read.
DTYPES = {
    "float32": "f4", "float64": "f8", "float16": "f2", "bfloat16": "u2", "int64": "i8", "int32": "i4", "int16": "i2",
    "int8": "i1", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "u1",
}  # fmt: skip


class Content(NamedTuple):
    """A file that was read. The tree holds dict, list, tuple, str, bytes, numbers, None, np.ndarray (a NumPy array that
    was pickled as such), Namespace and Tensor."""

    kind: str  # words for the log, such as "PyTorch (zip)"
    tree: object
    metadata: dict  # str -> str; what safetensors keeps beside its tensors, else empty


class Namespace:
    """argparse.Namespace as pickled in training checkpoints: its attributes in a dict."""

    def __init__(self):
        self.attributes = {}

    @property
    def values(self):
        """Attribute name -> value."""
        return self.attributes

    def build(self, state, _):
        """Take the attributes a pickle gives."""
        if not isinstance(state, dict):
            raise TypeError("namespace")
        self.attributes.update(state)


class Tensor:
    """One tensor of a file, whose values are read when `array()` is called.

    name: the key it has in its dictionary. shape: tuple. dtype: "float32", "bfloat16" and so on.
    """

    def __init__(self, name: str, shape: tuple, dtype: str, read: Callable):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._read = read
        self.paid = False

    def finished(self, name):
        """Called at the end of a pickle with the key this tensor stands under."""
        self.name = self.name or name
        return self

    def array(self) -> np.ndarray:
        """The values: a new array in C order and of the machine's byte order; float16 and bfloat16 become float32.

        Raises WeightsError for a dtype or layout that is not supported, and where the file is damaged.
        """
        return self._read(self)


class Budget:
    """How many bytes of tensors may still be taken out of a file.

    Thousands of tensors may share the same bytes of a small file; all together they must not be more than the file.
    """

    # Honest files do share a little: views of one bias, weights tied to each other.
    slack = 16 << 20

    def __init__(self, path, size):
        self.path = path
        self.left = size + self.slack

    def pay(self, tensor, size):
        """Count a tensor, once. Raises WeightsError."""
        if tensor.paid:
            return
        tensor.paid = True
        self.left -= size
        if self.left < 0:
            raise WeightsError(
                f"weights {self.path} refused at '{printable(tensor.name)}': its tensors share their values and would"
                " take more memory than the file has bytes; save each one as a copy (clone)"
            )


def plain_array(stored: np.ndarray, dtype: str) -> np.ndarray:
    """A new C-ordered array of stored values as `Tensor.array` hands them out; `dtype` is a key of DTYPES."""
    if dtype == "bfloat16":
        # bfloat16 is the upper half of a float32.
        return np.asarray(np.left_shift(stored.astype(np.uint32), 16, dtype=np.uint32)).view(np.float32)
    if dtype == "bool":
        return np.asarray(stored != 0)
    target = np.float32 if dtype == "float16" else stored.dtype.newbyteorder("=")
    return np.array(stored, dtype=target, order="C")


def size_of(shape: tuple) -> int:
    """Number of elements. Raises ValueError for what is no shape or could not be held by any machine."""
    count = 1
    for side in shape:
        if type(side) is not int or not 0 <= side <= LARGEST_SIDE:
            raise ValueError(shape)
        # A side of 0 does not excuse the others: NumPy multiplies them all.
        count *= max(side, 1)
        if count > LARGEST_SIDE:
            raise ValueError(shape)
    return 0 if 0 in shape else count
