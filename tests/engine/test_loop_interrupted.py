"""Cut anywhere and gone on with: the same weights, figures and order as without the cut. In this process, on arrays."""

import json
import os
import signal
import threading

import numpy as np
import paddle
import pytest
from engine import loop
from engine import loss as losses
from engine.checkpoint import training_arrays
from engine.interrupt import HOURS, Interrupt, Stopped
from engine.meter import NonFiniteLoss
from engine.runlog import RunLog
from engine_fakes import ArrayBatches, assert_same, make_config, make_trainer, pictures, small_network, small_t2t
from errors import UserError

STEPS = 7
TIMES = ("read_time", "train_time", "images_per_s")


class Kill(BaseException):
    """Ends a training without leaving it a moment, as SIGKILL does."""


class Counter:
    """An extra: the sum of a weight's means after each step."""

    def __init__(self, network):
        self.network, self.value, self.at_boundary = network, np.zeros(2), True

    def count(self):
        self.value = self.value * 0.5 + next(iter(self.network.parameters())).mean().item()

    def arrays(self):
        return {"counter/value": self.value}

    def restore(self, arrays):
        self.value = arrays["counter/value"].copy()


def train(folder, *, kill=None, on_step=None, batch_size=4, log=True, network=None, **values):
    """Train 3 epochs of 7 steps from where the folder's run stands; kill=(epoch, step): before that step's checks."""
    config = make_config(**{"train__epochs": 3, "train__batch_size": batch_size, **values})
    paddle.seed(config.train.seed)
    network = network or small_network()
    batches = ArrayBatches(*pictures(28), batch_size, shuffle=True, drop_last=True, failed=(3, 17))
    counter = Counter(network)
    trainer = make_trainer(folder, config, batches, ArrayBatches(*pictures(7, seed=1), 4), network, extras=[counter])
    state, notes = trainer.folder.examine(config, batches.samples)
    if log:
        trainer.log = RunLog(folder, positions=state["meta"]["logs"] if state else {})
    trainer.notes = notes + (trainer.restore(state) if state else [])
    real = trainer._after_step

    def after_step(epoch, meter):
        counter.count()
        if kill == (epoch, meter.step):
            raise Kill
        real(epoch, meter)
        if on_step:
            on_step(trainer, epoch, meter.step)

    trainer._after_step = after_step
    try:
        trainer.fit()
    except Kill:
        pass
    finally:
        if log:
            trainer.log.close()
    return trainer


def result(trainer):
    """Everything that must not depend on cuts: the last state, the metrics without times, the curves."""
    state, notes = trainer.folder.latest()
    assert notes == []
    arrays = state["arrays"]
    rows = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    return dict(sorted(arrays.items())), metrics, curves(trainer.folder.path), trainer.best


def curves(folder):
    """{tag: [(step, value)]} of the curves that show no times."""
    from visualdl import LogReader

    (file,) = (folder / "vdl").iterdir()
    reader = LogReader(file_path=str(file))
    found = {}
    for name in reader.get_tags()["scalar"]:
        tag = name.replace("%2F", "/")
        found[tag] = [(point.id, point.value) for point in reader.get_data("scalar", name)]
        steps = [step for step, _ in found[tag]]
        assert all(a < b for a, b in zip(steps, steps[1:])), (tag, steps)
    return {tag: points for tag, points in found.items() if "time" not in tag and "per_s" not in tag}


def assert_equal(first, second):
    assert_same(first[0], second[0])
    assert first[1:] == second[1:]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """straight(**values): the result of three epochs without a cut, and the order of the images."""
    known = {}

    def of(**values):
        key = tuple(sorted(values.items()))
        if key not in known:
            trainer = train(tmp_path_factory.mktemp("straight"), **values)
            known[key] = result(trainer), trainer.train.seen
        return known[key]

    return of


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize(
    "epoch, every, log_every, schedule", [(0, 2, 3, "epoch"), (1, 1, 1, "step"), (2, 3, 50, "step")]
)
def test_killed_at_any_step(straight, tmp_path, epoch, every, log_every, schedule):
    values = {"train__log_every": log_every, "train__schedule": schedule}
    whole, order = straight(**values)
    for step in range(1, STEPS + 1):
        folder = tmp_path / str(step)
        train(folder, kill=(epoch, step), train__save_steps=every, **values)
        trainer = train(folder, train__save_steps=every, **values)
        assert_equal(result(trainer), whole)
        done = (step - 1) // every * every
        # What was done is not even asked for again.
        assert trainer.train.seen == order[STEPS * epoch + done:]
        if done:
            assert f"going on in epoch {epoch + 1} after step {done} from" in trainer.notes[0]


