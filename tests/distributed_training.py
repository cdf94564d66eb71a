"""What distributed_worker.py trains in each group of processes: the same total batches, however they are split."""

import hashlib
import time
from pathlib import Path

import numpy as np
import paddle
import t2t
import wiring
from engine import distributed
from engine.checkpoint import RunFolder
from engine.distillation import Distillation
from engine.loss import LabelLoss
from engine_fakes import ListLog, make_config, make_trainer, small_t2t
from errors import UserError

TOTAL = 8  # images of a step, over all processes
AUGMENTED = {"data__auto_augment": "rand-m9-mstd0.5-inc1", "data__reprob": 0.5}
CASES = {
    "plain": {},
    "windows": {"train__accumulate": 2},
    "mixed": {**AUGMENTED, "train__mixup_alpha": 0.8, "train__cutmix_alpha": 1.0, "train__clip_grad": 1.0},
    "taught": {"train__distill": "soft"},
    "uneven": {**AUGMENTED, "data__drop_last": False, "data__on_error": "skip"},
}


def digest(arrays):
    """One value for a dict of arrays, bit for bit."""
    return hashlib.sha256(b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def settings(pictures, case, epochs=2, batch=None, **values):
    """The configuration of a case, with this world's share of the total batch for each process, or with `batch`."""
    keys = {
        "data__train_dir": str(pictures), "data__train_list": str(pictures / f"{case}.txt"), "data__workers": 0,
        "data__val_dir": str(pictures), "data__val_list": str(pictures / "val.txt"),
        "data__mean": (0.5,) * 3, "data__std": (0.25,) * 3, "data__scale": (0.5, 1.0),
        "model__img_size": 16, "train__lr": 5e-4, "train__epochs": epochs, **CASES.get(case, {}), **values,
    }  # fmt: skip
    batch = batch or TOTAL // distributed.world_size() // keys.get("train__accumulate", 1)
    return make_config(train__batch_size=batch, val__batch_size=2, **keys)


def network_without_dropout():
    """A small T2T-ViT with the performer, whose own dropout is switched off, too."""
    paddle.seed(1)
    network = small_t2t()
    for layer in network.sublayers():
        if isinstance(layer, t2t.Dropout):
            layer.p = 0.0
    return network


class Cut(Exception):
    """The end of a run, in every process after the same step."""


class CuttingLog(ListLog):
    """A log that ends a run when its progress text is `at`."""

    at = None

    def progress(self, text, fraction):
        if text == self.at:
            raise Cut


class Recorded:
    """A training step that keeps [mean loss, images that count] of each micro-batch in a list."""

    def __init__(self, step):
        self.step, self.losses = step, []

    def __call__(self, images, targets, last, share, counted):
        loss, logits = self.step(images, targets, last, share, counted)
        self.losses.append([loss.item(), counted])
        return loss, logits


def teacher_of(config):
    """The loss of the case that has a teacher, else None."""
    if config.train.distill != "soft":
        return None
    paddle.seed(2)
    return Distillation(small_t2t(), LabelLoss(config.train.smoothing), kind="soft", alpha=0.5, temperature=2.0,
                        source="T")  # fmt: skip


def trainer_of(folder, config, network=None, ema=True):
    trainer = make_trainer(
        folder, config, wiring.train_batches(config), wiring.eval_batches(config), network or network_without_dropout(),
        CuttingLog(), ema_decay=0.9 if ema else None, distillation=teacher_of(config),
    )  # fmt: skip
    trainer.step = Recorded(trainer.step)
    return trainer


def outcome(trainer, folder, name):
    """What tests compare; the tensors go to a file, written by the first process."""
    held = {name: np.asarray(value) for name, value in trainer.tensors().items()}
    if distributed.is_main():
        np.savez(folder / f"{name}.npz", **{key.replace("/", "|"): value for key, value in held.items()})
    val = [(v["weights"], v["top1"], v["loss"], v["images"]) for v in trainer.log.of("val")]
    epochs = [(values["loss"], values["skipped"]) for values in trainer.log.of("epoch")]
    return {"losses": trainer.step.losses, "digest": digest(held), "val": val, "epochs": epochs}


def train_cases(folder, own, pictures):
    """Every case with the real loader; two workers decode in groups of two processes."""
    found = {}
    for case in CASES:
        workers = 2 if case == "uneven" and distributed.world_size() == 2 else 0
        trainer = trainer_of(own / case, settings(pictures, case, data__workers=workers))
        trainer.fit()
        trainer.train.loader.close()
        trainer.val.loader.close()
        found[case] = outcome(trainer, folder, case)
    return found


def cut(own, pictures, at="epoch 1 step 2/3"):
    """Train until after a step; the checkpoint is of that step. Rank 0's folder holds it."""
    trainer = trainer_of(own / "cut", settings(pictures, "plain", train__save_steps=2))
    trainer.log.at = at
    try:
        trainer.fit()
    except Cut:
        return trainer.step.losses
    raise RuntimeError("the run was not cut")


def go_on(folder, own, pictures, cut_folder):
    """Go on with the run that two processes began, with the same total batch and with another one."""
    state = RunFolder(cut_folder).latest()[0]
    trainer = trainer_of(own / "on", settings(pictures, "plain"))
    notes = trainer.restore(state)
    trainer.fit()
    found = {"same": {"notes": notes, **outcome(trainer, folder, "on")}}
    trainer = trainer_of(own / "other", settings(pictures, "plain", epochs=1, batch=3))
    notes = trainer.restore(state)
    dataset, seen = trainer.train.loader.dataset, []
    check = dataset.check_batch

    def noting(labels, indices):
        seen.extend(indices.tolist())
        return check(labels, indices)

    dataset.check_batch = noting
    trainer.fit()
    return {**found, "other": {"notes": notes, "seen": seen, "place": trainer.place}}


def dropout_masks(own, pictures):
    """Digests of what dropout and drop path left out in two equal runs, a list for each."""
    runs = []
    for number in range(2):
        paddle.seed(5)
        network = small_t2t(drop_rate=0.3, drop_path_rate=0.5)
        masks = []

        def note(layer, inputs, out, masks=masks):
            if layer.training and getattr(layer, "p", getattr(layer, "drop_prob", 0)):
                masks.append(hashlib.sha256((out == 0).numpy().tobytes()).hexdigest())

        for layer in network.sublayers():
            if isinstance(layer, (t2t.Dropout, t2t.DropPath)):
                layer.register_forward_post_hook(note)
        trainer_of(own / f"dropout{number}", settings(pictures, "plain", epochs=1), network, ema=False).fit()
        runs.append(masks)
    return runs


def refusals(own, pictures, cut_folder):
    """What the processes say about values, settings, images and a state that are not the same in all of them."""
    rank = distributed.rank()
    here = settings(pictures, "plain")
    array = np.arange(3.0)
    array[1] += rank == distributed.world_size() - 1

    def settings_differ():
        distributed.check_same(wiring.common_settings(settings(pictures, "plain", train__lr=1e-3 + 1e-4 * rank)), "ha")

    def state_differs():
        trainer = trainer_of(own / "differs", here)
        state = RunFolder(cut_folder).latest()[0]
        name = next(name for name in state["arrays"] if name.endswith("moment1_0"))
        state["arrays"][name][...] += rank
        trainer.restore(state)
        trainer.fit()

    def frozen_differ():
        trainer = trainer_of(own / "frozen", here)
        trainer.network.pos_embed.set_value(trainer.network.pos_embed + rank)
        trainer.fit()

    def teacher_differs():
        trainer = trainer_of(own / "teacher", settings(pictures, "taught"))
        trainer.loss._digest = bytes([rank] * 32)
        trainer.fit()

    def place_differs():
        trainer = trainer_of(own / "place", here)
        trainer.first_epoch = rank
        trainer.fit()

    refused = {
        "array": lambda: distributed.check_same({"a": 1, "b": array, "c": rank}, "see to it"),
        "names": lambda: distributed.check_same(dict.fromkeys("abc"[:rank + 1]), "see to it"),
        "settings": settings_differ,
        "images": lambda: wiring.train_batches(settings(pictures, "plain" if rank else "uneven")),
        "state": state_differs, "frozen": frozen_differ, "teacher": teacher_differs, "place": place_differs,
    }  # fmt: skip
    found = {}
    for name, call in refused.items():
        try:
            call()
            found[name] = None
        except UserError as error:
            found[name] = str(error)
    return found


def slow_save(own, pictures, seconds):
    """Rank 0 takes its time to save while the others wait; the run goes on. Returns the epochs that it finished."""
    trainer = trainer_of(own / "slow", settings(pictures, "plain"), ema=False)
    save = trainer.folder.save

    def slowly(*arguments):
        time.sleep(seconds)
        return save(*arguments)

    trainer.folder.save = slowly
    trainer.fit()
    return len(trainer.log.of("epoch"))


def train_in_several_ways(folder, own, job):
    """Everything above, some of it in groups of two processes only; the results of this process."""
    pictures, world = Path(job["pictures"]), distributed.world_size()
    result = {"cases": train_cases(folder, own, pictures)}
    if world == 2:
        result["cut"] = cut(own, pictures)
        result["slow"] = slow_save(own, pictures, 1.0)
        result["masks"] = dropout_masks(own, pictures)
        result["refused"] = refusals(own, pictures, folder / "rank0" / "cut")
    else:
        result["on"] = go_on(folder, own, pictures, Path(job["cut"]))
    return result
