"""The data that ships with the project: complete, consistent with its lists and small."""

import numpy as np
import pytest
from data.classes import imagenet_table
from PIL import Image

LISTS = [
    ("digits", "train_list.txt", "", 1442),
    ("digits", "val_list.txt", "", 355),
    ("ILSVRC2012", "train_list.txt", "train", 4),
    ("ILSVRC2012", "val_list.txt", "val", 4),
]


def read_list(folder, name):
    """The (path, label) pairs of a list file."""
    pairs = [line.rsplit(" ", 1) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    return [(path, int(label)) for path, label in pairs]


@pytest.mark.parametrize(("data", "name", "below", "count"), LISTS)
def test_lists_name_existing_files_once(root, data, name, below, count):
    folder = root / "lit_data" / data
    pairs = read_list(folder, name)
    assert len(pairs) == len({path for path, _ in pairs}) == count
    assert all((folder / below / path).is_file() for path, _ in pairs)


def test_digit_lists_are_disjoint_and_cover_every_image(root):
    folder = root / "lit_data" / "digits"
    train, val = (read_list(folder, f"{split}_list.txt") for split in ("train", "val"))
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / "images").glob("*/*.png"))
    assert sorted(path for path, _ in train + val) == files
    assert all(path.split("/")[1] == str(label) for path, label in train + val)
    assert min(np.bincount([label for _, label in val], minlength=10)) >= 34


def test_digits_are_small_grey_images_of_full_range(root):
    folder = root / "lit_data" / "digits"
    brightest = set()
    for path, _ in read_list(folder, "val_list.txt"):
        with Image.open(folder / path) as image:
            assert (image.size, image.mode, image.format) == ((8, 8), "L", "PNG")
            brightest.add(max(image.tobytes()))
    assert max(brightest) == 255


def test_photos_carry_the_id_of_their_folder(root):
    wnids = imagenet_table().wnids
    for split in ("train", "val"):
        for path, label in read_list(root / "lit_data" / "ILSVRC2012", f"{split}_list.txt"):
            assert path.split("/")[0] == wnids[label]
            with Image.open(root / "lit_data" / "ILSVRC2012" / split / path) as image:
                assert image.format == "JPEG" and 300 <= max(image.size) <= 500


def test_every_photo_is_attributed(root):
    folder = root / "lit_data" / "ILSVRC2012"
    text = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    photos = [path.relative_to(folder).as_posix() for path in folder.glob("*/*/*")]
    assert len(photos) == 8
    assert all(f"`{photo}`" in text for photo in [*photos, "../cat.jpg"])
    assert "CC BY 4.0" in (root / "lit_data" / "digits" / "ATTRIBUTION.md").read_text(encoding="utf-8")


def test_shipped_data_stays_small(root):
    assert sum(path.stat().st_size for path in (root / "lit_data").rglob("*") if path.is_file()) < 1_000_000
