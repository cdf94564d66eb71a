"""Processes agree before they train, and ask each other no more often than figures are due."""

import numpy as np
import paddle
import pytest
from data.batches import Batch
from engine import agreement, distributed, loop
from engine.agreement import check_agreement, share_statistics
from engine.distributed import check_same
from engine.ema import Ema
from engine_fakes import ArrayBatches, ListLog, make_config, make_trainer, pictures
from errors import UserError
from paddle import nn


@pytest.fixture
def two(monkeypatch):
    """This process twice; the list of what it gathered."""
    gathered = []

    def gather(rows):
        gathered.append(rows)
        return np.concatenate([rows, rows])

    for name, fake in {"world_size": lambda: 2, "gather_rows": gather, "wrap": lambda model: model}.items():
        monkeypatch.setattr(distributed, name, fake)
    monkeypatch.setattr(distributed.dist, "broadcast", lambda tensor, source: None)
    monkeypatch.setattr("engine.evaluate.gather_rows", gather)
    return gathered


def trainer_of(folder, steps=40, **values):
    images, labels = pictures(4 * steps)
    return make_trainer(folder, make_config(**values), ArrayBatches(images, labels, 2, world=2),
                        ArrayBatches(*pictures(8), 2, world=2), log=ListLog(), ema_decay=0.9)  # fmt: skip


@pytest.mark.parametrize("value", [
    np.arange(6.0).reshape(2, 3)[:, ::2], np.zeros([]), np.zeros([0, 3]), paddle.ones([2]), "text", [1, 2.5], None,
], ids=str)  # fmt: skip
def test_the_same_values_pass(two, value):
    check_same({"a": value, "b": 1}, "")
    names, rows = two
    assert names.shape == (1, 2) and rows.shape == (1, 2) and rows.dtype == np.int64


@pytest.mark.parametrize("one, other", [
    (np.zeros(3), np.array([0, 0, 1e-300])), (np.zeros(2), -np.zeros(2)), (paddle.zeros([2]), paddle.ones([2])),
    (1e-3, 1.0000001e-3), ("a", "b"), (None, 0), ([1, 2], [2, 1]),
], ids=str)  # fmt: skip
def test_the_first_difference_is_named(monkeypatch, one, other):
    rows = []
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    monkeypatch.setattr(distributed, "gather_rows", lambda row: rows.append(row) or np.concatenate([row] * 3))
    check_same({"a": 1, "b": one, "c": one}, "")
    check_same({"a": 1, "b": other, "c": other}, "")
    answers = iter([[rows[0]] * 3, [rows[1], rows[1], rows[3]]])
    monkeypatch.setattr(distributed, "gather_rows", lambda row: np.concatenate(next(answers)))
    with pytest.raises(UserError, match="^b: process 2 has another value than process 0; do something$"):
        check_same({"a": 1, "b": one, "c": one}, "do something")


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "c": 2}, {"b": 2, "a": 1}, {}], ids=str)
def test_other_names_are_told_before_values_are_gathered(monkeypatch, other):
    rows = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather_rows", lambda row: rows.append(row) or np.concatenate([row] * 2))
    check_same(other, "")
    monkeypatch.setattr(distributed, "gather_rows", lambda row: np.concatenate([row, rows[0]]))
    with pytest.raises(UserError, match=rf"^process 1 has {len(other)} values to compare, process 0 has 2, .*; do so$"):
        check_same({"a": 1, "b": 2}, "do so")


def test_alone_nothing_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.Trainer, "tensors", None)
    batches = ArrayBatches(*pictures(4), 4)
    check_agreement(make_trainer(tmp_path, make_config(), batches, batches))
    check_same({"a": 1}, "")


