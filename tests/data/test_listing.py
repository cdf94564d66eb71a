"""List files and class folders: what is read, in which order, and what each mistake is told."""

import pickle
import sys

import numpy as np
import pytest
from data.listing import PROBED_FILES, SUFFIXES, Samples, read_samples
from errors import UserError


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


@pytest.fixture
def f3(tmp_path):
    """3 class folders with 4 files each."""
    for name in ("cat", "ant", "bee"):
        for i in range(4):
            touch(tmp_path / "train" / name / f"{i}.JPEG")
    return tmp_path / "train"


def fails(*args, what="train", **kwargs):
    with pytest.raises(UserError) as caught:
        read_samples(*args, what=what, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- lists


def write_list(folder, text, files=()):
    for name in files:
        touch(folder / "images" / name)
    path = folder / "list.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "images", path


def test_separators_line_ends_and_blanks(tmp_path):
    names = ["a b.jpg", "tab.jpg", "crlf.jpg", "two  spaces.jpg", "last.jpg"]
    text = "\ufeffa b.jpg 0\ntab.jpg\t1\ncrlf.jpg 2\r\n\n  \ntwo  spaces.jpg \t 1\nlast.jpg 0\n\n"
    directory, path = write_list(tmp_path, text, names)
    samples = read_samples(str(directory), str(path), num_classes=3)
    assert [samples.path(i) for i in range(len(samples))] == [str(directory / name) for name in names]
    assert samples.labels.tolist() == [0, 1, 2, 1, 0] and samples.labels.dtype == np.int64
    assert samples.class_names is None


def test_names_that_are_not_utf8(tmp_path):
    directory, path = write_list(tmp_path, b"caf\xe9.jpg 0\n\xc3\xa9.jpg 1\n")
    for name in ("caf\udce9.jpg", "\u00e9.jpg"):
        touch(directory / name)
    samples = read_samples(str(directory), str(path), num_classes=2)
    assert samples.path(0).endswith("caf\udce9.jpg") and samples.path(1).endswith("\u00e9.jpg")


@pytest.mark.parametrize("text, line, expected", [
    ("a.jpg 0\n\na.jpg\n", 3, "has no label"),
    ("a.jpg 0\na.jpg cat\n", 2, "label 'cat' is not an integer"),
    ("a.jpg 1.0\n", 1, "label '1.0' is not an integer"),
    ("a.jpg 1_0\n", 1, "label '1_0' is not an integer"),
    ("a.jpg 0\na.jpg -1\n", 2, r"label -1 is outside 0..2 (model.num_classes=3)"),
    ("a.jpg 0\n\na.jpg 3\n", 3, r"label 3 is outside 0..2 (model.num_classes=3)"),
    ("a.jpg 99999999999999999999\n", 1, "label 99999999999999999999 is outside"),
])
def test_bad_lines_are_named(tmp_path, text, line, expected):
    directory, path = write_list(tmp_path, text, ["a.jpg"])
    message = fails(directory, path, num_classes=3)
    assert message.startswith(f"{path}:{line}: ") and expected in message
    assert "start at 0" not in message


@pytest.mark.parametrize("count", [3, 1000])
def test_labels_from_one_get_a_hint(tmp_path, count):
    text = "".join(f"a.jpg {label}\n" for label in range(1, count + 1))
    directory, path = write_list(tmp_path, text, ["a.jpg"])
    message = fails(directory, path, num_classes=count)
    assert f"{path}:{count}: label {count} is outside" in message and "labels start at 0" in message


def test_missing_files_are_noticed(tmp_path):
    directory, path = write_list(tmp_path, "a.jpg 0\nb.jpg 0\n", ["a.jpg"])
    message = fails(directory, path, num_classes=1, what="val")
    assert message.startswith(f"{path}:2: no such file {directory / 'b.jpg'}") and "data.val_dir" in message


def test_only_a_spread_of_files_is_asked_for(tmp_path, monkeypatch):
    directory, path = write_list(tmp_path, "".join(f"{i}.jpg 0\n" for i in range(5000)))
    directory.mkdir()
    asked = []
    monkeypatch.setattr("os.path.isfile", lambda name: name.endswith(".jpg") and not asked.append(name))
    samples = read_samples(str(directory), str(path), num_classes=1)
    assert len(asked) == PROBED_FILES
    assert {samples.path(0), samples.path(4999)} <= set(asked)


def test_list_errors_name_the_key(tmp_path):
    directory, path = write_list(tmp_path, "\n \n", ["a.jpg"])
    for what in ("train", "val"):
        key = f"data.{what}_list="
        assert f"{key}{path}: the list is empty" in fails(directory, path, num_classes=1, what=what)
        assert f"{key}{tmp_path / 'no.txt'}: no such file" in fails(directory, tmp_path / "no.txt", num_classes=1,
                                                                     what=what)
        message = fails(directory, directory, num_classes=1, what=what)
        assert f"{key}{directory}: is a folder" in message and f"data.{what}_dir" in message
    path.write_bytes("a.jpg 0\n".encode("utf-16"))
    assert "not a UTF-8 text file" in fails(directory, path, num_classes=1)


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    write_list(tmp_path, "a.jpg 0\n", ["a.jpg"])
    monkeypatch.chdir(tmp_path)
    assert read_samples("images", "list.txt", num_classes=1).path(0) == str(tmp_path / "images" / "a.jpg")
    assert f"data.train_list={tmp_path / 'x.txt'}" in fails("images", "x.txt", num_classes=1)
    assert f"data.train_dir={tmp_path / 'nowhere'}" in fails("nowhere", num_classes=1)


# --- folders


def test_class_folders(f3):
    samples = read_samples(str(f3), num_classes=3)
    assert samples.class_names == ["ant", "bee", "cat"]
    assert samples.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert samples.path(4) == str(f3 / "bee" / "0.JPEG")


def test_hidden_entries_do_not_count(f3):
    before = read_samples(str(f3), num_classes=3)
    touch(f3 / ".ipynb_checkpoints" / "0-checkpoint.JPEG")
    touch(f3 / "__MACOSX" / "ant" / "._0.JPEG")
    touch(f3 / ".DS_Store")
    touch(f3 / "bee" / ".ipynb_checkpoints" / "0.JPEG")
    touch(f3 / "bee" / "._0.JPEG")
    after = read_samples(str(f3), num_classes=3)
    assert after.class_names == before.class_names
    assert after.labels.tolist() == before.labels.tolist() and after.names == before.names


def test_suffixes_in_any_case_and_nested_folders(tmp_path):
    names = ["a.JPEG", "b.JPG", "c.jpeg", "d.png", "deep/er/e.WebP", "f.GIF", "g.bmp", "h.TIF", "i.tiff", "j.ppm",
             "k.pgm"]
    for name in [*names, "e.txt", "Thumbs.db", "jpeg", "archive.zip"]:
        touch(tmp_path / "cls" / name)
    samples = read_samples(str(tmp_path), num_classes=1)
    found = {samples.path(i) for i in range(len(samples))}
    assert found == {str(tmp_path / "cls" / name) for name in names}
    assert len(SUFFIXES) == 10


def test_linked_folders_are_followed(f3, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("ant", "bee", "cat"):
        (other / name).symlink_to(f3 / name)
    assert len(read_samples(str(other), num_classes=3)) == 12


def test_number_of_classes_may_be_left_open(f3, tmp_path):
    samples = read_samples(str(f3), num_classes=None)
    assert samples.num_classes == 3 and len(samples) == 12
    assert read_samples(str(f3), num_classes=3).num_classes == 3
    names = ["ant", "bee", "cat", "dog"]
    assert read_samples(str(f3), num_classes=None, class_names=names, what="val").num_classes == 4
    message = fails(f3.parent, num_classes=None, what="val")
    assert message == (f"found 1 class folder in data.val_dir={f3.parent}, a training needs at least 2; give the "
                       "folder that holds one folder per class")
    directory, path = write_list(tmp_path, "a.jpg 0\n", ["a.jpg"])
    assert read_samples(str(directory), str(path), num_classes=7).num_classes == 7
    for what in ("train", "val"):
        message = fails(directory, path, num_classes=None, what=what)
        assert message.startswith(f"data.{what}_list={path} needs model.num_classes")


def test_number_of_folders_must_match(f3):
    message = fails(f3.parent, num_classes=1000)
    assert f"found 1 class folder(s) in data.train_dir={f3.parent}, the config says 1000 (model.num_classes)" in message
    assert "found 3 class folder(s)" in fails(f3, num_classes=2)


def test_flat_folder_tells_the_way_out(tmp_path):
    touch(tmp_path / "ILSVRC2012_val_00000001.JPEG")
    message = fails(tmp_path, num_classes=1000, what="val")
    assert f"data.val_dir={tmp_path}: holds 1 image(s) but no class folders" in message
    assert "one folder per class" in message and "data.val_list" in message


def test_validation_is_numbered_as_training(f3, tmp_path):
    names = ["ant", "bee", "cat"]
    val = tmp_path / "val"
    touch(val / "cat" / "0.jpg")
    touch(val / "ant" / "0.jpg")
    samples = read_samples(str(val), num_classes=3, class_names=names, what="val")
    assert samples.labels.tolist() == [0, 2] and samples.class_names == names
    touch(val / "dog" / "0.jpg")
    message = fails(val, num_classes=3, class_names=names, what="val")
    assert f"data.val_dir={val}: class folder 'dog'" in message


def test_folders_without_images(f3):
    (f3 / "dog").mkdir()
    message = fails(f3, num_classes=4)
    assert "class folder 'dog' holds no image" in message and ".jpeg .jpg .png" in message
    assert len(read_samples(str(f3), num_classes=4, what="val")) == 12


def test_missing_and_empty_folders(tmp_path):
    empty, file = tmp_path / "empty", touch(tmp_path / "file")
    (empty / "a").mkdir(parents=True)
    for what in ("train", "val"):
        key = f"data.{what}_dir"
        assert fails("", num_classes=1, what=what).startswith(f"{key} is not set")
        assert f"{key}={tmp_path / 'no'}: no such folder" in fails(tmp_path / "no", num_classes=1, what=what)
        assert f"{key}={file}: is a file" in fails(file, num_classes=1, what=what)
        message = fails(empty / "a", num_classes=1, what=what)
        assert f"{key}={empty / 'a'}: no class folders and no images" in message and ".jpeg .jpg" in message
    assert f"data.val_dir={empty}: no image in 1 class folder(s)" in fails(empty, num_classes=1, what="val")


# --- storage


def test_samples_pickle_and_stay_small(tmp_path):
    count = 20000
    directory, path = write_list(tmp_path, "".join(f"n01440764/n01440764_{i:05}.JPEG {i % 7}\n" for i in range(count)))
    for i in np.unique(np.linspace(0, count - 1, PROBED_FILES).astype(int)):
        touch(directory / f"n01440764/n01440764_{i:05}.JPEG")
    samples = read_samples(str(directory), str(path), num_classes=7)
    copy = pickle.loads(pickle.dumps(samples))
    assert len(copy) == count and copy.path(12345) == samples.path(12345) and copy.labels[12345] == 12345 % 7
    stored = sys.getsizeof(samples.names) + samples.ends.nbytes + samples.labels.nbytes
    assert stored < 50 * count
    assert not any(isinstance(value, (list, tuple, dict)) for value in vars(samples).values())


def test_the_fingerprint_is_that_of_names_labels_and_their_order():
    base = Samples("/a", ["x/1.jpg", "y/2.jpg"], [0, 1], 2)
    assert Samples("/elsewhere", ["x/1.jpg", "y/2.jpg"], [0, 1], 2).fingerprint() == base.fingerprint()
    for names, labels in ((["y/2.jpg", "x/1.jpg"], [0, 1]), (["x/1.jpg", "y/2.jpg"], [1, 0]),
                          (["x/1.jp", "gy/2.jpg"], [0, 1]), (["x/1.jpg"], [0])):  # fmt: skip
        assert Samples("/a", names, labels, 2).fingerprint() != base.fingerprint()
