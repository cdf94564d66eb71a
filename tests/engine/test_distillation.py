"""The distillation losses against NumPy, the teacher left alone, and a training with one that is cut and goes on."""

import math

import numpy as np
import paddle
import pytest
from data.batches import Batch
from engine.distillation import Distillation, Taught
from engine.loss import LabelLoss, smoothed_cross_entropy, soft_cross_entropy
from engine_fakes import (
    ArrayBatches,
    Lookup,
    assert_same,
    make_config,
    make_trainer,
    pictures,
    weights_of,
)
from errors import UserError
from paddle import nn


def log_softmax(logits):
    shifted = logits.astype(float) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def values(count=6, classes=5, seed=0, scale=2.0):
    return (scale * np.random.default_rng(seed).standard_normal((count, classes))).astype("float32")


def loss_of(teacher=None, kind="hard", alpha=0.5, temperature=3.0, smoothing=0.1, **more):
    return Distillation(teacher or Lookup(), LabelLoss(smoothing), kind=kind, alpha=alpha, temperature=temperature,
                        source="T", **more)  # fmt: skip


def taught(teacher, labels=(0, 1, 2, 3, 4, 0)):
    return Taught(paddle.to_tensor(np.array(labels)), paddle.to_tensor(teacher))


# ---------------------------------------------------------------- the losses


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_hard_is_the_cross_entropy_with_the_teachers_class_unsmoothed(alpha):
    logits, teacher = values(), values(seed=1)
    lesson = taught(teacher)
    loss = loss_of(alpha=alpha)(paddle.to_tensor(logits), lesson)
    assert (loss.shape, loss.dtype) == ([], paddle.float32)
    labels = smoothed_cross_entropy(paddle.to_tensor(logits), lesson.labels, 0.1).item()
    term = -log_softmax(logits)[np.arange(6), teacher.argmax(axis=1)].mean()
    assert loss.item() == pytest.approx((1 - alpha) * labels + alpha * term, rel=2e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("scale", [2.0, 300.0])
def test_soft_is_the_divergence_times_the_squared_temperature(temperature, scale):
    logits, teacher = values(scale=scale), values(seed=1, scale=scale)
    loss = loss_of(kind="soft", alpha=1.0, temperature=temperature)(paddle.to_tensor(logits), taught(teacher))
    ours, theirs = log_softmax(logits / temperature), log_softmax(teacher / temperature)
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1).mean()
    assert loss.dtype == paddle.float32
    # The rounding of the two entropies that it is the difference of, some float32 steps at 1.6, grows with T^2.
    assert loss.item() == pytest.approx(temperature**2 * divergence, rel=2e-6, abs=4e-7 * temperature**2)


def test_soft_is_nothing_for_the_teachers_own_logits_and_so_is_its_gradient():
    teacher = values()
    logits = paddle.to_tensor(teacher, stop_gradient=False)
    loss = loss_of(kind="soft", alpha=1.0)(logits, taught(teacher))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(logits.grad.numpy(), 0, atol=1e-6)


def test_the_gradient_of_soft_keeps_its_size_at_high_temperatures():
    # T^2 / (T B) (softmax(z/T) - softmax(t/T)), which goes to (z - t) / (B C) for centred logits.
    logits, teacher = (array - array.mean(axis=1, keepdims=True) for array in (values(), values(seed=1)))
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    loss_of(kind="soft", alpha=1.0, temperature=1000.0)(tensor, taught(teacher)).backward()
    np.testing.assert_allclose(tensor.grad.numpy(), (logits - teacher) / 6 / 5, atol=1e-3)


def test_labels_of_mixed_images_stay_soft():
    logits, teacher = values(), values(seed=1)
    mixed = paddle.to_tensor(np.full([6, 5], 0.2, "float32"))
    batch = Batch(paddle.to_tensor(teacher), paddle.zeros([6], "int64"), np.arange(6), np.empty(0), mixed)
    loss = loss_of(alpha=0.25)
    lesson = loss.targets(batch)
    assert lesson.labels is mixed and len(lesson) == 6
    np.testing.assert_array_equal(lesson.teacher.numpy(), teacher)
    labels = soft_cross_entropy(paddle.to_tensor(logits), mixed).item()
    term = -log_softmax(logits)[np.arange(6), teacher.argmax(axis=1)].mean()
    assert loss(paddle.to_tensor(logits), lesson).item() == pytest.approx(0.75 * labels + 0.25 * term, rel=2e-6)


# ---------------------------------------------------------------- the teacher


def plain(images):
    images = paddle.to_tensor(images)
    return Batch(images, paddle.zeros([len(images)], "int64"), np.arange(len(images)), np.empty(0))


def test_the_teacher_is_in_evaluation_mode_and_without_gradients():
    teacher = Lookup()
    teacher.train()
    loss = loss_of(teacher)
    lesson = loss.targets(plain(values()))
    assert teacher.modes == [False] and lesson.teacher.stop_gradient
    loss(paddle.to_tensor(values(seed=2), stop_gradient=False), lesson).backward()
    assert teacher.scale.grad is None


