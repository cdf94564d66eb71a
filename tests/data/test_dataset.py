"""Items keyed by (seed, epoch, index), and undecodable images that reach the main process by name."""

import numpy as np
import paddle
import pytest
from data.dataset import FAILED, ImageDataset
from data.decode import ImageError
from data.listing import read_samples
from data.transforms import EvalTransform, TrainTransform
from errors import UserError
from PIL import Image


@pytest.fixture
def samples(tmp_path):
    """6 photos of 2 classes; number 4 (two/b.jpg) is cut short."""
    for label, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        for i, letter in enumerate("abc"):
            noise = np.random.RandomState(3 * label + i).randint(0, 256, (60, 80, 3)).astype("uint8")
            Image.fromarray(noise).save(tmp_path / name / f"{letter}.jpg")
    cut = tmp_path / "two" / "b.jpg"
    cut.write_bytes(cut.read_bytes()[:cut.stat().st_size // 2])
    return read_samples(str(tmp_path), num_classes=2)


def test_items(samples):
    dataset = ImageDataset(samples, EvalTransform(32), train=False, seed=0)
    assert len(dataset) == 6
    pixels, label, index = dataset[(0, 3)]
    assert pixels.shape == (32, 32, 3) and pixels.dtype == np.uint8
    assert isinstance(label, np.int64) and isinstance(index, np.int64)
    assert (label, index) == (1, 3)


class Squares:
    """Samples whose pictures come from memory, as those of a CIFAR set; number 1 cannot be read."""

    labels = np.array([3, 4])

    def __len__(self):
        return 2

    def path(self, index):
        return f"archive:part[{index}]"

    def image(self, index):
        if index == 1:
            raise ImageError("archive:part[1]: broken")
        return Image.new("RGB", (8, 8), (index + 1, 2, 3))


def test_pictures_come_from_the_samples():
    dataset = ImageDataset(Squares(), EvalTransform(8, 1.0), train=False, seed=0)
    pixels, label, _ = dataset[(0, 0)]
    assert (pixels == (1, 2, 3)).all() and label == 3
    assert dataset[(0, 1)][1] == FAILED
    with pytest.raises(ImageError, match=r"archive:part\[1\]: broken; replace the file"):
        dataset.check_batch(np.array([FAILED]), np.array([1]))
    assert str(dataset.explain(0)).startswith("archive:part[0]: could not be read a moment ago")


def test_augmentation_depends_on_seed_epoch_and_index_alone(samples):
    def item(seed, epoch, index):
        return ImageDataset(samples, TrainTransform(32), train=True, seed=seed)[(epoch, index)][0]

    first = item(7, 2, 1)
    dataset = ImageDataset(samples, TrainTransform(32), train=True, seed=7)
    for key in ((0, 0), (2, 5), (2, 0), (9, 1)):
        np.random.seed(1)
        dataset[key]
    np.testing.assert_array_equal(dataset[(2, 1)][0], first)
    assert not np.array_equal(item(7, 3, 1), first)
    assert not np.array_equal(item(8, 2, 1), first)


def test_two_indices_of_the_same_picture_differ(samples, tmp_path):
    (tmp_path / "list.txt").write_text("one/a.jpg 0\none/a.jpg 0\n")
    twice = read_samples(str(tmp_path), str(tmp_path / "list.txt"), num_classes=1)
    dataset = ImageDataset(twice, TrainTransform(32), train=True, seed=0)
    assert not np.array_equal(dataset[(0, 0)][0], dataset[(0, 1)][0])


def test_undecodable_image_is_marked(samples):
    for transform, train in ((TrainTransform(32), True), (EvalTransform(32), False)):
        pixels, label, index = ImageDataset(samples, transform, train=train, seed=0)[(0, 4)]
        assert pixels.shape == (32, 32, 3) and pixels.dtype == np.uint8 and not pixels.any()
        assert (label, index) == (FAILED, 4) and isinstance(label, np.int64)


@pytest.mark.parametrize("kind", [np.array, paddle.to_tensor])
def test_check_batch_stops_by_name_or_counts(samples, kind):
    labels, indices = kind(np.array([0, FAILED, 1])), kind(np.array([2, 4, 5]))
    strict = ImageDataset(samples, EvalTransform(32), train=False, seed=0)
    with pytest.raises(ImageError, match=r"two/b\.jpg.*truncated"):
        strict.check_batch(labels, indices)
    keep, failed = strict.check_batch(kind(np.array([0, 1])), kind(np.array([0, 3])))
    assert keep.tolist() == [True, True] and failed == 0
    lenient = ImageDataset(samples, EvalTransform(32), train=False, seed=0, on_error="skip")
    keep, failed = lenient.check_batch(labels, indices)
    assert keep.tolist() == [True, False, True] and keep.dtype == bool and failed == 1


def test_an_image_that_became_readable_says_so(samples):
    error = ImageDataset(samples, EvalTransform(32), train=False, seed=0).explain(0)
    assert isinstance(error, ImageError) and "one/a.jpg" in str(error) and "can be now" in str(error)


def test_impossible_values_are_named(samples):
    with pytest.raises(UserError, match="train.seed=-1"):
        ImageDataset(samples, TrainTransform(32), train=True, seed=-1)
    with pytest.raises(UserError, match="data.on_error=ignore"):
        ImageDataset(samples, TrainTransform(32), train=True, seed=0, on_error="ignore")
