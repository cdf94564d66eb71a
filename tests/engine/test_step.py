"""Windows of micro-batches equal one batch, mixed precision skips what is not finite, eight official steps."""

import contextlib
import sys

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
import t2t
from engine import step as step_module
from engine.ema import Ema
from engine.loss import soft_cross_entropy
from engine.optim import build_optimizer, freeze
from engine.step import ScaleCollapse, TrainingStep, check_amp
from engine_fakes import Lookup, assert_same, small_t2t, weights_of
from errors import UserError
from official_weights import fill
from paddle import nn


def make(kind="sgd", frozen=(), lr=0.1, clip_grad=None, **options):
    """A training step of a small T2T-ViT without dropout; the same weights each time."""
    paddle.seed(1)
    network = small_t2t()
    network.eval()
    freeze(network, frozen)
    optimizer = build_optimizer(network, lr=lr, weight_decay=0.05, optimizer=kind, clip_grad=clip_grad)
    return TrainingStep(network, optimizer, soft_cross_entropy, **options)


def batch(count, seed=0):
    """Images and soft targets."""
    random = np.random.RandomState(seed)
    targets = random.uniform(0, 1, (count, 3))
    return (paddle.to_tensor(random.standard_normal((count, 3, 16, 16)).astype("float32")),
            paddle.to_tensor((targets / targets.sum(1, keepdims=True)).astype("float32")))  # fmt: skip


def in_parts(step, images, targets, sizes):
    """One window in micro-batches of the given sizes, the last of them told as the epoch's last."""
    losses, start = [], 0
    for number, size in enumerate(sizes, 1):
        loss, _ = step(images[start : start + size], targets[start : start + size], last=number == len(sizes))
        losses.append(loss.item())
        start += size
    return losses


def moments(optimizer):
    return [v.numpy().copy() for v in optimizer.state_dict().values() if hasattr(v, "numpy")]


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("frozen", [(), ("blocks.0.*", "cls_token")], ids=["all", "frozen"])
@pytest.mark.parametrize("clip_grad", [None, 0.05])
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (4, 4, 4), (4,), (4, 3), (2, 4, 1), (5, 1, 2, 2)])
def test_a_window_equals_one_batch(sizes, clip_grad, frozen):
    whole, parts = (make(clip_grad=clip_grad, frozen=frozen, accumulate=n) for n in (1, 4))
    start = weights_of(whole.model)
    for seed in range(2):
        images, targets = batch(sum(sizes), seed)
        loss, _ = whole(images, targets)
        losses = in_parts(parts, images, targets, sizes)
        np.testing.assert_allclose(np.average(losses, weights=sizes), loss.item(), rtol=1e-6)
    wanted, found = weights_of(whole.model), weights_of(parts.model)
    for name, value in wanted.items():
        assert abs(found[name] - value).max() <= 1e-6, name
        if whole.model.state_dict()[name].stop_gradient:
            assert (found[name] == start[name]).all(), name
    # The limit means something: the two gradients moved the weights by far more.
    assert np.sqrt(sum(((wanted[name] - start[name]) ** 2).sum() for name in wanted)) > 5e-3


def test_weights_move_at_the_end_of_a_window_only():
    step = make(accumulate=3)
    images, targets = batch(4)
    moved = []
    for last in (False, False, False, False, True, True, False):
        before = weights_of(step.model)["head.weight"]
        step(images, targets, last)
        moved.append(bool((weights_of(step.model)["head.weight"] != before).any()))
        assert step.at_boundary == moved[-1]
    assert moved == [False, False, True, False, True, True, False]
    with pytest.raises(RuntimeError, match="unfinished window"):
        step.arrays()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_without_accumulation_it_is_the_plain_step(kind):
    step, plain = make(kind), make(kind)
    for seed in range(3):
        images, targets = batch(5, seed)
        loss, logits = step(images, targets)
        wanted_logits = plain.model(images)
        wanted = soft_cross_entropy(wanted_logits, targets)
        wanted.backward()
        plain.optimizer.step()
        plain.optimizer.clear_grad()
        assert loss.item() == wanted.item() and (logits == wanted_logits).all().item()
        assert loss.stop_gradient and logits.stop_gradient
    assert_same(weights_of(step.model), weights_of(plain.model))


def test_a_micro_batch_returns_its_own_mean_loss():
    step = make(accumulate=4)
    images, targets = batch(6)
    wanted = soft_cross_entropy(step.model(images[4:]), targets[4:]).item()
    step(images[:4], targets[:4])
    assert step(images[4:], targets[4:])[0].item() == pytest.approx(wanted, rel=1e-6)