def test_killed_again_and_again(straight, tmp_path):
    whole, _ = straight(train__log_every=3)
    for kill in [(0, 2), (0, 5), (0, 5), (1, 1), (1, 6), (2, 4), (2, 7)]:
        train(tmp_path, kill=kill, train__save_steps=2, train__log_every=3)
    assert_equal(result(train(tmp_path, train__log_every=3)), whole)


def test_a_kill_before_the_first_checkpoint_leaves_nothing_twice(straight, tmp_path):
    whole, _ = straight()
    train(tmp_path, kill=(0, 6))
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 5
    assert_equal(result(train(tmp_path)), whole)


def test_a_damaged_newest_checkpoint_costs_some_steps_only(straight, tmp_path):
    whole, _ = straight()
    trainer = train(tmp_path, kill=(1, 6), train__save_steps=2)
    newest = trainer.folder.checkpoints / "epoch-0001-step-000004.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    # Damaged for good: it may not come back as the newest one when the run is behind it, nor take its place.
    again = train(tmp_path, kill=(1, 4), train__save_steps=1, train__keep=1)
    assert "epoch-0001-step-000004.npz is damaged; trying the one before it" in again.notes[0]
    assert "epoch 2 after step 2" in again.notes[-1]
    kept = sorted(file.name for file in trainer.folder.checkpoints.iterdir())
    assert kept == ["best", "epoch-0001-step-000003.npz", "latest"]
    assert_equal(result(train(tmp_path)), whole)


def test_a_torn_end_of_the_logs_is_cut_off(straight, tmp_path):
    whole, _ = straight()
    train(tmp_path, kill=(1, 5), train__save_steps=3)
    for name, tail in (("metrics.jsonl", b'{"kind": "tr'), ("vdl/vdlrecords.run.log", b"\x30\0\0\0\0\0\0\0abc")):
        with open(tmp_path / name, "ab") as file:
            file.write(tail)
    assert_equal(result(train(tmp_path)), whole)


def test_old_checkpoints_between_epochs_still_go_on(straight, tmp_path):
    whole, _ = straight()
    first = train(tmp_path, kill=(1, 1))
    state, _ = first.folder.latest()
    state["file"].unlink()
    meta = {key: state["meta"][key] for key in ("epoch", "best", "train_images", "config")}
    text = np.frombuffer(json.dumps({**meta, "tensors": len(state["arrays"])}).encode(), np.uint8)
    np.savez(first.folder.checkpoints / "epoch-0001.npz", meta=text, **state["arrays"])
    later = train(tmp_path, log=False)
    assert later.notes == [f"going on after epoch 1 from {first.folder.checkpoints / 'epoch-0001.npz'}"]
    arrays = training_arrays(later.network, later.optimizer)
    assert_same(arrays, {name: whole[0][name] for name in arrays})
    assert [row["total_step"] for row in later.log.of("train")] == list(range(STEPS + 1, 3 * STEPS + 1))


# ---------------------------------------------------------------- asked to stop


def send(number, at):
    return lambda trainer, epoch, step: (epoch, step) == at and os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [1, 4, 6, 7])
def test_a_signal_saves_and_stops(straight, tmp_path, number, step):
    whole, order = straight(train__log_every=3)
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    trainer = train(tmp_path, on_step=send(number, (1, step)), train__log_every=3)
    # The signal comes after the checks of a step, so it is the next one that ends it.
    done = min(step + 1, STEPS)
    file = trainer.folder.checkpoints / f"epoch-0001-step-{done:06d}.npz"
    assert str(trainer.stopped) == (
        f"stopped by {number.name}; the state is in {file}: to go on, start the same command again"
    )
    assert trainer.stopped.exit_code == 1
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    assert f"{number.name}: stopping in epoch 2 after step {done}" in (tmp_path / "train.log").read_text()
    later = train(tmp_path, train__log_every=3)
    assert later.stopped is None
    assert_equal(result(later), whole)
    assert trainer.train.seen + later.train.seen == order


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_signal_during_the_evaluation(straight, tmp_path, monkeypatch, epoch):
    whole, _ = straight()
    real, evaluations = ArrayBatches.__iter__, []

    def iterate(self):
        evaluations.extend([1] * (self.samples == 7))
        for number, batch in enumerate(real(self)):
            if self.samples == 7 and number == 1 and len(evaluations) == epoch + 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    monkeypatch.setattr(ArrayBatches, "__iter__", iterate)
    trainer = train(tmp_path)
    assert trainer.stopped and trainer.folder.latest()[0]["file"].name == f"epoch-{epoch:04d}-step-000007.npz"
    # No step comes before the next two checkpoints, so Paddle has no moments to tell.
    evaluations[:] = [1] * epoch
    assert train(tmp_path).stopped
    evaluations[:] = [1] * 9
    later = train(tmp_path)
    assert "after step 7" in later.notes[-1]
    assert_equal(result(later), whole)


