"""What a run remembers of its settings and code, and which of them may change between its parts."""

import json
from dataclasses import asdict

from errors import UserError

from engine.config import ROOT
from engine.schema import build

# Settings that the saved tensors depend on; anything else may change between the parts of a run.
_FIXED = {
    "model.name", "model.img_size", "model.num_classes", "model.qk_scale", "model.split_kernels",
    "model.split_overlaps", "model.split_paddings", "train.optimizer", "train.freeze",
    # Not read again, but config.yaml would tell of an origin that the run does not have.
    "train.init",
}  # fmt: skip


def plain(config):
    """The configuration as dictionaries, lists and plain values, as JSON holds it."""
    return json.loads(json.dumps(asdict(config)))


def changes(meta, config, folder):
    """Lines on settings that differ from those in a checkpoint's `meta`.

    Raises UserError where the saved tensors or the place in the epoch would not fit. What an earlier version did not
    know yet, it did as the default does.
    """
    notes = []
    before = {**_flat(plain(build({}))), **_flat(meta["config"])}
    for name, value in _flat(plain(config)).items():
        was = before[name]
        if was == value:
            continue
        if name in _FIXED:
            raise UserError(
                f"{name}={value}: the run in {folder} has {name}={was}; choose another output or the old value"
            )
        if name == "train.seed" and meta.get("step"):
            raise UserError(
                f"train.seed={value}: the run in {folder} stands in the middle of epoch {meta['epoch'] + 1}, whose "
                f"order comes from train.seed={was}; choose another output or the old value"
            )
        notes.append(f"{name} was {was}, now {value}")
    if meta.get("code", code_version()) != code_version():
        notes.append(f"the code was {meta['code']}, now {code_version()}")
    return notes


def _flat(config):
    flat = {}
    for section, values in config.items():
        flat.update({f"{section}.{key}": v for key, v in values.items()} if type(values) is dict else {section: values})
    return flat


def code_version():
    """The commit that the project's folder stands at, as git keeps it in its files; "unknown" without git."""
    git = ROOT / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        reference = head[len("ref: "):]
        if (git / reference).is_file():
            return (git / reference).read_text(encoding="utf-8").strip()
        packed = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return "unknown"
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "unknown")
