"""Mixing and erasing on the way from the loader to the loop: keyed by place, in the right order, off in evaluation."""

import numpy as np
import paddle
import pytest
from commands import make_folders
from data.auto_augment import auto_augment
from data.batches import Batches
from data.dataset import ImageDataset
from data.decode import ImageError
from data.erasing import RandomErasing
from data.listing import read_samples
from data.loader import build_loader
from data.mixing import Mixing, soft_targets
from data.transforms import EvalTransform, TrainTransform

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return read_samples(str(make_folders(tmp_path_factory.mktemp("images"), count=5)), num_classes=3)


def batches(samples, workers=0, **parts):
    dataset = ImageDataset(samples, EvalTransform(16), train=False, seed=7)
    loader = build_loader(
        dataset, batch_size=4, shuffle=True, seed=7, rank=0, world=1, drop_last=False, workers=workers
    )
    return Batches(loader, MEAN, STD, **parts)


def training_batches(samples, batch_size, world, rank, **parts):
    augment = auto_augment("rand-m9-mstd0.5-inc1", 16, MEAN, "random")
    dataset = ImageDataset(samples, TrainTransform(16, augment=augment), train=True, seed=7, on_error="skip")
    loader = build_loader(
        dataset, batch_size=batch_size, shuffle=True, seed=7, rank=rank, world=world, drop_last=False, workers=0
    )
    return Batches(loader, MEAN, STD, **parts)


def arrays(made, epoch=0, start=0):
    made.set_epoch(epoch, start)
    found = [(b.images.numpy(), b.labels.numpy(), None if b.targets is None else b.targets.numpy()) for b in made]
    made.loader.close()
    return found


def same(left, right):
    return len(left) == len(right) and all(
        np.array_equal(a, b) for one, other in zip(left, right) for a, b in zip(one, other)
    )


def parts():
    return {"mixing": Mixing(0.8, 1.0, num_classes=3), "erasing": RandomErasing(1.0)}


def test_without_parts_there_are_no_targets(samples):
    assert all(targets is None for _, _, targets in arrays(batches(samples)))


def test_what_is_drawn_depends_on_the_place_alone(samples):
    whole = arrays(batches(samples, **parts()))
    assert same(whole, arrays(batches(samples, **parts())))
    assert same(whole, arrays(batches(samples, workers=2, **parts())))
    # Going on in the middle of the epoch gives the same batches as before.
    assert same(whole[2:], arrays(batches(samples, **parts()), start=2))
    other = arrays(batches(samples, **parts()), epoch=1)
    assert not np.array_equal(whole[0][0], other[0][0])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_picture_is_the_same_for_any_number_of_processes(samples, world):
    """RandAugment, crop, mixing and erasing of each sample of an epoch; 8 images of a step in all."""
    def pictures(world):
        found = {}
        for rank in range(world):
            made = training_batches(samples, 8 // world, world, rank, **parts())
            made.set_epoch(3)
            for step, batch in enumerate(made):
                for index, image, target in zip(batch.indices.tolist(), batch.images.numpy(), batch.targets.numpy()):
                    # The last batch of 7 leaves two processes no even blocks.
                    if step == 0:
                        found[index] = image.tobytes() + target.tobytes()
        return found

    one = pictures(1)
    assert len(one) == 8 and pictures(world) == one


@pytest.mark.parametrize("world, size, last", [
    (1, 8, [7]), (2, 4, [4, 3]), (4, 2, [2, 2, 2, 1]), (3, 4, [1, 1, 1]), (2, 7, [1, 0]), (4, 3, [1, 1, 1, 0]),
])  # fmt: skip
def test_repeated_images_of_a_training_epoch_do_not_count(samples, world, size, last):
    seen, counted = [], []
    for rank in range(world):
        *full, end = training_batches(samples, size, world, rank)
        assert all(batch.counted == len(batch.indices) == size == batch.share for batch in full)
        assert end.share == sum(last) / world and not len(end.failed)
        assert len(end.labels) == len(end.images) == max(end.counted, 1)
        seen += sum((batch.indices[: batch.counted].tolist() for batch in (*full, end)), [])
        counted.append(end.counted)
    assert sorted(seen) == list(range(15)) and counted == last


@pytest.mark.parametrize("rank, failed", [(0, 4), (3, 3)])
def test_a_process_whose_images_are_all_broken_gets_a_blank_one(samples, monkeypatch, rank, failed):
    def broken(index):
        raise ImageError(f"{index} is broken")

    monkeypatch.setattr(samples, "image", broken)
    (batch,) = training_batches(samples, 4, 4, rank, **parts())
    assert (batch.counted, batch.share, len(set(batch.failed.tolist()))) == (0, 3.75, failed)
    assert len(batch.images) == len(batch.labels) == 1 and batch.targets.numpy().sum() == pytest.approx(1)


def test_targets_follow_the_mixing(samples):
    for _, labels, targets in arrays(batches(samples, mixing=Mixing(0.8, 0.0, num_classes=3))):
        assert targets.shape == (len(labels), 3) and np.allclose(targets.sum(axis=1), 1, atol=1e-6)
    plain = Mixing(0.8, 1.0, prob=0.0, num_classes=3)
    for _, labels, targets in arrays(batches(samples, mixing=plain)):
        assert np.array_equal(targets, soft_targets(paddle.to_tensor(labels), 1.0, 0.1, 3).numpy())


def test_noise_comes_after_normalisation(samples):
    # Erased pixels are noise of deviation 1, whatever mean and deviation the images are normalised with.
    before, after = arrays(batches(samples)), arrays(batches(samples, erasing=RandomErasing(1.0, 0.3, 0.33)))
    erased = np.concatenate([b[0][a[0] != b[0]] for a, b in zip(before, after)])
    assert len(erased) > 1000 and abs(erased.mean()) < 0.15 and 0.85 < erased.std() < 1.15