def test_full_precision_never_waits_for_the_device(monkeypatch):
    network = small_t2t()
    network.eval()
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.05)
    step = TrainingStep(network, optimizer, soft_cross_entropy, accumulate=2, ema=Ema(network, 0.9))
    batches = [batch(4), batch(3)]

    def refuse(*arguments):
        raise AssertionError("a value was fetched from the device")

    for name in ("item", "numpy", "tolist", "__bool__", "__float__", "__int__", "__array__"):
        monkeypatch.setattr(paddle.Tensor, name, refuse)
    for _ in range(2):
        for images, targets in batches:
            step(images, targets)


def test_the_average_follows_each_update():
    network = small_t2t()
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.05)
    ema = Ema(network, 0.5)
    step = TrainingStep(network, optimizer, soft_cross_entropy, accumulate=2, ema=ema)
    wanted = weights_of(network)["head.bias"]
    for number in range(6):
        step(*batch(4, number))
        if number % 2:
            wanted = wanted + 0.5 * (weights_of(network)["head.bias"] - wanted)
    assert ema.updates == 3
    np.testing.assert_allclose(ema.state_dict()["head.bias"].numpy(), wanted, atol=1e-7)


class Parallel(nn.Layer):
    """paddle.DataParallel as far as a step sees it."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.syncing, self.forwards, self.backwards = True, [], []

    def forward(self, x):
        self.forwards.append(self.syncing)
        logits = self.network(x)
        logits.register_hook(lambda grad: self.backwards.append(self.syncing))
        return logits

    @contextlib.contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True


def test_processes_exchange_gradients_once_per_window():
    network = small_t2t()
    model = Parallel(network)
    optimizer = build_optimizer(network, lr=0.1, weight_decay=0.05)
    step = TrainingStep(model, optimizer, soft_cross_entropy, accumulate=3)
    for number in range(5):
        step(*batch(2), last=number == 4)
    assert model.forwards == model.backwards == [False, False, True, False, True]


def test_gradients_are_complete_before_they_are_exchanged():
    # Another process may have another number of samples; a factor after the exchange would differ between them.
    network = Lookup()
    optimizer = build_optimizer(network, lr=1.0, weight_decay=0.0, optimizer="sgd", momentum=0.0)
    step = TrainingStep(network, optimizer, lambda logits, targets: (logits * targets).mean(), accumulate=4)
    seen = []
    step._update = lambda: seen.append(network.scale.grad.numpy().copy())
    backward = paddle.Tensor.backward

    def watched(loss):
        backward(loss)
        seen.append(network.scale.grad.numpy().copy())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paddle.Tensor, "backward", watched)
        for size, last in ((4, False), (2, True)):
            step(paddle.ones([size, 1]), paddle.full([size, 1], float(size)), last)
    np.testing.assert_allclose(np.concatenate(seen), [1.0, 20 / 6, 20 / 6], rtol=1e-6)


@pytest.mark.parametrize("parts", [((3, 1), (2, 2)), ((2, 0), (2, 1)), ((0, 2), (1, 2)), ((4,), (1,)), ((4,), (0,))])
def test_processes_of_unequal_shares_make_the_mean_over_all_samples(parts):
    # parts: for each process the samples that count in its micro-batches.
    gradients, seen, losses = [], [], []
    shares = [sum(counts) / len(parts) for counts in zip(*parts)]
    for counts in parts:
        network = Lookup()
        optimizer = build_optimizer(network, lr=1.0, weight_decay=0.0, optimizer="sgd", momentum=0.0)
        step = TrainingStep(network, optimizer, lambda out, targets: (out * targets).mean(), accumulate=len(counts))
        step._update = lambda network=network: gradients.append(network.scale.grad.item())
        for number, (counted, share) in enumerate(zip(counts, shares), 1):
            values = np.arange(1, max(counted, 1) + 1, dtype="float32") * (len(seen) + 1)
            losses.append(step(paddle.ones([len(values), 1]), paddle.to_tensor(values[:, None]), number == len(counts),
                               share, counted)[0].item() - values.mean())  # fmt: skip
            seen.extend(values[:counted].tolist())
    # Afterwards the processes' gradients are averaged.
    assert np.mean(gradients) == pytest.approx(np.mean(seen), rel=1e-6)
    np.testing.assert_allclose(losses, 0, atol=1e-6)


@pytest.mark.parametrize("accumulate", [0, -1])
def test_a_window_has_a_batch(accumulate):
    with pytest.raises(UserError, match=f"train.accumulate={accumulate}: "):
        make(accumulate=accumulate)


# ---------------------------------------------------------------- mixed precision


@pytest.mark.parametrize("amp", ["fp16", "bf16"])
def test_mixed_precision_needs_a_gpu(amp):
    if paddle.get_device() != "cpu":
        pytest.skip("this process computes on a card")
    for call in (lambda: check_amp(amp), lambda: make(amp=amp)):
        with pytest.raises(UserError, match=f"train.amp={amp}: needs a GPU, but the device is cpu; set train.amp=off"):
            call()
    check_amp("off")


@pytest.mark.parametrize("amp, query, remedy", [
    ("fp16", "is_float16_supported", "7.0 or higher; set train.amp=off"),
    ("bf16", "is_bfloat16_supported", "8.0 or higher; set train.amp=fp16"),
])  # fmt: skip
def test_mixed_precision_needs_a_card_that_has_it(monkeypatch, amp, query, remedy):
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(paddle.amp, query, lambda: False)
    with pytest.raises(UserError, match=f"train.amp={amp}: .*{remedy}"):
        check_amp(amp)
    monkeypatch.setattr(paddle.amp, query, lambda: True)
    check_amp(amp)


class AutoCasts:
    """Stands for paddle.amp.auto_cast, which does nothing on a CPU, and knows what is in force."""

    def __init__(self, monkeypatch):
        self.stack = [None]
        monkeypatch.setattr(paddle.amp, "auto_cast", self)

    @contextlib.contextmanager
    def __call__(self, enable=True, level="O1", dtype="float16"):
        self.stack.append((level, dtype) if enable else None)
        try:
            yield
        finally:
            self.stack.pop()


@pytest.mark.parametrize("amp, wanted", [("off", None), ("fp16", ("O1", "float16")), ("bf16", ("O1", "bfloat16"))])
@pytest.mark.filterwarnings("ignore:AmpScaler")
def test_the_forward_pass_is_cast_and_the_loss_is_not(monkeypatch, amp, wanted):
    monkeypatch.setattr(step_module, "check_amp", lambda amp: None)
    if amp == "fp16":
        monkeypatch.setattr(TrainingStep, "_scaled_update", lambda self: True)
    casts, seen = AutoCasts(monkeypatch), {}

    def loss(logits, targets):
        seen["loss"] = casts.stack[-1]
        return soft_cross_entropy(logits, targets)

    network = small_t2t()
    network.head.register_forward_post_hook(lambda *_: seen.update(head=casts.stack[-1]))
    TrainingStep(network, build_optimizer(network, lr=0.1, weight_decay=0.0), loss, amp=amp)(*batch(2))
    assert seen == {"head": wanted, "loss": None}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0], ids=["zero", "noise", "x10"])
def test_the_performer_computes_in_float32(monkeypatch, dtype, scale):
    casts, seen = AutoCasts(monkeypatch), []
    performer = t2t.TokenPerformer(147, 64)

    def record(name):
        original = getattr(paddle, name)

        def call(x, *arguments, **options):
            out = original(x, *arguments, **options)
            seen.append((name, casts.stack[-1], x.dtype, out.dtype))
            return out

        monkeypatch.setattr(paddle, name, call)

    divide = paddle.Tensor.__truediv__

    def division(x, y):
        if isinstance(y, paddle.Tensor):
            seen.append(("divisor", casts.stack[-1], x.dtype, y.dtype))
        return divide(x, y)

    record("exp")
    record("matmul")
    monkeypatch.setattr(paddle.Tensor, "__truediv__", division)
    k, q, v = (paddle.to_tensor(scale * np.random.RandomState(n).standard_normal((2, 9, 64)), "float32").astype(dtype)
               for n in range(3))  # fmt: skip
    with paddle.amp.auto_cast(level="O1", dtype=dtype):
        y = performer.linear_attention(k, q, v)
        assert casts.stack[-1] == ("O1", dtype)
    assert [name for name, *_ in seen].count("exp") == 2 and "divisor" in {name for name, *_ in seen}
    assert {(cast, a, b) for _, cast, a, b in seen} == {(None, paddle.float32, paddle.float32)}
    assert y.dtype == paddle.float32 and paddle.isfinite(y).all().item()


@pytest.fixture
def scaling(monkeypatch):
    """Lets Paddle's scaler work on a CPU, where it would turn itself off; its operators exist there."""
    module = sys.modules["paddle.amp.grad_scaler"]
    tracer = module._dygraph_tracer

    class Place:
        is_gpu_place = is_xpu_place = is_custom_place = staticmethod(lambda: True)

    class Tracer:
        _expected_place = Place()

        def __getattr__(self, name):
            return getattr(tracer(), name)

    monkeypatch.setattr(module, "_dygraph_tracer", Tracer)
    monkeypatch.setattr(step_module, "check_amp", lambda amp: None)
    # Left by an earlier test, another type than that of auto_cast would turn the scaler off, too.
    AutoCasts(monkeypatch)
    monkeypatch.setattr(sys.modules["paddle.amp.auto_cast"].amp_global_state(), "amp_dtype", "float16")


