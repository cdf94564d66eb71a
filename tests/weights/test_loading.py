"""Weights: which file is meant, reading files of strangers without running them, strict loading, atomic writing."""

import collections
import os
import pickle
import time

import numpy as np
import paddle
import pytest
from weights import paddle_file as weights_module
from weights.files import WeightsError, resolve_weights
from weights.loading import load_weights
from weights.paddle_file import read_weights, save_weights

ARRAYS = {
    "head.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "head.bias": np.array([0.5, -1, 2, 3e-5], np.float32),
    "steps": np.array(7, np.int64),
}


class Small(paddle.nn.Layer):
    """A class token, a position table for 32 px (2 x 2 tokens) and a head: names with messages of their own."""

    def __init__(self, classes=4, tokens=5, width=3, blocks=1):
        super().__init__()
        self.cls_token = self.create_parameter([1, 1, width])
        self.pos_embed = self.create_parameter([1, tokens, width])
        self.blocks = paddle.nn.LayerList([paddle.nn.Linear(width, 2 * width) for _ in range(blocks)])
        self.norm = paddle.nn.BatchNorm1D(width)
        self.head = paddle.nn.Linear(width, classes)


def arrays_of(layer):
    return {name: np.array(tensor.numpy()) for name, tensor in layer.state_dict().items()}


def equal(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def refusal(call, *arguments, **named):
    """The one line a call ends with, which must come within a second of work."""
    start = time.process_time()
    with pytest.raises(WeightsError) as caught:
        call(*arguments, **named)
    assert time.process_time() - start < 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- which file


def test_with_and_without_suffix_are_the_same_file(tmp_path, monkeypatch):
    file = save_weights(ARRAYS, tmp_path / "W")
    assert file == tmp_path / "W.pdparams"
    assert resolve_weights(tmp_path / "W") == resolve_weights(str(file)) == file
    monkeypatch.chdir(tmp_path)
    assert resolve_weights("W") == resolve_weights("W.pdparams") == file
    os.rename("W.pdparams", "odd.name")
    assert resolve_weights("odd.name") == tmp_path / "odd.name"


def test_run_folder_gives_best_else_last(tmp_path):
    assert "no best.pdparams" in refusal(resolve_weights, tmp_path)
    last = save_weights(ARRAYS, tmp_path / "last")
    assert resolve_weights(tmp_path) == last
    best = save_weights(ARRAYS, tmp_path / "best")
    assert resolve_weights(str(tmp_path)) == best


def test_a_name_that_means_a_file_and_a_run_folder(tmp_path):
    file = save_weights(ARRAYS, tmp_path / "run")
    (tmp_path / "run").mkdir()
    assert resolve_weights(tmp_path / "run") == file
    best = save_weights(ARRAYS, tmp_path / "run" / "best")
    text = refusal(resolve_weights, tmp_path / "run")
    assert str(file) in text and str(best) in text
    assert resolve_weights(f"{tmp_path}/run/") == best
    assert resolve_weights(file) == file


def test_missing_weights_say_where_weights_come_from(tmp_path):
    text = refusal(read_weights, tmp_path / "gone")
    assert str(tmp_path / "gone") in text and "gone.pdparams" in text and "README.md, 'Weights'" in text
    assert str(tmp_path / "gone.pdparams") in refusal(read_weights, tmp_path / "gone.pdparams")
    assert "no weights given" in refusal(resolve_weights, "")


def test_what_is_there_but_no_file_is_named_as_such(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    for name, part in (("loop", "leads nowhere"), ("dangling", "leads nowhere"), ("fifo", "no regular file")):
        assert part in refusal(resolve_weights, tmp_path / name)
    assert "no regular file" in refusal(resolve_weights, "/dev/zero")


# ---------------------------------------------------------------- reading good files


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_file_of_paddle_save(tmp_path, protocol):
    layer = Small()
    paddle.save(layer.state_dict(), str(tmp_path / "w.pdparams"), protocol=protocol)
    found = read_weights(tmp_path / "w")
    assert equal(found, arrays_of(layer))
    assert all(array.dtype == np.float32 for array in found.values())


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_pickled_as_pairs(tmp_path, protocol):
    layer = paddle.nn.Linear(2, 3)
    # A list beside the tensors makes paddle.save pickle each tensor as (name, array).
    paddle.save({**layer.state_dict(), "extra": [1]}, str(tmp_path / "w.pdparams"), protocol=protocol)
    assert "'extra' is not a tensor" in refusal(read_weights, tmp_path / "w")
    pairs = {name: (f"linear_0.{name}", array) for name, array in arrays_of(layer).items()}
    (tmp_path / "w.pdparams").write_bytes(pickle.dumps(pairs, protocol=protocol))
    assert equal(read_weights(tmp_path / "w"), arrays_of(layer))


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_files_of_both_numpy_generations(tmp_path, module):
    data = pickle.dumps(ARRAYS, protocol=2)
    for name in (b"numpy._core.multiarray", b"numpy.core.multiarray"):
        data = data.replace(b"c" + name + b"\n", b"c" + module.encode() + b"\n")
    assert b"c" + module.encode() + b"\n" in data
    (tmp_path / "w.pdparams").write_bytes(data)
    assert equal(read_weights(tmp_path / "w"), ARRAYS)


def test_layouts_types_and_containers(tmp_path):
    state = collections.OrderedDict(
        fortran=np.asfortranarray(ARRAYS["head.weight"]),
        big=ARRAYS["head.weight"].astype(">f4"),
        half=np.ones(2, np.float16),
        double=np.ones((1, 1), np.float64),
        flag=np.array([True, False]),
        scalar=np.float32(1.5),
        view=ARRAYS["head.weight"][::2, 1:],
    )
    for protocol in (2, 4):
        (tmp_path / "w.pdparams").write_bytes(pickle.dumps(state, protocol=protocol))
        found = read_weights(tmp_path / "w")
        assert equal(found, state)
        assert found["half"].dtype == np.float16 and found["flag"].dtype == bool


# ---------------------------------------------------------------- into a network


def test_loading_fills_the_whole_network(tmp_path):
    source, target = Small(), Small()
    state = read_weights(save_weights(source.state_dict(), tmp_path / "w"))
    assert load_weights(target, state, source="w") == len(source.state_dict())
    assert equal(arrays_of(source), arrays_of(target))
    assert target.head.weight.stop_gradient is False


def test_loading_casts_to_the_type_of_the_parameter():
    target = Small()
    for cast in (lambda a: a.astype(np.float64), lambda a: a.astype(np.float16), lambda a: a.astype(">f4")):
        load_weights(target, {name: cast(array) for name, array in arrays_of(Small()).items()}, source="w")
        assert target.head.weight.dtype == paddle.float32
    values = arrays_of(target)
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in values.items()}
    load_weights(target, bits, source="bfloat16")
    assert np.allclose(target.pos_embed.numpy(), values["pos_embed"], rtol=1 / 128)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda s: s.pop("head.bias"), ["1 missing (head.bias)"]),
        (lambda s: s.update(extra=np.ones(1)), ["1 unexpected (extra)"]),
        (lambda s: s.update({"norm.weight": np.ones(4, "f4")}), ["norm.weight: file (4,), model (3,)"]),
        (lambda s: s.update({"norm.weight": np.ones((3, 1), "f4")}), ["file (3, 1), model (3,)"]),
        (lambda s: s.update({"norm.weight": np.ones(3, "i8")}), ["of another type (norm.weight: int64)"]),
        (lambda s: [s.pop(n) for n in list(s)[:7]], ["7 missing", "and 2 more"]),
        (lambda s: s.update({f"e{i}\x1b": np.ones(1) for i in range(9)}), ["9 unexpected (e0?", "and 4 more"]),
        (
            lambda s: s.update({"blocks.0.weight": s["blocks.0.weight"].T, "head.weight": s["head.weight"].T}),
            ["2 of another shape", "transposed"],
        ),
    ],
)
def test_nothing_is_loaded_when_anything_is_wrong(change, parts):
    model = Small()
    state = {name: array + 1 for name, array in arrays_of(model).items()}
    change(state)
    before = arrays_of(model)
    text = refusal(load_weights, model, state, source="runs/w.pdparams")
    assert all(part in text for part in [*parts, "runs/w.pdparams"]), text
    assert equal(arrays_of(model), before)


