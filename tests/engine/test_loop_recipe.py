"""The recipe's parts in the loop: the average decides and is kept, windows of batches, going on with both."""

import numpy as np
import paddle
import pytest
from engine.loss import soft_cross_entropy
from engine_fakes import ArrayBatches, assert_same, make_config, make_trainer, pictures, weights_of
from weights.paddle_file import read_weights


def trainer_in(folder, epochs=3, decay=0.5, **values):
    # A constant rate, so that shorter and longer runs begin alike.
    config = make_config(train__epochs=epochs, train__ema_decay=decay, train__min_lr=1e-2, **values)
    train, val = ArrayBatches(*pictures(28), 4, shuffle=True), ArrayBatches(*pictures(9, seed=1), 4)
    return make_trainer(folder, config, train, val, ema_decay=decay)


def test_both_weights_are_told_and_the_average_decides(tmp_path):
    trainer = trainer_in(tmp_path)
    best = trainer.fit()
    rows = trainer.log.of("val")
    assert [row["weights"] for row in rows] == ["raw", "ema"] * 3
    averaged = [row["top1"] for row in rows[1::2]]
    assert best == (max(averaged), averaged.index(max(averaged)) + 1)
    lines = trainer.log.matching("val acc is:")
    assert all("weights: raw" in line and "best" not in line for line in lines[::2])
    assert all("weights: ema, best: " in line for line in lines[1::2])


def test_kept_weights_are_the_average_and_the_raw_ones(tmp_path):
    trainer = trainer_in(tmp_path, epochs=1)
    trainer.fit()
    average = {name: tensor.numpy() for name, tensor in trainer.ema.state_dict().items()}
    assert_same(read_weights(tmp_path / "best"), average)
    assert_same(read_weights(tmp_path / "last_ema"), average)
    assert_same(read_weights(tmp_path / "last"), weights_of(trainer.network))
    assert any(not np.array_equal(average[name], value) for name, value in weights_of(trainer.network).items())


@pytest.mark.parametrize("values", [{}, {"train__accumulate": 3}])
def test_going_on_keeps_the_average_bit_for_bit(tmp_path, values):
    straight = trainer_in(tmp_path / "straight", epochs=4, **values)
    straight.fit()
    trainer_in(tmp_path / "cut", epochs=2, **values).fit()
    again = trainer_in(tmp_path / "cut", epochs=4, **values)
    again.restore(again.folder.latest()[0])
    again.fit()
    assert_same(weights_of(again.network), weights_of(straight.network))
    assert_same(again.ema.arrays(), straight.ema.arrays())
    assert again.best == straight.best


def test_windows_of_batches_make_fewer_steps(tmp_path):
    trainer = trainer_in(tmp_path, epochs=1, train__accumulate=3)
    trainer.fit()
    # Seven batches: two whole windows and the rest.
    assert trainer.ema.updates == 3


def test_soft_targets_reach_the_loss(tmp_path):
    trainer = trainer_in(tmp_path, epochs=1)
    seen = []

    class Mixed(ArrayBatches):
        def __iter__(self):
            for batch in super().__iter__():
                targets = np.full([len(batch.labels), 3], 1 / 3, "float32")
                yield batch._replace(targets=paddle.to_tensor(targets))

    trainer.train = Mixed(*pictures(28), 4)
    loss = trainer.step.loss
    trainer.step.loss = lambda logits, targets: seen.append(
        (loss(logits, targets).item(), soft_cross_entropy(logits, targets).item())) or loss(logits, targets)
    trainer.fit()
    assert len(seen) == 7 and all(ours == theirs for ours, theirs in seen)
