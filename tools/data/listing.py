"""Which images there are and what their labels are: a list file, one folder per class, or a CIFAR set (data.cifar)."""

import hashlib
import os
import re

import numpy as np
from errors import UserError

from data.cifar import is_cifar, read_cifar
from data.decode import decode_rgb

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")

# ImageNet has 1.28 million files: asking a network disk about each would hold up the start for minutes. A wrong
# folder or a list written for another layout shows in a spread of this many.
PROBED_FILES = 64

_CHECK_PATH = "check the path, which starts at the project's root unless it is absolute"


class Samples:
    """Paths and labels of a data set, held in three arrays.

    A list of 1.28 million Python strings would be copied into every forked worker page by page (reading a str
    changes its reference count); arrays stay shared, and pickle fast.

    directory: str, absolute. names: the paths relative to it, joined as UTF-8 bytes. ends: int64 [n], where each
    name ends. labels: int64 [n], in [0, num_classes). class_names: list of str (folder mode) or None.
    """

    def __init__(self, directory, relative_paths, labels, num_classes, class_names=None):
        encoded = [path.encode("utf-8", "surrogateescape") for path in relative_paths]
        self.directory = directory
        self.names = b"".join(encoded)
        self.ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.num_classes = num_classes
        self.class_names = class_names

    def __len__(self):
        return len(self.labels)

    def path(self, index):
        """Absolute path (str) of sample `index`, 0 <= index < len(self)."""
        start = self.ends[index - 1] if index else 0
        name = self.names[start:self.ends[index]].decode("utf-8", "surrogateescape")
        return os.path.join(self.directory, name)

    def fingerprint(self):
        """Hexadecimal digest of the relative paths and labels, in their order; equal on machines with the same list."""
        digest = hashlib.blake2b(self.names, digest_size=16)
        digest.update(self.ends.tobytes() + self.labels.tobytes())
        return digest.hexdigest()

    def image(self, index):
        """Sample `index` as a PIL.Image of mode RGB; raises ImageError (data.decode) where it cannot be read."""
        return decode_rgb(self.path(index))


def read_samples(directory, list_file=None, *, num_classes, class_names=None, what="train"):
    """List the images of one split.

    directory: folder of the images. list_file: `path label` per line, paths relative to `directory`; None: one
    folder per class, numbered in the order of the sorted names. Or `directory` is an archive or folder of CIFAR-10 or
    CIFAR-100. num_classes: as configured; None: as many as there are class folders, or as the CIFAR set has.
    class_names: the names in label order, when the numbering is given (a validation folder must be numbered as the
    training folder was); only used without a list. what: "train" or "val", for the config keys in messages and the
    part of a CIFAR set.

    Returns Samples, or CifarSamples with the same interface: len(), path(i), image(i), labels, class_names,
    num_classes. There is at least one entry and every label is in [0, num_classes).
    Raises UserError naming the config key and the absolute path, for a list also the line.
    """
    dir_key, list_key = f"data.{what}_dir", f"data.{what}_list"
    if not directory:
        raise UserError(f"{dir_key} is not set: give the folder of the images, e.g. {dir_key}=/data/imagenet/{what}")
    directory = os.path.abspath(directory)
    if not os.path.exists(directory):
        raise UserError(f"{dir_key}={directory}: no such folder or archive; {_CHECK_PATH}")
    if is_cifar(directory):
        if list_file:
            raise UserError(f"{list_key}={list_file}: {dir_key}={directory} is an archive or a CIFAR set and takes no "
                            f"list; set {list_key}=null")
        return read_cifar(directory, num_classes=num_classes, class_names=class_names, what=what)
    if not os.path.isdir(directory):
        raise UserError(f"{dir_key}={directory}: is a file, not a folder of images, nor an archive of CIFAR-10 or "
                        f"CIFAR-100; give the folder or such an archive")
    if list_file:
        return _from_list(directory, os.path.abspath(list_file), num_classes, dir_key, list_key)
    return _from_folders(directory, num_classes, class_names, what, dir_key, list_key)


# --- list files

_LABEL = re.compile(r"[+-]?[0-9]+")


def _from_list(directory, list_file, num_classes, dir_key, list_key):
    if num_classes is None:
        raise UserError(f"{list_key}={list_file} needs model.num_classes: a list does not say how many classes there "
                        f"are; give the number")
    paths, labels, line_numbers = [], [], []
    for number, line in enumerate(_read_lines(list_file, list_key), start=1):
        # The last run of whitespace separates, so that names may hold spaces.
        fields = line.strip().rsplit(None, 1)
        if not fields:
            continue
        if len(fields) == 1:
            raise UserError(f"{list_file}:{number}: {fields[0]!r} has no label; each line of {list_key} is "
                            f"`path label`")
        if not _LABEL.fullmatch(fields[1]):
            raise UserError(f"{list_file}:{number}: label {fields[1]!r} is not an integer; each line of {list_key} "
                            f"is `path label`")
        paths.append(fields[0])
        labels.append(int(fields[1]))
        line_numbers.append(number)
    if not paths:
        raise UserError(f"{list_key}={list_file}: the list is empty; it needs a line `path label` for each image")
    _check_labels(labels, line_numbers, num_classes, list_file)
    samples = Samples(directory, paths, labels, num_classes)
    _probe_files(samples, line_numbers, list_file, dir_key)
    return samples


