"""The loss on soft targets against NumPy, against label smoothing, and in half precision."""

import contextlib
import math

import numpy as np
import paddle
import pytest
from engine.loss import smoothed_cross_entropy, soft_cross_entropy


def batch(count=5, classes=7, scale=1.0):
    """Logits and targets, float32; rows of targets sum to 1."""
    rng = np.random.default_rng(0)
    targets = rng.random((count, classes))
    logits = scale * rng.standard_normal((count, classes))
    return logits.astype("float32"), (targets / targets.sum(axis=1, keepdims=True)).astype("float32")


def log_softmax(logits):
    shifted = logits.astype(float) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("count, classes", [(1, 2), (5, 7), (8, 1000)])
def test_equals_the_formula(count, classes, scale):
    # At the larger scales Paddle's own cross entropy ends at 64 on a CPU.
    logits, targets = batch(count, classes, scale)
    loss = soft_cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(targets))
    assert (loss.shape, loss.dtype) == ([], paddle.float32)
    assert loss.item() == pytest.approx(-(targets.astype(float) * log_softmax(logits)).sum(axis=1).mean(), rel=2e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_equals_label_smoothing(smoothing):
    logits, _ = batch()
    labels = np.array([0, 6, 3, 3, 1])
    targets = (np.eye(7)[labels] * (1 - smoothing) + smoothing / 7).astype("float32")
    loss = soft_cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(targets))
    expected = smoothed_cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(labels), smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_zero_logits_give_the_logarithm_of_the_classes(classes):
    _, targets = batch(4, classes)
    loss = soft_cross_entropy(paddle.zeros([4, classes]), paddle.to_tensor(targets))
    assert loss.item() == pytest.approx(math.log(classes), abs=1e-5)


def test_gradient_equals_the_formula():
    values, targets = batch()
    logits = paddle.to_tensor(values, stop_gradient=False)
    soft_cross_entropy(logits, paddle.to_tensor(targets)).backward()
    expected = (np.exp(log_softmax(values)) - targets) / len(values)
    np.testing.assert_allclose(logits.grad.numpy(), expected, atol=1e-7)


def test_half_precision_logits_are_summed_in_float32():
    values, targets = batch(64, 1000, scale=3)
    logits = paddle.to_tensor(values, stop_gradient=False)
    half = logits.astype("bfloat16")
    loss = soft_cross_entropy(half, paddle.to_tensor(targets))
    assert loss.dtype == paddle.float32
    rounded = half.detach().astype("float32").numpy()
    assert loss.item() == pytest.approx(-(targets.astype(float) * log_softmax(rounded)).sum(axis=1).mean(), rel=2e-6)
    loss.backward()
    np.testing.assert_allclose(logits.grad.numpy(), (np.exp(log_softmax(rounded)) - targets) / 64, rtol=0.01, atol=1e-7)


def test_auto_cast_is_off_within_the_loss(monkeypatch):
    # On a CPU auto_cast does nothing, so that its effect cannot be seen here.
    entered, state = [], [True]

    @contextlib.contextmanager
    def auto_cast(enable=True):
        state.append(enable)
        yield
        state.pop()

    def seen(name, plain):
        def method(*args, **kwargs):
            entered.append((name, state[-1]))
            return plain(*args, **kwargs)

        return method

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    names = ("max", "exp", "sum", "log", "mean")
    for name in names:
        monkeypatch.setattr(paddle.Tensor, name, seen(name, getattr(paddle.Tensor, name)))
    soft_cross_entropy(*(paddle.to_tensor(array) for array in batch()))
    assert set(entered) == {(name, False) for name in names}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_show_in_the_loss(bad):
    logits, targets = batch()
    logits[2, 3] = bad
    assert math.isnan(soft_cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(targets)).item())
