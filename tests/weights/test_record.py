"""The record beside converted weights: written whole, read with suspicion, never applied to other weights."""

import json
import os
import time

import numpy as np
import pytest
from weights.files import WeightsError
from weights.record import Record, check_shapes, read_record, record_file, sha256_of, write_record

DATA = {"resize": "crop", "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "w.pdparams"
    file.write_bytes(b"any bytes")
    return file


@pytest.fixture
def record(weights):
    return Record("81.5.pth.tar", "0" * 64, "state_dict_ema", "t2t_vit_14", 224, 1000, None, DATA, 188, 21_545_550,
                  sha256_of(weights))  # fmt: skip


def test_what_is_written_is_read(weights, record):
    assert read_record(weights) is None
    assert write_record(record, weights) == record_file(weights)
    assert record_file(weights).name == "w.pdparams.json"
    assert read_record(weights) == record
    assert sorted(item.name for item in weights.parent.iterdir()) == ["w.pdparams", "w.pdparams.json"]


def test_digest_is_that_of_the_bytes(weights):
    assert sha256_of(weights) == "23914a83c3c7080988b4aab957e8c1abf4a281df9cc77c7e1d43d3e81f39e94e"


def test_record_of_other_weights_is_refused(weights, record):
    write_record(record, weights)
    weights.write_bytes(b"other bytes")
    with pytest.raises(WeightsError, match=r"belongs to other weights.*convert the weights again"):
        read_record(weights)


def test_the_digest_is_taken_once_for_each_state_of_the_file(weights, record, monkeypatch):
    write_record(record, weights)
    taken = []
    monkeypatch.setattr("weights.record.sha256_of", lambda path: taken.append(path) or sha256_of(path))
    assert read_record(weights) == read_record(weights) == record and len(taken) == 1
    weights.write_bytes(b"any other bytes")
    with pytest.raises(WeightsError, match="belongs to other weights"):
        read_record(weights)


def spoilt(record, **changed):
    return json.dumps({**record._asdict(), **changed})


@pytest.mark.parametrize(
    "text",
    [
        lambda r: "", lambda r: "{", lambda r: "[1, 2]", lambda r: "{}", lambda r: "[" * 100_000, lambda r: "\0",
        lambda r: spoilt(r, img_size="224"), lambda r: spoilt(r, num_classes=True), lambda r: spoilt(r, data=[]),
        lambda r: spoilt(r, data={"resize": "crop"}), lambda r: spoilt(r, model=None),
        lambda r: spoilt(r, source="x" * (2 << 20)),
    ],
)  # fmt: skip
def test_damaged_records_end_in_one_line(weights, record, text):
    record_file(weights).write_text(text(record))
    start = time.process_time()
    with pytest.raises(WeightsError) as caught:
        read_record(weights)
    assert time.process_time() - start < 1
    assert str(record_file(weights)) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_regular_file_is_no_record(weights, kind):
    path = record_file(weights)
    {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda p: p.symlink_to("/dev/zero")}[kind](path)
    with pytest.raises(WeightsError, match="is no regular file"):
        read_record(weights)


@pytest.mark.parametrize("classes", [["a"], [1] * 1000, "x" * 1000, {}])
def test_names_of_classes_are_checked(weights, record, classes):
    record_file(weights).write_text(spoilt(record, classes=classes))
    with pytest.raises(WeightsError, match="classes"):
        read_record(weights)


def test_shapes_of_the_weights_must_be_those_told(weights, record):
    state = {"pos_embed": np.zeros((1, 197, 384)), "head.bias": np.zeros(1000)}
    check_shapes(record, weights, state)
    for name, shape in (("pos_embed", (1, 577, 384)), ("head.bias", (999,))):
        with pytest.raises(WeightsError, match=f"w.pdparams.json tells of 224 px and 1000 classes, but {name}"):
            check_shapes(record, weights, {**state, name: np.zeros(shape)})


def test_nothing_is_left_where_writing_fails(weights, record, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weights.atomic.os.fsync", full)
    with pytest.raises(WeightsError, match="No space left on device"):
        write_record(record, weights)
    assert [item.name for item in weights.parent.iterdir()] == ["w.pdparams"]