def _read_lines(list_file, list_key):
    try:
        with open(list_file, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        raise UserError(f"{list_key}={list_file}: no such file; {_CHECK_PATH}") from None
    except IsADirectoryError:
        raise UserError(f"{list_key}={list_file}: is a folder, not a list file; the folder of the images goes "
                        f"into {list_key.replace('_list', '_dir')}") from None
    except OSError as error:
        raise UserError(f"{list_key}={list_file}: cannot be read ({error.strerror})") from None
    if b"\0" in text:
        raise UserError(f"{list_key}={list_file}: not a UTF-8 text file; give one of `path label` lines")
    # File names are bytes to the system: what is not UTF-8 survives the round trip through surrogateescape.
    return text.decode("utf-8", "surrogateescape").lstrip("\ufeff").split("\n")


def _check_labels(labels, line_numbers, num_classes, list_file):
    bad = next((i for i, label in enumerate(labels) if not 0 <= label < num_classes), None)
    if bad is None:
        return
    from_one = min(labels) >= 1 and max(labels) == num_classes
    hint = "labels start at 0; subtract 1 from each" if from_one else "mend the label or set model.num_classes"
    raise UserError(f"{list_file}:{line_numbers[bad]}: label {labels[bad]} is outside 0..{num_classes - 1} "
                    f"(model.num_classes={num_classes}); {hint}")


def _probe_files(samples, line_numbers, list_file, dir_key):
    for index in np.unique(np.linspace(0, len(samples) - 1, PROBED_FILES).astype(int)):
        path = samples.path(index)
        if not os.path.isfile(path):
            raise UserError(f"{list_file}:{line_numbers[index]}: no such file {path}; the paths of the list are "
                            f"relative to {dir_key}={samples.directory}")


# --- one folder per class


def _from_folders(directory, num_classes, class_names, what, dir_key, list_key):
    folders, images = _scan(directory)
    if not folders:
        if images:
            raise UserError(f"{dir_key}={directory}: holds {len(images)} image(s) but no class folders; sort them "
                            f"into one folder per class, or give a list of `path label` lines as {list_key}")
        raise UserError(f"{dir_key}={directory}: no class folders and no images "
                        f"(accepted suffixes: {' '.join(SUFFIXES)}); check the path or fill the folder")
    if class_names is None:
        if num_classes is None and len(folders) < 2:
            raise UserError(f"found 1 class folder in {dir_key}={directory}, a training needs at least 2; give the "
                            f"folder that holds one folder per class")
        if num_classes not in (None, len(folders)):
            raise UserError(f"found {len(folders)} class folder(s) in {dir_key}={directory}, the config says "
                            f"{num_classes} (model.num_classes); give the folder that holds one folder per class, "
                            f"or set model.num_classes")
        class_names = folders
    numbers = {name: number for number, name in enumerate(class_names)}
    unknown = [name for name in folders if name not in numbers]
    if unknown:
        raise UserError(f"{dir_key}={directory}: class folder {unknown[0]!r} ({len(unknown)} such) is not among the "
                        f"{len(class_names)} known class names; name the folders as for training")
    paths, labels = [], []
    for folder in folders:
        found = images_below(directory, folder)
        # In validation an empty folder may stand for a class without images and keeps the numbering right.
        if not found and what == "train":
            raise UserError(f"{dir_key}={directory}: class folder {folder!r} holds no image "
                            f"(accepted suffixes: {' '.join(SUFFIXES)}); fill it or take it away")
        paths += found
        labels += [numbers[folder]] * len(found)
    if not paths:
        raise UserError(f"{dir_key}={directory}: no image in {len(folders)} class folder(s) "
                        f"(accepted suffixes: {' '.join(SUFFIXES)})")
    return Samples(directory, paths, labels, num_classes or len(class_names), list(class_names))


def images_below(directory, folder=""):
    """Paths of the images in `folder` of `directory` and below, relative to `directory`, sorted.

    Links are followed, hidden entries left out. Raises UserError for a folder that cannot be listed.
    """
    folders, images = _scan(os.path.join(directory, folder))
    paths = [os.path.join(folder, name) for name in images]
    for name in folders:
        paths += images_below(directory, os.path.join(folder, name))
    return paths


def _scan(directory):
    """Sorted names of the folders and of the images in `directory`, links followed, hidden entries left out.

    Hidden are .ipynb_checkpoints, .DS_Store and the like, and __MACOSX, which some archives bring along.
    """
    folders, images = [], []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(SUFFIXES):
                    images.append(entry.name)
    except OSError as error:
        raise UserError(f"{directory}: cannot be listed ({error.strerror})") from None
    return sorted(folders), sorted(images)