def test_a_signal_between_epochs(tmp_path, straight, monkeypatch):
    whole, _ = straight()
    keep = loop.Trainer._keep
    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_keep", lambda *a: (keep(*a), os.kill(os.getpid(), signal.SIGTERM))[0])
        trainer = train(tmp_path)
    assert "epoch-0001-step-000000.npz: to go on" in str(trainer.stopped)
    assert_equal(result(train(tmp_path)), whole)


def test_a_signal_after_the_last_epoch_changes_nothing(tmp_path, monkeypatch):
    keep = loop.Trainer._keep

    def last(self, epoch):
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return keep(self, epoch)

    monkeypatch.setattr(loop.Trainer, "_keep", last)
    assert train(tmp_path).stopped is None


def test_a_second_ctrl_c_ends_at_once(tmp_path, capfd):
    def twice(trainer, epoch, step):
        if (epoch, step) == (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, on_step=twice)
    assert "Ctrl-C again ends at once" in capfd.readouterr().err
    assert not list((tmp_path / "checkpoints").glob("epoch-0001-step-00000[1-9].npz"))


def test_the_hours_are_over(straight, tmp_path):
    whole, _ = straight()

    def late(trainer, epoch, step):
        if (epoch, step) == (1, 3):
            trainer.interrupt._end -= 3600

    trainer = train(tmp_path, on_step=late, train__max_hours=0.5)
    assert trainer.stopped.exit_code == 0
    assert str(trainer.stopped).startswith("stopped by train.max_hours=0.5; the state is in ")
    assert trainer.folder.latest()[0]["file"].name == "epoch-0001-step-000004.npz"
    assert_equal(result(train(tmp_path)), whole)


def test_saving_waits_for_the_end_of_a_window(tmp_path):
    """Gradients that have been added up but not applied are in no checkpoint."""
    def windows(trainer, epoch, step):
        if (epoch, step) == (1, 3):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = train(tmp_path, on_step=windows, train__save_steps=2, train__keep=99, train__accumulate=3)
    names = sorted(file.name for file in trainer.folder.checkpoints.glob("*.npz"))
    wanted = [(0, 3), (0, 6), (1, 0), (1, 3), (1, 6)]
    assert names == [f"epoch-{epoch:04d}-step-{step:06d}.npz" for epoch, step in wanted]


def test_ignored_signals_stay_ignored_and_other_threads_set_none():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    faults = []

    def enter():
        try:
            with Interrupt():
                pass
        except ValueError as error:
            faults.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not faults


def test_codes_of_an_interrupt():
    assert Interrupt().code() == 0 and Interrupt(1.0).code() == 0 and Interrupt(1e-12).code() == HOURS
    assert isinstance(Interrupt().stopped(signal.SIGTERM, "x"), Stopped)


# ---------------------------------------------------------------- other settings, wrong numbers


