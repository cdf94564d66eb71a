"""The record beside converted weights: where they came from and what they need to be used rightly.

`t2t_vit_14.pdparams` has its record in `t2t_vit_14.pdparams.json`. val, predict and fine-tuning read it, so that
nobody has to know which network, size and transform a file was made for.
"""

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple, Optional

from weights.atomic import whole_file
from weights.files import WeightsError

# A record is a page of text; anything longer is something else.
LARGEST_RECORD = 1 << 20
# What val and predict do to an image before the network sees it, by their names in the data section.
DATA_KEYS = ("resize", "crop_pct", "interpolation", "mean", "std")
_BLOCK = 1 << 20


class Record(NamedTuple):
    """What is known of one weights file.

    source: name of the file it was made from, source_sha256: that file's digest, dictionary: which dictionary in it.
    model: a name of the registry; img_size in pixels; num_classes; qk_scale as in model.qk_scale. data: DATA_KEYS ->
    values. tensors, parameters: counts. sha256: digest of the weights file itself. classes: names of the classes in id
    order, where a training noted them.
    """

    source: str
    source_sha256: str
    dictionary: str
    model: str
    img_size: int
    num_classes: int
    qk_scale: Optional[float]
    data: dict
    tensors: int
    parameters: int
    sha256: str
    classes: Optional[list] = None


_TYPES = {
    "source": str, "source_sha256": str, "dictionary": str, "model": str, "img_size": int, "num_classes": int,
    "qk_scale": (int, float, type(None)), "data": dict, "tensors": int, "parameters": int, "sha256": str,
    "classes": (list, type(None)),
}  # fmt: skip


def record_file(weights) -> Path:
    """Where the record of a weights file lies, whether it is there or not."""
    return Path(f"{weights}.json")


def sha256_of(path) -> str:
    """Hexadecimal SHA-256 of a file. Raises WeightsError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(_BLOCK), b""):
                digest.update(block)
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}; check the file") from error
    return digest.hexdigest()


def _digest(weights):
    """sha256_of, once for each state of a file: a command asks for the record of its weights several times."""
    state = os.stat(weights)
    return _digest_of(os.fspath(weights), state.st_ino, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _digest_of(weights, *_):
    return sha256_of(weights)


def write_record(record, weights) -> Path:
    """Write the record of a weights file beside it, whole or not at all, and return its path. Raises WeightsError."""
    path = record_file(weights)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(record._asdict(), indent=2) + "\n", encoding="utf-8")
    return path


def read_record(weights) -> Optional[Record]:
    """The record beside a weights file, or None where there is none.

    Raises WeightsError for a record that is damaged, or that belongs to other weights: settings of another network
    would give wrong results without a sign.
    """
    path = record_file(weights)
    if not os.path.lexists(path):
        return None
    remedy = "convert the weights again, or remove the record and give --config"
    if not path.is_file():
        raise WeightsError(f"{path} is no regular file; {remedy}")
    try:
        with open(path, "rb") as stream:
            content = json.loads(stream.read(LARGEST_RECORD))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not the record of a conversion (not JSON); {remedy}") from error
    if not isinstance(content, dict) or not set(_TYPES) <= set(content):
        raise WeightsError(f"{path} is not the record of a conversion; {remedy}")
    for name, kind in _TYPES.items():
        if not isinstance(content[name], kind) or isinstance(content[name], bool):
            raise WeightsError(f"{path}: {name}={content[name]!r} is not of the right type; {remedy}")
    classes = content["classes"]
    if classes is not None and (len(classes) != content["num_classes"] or not all(type(c) is str for c in classes)):
        raise WeightsError(f"{path}: classes are not {content['num_classes']} names; {remedy}")
    if not set(DATA_KEYS) <= set(content["data"]):
        raise WeightsError(f"{path}: data lacks {min(set(DATA_KEYS) - set(content['data']))}; {remedy}")
    if _digest(weights) != content["sha256"]:
        raise WeightsError(f"{path} belongs to other weights than {weights} (SHA-256 differs); {remedy}")
    return Record(**{name: content[name] for name in Record._fields})


def check_shapes(record, weights, state):
    """Raise WeightsError where a record tells another image size or number of classes than the tensors of its weights.

    state: dict name -> np.ndarray. The network is built by the record's word, and a wrong one could ask for any amount
    of memory.
    """
    tokens, classes = (record.img_size // 16) ** 2 + 1, record.num_classes
    for name, position, wanted in (("pos_embed", 1, tokens), ("head.bias", 0, classes)):
        shape = state[name].shape if name in state else ()
        if len(shape) > position and shape[position] != wanted:
            raise WeightsError(
                f"{record_file(weights)} tells of {record.img_size} px and {classes} classes, but {name} in the weights"
                f" has the shape {list(shape)}; convert the weights again, or remove the record and give --config"
            )
