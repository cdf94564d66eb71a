"""CIFAR sets in their eight published forms, made small here, and what damaged or hostile ones are told."""

import gzip
import io
import pickle
import random
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest
from data import tar
from data.cifar import _VERSIONS, is_cifar
from data.dataset import ImageDataset
from data.listing import read_samples
from data.loader import build_loader
from data.transforms import EvalTransform, PaddedCropTransform
from errors import UserError

TRAIN, TEST = 10, 4
NAMES = {
    10: ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    100: [f"thing_{number:02}" for number in range(100)],
}
# classes, packed as in the published archive
KINDS = [(10, "python"), (10, "binary"), (100, "python"), (100, "binary")]
FORMS = [(*kind, packed) for kind in KINDS for packed in (False, True)]


def made(classes, part, count):
    """uint8 [count, 3, 32, 32] and `count` labels of one split, the same for the python and the binary version."""
    rng = np.random.RandomState(classes + len(part))
    return rng.randint(0, 256, (count, 3, 32, 32), np.uint8), rng.randint(0, classes, count).tolist()


class Python2:
    """Just enough of Python 2's pickle, protocol 2: dicts, lists, byte strings, whole numbers, arrays of uint8."""

    def __init__(self):
        self.out, self.memo = bytearray(b"\x80\x02"), 0

    def put(self):
        self.out += b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)
        self.memo += 1

    def save(self, value):
        if isinstance(value, bytes):
            short = len(value) < 256
            self.out += (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value
            self.put()
        elif isinstance(value, int):
            self.out += b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
        elif isinstance(value, (list, dict)):
            self.out += b"]" if isinstance(value, list) else b"}"
            self.put()
            self.out += b"("
            for item in value if isinstance(value, list) else sum(value.items(), ()):
                self.save(item)
            self.out += b"e" if isinstance(value, list) else b"u"
        else:
            self.save_array(value)

    def save_array(self, value):
        self.out += b"cnumpy.core.multiarray\n_reconstruct\n"
        self.put()
        self.out += b"cnumpy\nndarray\n"
        self.put()
        self.out += b"K\x00\x85U\x01b\x87R"
        self.put()
        self.out += b"(K\x01"
        for side in value.shape:
            self.out += b"M" + struct.pack("<H", side)
        self.out += b"\x86cnumpy\ndtype\n"
        self.put()
        self.out += b"U\x02u1K\x00K\x01\x87R"
        self.put()
        self.out += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        self.save(value.tobytes())
        self.out += b"tb"


def python2_pickle(value):
    pickler = Python2()
    pickler.save(value)
    return bytes(pickler.out + b".")


def pickled_file(classes, pixels, labels, dump=python2_pickle):
    rows = pixels.reshape(len(pixels), 3072)
    names = [b"some_picture_s_%06d.png" % number for number in range(len(labels))]
    if classes == 10:
        return dump({b"batch_label": b"batch 1 of 5", b"labels": labels, b"data": rows, b"filenames": names})
    coarse = [label // 5 for label in labels]
    return dump({b"filenames": names, b"batch_label": b"batch", b"fine_labels": labels, b"coarse_labels": coarse,
                 b"data": rows})  # fmt: skip


def binary_file(classes, pixels, labels):
    first = [bytes([label // 5]) if classes == 100 else b"" for label in labels]
    return b"".join(coarse + bytes([label]) + image.tobytes() for coarse, label, image in zip(first, labels, pixels))


def files_of(classes, version, dump=python2_pickle):
    """The files of a small set: name -> content."""
    train, test = made(classes, "train", TRAIN), made(classes, "test", TEST)
    python = version == "python"

    def content(pixels, labels):
        return pickled_file(classes, pixels, labels, dump) if python else binary_file(classes, pixels, labels)

    suffix = "" if python else ".bin"
    if classes == 100:
        files = {"train" + suffix: content(*train), "test" + suffix: content(*test)}
    else:
        each = TRAIN // 5
        files = {f"data_batch_{i + 1}{suffix}": content(train[0][i * each : (i + 1) * each],
                                                        train[1][i * each : (i + 1) * each]) for i in range(5)}
        files["test_batch" + suffix] = content(*test)
    names = [name.encode() for name in NAMES[classes]]
    if not python:
        text = b"\n".join(names) + b"\n"
        files.update({"batches.meta.txt": text + b"\n"} if classes == 10 else {
            "fine_label_names.txt": text, "coarse_label_names.txt": b"a\nb\n"})
    elif classes == 10:
        files["batches.meta"] = dump({b"num_cases_per_batch": 10000, b"label_names": names, b"num_vis": 3072})
    else:
        files["meta"] = dump({b"fine_label_names": names, b"coarse_label_names": [b"a"]})
    return {**files, "readme.html": b"<p>"}


def entry(name, content=b"", kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
    return info, io.BytesIO(content)


def pack(path, entries, mode="w:gz", **settings):
    with tarfile.open(path, mode, **settings) as archive:
        for info, content in entries:
            archive.addfile(info, content)
    return path


def lay(folder, files, packed):
    """Write a set as the archive or the folder that is published."""
    if packed:
        entries = [entry("set/", kind=tarfile.DIRTYPE), *(entry(f"set/{name}", files[name]) for name in files)]
        return pack(folder / "data.bin", entries)
    (folder / "set").mkdir()
    for name, content in files.items():
        (folder / "set" / name).write_bytes(content)
    return folder / "set"


def read(path, num_classes=None, **kwargs):
    return read_samples(str(path), num_classes=num_classes, **kwargs)


def fails(path, what="train", **kwargs):
    with pytest.raises(UserError) as caught:
        read(path, what=what, **kwargs)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable()
    assert text.startswith(f"data.{what}_dir={path}: "), text
    return text.removeprefix(f"data.{what}_dir={path}: ")


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("classes, version, packed", FORMS)
def test_all_eight_forms(tmp_path, classes, version, packed):
    path = lay(tmp_path, files_of(classes, version), packed)
    for what, part, count in (("train", "train", TRAIN), ("val", "test", TEST)):
        pixels, labels = made(classes, part, count)
        for num_classes in (None, classes):
            samples = read(path, num_classes, what=what)
            assert len(samples) == count and samples.labels.dtype == np.int64
            assert samples.labels.tolist() == labels
            assert (samples.num_classes, samples.class_names) == (classes, NAMES[classes])
            assert samples.directory == str(path)
        for index in range(count):
            image = samples.image(index)
            assert (image.mode, image.size) == ("RGB", (32, 32))
            np.testing.assert_array_equal(np.asarray(image), pixels[index].transpose(1, 2, 0))


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("protocol, text", [(2, True), (4, True), (4, False)])
def test_sets_pickled_anew_by_python_3(tmp_path, classes, protocol, text):
    def dump(tree):
        """With keys of text or, as after pickle.load(..., encoding="bytes"), of bytes."""
        return pickle.dumps({key.decode(): value for key, value in tree.items()} if text else tree, protocol)

    files = files_of(classes, "python", dump)
    samples = read(lay(tmp_path, files, False))
    assert samples.labels.tolist() == made(classes, "train", TRAIN)[1] and samples.class_names == NAMES[classes]


def test_the_pickles_made_here_are_those_of_python_2():
    tree = pickle.loads(files_of(10, "python")["test_batch"], encoding="bytes")
    pixels, labels = made(10, "test", TEST)
    np.testing.assert_array_equal(tree[b"data"].reshape(pixels.shape), pixels)
    assert tree[b"labels"] == labels and tree[b"filenames"][1] == b"some_picture_s_000001.png"


@pytest.mark.parametrize("settings", [
    {"mode": "w"}, {"format": tarfile.PAX_FORMAT}, {"format": tarfile.GNU_FORMAT}, {"format": tarfile.USTAR_FORMAT},
])  # fmt: skip
def test_tar_dialects(tmp_path, settings):
    entries = [entry(f"./cifar-10-batches-py/{name}", content) for name, content in files_of(10, "python").items()]
    for info, _ in entries:
        # A fraction of a second makes an extended header in the pax format.
        info.mtime = 1_234_567_890.5 if settings.get("format", 0) == tarfile.PAX_FORMAT else 1
        info.uname = "\u00e9" if settings.get("format") == tarfile.PAX_FORMAT else "me"
    entries.insert(1, entry("cifar-10-batches-py/" + "long" * 60, b"x" * 700))
    if settings.get("format") == tarfile.USTAR_FORMAT:
        del entries[1]
    samples = read(pack(tmp_path / "set.tar", entries, **settings))
    assert samples.labels.tolist() == made(10, "train", TRAIN)[1]


def test_members_may_lie_at_the_top_of_the_archive(tmp_path):
    path = pack(tmp_path / "x", [entry(name, content) for name, content in files_of(10, "binary").items()])
    assert len(read(path)) == TRAIN


def test_samples_say_where_they_lie(tmp_path):
    files = files_of(10, "python")
    archive, folder = lay(tmp_path, files, True), lay(tmp_path, files, False)
    each = TRAIN // 5
    assert read(archive).path(0) == f"{archive}:data_batch_1[0]"
    assert read(archive).path(each) == f"{archive}:data_batch_2[0]"
    assert read(archive).path(TRAIN - 1) == f"{archive}:data_batch_5[{each - 1}]"
    assert read(folder).path(each + 1) == f"{folder}/data_batch_2[1]"
    assert read(folder, what="val").path(3) == f"{folder}/test_batch[3]"


def test_samples_pickle_and_hold_one_array(tmp_path):
    samples = read(lay(tmp_path, files_of(100, "python"), True))
    copy = pickle.loads(pickle.dumps(samples))
    assert copy.path(7) == samples.path(7) and copy.image(7) == samples.image(7)
    assert samples.pixels.nbytes == TRAIN * 3072 and samples.pixels.dtype == np.uint8
    assert samples.pixels.flags.c_contiguous and samples.pixels.base.base is None
    assert copy.fingerprint() == samples.fingerprint()
    copy.pixels = copy.pixels.copy()
    copy.pixels[-1, 2, 31, 31] ^= 1
    assert copy.fingerprint() != samples.fingerprint()


def test_folders_of_images_are_still_folders_of_images(tmp_path):
    from PIL import Image

    for name in ("train", "test", "meta"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    assert not is_cifar(str(tmp_path))
    assert read(tmp_path).class_names == ["meta", "test", "train"]
    (tmp_path / "train.bin").write_bytes(b"")
    (tmp_path / "batches.meta").write_bytes(b"")
    assert len(read(tmp_path)) == 3


# ---------------------------------------------------------------- classes


def test_number_of_classes_must_match(tmp_path):
    path = lay(tmp_path, files_of(10, "binary"), True)
    message = fails(path, num_classes=1000)
    assert message == ("CIFAR-10 has 10 classes, the config says 1000 (model.num_classes); set model.num_classes=10")


def test_validation_is_numbered_as_training(tmp_path):
    path = lay(tmp_path, files_of(10, "binary"), True)
    names = [*NAMES[10][::-1], "zebra"]
    samples = read(path, 11, class_names=names, what="val")
    assert [names[label] for label in samples.labels] == [NAMES[10][label] for label in made(10, "test", TEST)[1]]
    assert (samples.class_names, samples.num_classes) == (names, 11)
    message = fails(path, "val", num_classes=10, class_names=["no", *NAMES[10][1:]])
    assert message.startswith("class 'airplane' of CIFAR-10 is not among the 10 known class names")


def test_lists_do_not_go_with_a_set(tmp_path):
    path = lay(tmp_path, files_of(10, "binary"), True)
    with pytest.raises(UserError, match=rf"data\.train_list=.*list.txt: data\.train_dir={path} is .*set data.train_l"):
        read_samples(str(path), str(tmp_path / "list.txt"), num_classes=10)


# ---------------------------------------------------------------- incomplete, damaged, hostile


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("classes, version", KINDS)
def test_missing_files(tmp_path, classes, version, packed):
    suffix = "" if version == "python" else ".bin"
    first, last = ("data_batch_3", "test_batch") if classes == 10 else ("train", "test")
    files = files_of(classes, version)
    del files[first + suffix]
    path = lay(tmp_path, files, packed)
    assert fails(path) == f"CIFAR-{classes} without {first}{suffix}; fetch the set again, with all its files"
    assert len(read(path, what="val")) == TEST
    other = tmp_path / "other"
    other.mkdir()
    files = files_of(classes, version)
    del files[last + suffix]
    path = lay(other, files, packed)
    assert f"without {last}{suffix};" in fails(path, "val")
    assert len(read(path)) == TRAIN


@pytest.mark.parametrize("classes, version, packed", FORMS)
def test_cut_short_anywhere(tmp_path, classes, version, packed):
    files = files_of(classes, version)
    path = lay(tmp_path, files, packed)
    name = next(iter(files))
    file = path if packed else path / name
    content = file.read_bytes()
    whole = len(content)
    for size in sorted({*range(1, whole, whole // 25), whole - 1, whole - 9}):
        if version == "binary" and not packed and not size % (3074 - (classes == 10)):
            continue
        file.write_bytes(content[:size])
        message = fails(path)
        assert "again" in message or "is a file" in message, (size, message)
    file.write_bytes(b"")
    assert fails(path) if not packed else "is a file" in fails(path)


def test_a_plain_tar_cut_between_two_images(tmp_path):
    files = {"fine_label_names.txt": "\n".join(NAMES[100]).encode(), "train.bin": bytes(3074 * 5)}
    path = pack(tmp_path / "x.tar", [entry(f"set/{name}", content) for name, content in files.items()], "w")
    assert len(read(path)) == 5
    # A header and two blocks of names, then another header.
    path.write_bytes(path.read_bytes()[: 512 * 4 + 3074 * 3])
    assert "damaged or cut short (the file ends too early)" in fails(path)


@pytest.mark.parametrize("classes, version, packed", FORMS)
def test_any_broken_byte_gives_one_line_or_pixels(tmp_path, classes, version, packed):
    files = files_of(classes, version)
    path = lay(tmp_path, files, packed)
    dice = random.Random(3)
    targets = [path] if packed else [path / name for name in files]
    for _ in range(40):
        file = dice.choice(targets)
        content = file.read_bytes()
        broken = bytearray(content)
        for _ in range(dice.choice((1, 1, 5))):
            # Most of a file is pixels; what matters more lies near its ends.
            where = dice.randrange(dice.choice((200, len(broken)))) % len(broken)
            broken[dice.choice((where, -where - 1))] = dice.randrange(256)
        file.write_bytes(broken)
        try:
            samples = read(path)
            assert len(samples) <= TRAIN and samples.image(0).size == (32, 32)
        except UserError as error:
            assert str(path) in str(error) and str(error).isprintable()
        file.write_bytes(content)


def replaced(folder, classes, version, name, content, packed=False):
    files = files_of(classes, version)
    assert name in files
    files[name] = content
    return lay(folder, files, packed)


def pickled(**entries):
    return pickle.dumps(entries, 2)


GOOD = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize("content, expected", [
    (pickled(labels=[0, 1]), "data_batch_1 has no 'data'"),
    (pickled(data=GOOD), "data_batch_1 has no 'labels'"),
    (pickled(data=GOOD, labels=[0]), "data_batch_1: its labels are not 2 whole numbers"),
    (pickled(data=GOOD, labels=[0, 1.0]), "data_batch_1: its labels are not 2 whole numbers"),
    (pickled(data=GOOD, labels=[0, True]), "data_batch_1: its labels are not 2 whole numbers"),
    (pickled(data=GOOD, labels=(0, 1)), "data_batch_1: its labels are not 2 whole numbers"),
    (pickled(data=GOOD, labels=[0, 10]), "data_batch_1 holds a label outside 0..9"),
    (pickled(data=GOOD, labels=[-1, 0]), "data_batch_1 holds a label outside 0..9"),
    (pickled(data=GOOD, labels=[0, 2**70]), "data_batch_1"),
    (python2_pickle({b"data": GOOD[:0], b"labels": []}), "data_batch_1 holds no image"),
    (pickled(data=GOOD.astype("float32"), labels=[0, 1]), "data_batch_1: its data is not an array of uint8"),
    (pickled(data=GOOD[:, :-1], labels=[0, 1]), "data_batch_1: its data is not an array of uint8 with 3072 columns"),
    (pickled(data=GOOD.reshape(2, 3, 1024), labels=[0, 1]), "data_batch_1: its data is not an array of uint8"),
    (pickled(data=b"x", labels=[0, 1]), "data_batch_1: its data is not an array of uint8"),
    (pickle.dumps([1, 2], 2), "data_batch_1 has no 'data'"),
    (b"no pickle at all", "data_batch_1 is not a pickle of CIFAR, or is damaged"),
    (b"", "data_batch_1 is not a pickle of CIFAR, or is damaged"),
])  # fmt: skip
def test_pickles_of_something_else(tmp_path, content, expected):
    path = replaced(tmp_path, 10, "python", "data_batch_1", content)
    message = fails(path)
    assert message.startswith(expected) and message.endswith("fetch the set again")


class Call:
    def __reduce__(self):
        return exec, ("import sys; sys.was_executed = True",)


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
def test_pickles_are_not_executed(tmp_path, name):
    import sys

    path = replaced(tmp_path, 10, "python", name, pickled(data=GOOD, labels=Call(), label_names=Call()), packed=True)
    message = fails(path)
    assert message.startswith(f"{name} asks for ") and "exec, which images never need; get the set from a" in message
    assert not hasattr(sys, "was_executed")


@pytest.mark.parametrize("names", [
    NAMES[10][:9], [*NAMES[10], "more"], [*NAMES[10][:9], "cat"], [*NAMES[10][:9], "\x1b[2J"], [*NAMES[10][:9], ""],
    [*NAMES[10][:9], 3], [*NAMES[10][:9], [1]], "airplane", None,
])  # fmt: skip
def test_impossible_class_names(tmp_path, names):
    path = replaced(tmp_path, 10, "python", "batches.meta", pickled(label_names=names))
    assert fails(path) == "batches.meta does not hold 10 different class names; fetch the set again"
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        other = tmp_path / "other"
        other.mkdir()
        path = replaced(other, 10, "binary", "batches.meta.txt", "\n".join(names).encode())
        assert fails(path) == "batches.meta.txt does not hold 10 different class names; fetch the set again"


def test_binary_labels_out_of_range(tmp_path):
    path = replaced(tmp_path, 100, "binary", "train.bin", bytes([0, 100]) + bytes(3072))
    assert fails(path).startswith("train.bin holds a label outside 0..99")
    # The coarse label is not looked at.
    (path / "train.bin").write_bytes(bytes([200, 99]) + bytes(3072))
    assert read(path).labels.tolist() == [99]


@pytest.mark.parametrize("classes, version, packed", FORMS)
def test_files_larger_than_the_published_ones(tmp_path, classes, version, packed, monkeypatch):
    files = files_of(classes, version)
    name = next(iter(files))
    monkeypatch.setattr("data.cifar._VERSIONS", tuple(v._replace(limit=1) for v in _VERSIONS))
    path = lay(tmp_path, {**files, name: bytes(3072 + 257)}, packed)
    where = " in the archive" if packed else ""
    assert fails(path).startswith(f"{name}{where} is larger than the published one")


def test_sizes_that_are_allowed_hold_the_published_files():
    limits = {name: v.bytes_limit(name) for v in _VERSIONS for name in (v.names, *v.train, *v.val)}
    # Bytes of the files as published.
    sizes = {"data_batch_1": 31_035_704, "test_batch": 31_035_526, "batches.meta": 158, "train": 155_249_918,
             "test": 31_049_918, "meta": 1_499, "data_batch_1.bin": 30_730_000, "train.bin": 153_700_000}  # fmt: skip
    assert all(size <= limits[name] for name, size in sizes.items())
    assert sum(sizes.values()) < tar.MOST_BYTES and max(limits.values()) < 2**28


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    files = files_of(10, "binary")
    entries = [entry(f"set/{name}", content) for name, content in files.items() if name != "data_batch_4.bin"]
    path = pack(tmp_path / "x.tar.gz", [*entries, entry("set/data_batch_4.bin", kind=kind)])
    assert fails(path).startswith("data_batch_4.bin in the archive is a link or device, not a file")


def test_nothing_is_unpacked_and_other_members_are_passed_over(tmp_path):
    files = files_of(10, "binary")

    def entries():
        return [entry(f"set/{name}", content) for name, content in files.items()]

    others = [entry("/etc/data_batch_1.bin", b"1"), entry("../../data_batch_2.bin", b"2"),
              entry("../x", b"3"), entry("set/link", kind=tarfile.SYMTYPE)]  # fmt: skip
    path = pack(tmp_path / "x.tar.gz", [*others, *entries()])
    assert read(path).labels.tolist() == made(10, "train", TRAIN)[1]
    assert list(tmp_path.iterdir()) == [path]
    path = pack(tmp_path / "twice.tar.gz", [*entries(), entry("other/data_batch_1.bin", b"1")])
    assert fails(path).startswith("the archive holds data_batch_1.bin twice")


def test_other_archives_and_files(tmp_path):
    other = pack(tmp_path / "imagenet.tar.gz", [entry("n01440764/1.JPEG", b"x"), entry("data_batch_1", b"x")])
    assert fails(other).startswith("an archive, but not one of the four of CIFAR-10 and CIFAR-100")
    other = pack(tmp_path / "empty.tar.gz", [])
    assert fails(other).startswith("an archive, but not one of the four")
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress(b"plain text, " * 100))
    assert fails(text).startswith("is a file, not a folder of images, nor a tar archive; give the folder")
    text.write_bytes(gzip.compress(b"short"))
    assert fails(text).startswith("is a file, not a folder of images, nor a tar archive; give the folder")
    text.write_bytes(b"PK\3\4 zip")
    assert "nor an archive of CIFAR-10 or CIFAR-100" in fails(text)


def test_a_broken_copy_is_noticed_by_its_checksum(tmp_path):
    path = lay(tmp_path, files_of(10, "binary"), True)
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    assert "damaged or cut short (CRC check failed" in fails(path)


def bomb(path, header, size):
    """A gzip file that claims and holds a member of `size` zeros, in little space."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(size >> 20):
            file.write(bytes(2**20))
    return path


def header_of(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("name, kind, expected", [
    ("set/data_batch_1", tarfile.REGTYPE, "data_batch_1 in the archive is larger"),
    ("set/other", tarfile.REGTYPE, "the archive holds more than 64 MiB"),
    ("x", tarfile.XHDTYPE, "the archive holds more than 64 MiB"),
    ("././@LongLink", tarfile.GNUTYPE_LONGNAME, "the archive holds more than 64 MiB"),
])  # fmt: skip
def test_bombs_take_no_memory(tmp_path, monkeypatch, name, kind, expected):
    monkeypatch.setattr(tar, "MOST_BYTES", 2**26)
    path = bomb(tmp_path / "bomb.tar.gz", header_of(name, 2**32, kind), 80 << 20)
    tracemalloc.start()
    try:
        assert fails(path).startswith(expected)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_only_what_is_needed_is_kept(tmp_path):
    path = pack(tmp_path / "x.tar.gz", [entry("set/a", b"1" * 700), entry("set/other", bytes(40 << 20)),
                                        entry("set/b", b"2"), entry("set/c", b"3")])  # fmt: skip
    tracemalloc.start()
    try:
        assert tar.read_members(path, {"a": 700, "b": 1}, {"a"}) == {"a": b"1" * 700, "b": b""}
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_headers_have_a_checksum(tmp_path):
    path = tmp_path / "x.tar"
    header = header_of("set/data_batch_1", 0)
    path.write_bytes(header_of("set/readme", 0) + header.replace(b"data_batch_1", b"data_batch_2") + bytes(2048))
    assert fails(path).startswith("the archive is damaged or cut short (a broken header)")


@pytest.mark.parametrize("field", [b"-0000000001\0", b"99999999999\0", b"\x80" + b"\xff" * 11, b"\xff" * 12])
def test_impossible_sizes(tmp_path, field):
    header = bytearray(header_of("set/data_batch_1", 0))
    header[124:136] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "x.tar"
    path.write_bytes(header_of("set/readme", 0) + header + bytes(2048))
    assert fails(path).startswith("the archive is damaged or cut short (a broken header)")


def test_a_set_that_cannot_be_opened(tmp_path):
    folder = lay(tmp_path, files_of(10, "binary"), False)
    (folder / "data_batch_1.bin").unlink()
    (folder / "data_batch_1.bin").symlink_to(folder / "data_batch_1.bin")
    assert "without data_batch_1.bin" in fails(folder)


# ---------------------------------------------------------------- through the loader


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("cifar"), files_of(10, "python"), True)


def epoch_of(samples, transform, workers, epoch, train=True):
    loader = build_loader(ImageDataset(samples, transform, train=train, seed=5), batch_size=3, shuffle=train, seed=5,
                          rank=0, world=1, drop_last=False, workers=workers)  # fmt: skip
    loader.batch_sampler.set_epoch(epoch)
    try:
        rows = [zip(*(column.numpy() for column in batch)) for batch in loader]
        return {int(index): (int(label), pixels.tobytes()) for batch in rows for pixels, label, index in batch}
    finally:
        loader.close()


def test_bytes_do_not_depend_on_workers(archive):
    samples, transform = read(archive), PaddedCropTransform(32, 4)
    plain = epoch_of(samples, transform, 0, 1)
    assert epoch_of(samples, transform, 2, 1) == plain
    assert [plain[index][0] for index in range(TRAIN)] == samples.labels.tolist()
    other = epoch_of(samples, transform, 0, 2)
    assert sum(other[index][1] != plain[index][1] for index in range(TRAIN)) > TRAIN // 2


def test_validation_shows_the_pixels_as_they_are(archive):
    samples = read(archive, what="val")
    shown = epoch_of(samples, EvalTransform(32, interpolation="bilinear", resize="squash"), 2, 0, train=False)
    pixels, labels = made(10, "test", TEST)
    for index in range(TEST):
        assert shown[index] == (labels[index], pixels[index].transpose(1, 2, 0).tobytes())