def overflow(step, times=1, size=4):
    """Micro-batches whose loss is finite and whose gradient is not."""
    loss = step.loss
    step.loss = lambda logits, targets: (logits * 3e38).sum() * 3e38
    for number in range(times):
        step(*batch(size, number))
    step.loss = loss


def test_scaled_steps_are_those_of_full_precision(scaling):
    scaled, plain = make(amp="fp16", accumulate=2, clip_grad=0.05), make(accumulate=2, clip_grad=0.05)
    for number in range(4):
        images, targets = batch(4 - number % 2, number)
        loss, _ = scaled(images, targets)
        assert loss.item() == pytest.approx(plain(images, targets)[0].item(), rel=1e-6)
    assert (scaled.loss_scale, scaled.skipped, plain.loss_scale) == (65536.0, 0, None)
    for name, value in weights_of(plain.model).items():
        np.testing.assert_allclose(weights_of(scaled.model)[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_scale(scaling, kind, capsys):
    step = make(kind, amp="fp16")
    step.ema = Ema(step.model, 0.9)
    step(*batch(4))
    before, slots, average = weights_of(step.model), moments(step.optimizer), step.ema.arrays()
    overflow(step)
    assert_same(before, weights_of(step.model))
    assert_same(average, step.ema.arrays())
    assert all((a == b).all() for a, b in zip(slots, moments(step.optimizer)))
    assert (step.loss_scale, step.skipped, step.ema.updates) == (32768.0, 1, 1)
    step(*batch(4))
    after = weights_of(step.model)
    assert (after["head.weight"] != before["head.weight"]).any() and np.isfinite(after["head.weight"]).all()
    assert (step.loss_scale, step.skipped, step.ema.updates) == (32768.0, 1, 2)
    assert capsys.readouterr() == ("", "")


def test_one_bad_micro_batch_spoils_its_window_only(scaling):
    step = make(amp="fp16", accumulate=2)
    before = weights_of(step.model)
    overflow(step)
    assert not step.at_boundary
    step(*batch(4))
    assert step.at_boundary and step.skipped == 1
    assert_same(before, weights_of(step.model))
    step(*batch(4))
    step(*batch(4))
    assert step.skipped == 1 and np.isfinite(weights_of(step.model)["head.weight"]).all()


def test_the_scaler_goes_on_where_it_was(scaling):
    def run(step, seeds):
        step._scaler.set_incr_every_n_steps(4)
        scales = []
        for seed in seeds:
            step(*batch(4, seed))
            scales.append(step.loss_scale)
        return scales

    straight, first, second = (make("adamw", lr=1e-3, amp="fp16") for _ in range(3))
    for step in (straight, first):
        overflow(step, 2)
    wanted = run(straight, range(8))
    assert wanted == [16384.0] * 3 + [32768.0] * 4 + [65536.0]
    run(first, range(2))
    saved = first.arrays()
    assert {key: (value.dtype, value.shape) for key, value in saved.items()} == {
        "scaler/scale": (np.float32, ()), "scaler/incr_count": (np.int64, ()),
    }  # fmt: skip
    second.restore({"model/w": np.zeros(3), **saved})
    assert second.loss_scale == 16384.0 and run(second, range(2, 8)) == wanted[2:]
    assert_same(second.arrays(), straight.arrays())


def test_state_of_other_precisions(scaling):
    scaled, plain = make(amp="fp16", init_scale=8.0), make()
    assert plain.arrays() == {} and make(amp="bf16").arrays() == {}
    plain.restore(scaled.arrays())
    scaled.restore(plain.arrays())
    assert scaled.loss_scale == 8.0
    saved = scaled.arrays()
    del saved["scaler/incr_count"]
    with pytest.raises(UserError, match="lacks scaler/incr_count of train.amp=fp16"):
        scaled.restore(saved)


def test_a_run_whose_scale_vanishes_stops(scaling):
    step = make(amp="fp16", init_scale=2.0**-8)
    before = weights_of(step.model)
    overflow(step)
    with pytest.raises(ScaleCollapse, match="the loss scale fell to 0.000977, and .*lower train.lr"):
        overflow(step)
    assert_same(before, weights_of(step.model))


# ---------------------------------------------------------------- the official steps


def test_eight_official_steps(shared_dir):
    reference = np.load(shared_dir / "golden" / "recipe.npz")["adamw_losses"]
    network = fill(t2t.t2t_vit_7())
    network.eval()
    step = TrainingStep(network, build_optimizer(network, lr=1e-3, weight_decay=0.03), F.cross_entropy)
    images = paddle.to_tensor(np.random.RandomState(7).standard_normal((4, 3, 224, 224)).astype("float32"))
    labels = paddle.to_tensor([923, 7, 0, 999])
    losses = [step(images, labels)[0].item() for _ in range(8)]
    np.testing.assert_allclose(losses, reference, rtol=1e-5)
