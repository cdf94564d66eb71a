"""Exact evaluation: the same figures for every number of processes and every batch size."""

import math

import numpy as np
import paddle
import pytest
from engine import evaluate as evaluate_module
from engine.evaluate import evaluate
from engine_fakes import ArrayBatches, ListLog, Lookup

WORLDS, BATCHES = (1, 2, 3, 4), (1, 2, 4)


def logits_of(count, classes=3, seed=0):
    return np.random.RandomState(seed).standard_normal((count, classes)).astype("float32")


def cross_entropies(logits, labels):
    """By hand, one for each image."""
    return np.array([math.log(np.exp(row - row[label]).sum()) for row, label in zip(logits.astype("float64"), labels)])


def evaluate_in(world, monkeypatch, logits, labels, batch_size, failed=(), **options):
    """Results of every process. What they exchange is recorded in a first pass and given to all in a second one."""

    def batches(rank):
        return ArrayBatches(logits, labels, batch_size, world=world, rank=rank, failed=failed)

    calls = [[] for _ in range(world)]
    for rank, own in enumerate(calls):
        monkeypatch.setattr(evaluate_module, "gather_rows", lambda rows, own=own: own.append(rows) or rows)
        evaluate(Lookup(), batches(rank), **options)
    # As many exchanges of the same shapes everywhere: anything else would hang.
    shapes = [[rows.shape for rows in own] for own in calls]
    assert all(one == shapes[0] for one in shapes)
    results = []
    for rank in range(world):
        gathered = iter([np.concatenate(parts) for parts in zip(*calls)])
        monkeypatch.setattr(evaluate_module, "gather_rows", lambda rows, gathered=gathered: next(gathered))
        results.append(evaluate(Lookup(), batches(rank), **options))
    assert all(result == results[0] for result in results)
    return results[0]


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("wrong", [(0, 1), (8, 9)])
def test_eight_of_ten_whatever_the_split(monkeypatch, wrong):
    """Images 0 and 1 are the ones that padding repeats; 8 and 9 lie in an incomplete last batch."""
    logits = logits_of(10)
    labels = logits.argmax(1)
    labels[list(wrong)] = (labels[list(wrong)] + 1) % 3
    losses = []
    for world in WORLDS:
        for batch_size in BATCHES:
            result = evaluate_in(world, monkeypatch, logits, labels, batch_size)
            assert (result.top1, result.count, result.skipped) == (0.8, 10, []), (world, batch_size)
            losses.append(result.loss)
    np.testing.assert_allclose(losses, cross_entropies(logits, labels).mean(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("world, images, batch_size", [(2, 5, 2), (2, 1, 64), (3, 1, 64), (4, 1, 64), (4, 2, 1)])
def test_fewer_images_than_processes_or_an_uneven_rest(monkeypatch, world, images, batch_size):
    logits = logits_of(images)
    alone = evaluate_in(1, monkeypatch, logits, logits.argmax(1), batch_size)
    assert (alone.top1, alone.count) == (1.0, images)
    assert evaluate_in(world, monkeypatch, logits, logits.argmax(1), batch_size) == alone


def test_no_image_is_left_out_or_counted_twice(monkeypatch):
    for images in range(1, 14):
        logits = logits_of(images, seed=images)
        for right in range(images):
            labels = (logits.argmax(1) + 1) % 3
            labels[right] = logits[right].argmax()
            result = evaluate_in(3, monkeypatch, logits, labels, 2, log_every=2)
            assert (result.top1, result.count) == (1 / images, images)


def test_log_every_changes_nothing(monkeypatch):
    logits = logits_of(23)
    labels = np.arange(23) % 3
    results = [evaluate_in(2, monkeypatch, logits, labels, 3, log_every=every) for every in (1, 2, 3, 100)]
    assert all(result == results[0] for result in results)


def test_top5(monkeypatch):
    logits = np.tile(np.arange(10, 0, -1, dtype="float32"), [10, 1])
    # Label k is in place k + 1: five of ten are among the first five.
    result = evaluate_in(2, monkeypatch, logits, np.arange(10), 3)
    assert (result.top1, result.top5) == (0.1, 0.5)
    # With no more than five classes every image is.
    assert evaluate_in(1, monkeypatch, logits_of(7), np.zeros(7), 2).top5 == 1.0


# ---------------------------------------------------------------- undecodable images


def test_undecodable_images_count_nowhere_and_are_reported(monkeypatch):
    logits = logits_of(11)
    labels = logits.argmax(1)
    labels[3] = (labels[3] + 1) % 3
    results = [
        evaluate_in(world, monkeypatch, logits, labels, batch_size, failed=(0, 4, 5))
        for world in WORLDS for batch_size in BATCHES
    ]  # fmt: skip
    loss = cross_entropies(logits, labels)[[1, 2, 3, 6, 7, 8, 9, 10]].mean()
    for result in results:
        assert (result.top1, result.count, result.skipped) == (7 / 8, 8, [0, 4, 5])
        assert result.loss == pytest.approx(loss, abs=1e-6)


def test_an_undecodable_image_with_label_and_prediction_alike_is_not_right(monkeypatch):
    result = evaluate_in(2, monkeypatch, logits_of(4), [0, 0, 0, 0], 2, failed=(0, 1, 2, 3))
    assert (result.top1, result.top5, result.loss, result.count, result.skipped) == (0, 0, 0, 0, [0, 1, 2, 3])


# ---------------------------------------------------------------- the loss


def test_loss_is_plain_cross_entropy(monkeypatch):
    uniform = evaluate_in(1, monkeypatch, np.zeros([6, 1000]), np.arange(6) * 150, 4)
    assert uniform.loss == pytest.approx(math.log(1000), abs=1e-4)
    confident = np.zeros([6, 1000])
    confident[np.arange(6), np.arange(6) * 150] = 30
    assert evaluate_in(1, monkeypatch, confident, np.arange(6) * 150, 4).loss < 1e-3


def test_loss_is_the_mean_over_images_not_over_batches(monkeypatch):
    logits = np.zeros([5, 2])
    logits[4, 1] = 20
    # Four images of loss ln 2 in a full batch, one of loss 20 alone in the next.
    loss = evaluate_in(1, monkeypatch, logits, np.zeros(5), 4).loss
    assert loss == pytest.approx((4 * math.log(2) + 20) / 5, abs=1e-6)


# ---------------------------------------------------------------- network and log


@pytest.mark.parametrize("training", [True, False])
def test_no_gradient_and_the_mode_comes_back(training):
    network = Lookup()
    (network.train if training else network.eval)()
    evaluate(network, ArrayBatches(logits_of(5), np.zeros(5), 2))
    assert network.training is training
    assert network.modes == [False, False, False]
    assert all(output.stop_gradient for output in network.outputs)
    assert paddle.is_grad_enabled()


def test_lines():
    log = ListLog()
    logits = logits_of(50)
    labels = logits.argmax(1)
    labels[:10] = (labels[:10] + 1) % 3
    evaluate(Lookup(), ArrayBatches(logits, labels, 10), log_every=2, log=log)
    assert [line.partition(", ")[0] for line in log.lines] == ["Step [2/5]", "Step [4/5]", "Step [5/5]"]
    assert all(log.matching(r"^Step \[\d+/5\], acc: 0\.\d{4}, read_time: \d+\.\d{4}(, |$)")[i] == log.lines[i]
               for i in range(3))  # fmt: skip
    # The accuracy of a line is that of all images so far.
    assert [line.split(", ")[1] for line in log.lines] == ["acc: 0.5000", "acc: 0.7500", "acc: 0.8000"]
