"""Undecodable images in the training loop: stop with the path, or leave out and count."""

import numpy as np
import pytest
from data.batches import Batches
from data.dataset import ImageDataset
from data.decode import ImageError
from data.listing import read_samples
from data.loader import build_loader
from data.transforms import EvalTransform, TrainTransform
from engine_fakes import ArrayBatches, make_config, make_trainer, pictures
from errors import UserError
from PIL import Image


def run(folder, train=None, val=None):
    """Train on given batches, or on made ones that are whole; returns the Trainer."""
    train = train or ArrayBatches(*pictures(12), 4)
    trainer = make_trainer(folder, make_config(), train, val or ArrayBatches(*pictures(7, seed=1), 4))
    trainer.fit()
    return trainer


@pytest.fixture
def picture_folder(tmp_path):
    """Twelve images of three classes; `broken` ones hold text."""

    def make(*broken):
        lines = []
        for index in range(12):
            file = tmp_path / f"{index:02d}.png"
            Image.fromarray(np.random.RandomState(index).randint(0, 256, (9, 9, 3)).astype("uint8")).save(file)
            if index in broken:
                file.write_text("no image")
            lines.append(f"{file.name} {index % 3}\n")
        (tmp_path / "list.txt").write_text("".join(lines))
        return tmp_path

    return make


def file_batches(folder, on_error, *, train=True, workers=0):
    samples = read_samples(str(folder), str(folder / "list.txt"), num_classes=3)
    crop = TrainTransform(8, (0.5, 1.0), (1.0, 1.0), 0.5, "bilinear")
    transform = crop if train else EvalTransform(8, 1.0, "bicubic")
    loader = build_loader(
        ImageDataset(samples, transform, train=train, seed=1, on_error=on_error), batch_size=4, shuffle=False, seed=1,
        rank=0, world=1, drop_last=train, workers=workers,
    )  # fmt: skip
    return Batches(loader, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_training_image_stops_with_its_path(tmp_path, picture_folder, workers):
    batches = file_batches(picture_folder(6), "stop", workers=workers)
    with pytest.raises(ImageError, match=r"06\.png"):
        run(tmp_path / "run", batches)
    batches.loader.close()
    assert not (tmp_path / "run" / "last.pdparams").exists()


def test_skip_counts_broken_images(tmp_path, picture_folder):
    folder = picture_folder(1, 5, 6)
    log = run(tmp_path / "run", file_batches(folder, "skip"), file_batches(folder, "skip", train=False)).log
    assert len(log.matching(r"avg_acc: [01]\.\d{4}, skipped images: 3$")) == 2
    assert [values["skipped"] for values in log.of("epoch")] == [3, 3]
    assert len(log.matching("^3 undecodable validation image")) == 2
    assert [(values["images"], values["skipped"]) for values in log.of("val")] == [(9, 3)] * 2


def test_a_whole_broken_batch_stops_training(tmp_path, picture_folder):
    with pytest.raises(UserError, match=r"04\.png: a whole batch of images could not be decoded"):
        run(tmp_path / "run", file_batches(picture_folder(4, 5, 6, 7), "skip"))


def test_a_whole_broken_batch_is_left_out_of_validation(tmp_path, picture_folder):
    val = file_batches(picture_folder(4, 5, 6, 7), "skip", train=False)
    assert run(tmp_path / "run", val=val).log.of("val")[0]["images"] == 8
