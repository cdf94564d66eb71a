"""The run folder: what a run keeps, and going on from it.

    config.yaml      resolved configuration          train.log, metrics.jsonl, vdl/   see engine.runlog
    best.pdparams    weights of the best epoch       checkpoints/                     the newest whole states
    last.pdparams    weights of the last epoch

A checkpoint `epoch-0007-step-000120.npz` is the state 120 steps after 7 finished epochs; `checkpoints/latest` names
the newest one, `checkpoints/best` the best epoch. It holds arrays and JSON only and is read without unpickling, so a
foreign file cannot run code. No state of a random generator is in it: all randomness is keyed by (seed, epoch, index of
the image) or (seed, epoch, step, process), so the position in the run is the whole state of the generators.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np
from errors import UserError
from weights.loading import load_weights
from weights.paddle_file import save_weights

from engine.config import RESOLVED, save_config
from engine.optim import slot_shapes
from engine.settings import changes

# What a run writes beside its weights; found in a folder without a configuration of ours, they are somebody else's.
_OWN_FILES = ("config.yaml", "classes.txt", "train.log", "metrics.jsonl")
# Without a step: written by an earlier version, which saved between epochs only.
_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?\.npz")
# What a disk says that is absent or broken for now; the file itself may be whole.
_NOT_NOW = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.EREMOTEIO}
# One name for all files that are being written, so that kills cannot leave more than one behind.
_PARTIAL = "partial"


class RunFolder:
    """The folder of one run. Only the first process may call the methods that write."""

    def __init__(self, path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._lock = None

    def examine(self, config, train_images, train_list=None):
        """Look at what is there before anything is written: the state to go on from (see `latest`) or None, and notes.

        train_images: number of training images; train_list: digest of their list, of which a change is told, since
        labels may have been put right. Raises UserError when the folder is not that of a run, holds weights but no
        checkpoint, or a run of another model or on another number of training images.
        """
        self._check_owner()
        state, notes = self.latest()
        if state is None:
            for name in ("best.pdparams", "last.pdparams"):
                if (self.path / name).exists():
                    readable = "readable " if notes else ""
                    raise UserError(
                        f"output={self.path}: holds {name} but no {readable}checkpoint to go on from; choose another "
                        "output or move the old files away"
                    )
        else:
            if "config" not in state["meta"]:
                raise UserError(f"{state['file']}: holds no settings; choose another output or move the file away")
            notes += changes(state["meta"], config, self.path)
            # Early versions did not note it.
            before = state["meta"].get("train_images", train_images)
            if before != train_images:
                raise UserError(
                    f"output={self.path}: its run was trained on {before} images, now there are {train_images} in "
                    f"data.train_dir={config.data.train_dir}; choose another output"
                )
            if train_list and state["meta"].get("train_list", train_list) != train_list:
                source = f"data.train_list={config.data.train_list}"
                if not config.data.train_list:
                    source = f"data.train_dir={config.data.train_dir}"
                notes.append(f"{source}: other images or labels than before, as many")
        return state, notes

    def create(self, config):
        """Make the folders, claim them for this process and write config.yaml. Raises UserError when that fails."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._claim()
        except OSError as error:
            raise UserError(f"output={self.path}: cannot be made: {error.strerror}; choose another output") from error
        save_config(config, self.path / "config.yaml")

    def _check_owner(self):
        file = self.path / "config.yaml"
        own = file.is_file() and file.read_bytes().startswith(RESOLVED.encode())
        foreign = [name for name in _OWN_FILES if (self.path / name).exists()]
        if foreign and not own and self._files():
            # The checkpoints hold the settings too.
            if not file.exists():
                return
            raise UserError(
                f"output={self.path}: config.yaml is not the one that the run wrote; remove it, and the run goes on "
                "from its checkpoint, or choose another output"
            )
        if foreign and not own:
            raise UserError(
                f"output={self.path}: holds {foreign[0]} that no run of this project wrote; choose another output"
            )

    def _claim(self):
        # A lock of the process, not of the open file: loader workers do not inherit it, and it ends with the process.
        self._lock = open(self.path / "lock", "w")  # noqa: SIM115  held until the process ends
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"output={self.path}: another training is using this folder; wait for it, end it, or choose another "
                "output"
            ) from None

    def latest(self):
        """The newest readable checkpoint and notes on damaged ones: ({"arrays", "meta", "file"} or None, lines).

        That is the one which checkpoints/latest names: where the batch has grown, its number is not the highest.
        """
        notes, files, pointed = [], self._files()[::-1], self._pointed()
        for file in sorted(files, key=lambda file: file != pointed):
            state = _read(file)
            if state is not None:
                return state, notes
            notes.append(f"{file} is damaged; trying the one before it")
        return None, notes

    def save(self, arrays, meta, keep=2):
        """Write a state under a new name and return the file; then remove all but the newest `keep`.

        meta: JSON of plain values with "epoch" (finished epochs) and perhaps "step" (steps since then). Raises
        UserError when it cannot be written; the older checkpoints stay then.
        """
        target = self.checkpoints / f"epoch-{meta['epoch']:04d}-step-{meta.get('step', 0):06d}.npz"
        text = np.frombuffer(json.dumps({**meta, "tensors": len(arrays)}).encode(), np.uint8)
        self._replace(target, lambda file: _write(file, {"meta": text, **arrays}))
        self._replace(self.checkpoints / "latest", lambda file: file.write(f"{target.name}\n".encode()))
        # Any beyond this one are damaged, or left from before the batch grew: they stay while there is no other.
        files = self._files()
        place = files.index(target)
        others = files[place + 1:] + files[:place]
        for file in others[:max(len(others) + 1 - keep, 0)]:
            file.unlink()
        return target

    def _pointed(self):
        """The file that checkpoints/latest names, or None."""
        try:
            return self.checkpoints / (self.checkpoints / "latest").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def save_weights(self, name, network):
        """Write best.pdparams or last.pdparams."""
        save_weights(network.state_dict(), self.path / f"{name}.pdparams")

    def note_best(self, best, kind):
        """Write checkpoints/best, which tells whose weights best.pdparams holds; kind: raw or ema."""
        text = f"epoch {best.epoch}, top-1 {best.top1:.4f}, {kind}: best.pdparams\n"
        self._replace(self.checkpoints / "best", lambda file: file.write(text.encode()))

    def _replace(self, target, write):
        """Write a file that appears under its name whole or not at all, even if the power fails."""
        partial = self.checkpoints / _PARTIAL
        try:
            with open(partial, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
            _sync_folder(self.checkpoints)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise UserError(f"cannot write {target}: {error.strerror}; free some space and start again") from error

    def _files(self):
        """The checkpoints, the oldest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [
            (int(match[1]), int(match[2] or 0), file)
            for file in self.checkpoints.iterdir()
            for match in [_NAME.fullmatch(file.name)]
            if match and file.is_file()
        ]
        return [file for _, _, file in sorted(found)]


def _sync_folder(folder):
    # The new name itself, which a power failure could take back. Some network file systems refuse it.
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _write(file, arrays):
    # As np.savez does, which on a full disk leaves an archive behind that complains on stderr when it is collected.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def weights_of_best(folder):
    """raw or ema: the kind of weights that best.pdparams of a run folder holds; None where nothing tells."""
    try:
        text = (Path(folder) / "checkpoints" / "best").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = re.search(r", (raw|ema): best\.pdparams$", text.strip())
    return match and match[1]


def _read(file):
    """The state in a file, or None where it is damaged. Raises UserError where the disk does not give it."""
    try:
        with open(file, "rb") as opened:
            opened.read(1)
        # np.load would take a single array for an archive, and fail otherwise.
        if not zipfile.is_zipfile(file):
            return None
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
    except OSError as error:
        if error.errno in _NOT_NOW:
            raise UserError(f"cannot read {file}: {error.strerror}; mend that and start again") from error
        return None
    # RuntimeError: a damaged header may ask for a password or an unknown compression. MemoryError: or be of any size.
    # AttributeError: a member that is no array comes as bytes.
    except (ValueError, KeyError, EOFError, RuntimeError, AttributeError, MemoryError, zipfile.BadZipFile, zlib.error):
        return None
    whole = _is_meta(meta) and all(isinstance(array, np.ndarray) for array in arrays.values())
    # Damage to the archive's directory can hide members without any other sign.
    return {"meta": meta, "arrays": arrays, "file": file} if whole and meta["tensors"] == len(arrays) else None


def _is_meta(meta):
    """Whether it is what `save` wrote, as far as going on depends on it; earlier versions wrote less."""
    if not isinstance(meta, dict) or type(meta.get("tensors")) is not int or type(meta.get("epoch")) is not int:
        return False
    best = meta.get("best", [0.0, 0])
    return (
        type(meta.get("step", 0)) is int
        and isinstance(best, list)
        and [type(value) in (int, float) for value in best] == [True, True]
        and isinstance(meta.get("config", {}), dict)
        and isinstance(meta.get("meter") or {}, dict)
        and isinstance(meta.get("logs", {}), dict)
    )


def training_arrays(network, optimizer):
    """Everything that training changes, by structured names: weights and the optimiser's moments."""
    arrays = {f"model/{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    # Paddle names moments after its own tensor names (linear_0.w_0_moment1_0), which change with what else was built.
    slots = {key: value.numpy() for key, value in optimizer.state_dict().items() if hasattr(value, "numpy")}
    for name, parameter in network.named_parameters():
        prefix = parameter.name + "_"
        arrays.update({f"optimizer/{name}/{k[len(prefix):]}": v for k, v in slots.items() if k.startswith(prefix)})
    return arrays


def restore_training(network, optimizer, arrays):
    """Put `training_arrays` back, bit for bit. Raises UserError when they do not fit network and optimiser.

    Paddle itself would start anew, without a word, with the moments that it does not find.
    """
    weights = {k[len("model/"):]: v for k, v in arrays.items() if k.startswith("model/")}
    load_weights(network, weights, source="checkpoint")
    found = {}
    for key, value in arrays.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            found[tuple(rest.rsplit("/", 1))] = value
    _check_slots(found, slot_shapes(optimizer, network))
    names = {name: parameter.name for name, parameter in network.named_parameters()}
    optimizer.set_state_dict({f"{names[name]}_{slot}": value for (name, slot), value in found.items()})


def _check_slots(found, wanted):
    faults = {
        "lacks": [key for key in wanted if key not in found],
        "has no use for": [key for key in found if key not in wanted],
        "has another shape of": [k for k in wanted if k in found and list(found[k].shape) != wanted[k]],
    }
    texts = [f"{text} {len(keys)}, such as {'/'.join(keys[0])}" for text, keys in faults.items() if keys]
    if texts:
        raise UserError(
            f"the checkpoint's optimiser state does not fit: it {'; it '.join(texts)}; choose another output or the "
            "train.optimizer and train.freeze of the run that wrote it"
        )