@pytest.mark.parametrize("before, now, steps, again", [(4, 2, 8, 0), (2, 4, 2, 0), (4, 7, 2, 2), (2, 14, 0, 10)])
def test_another_batch_goes_on_at_the_same_images(tmp_path, before, now, steps, again):
    first = train(tmp_path, batch_size=before, kill=(1, 6), train__save_steps=1 if before == 4 else 5)
    done = 5 if before == 2 else 4 if now == 2 else 4
    if before == 4:
        first.folder.checkpoints.joinpath("epoch-0001-step-000005.npz").unlink()
    second = train(tmp_path, batch_size=now)
    assert second.notes[0] == f"train.batch_size was {before}, now {now}" or before == now
    text = f"the total batch was {before}, now {now}" + (f"; {again} images of the epoch come again" if again else "")
    line = second.notes[-1]
    step = done * before // now
    assert f"after step {step} from" in line and line.endswith(f"({text})") == (done * before % now == again)
    curves(tmp_path)
    seen = sum(second.train.seen[: 28 // now - step], [])
    whole = train(tmp_path / "whole", batch_size=4)
    order = sum(whole.train.seen[STEPS:2 * STEPS], [])
    assert seen == order[step * now:]


def test_a_batch_that_leaves_no_step_to_do_keeps_the_figures(tmp_path):
    train(tmp_path, kill=(1, 7), train__save_steps=6, train__log_every=50)
    # Its two steps of 12 are the six of 4 that were done.
    second = train(tmp_path, batch_size=12, train__log_every=50)
    assert "going on in epoch 2 after step 2 from" in second.notes[-1]
    _, metrics, _, _ = result(second)
    epochs = {row["epoch"]: row for row in metrics if row["kind"] == "epoch"}
    whole = train(tmp_path / "whole", train__log_every=1)
    of_six = [row for row in result(whole)[1] if row["kind"] == "train" and row["epoch"] == 2 and row["step"] == 6]
    assert epochs[2]["loss"] == pytest.approx(of_six[0]["loss"], rel=1e-6)


def test_the_seed_may_change_between_epochs_only(tmp_path):
    train(tmp_path, kill=(1, 5), train__save_steps=2)
    with pytest.raises(UserError, match=r"train\.seed=7: .* in the middle of epoch 2, .* train\.seed=42; choose"):
        train(tmp_path, train__seed=7)
    train(tmp_path / "between", kill=(1, 1))
    assert train(tmp_path / "between", train__seed=7).notes[0] == "train.seed was 42, now 7"


def test_the_rate_of_the_configuration_wins_and_is_told(tmp_path):
    train(tmp_path, kill=(1, 5), train__save_steps=4)
    trainer = train(tmp_path, train__lr=5e-3)
    assert trainer.notes[0] == "train.lr was 0.01, now 0.005"
    rows = [row for row in result(trainer)[1] if row["kind"] == "train"]
    assert [row["lr"] for row in rows if row["total_step"] > STEPS + 4] == [trainer.rates.head(1)] * 3 + [
        trainer.rates.head(2)
    ] * STEPS  # fmt: skip
    assert trainer.rates.head(0) == 5e-3


def test_the_code_of_another_commit_is_told(tmp_path, monkeypatch):
    train(tmp_path, kill=(1, 1))
    monkeypatch.setattr("engine.settings.code_version", lambda: "0123abc")
    assert train(tmp_path).notes[0].endswith(", now 0123abc")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_leaves_finite_files(tmp_path, monkeypatch, value):
    real, steps = losses.smoothed_cross_entropy, []

    def loss(*arguments):
        steps.append(1)
        return real(*arguments) * (value if len(steps) == STEPS + 4 else 1.0)

    monkeypatch.setattr(losses, "smoothed_cross_entropy", loss)
    with pytest.raises(NonFiniteLoss, match=rf"loss is {value} in epoch 2, step 4; lower train\.lr"):
        train(tmp_path, train__save_steps=1, train__log_every=50)
    folder = loop.checkpoint.RunFolder(tmp_path)
    state, notes = folder.latest()
    assert notes == [] and state["file"].name == "epoch-0001-step-000003.npz"
    assert all(np.isfinite(array).all() for array in state["arrays"].values())


def test_weights_that_a_step_breaks_are_not_saved(tmp_path):
    def explode(trainer, epoch, step):
        real, weight = trainer.optimizer.step, trainer.network[1].weight
        if (epoch, step) == (1, 2):
            # The loss of the next step is good still.
            trainer.optimizer.step = lambda: (real(), weight.set_value(weight * float("inf")))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(NonFiniteLoss, match=r"^1\.weight is not finite after epoch 2, step 3; "):
        train(tmp_path, on_step=explode)
    assert loop.checkpoint.RunFolder(tmp_path).latest()[0]["meta"]["epoch"] == 1


# ---------------------------------------------------------------- disk


def test_ten_epochs_keep_two(tmp_path):
    sizes = []

    def count(trainer, epoch, step):
        sizes.append(len(list(trainer.folder.checkpoints.iterdir())))

    trainer = train(tmp_path, on_step=count, train__epochs=10, train__save_steps=3)
    assert max(sizes) == 2 + len(["latest", "best"])
    assert len(list(trainer.folder.checkpoints.glob("*.npz"))) == 2


def test_t2t_with_another_layer_built_before(tmp_path):
    def t2t():
        paddle.seed(5)
        return small_t2t(drop_rate=0.1, drop_path_rate=0.3, size=16)

    def go(folder, **more):
        config = make_config(train__epochs=2, model__img_size=16, train__save_steps=2)
        batches = ArrayBatches(*pictures(24, size=16), 4, shuffle=True)
        trainer = make_trainer(folder, config, batches, ArrayBatches(*pictures(3, size=16), 4), t2t())
        state, _ = trainer.folder.examine(config, 24)
        if state:
            trainer.restore(state)
        if "kill" in more:
            real = trainer._after_step

            def after(epoch, meter):
                if (epoch, meter.step) == more["kill"]:
                    raise Kill
                real(epoch, meter)

            trainer._after_step = after
            with pytest.raises(Kill):
                trainer.fit()
        else:
            trainer.fit()
        return training_arrays(trainer.network, trainer.optimizer)

    whole = go(tmp_path / "whole")
    go(tmp_path / "parts", kill=(1, 4))
    paddle.nn.Linear(3, 5)
    paddle.randn([7])
    assert_same(go(tmp_path / "parts"), whole)