def test_other_class_count_and_image_size_have_their_own_message():
    text = refusal(load_weights, Small(classes=10), arrays_of(Small(classes=1000)), source="w")
    assert "weights have 1000 classes, the config says model.num_classes=10" in text and text.count("1000 classes") == 1
    text = refusal(load_weights, Small(tokens=197), arrays_of(Small(tokens=577)), source="w")
    assert "384 px (577 tokens)" in text and "model.img_size=224" in text and "set model.img_size=384" in text
    text = refusal(load_weights, Small(classes=10), arrays_of(Small(tokens=10)), source="w")
    assert "classes" in text and "img_size=32" in text


def test_another_network_is_named_as_such():
    text = refusal(load_weights, Small(), arrays_of(Small(width=6, blocks=3)), source="w")
    assert "a network of 3 blocks of width 6, the model one of 1 blocks of width 3" in text and "model.name" in text


# ---------------------------------------------------------------- writing


def test_saved_file_is_one_of_paddle(tmp_path):
    layer, other = Small(), Small()
    file = save_weights(layer.state_dict(), tmp_path / "w")
    loaded = paddle.load(str(file))
    assert loaded.keys() == layer.state_dict().keys()
    assert all(isinstance(value, paddle.Tensor) for value in loaded.values())
    other.set_state_dict(loaded)
    assert equal(arrays_of(layer), arrays_of(other))
    assert equal(read_weights(save_weights(ARRAYS, tmp_path / "w")), ARRAYS)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = save_weights(ARRAYS, tmp_path / "w")
    before = file.read_bytes()

    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_module.os, "fsync", full_disk)
    assert "No space left on device" in refusal(save_weights, {"w": np.zeros(9)}, file)
    assert file.read_bytes() == before and [item.name for item in tmp_path.iterdir()] == ["w.pdparams"]
    assert "cannot write" in refusal(save_weights, ARRAYS, tmp_path / "gone" / "w")
    assert "cannot write" in refusal(save_weights, ARRAYS, file / "w")


def test_a_checkpoint_is_not_taken_for_a_pytorch_file(tmp_path):
    np.savez(tmp_path / "epoch-0001.npz", a=np.ones(3))
    with pytest.raises(WeightsError, match="is a checkpoint, not plain weights; name its run folder"):
        read_weights(tmp_path / "epoch-0001.npz")


def test_a_missing_file_beside_its_run_folder_is_hinted_at(tmp_path):
    (tmp_path / "t2t").mkdir()
    save_weights(ARRAYS, tmp_path / "t2t" / "best")
    with pytest.raises(WeightsError, match=r"not found: .*t2t\.pdparams; the run folder .*t2t is there, name that"):
        resolve_weights(tmp_path / "t2t.pdparams")