def test_images_are_normalised_anew_exactly():
    pixels = np.random.default_rng(0).random((2, 3, 4, 4))
    own = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    theirs = ((0.5, 0.4, 0.3), (0.5, 0.25, 0.125))

    def normalised(pair):
        mean, std = (np.array(part).reshape(1, 3, 1, 1) for part in pair)
        return ((pixels - mean) / std).astype("float32")

    loss = loss_of(nn.Identity(), own=own, theirs=theirs)
    np.testing.assert_allclose(loss._ask(paddle.to_tensor(normalised(own))).numpy(), normalised(theirs), atol=1e-6)
    assert "normalised anew" in loss.describe()
    images = paddle.to_tensor(normalised(own))
    same = loss_of(nn.Identity(), own=own, theirs=own)
    assert same._ask(images).numpy().tobytes() == images.numpy().tobytes()
    assert "normalised anew" not in same.describe()


def test_what_is_told():
    assert loss_of(alpha=0.25).describe() == \
        "hard distillation: 0.75 x labels + 0.25 x cross entropy with its most likely class"
    assert loss_of(kind="soft", temperature=4.0).describe() == \
        "soft distillation: 0.5 x labels + 0.5 x 4^2 x KL divergence at temperature 4"


# ---------------------------------------------------------------- trainings


def teacher_network(seed=5):
    paddle.seed(seed)
    return nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3))


def trainer_in(folder, kind="hard", epochs=3, seed=5, teacher=True, decay=0.5, accumulate=1, **values):
    config = make_config(train__epochs=epochs, train__min_lr=1e-2, train__accumulate=accumulate, train__batch_size=4)
    train, val = ArrayBatches(*pictures(28), 4, shuffle=True), ArrayBatches(*pictures(9, seed=1), 4)
    trainer = make_trainer(folder, config, train, val, ema_decay=decay, distillation=loss_of(
        teacher_network(seed), kind, **values) if teacher else None)
    trainer.teacher = trainer.loss.teacher if teacher else None
    return trainer


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_going_on_is_bit_for_bit_and_the_teacher_stays_as_it_was(tmp_path, kind, accumulate):
    straight = trainer_in(tmp_path / "straight", kind, 4, accumulate=accumulate)
    before = weights_of(straight.teacher)
    straight.fit()
    assert_same(weights_of(straight.teacher), before)
    trainer_in(tmp_path / "cut", kind, 2, accumulate=accumulate).fit()
    again = trainer_in(tmp_path / "cut", kind, 4, accumulate=accumulate)
    again.restore(again.folder.latest()[0])
    again.fit()
    assert_same(weights_of(again.network), weights_of(straight.network))
    assert_same(again.ema.arrays(), straight.ema.arrays())
    other = trainer_in(tmp_path / "other", kind, 4, seed=6, accumulate=accumulate)
    other.fit()
    name = next(iter(weights_of(other.network)))
    assert not np.array_equal(weights_of(other.network)[name], weights_of(straight.network)[name])


def test_a_teacher_without_a_share_changes_nothing(tmp_path):
    alone, taught_run = trainer_in(tmp_path / "a", teacher=False), trainer_in(tmp_path / "b", alpha=0.0)
    alone.fit(), taught_run.fit()
    assert_same(weights_of(alone.network), weights_of(taught_run.network))


def test_another_teacher_is_refused_and_one_more_or_less_is_not(tmp_path):
    trainer_in(tmp_path / "run", epochs=1).fit()
    again = trainer_in(tmp_path / "run", epochs=2, seed=6)
    with pytest.raises(UserError, match="train.teacher=T: .*other weights.*choose another output"):
        again.restore(again.folder.latest()[0])
    without = trainer_in(tmp_path / "run", epochs=2, teacher=False)
    without.restore(without.folder.latest()[0])
    without.fit()
    later = trainer_in(tmp_path / "run", epochs=3, seed=6)
    later.restore(later.folder.latest()[0])


def test_a_student_learns_from_a_teacher_alone(tmp_path):
    # Labels without a share: the accuracy comes from the teacher, which knows the classes.
    teacher = trainer_in(tmp_path / "teacher", teacher=False, epochs=6, decay=None)
    assert teacher.fit().top1 > 0.6
    for kind in ("hard", "soft"):
        config = make_config(train__epochs=6, train__min_lr=1e-2)
        wrong = ArrayBatches(pictures(60)[0], np.zeros(60), 4, shuffle=True)
        student = make_trainer(tmp_path / kind, config, wrong, ArrayBatches(*pictures(9, seed=1), 4),
                               distillation=loss_of(teacher.network, kind, alpha=1.0))
        assert student.fit().top1 > 0.6


def test_a_loss_that_is_not_finite_shows():
    teacher = values()
    teacher[0, 0] = math.nan
    assert math.isnan(loss_of(kind="soft")(paddle.to_tensor(values()), taught(teacher)).item())


def test_half_precision_logits_are_compared_in_float32():
    half = paddle.to_tensor(values()).astype("bfloat16")
    for kind in ("hard", "soft"):
        loss = loss_of(kind=kind)
        expected = loss(half.astype("float32"), taught(values(seed=1))).item()
        assert loss(half, taught(values(seed=1))).item() == expected
