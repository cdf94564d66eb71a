"""CIFAR-10 and CIFAR-100 as their authors publish them: the python or the binary version, archive or extracted folder.

What a set consists of is told by the names of its files, whatever the archive or the folder is called:

    version              class names            training files               test file
    CIFAR-10 binary      batches.meta.txt       data_batch_1.bin ... 5.bin   test_batch.bin
    CIFAR-10 python      batches.meta           data_batch_1 ... 5           test_batch
    CIFAR-100 binary     fine_label_names.txt   train.bin                    test.bin
    CIFAR-100 python     meta                   train                        test

An image is 3,072 bytes: 32 x 32 of red, then of green, then of blue. CIFAR-100 is read with its 100 fine labels.

The files are input from strangers. Nothing is unpacked to disk, no pickle is executed, and no size that a file claims
is believed before it was compared with that of the published one.
"""

import hashlib
import os
from typing import NamedTuple

import numpy as np
from errors import UserError
from PIL import Image
from weights.pickled_arrays import ARRAY_NAMES
from weights.pickles import Dialect, Refused, printable, read_pickle

from data.tar import TarError, read_members

SIDE = 32
PIXELS = 3 * SIDE * SIDE

# A pickle holds the file name of each image too: 35 bytes on average in the published ones.
_PICKLED_EXTRA = 256
_NAMES_LIMIT = 2**16

# Four instructions for each of 50,000 images: its file name, the place that is remembered for it, and two labels.
_DIALECT = Dialect(ARRAY_NAMES, instructions=300_000, keys=(str, bytes))


class _Version(NamedTuple):
    """One row of the table above. limit: images in a training or test file; label_bytes: 0 for the python version."""

    title: str
    classes: int
    names: str
    train: tuple
    val: tuple
    limit: int
    label_bytes: int = 0
    label_key: str = ""
    names_key: str = ""

    def bytes_limit(self, name):
        """Size that the file `name` does not exceed."""
        if name == self.names:
            return _NAMES_LIMIT
        if self.label_bytes:
            return self.limit * (self.label_bytes + PIXELS)
        return self.limit * (PIXELS + _PICKLED_EXTRA)


_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
_VERSIONS = (
    _Version("CIFAR-10", 10, "batches.meta.txt", tuple(f"{name}.bin" for name in _FIVE), ("test_batch.bin",), 10_000,
             label_bytes=1),
    _Version("CIFAR-10", 10, "batches.meta", _FIVE, ("test_batch",), 10_000, label_key="labels",
             names_key="label_names"),
    # A coarse label stands before the fine one.
    _Version("CIFAR-100", 100, "fine_label_names.txt", ("train.bin",), ("test.bin",), 50_000, label_bytes=2),
    _Version("CIFAR-100", 100, "meta", ("train",), ("test",), 50_000, label_key="fine_labels",
             names_key="fine_label_names"),
)  # fmt: skip