def test_all_that_a_checkpoint_holds_is_compared(two, tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(agreement.distributed, "check_same", lambda values, remedy: names.extend(values))
    trainer = trainer_of(tmp_path, steps=1)
    trainer.fit()
    assert {name.partition("/")[0] for name in names} == {"model", "extra"} and "extra/ema/1.weight" in names
    names.clear()
    again = trainer_of(tmp_path, steps=1, train__epochs=3)
    again.restore(again.folder.latest()[0])
    again.fit()
    assert {"model/1.weight", "optimizer/1.weight/moment1_0", "extra/ema/1.weight", "extra/ema/updates"} <= set(names)


def test_the_average_begins_with_the_weights_of_the_first_process(two, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed.dist, "broadcast", lambda tensor, source: tensor.set_value(tensor + 5))
    trainer = trainer_of(tmp_path)
    (bias,) = (v for name, v in trainer.ema.state_dict().items() if name == "5.bias")
    np.testing.assert_array_equal(bias.numpy(), trainer.network[5].bias.numpy() + 5)


@pytest.mark.parametrize("log_every, asked", [(40, {10, 20, 30, 40}), (8, {8, 10, 16, 20, 24, 30, 32, 40})])
def test_one_collective_for_each_line(two, tmp_path, log_every, asked):
    trainer = trainer_of(tmp_path, train__epochs=1, train__log_every=log_every, val__log_every=10)
    trainer.fit()
    settled = [rows for rows in two if rows.dtype == np.float64 and rows.shape[1] > 6]
    assert len(settled) == len(asked)
    # Besides: the place, the tensors and their names at the start; two evaluations of two steps, each asked once
    # whether to stop.
    assert len(two) == len(asked) + 3 + 2 * 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_step_waits_for_the_device(two, tmp_path, monkeypatch, smoothing):
    counts = {"item": 0, "numpy": 0}
    for name in counts:
        method = getattr(paddle.Tensor, name)

        def counted(tensor, *arguments, name=name, method=method):
            counts[name] += 1
            return method(tensor, *arguments)

        monkeypatch.setattr(paddle.Tensor, name, counted)
    for steps in (10, 40):
        trainer = trainer_of(tmp_path / str(steps), steps, train__log_every=100, train__smoothing=smoothing)
        trainer.step.ema = trainer.ema
        before = dict(counts)
        meter = trainer._train_epoch(0, 0.0)
        taken = {name: counts[name] - before[name] for name in counts}
        assert meter.step == steps
        # Losses and correct answers, whenever the processes ask each other.
        assert taken == {"item": 0, "numpy": 2 * steps // 10}


def test_a_batch_that_nobody_could_decode(two, tmp_path, monkeypatch):
    """One that only this process could not decode is no reason to stop."""
    trainer = trainer_of(tmp_path, steps=3)
    blank = Batch(paddle.zeros([1, 3, 8, 8]), paddle.zeros([1], "int64"), np.zeros(1, int), np.array([7, 8]),
                  share=2, counted=0)  # fmt: skip
    batches = list(trainer.train)
    monkeypatch.setattr(ArrayBatches, "__iter__", lambda self: iter([batches[0], blank, batches[2]]))
    gather = distributed.gather_rows

    def other_has_images(rows):
        both = gather(rows)
        both[1, 7:] = 2
        return both

    monkeypatch.setattr(distributed, "gather_rows", other_has_images)
    trainer._train_epoch(0, 0.0)
    monkeypatch.setattr(distributed, "gather_rows", gather)
    with pytest.raises(UserError, match=r"^/images/7\.png: a whole batch of images .* in epoch 1, step 2$"):
        trainer._train_epoch(0, 0.0)


# ---------------------------------------------------------------- running statistics


def test_running_statistics_are_those_of_the_first_process(two, monkeypatch):
    network = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4))
    ema = Ema(network, 0.9, False)
    before = [{name: tensor.numpy() for name, tensor in part.state_dict().items()} for part in (network, ema)]
    monkeypatch.setattr(distributed.dist, "broadcast", lambda tensor, source: tensor.set_value(tensor + 5))
    share_statistics(network, ema)
    for part, old in zip((network, ema), before):
        changed = {name for name, tensor in part.state_dict().items() if (tensor.numpy() != old[name]).any()}
        assert changed == {"1._mean", "1._variance"}
        assert part.state_dict()["1._mean"].numpy().tolist() == [5.0] * 4


def test_they_are_shared_before_each_evaluation(tmp_path, monkeypatch):
    order = []
    real = loop.evaluate
    monkeypatch.setattr(loop, "share_statistics", lambda network, ema: order.append(ema is not None))
    monkeypatch.setattr(loop, "evaluate", lambda *args, **more: order.append("evaluate") or real(*args, **more))
    trainer_of(tmp_path, steps=2, train__epochs=1).fit()
    assert order == [True, "evaluate", "evaluate"]