class CifarSamples:
    """Images and labels of one split, with the interface of data.listing.Samples.

    directory: str, the absolute path of the folder or archive. pixels: uint8 [n, 3, 32, 32], one array, so that forked
    workers share it. labels: int64 [n], in [0, num_classes). class_names: list of str. files: names of the files the
    images come from; ends: int64, for each file the number of images up to its end.
    """

    def __init__(self, directory, pixels, labels, class_names, num_classes, files, ends):
        self.directory = directory
        self.pixels = pixels
        self.labels = labels
        self.class_names = class_names
        self.num_classes = num_classes
        self.files = files
        self.ends = ends
        self._separator = os.sep if os.path.isdir(directory) else ":"

    def __len__(self):
        return len(self.labels)

    def fingerprint(self):
        """Hexadecimal digest of the pixels and labels, in their order."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.pixels).data, digest_size=16)
        digest.update(self.labels.tobytes())
        return digest.hexdigest()

    def path(self, index):
        """Where sample `index` lies, such as "/data/cifar-10-python.tar.gz:data_batch_1[17]". For messages."""
        file = int(np.searchsorted(self.ends, index, side="right"))
        start = self.ends[file - 1] if file else 0
        return f"{self.directory}{self._separator}{self.files[file]}[{index - start}]"

    def image(self, index):
        """Sample `index` as a PIL.Image, RGB, 32 x 32."""
        return Image.fromarray(np.ascontiguousarray(self.pixels[index].transpose(1, 2, 0)))


def is_cifar(path):
    """Whether `path` (str) is a folder that holds a CIFAR set, told by its class names and some of its images.

    Any gzip or tar file counts too: what is in it takes long to see, and `read_cifar` says when it is something else.
    """
    if os.path.isdir(path):
        return _version_of(_files_in(path)) is not None
    return os.path.isfile(path) and _looks_packed(path)


def read_cifar(path, *, num_classes, class_names=None, what="train"):
    """Read the training ("train") or the test images ("val") of the set at `path`, for which is_cifar was true.

    num_classes: as configured; None: as many as the set has. class_names: the names in label order, when the numbering
    is given by the training data. Returns CifarSamples with at least one image.
    Raises UserError naming data.train_dir or data.val_dir and the path: for an archive of something else, files that
    are missing, damaged or larger than the published ones, and another number of classes.
    """
    source = f"data.{what}_dir={path}"
    try:
        version, contents = _from_folder(path, what) if os.path.isdir(path) else _from_archive(path, what)
        _check_classes(version, num_classes, class_names, source)
        names = _class_names(version, contents.pop(version.names))
        files = getattr(version, what)
        pixels, labels = zip(*(_images(version, name, contents.pop(name)) for name in files))
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror or error})") from None
    except (TarError, _Damaged) as error:
        raise UserError(f"{source}: {error}") from None
    ends = np.cumsum([len(part) for part in labels], dtype=np.int64)
    labels = np.concatenate(labels)
    if class_names is not None:
        unknown = [name for name in names if name not in class_names]
        if unknown:
            raise UserError(f"{source}: class {unknown[0]!r} of {version.title} is not among the {len(class_names)} "
                            f"known class names; give the data set of the training")
        labels = np.array([class_names.index(name) for name in names], np.int64)[labels]
        names = list(class_names)
    pixels = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE)
    return CifarSamples(path, pixels, labels, names, len(names), files, ends)


class _Damaged(ValueError):
    """What is wrong with a file and what to do about it."""


_AGAIN = "fetch the set again"


def _check_classes(version, num_classes, class_names, source):
    if class_names is None and num_classes not in (None, version.classes):
        raise UserError(f"{source}: {version.title} has {version.classes} classes, the config says {num_classes} "
                        f"(model.num_classes); set model.num_classes={version.classes}")


# --- from the disk to bytes


def _version_of(names):
    """The version whose class names and some of whose images are among `names`, or None."""
    for version in _VERSIONS:
        if version.names in names and not names.isdisjoint(version.train + version.val):
            return version
    return None


def _files_in(directory):
    known = {name for version in _VERSIONS for name in (version.names, *version.train, *version.val)}
    return {name for name in known if os.path.isfile(os.path.join(directory, name))}


def _looks_packed(path):
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError:
        return False
    return head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar"


def _from_folder(directory, what):
    """The version and its needed files, name -> bytes."""
    present = _files_in(directory)
    version = _version_of(present)
    _check_complete(version, present, what)
    contents = {}
    for name in (version.names, *getattr(version, what)):
        limit = version.bytes_limit(name)
        with open(os.path.join(directory, name), "rb") as file:
            contents[name] = file.read(limit + 1)
        if len(contents[name]) > limit:
            raise _Damaged(f"{name} is larger than the published one; {_AGAIN}")
    return version, contents


def _from_archive(path, what):
    """The same from a tar file; only the files that are needed are kept in memory."""
    limits = {}
    for version in _VERSIONS:
        for name in (version.names, *version.train, *version.val):
            limits[name] = version.bytes_limit(name)
    needed = {name for version in _VERSIONS for name in (version.names, *getattr(version, what))}
    contents = read_members(path, limits, needed)
    version = _version_of(contents.keys())
    if version is None:
        raise _Damaged("an archive, but not one of the four of CIFAR-10 and CIFAR-100 (python or binary); "
                       "give one of those, or unpack it and give its folder of images")
    _check_complete(version, contents.keys(), what)
    return version, contents


def _check_complete(version, present, what):
    missing = [name for name in getattr(version, what) if name not in present]
    if missing:
        raise _Damaged(f"{version.title} without {', '.join(missing)}; {_AGAIN}, with all its files")


# --- from bytes to arrays


def _class_names(version, content):
    if version.names_key:
        names = _entry(_unpickled(version.names, content), version.names, version.names_key)
        names = [_text(name) for name in names] if type(names) is list else []
    else:
        names = content.decode("utf-8", "replace").split()
    if not all(map(_fits_a_line, names)) or not len(names) == len(set(names)) == version.classes:
        raise _Damaged(f"{version.names} does not hold {version.classes} different class names; {_AGAIN}")
    return names


def _fits_a_line(name):
    return type(name) is str and name.isprintable() and name.strip() == name != ""


def _images(version, name, content):
    """(uint8 [n, 3072], int64 [n]) of one file of images."""
    read = _binary_images if version.label_bytes else _pickled_images
    pixels, labels = read(version, name, content)
    if not labels:
        raise _Damaged(f"{name} holds no image; {_AGAIN}")
    if not all(0 <= label < version.classes for label in labels):
        raise _Damaged(f"{name} holds a label outside 0..{version.classes - 1}; {_AGAIN}")
    return pixels, np.array(labels, np.int64)


def _binary_images(version, name, content):
    row = version.label_bytes + PIXELS
    if len(content) % row:
        raise _Damaged(f"{name} is cut short: {len(content)} bytes are no multiple of {row}; {_AGAIN}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    return rows[:, version.label_bytes :], rows[:, version.label_bytes - 1].tolist()


def _pickled_images(version, name, content):
    tree = _unpickled(name, content)
    pixels, labels = _entry(tree, name, "data"), _entry(tree, name, version.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise _Damaged(f"{name}: its data is not an array of uint8 with {PIXELS} columns; {_AGAIN}")
    if type(labels) is not list or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise _Damaged(f"{name}: its {version.label_key} are not {len(pixels)} whole numbers; {_AGAIN}")
    return pixels, labels


def _unpickled(name, content):
    """The dict of a pickle, read as data, with text for keys."""
    try:
        tree = read_pickle(content, _DIALECT)
    except Refused as refusal:
        reason = printable(str(refusal))
        raise _Damaged(f"{name} asks for {reason}, which images never need; get the set from a safe source") from None
    except (ValueError, TypeError, IndexError, KeyError, OverflowError):
        raise _Damaged(f"{name} is not a pickle of CIFAR, or is damaged; {_AGAIN}") from None
    return {_text(key): value for key, value in tree.items()} if type(tree) is dict else {}


def _entry(tree, name, key):
    if key not in tree:
        raise _Damaged(f"{name} has no {key!r}; {_AGAIN}")
    return tree[key]


def _text(value):
    return value.decode("latin1") if type(value) is bytes else value
