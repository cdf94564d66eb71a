"""The training loop: its lines, its stops, its loss and its keyed randomness."""

import re
import shutil

import numpy as np
import paddle
import pytest
from engine import loop
from engine.loop import Best
from engine.loss import smoothed_cross_entropy
from engine.meter import NonFiniteLoss, short
from engine.runlog import RunLog
from engine_fakes import (
    ArrayBatches,
    ListLog,
    Lookup,
    assert_same,
    make_config,
    make_trainer,
    pictures,
    small_network,
    small_t2t,
    weights_of,
)
from errors import UserError

# The contract's line; further fields may follow.
TRAIN_LINE = re.compile(
    r"^Epoch \[(\d+)/(\d+)\], Step \[(\d+)/(\d+)\], Loss: (\d+\.\d{4}),acc: ([01]\.\d{4}), read_time: \d+\.\d{4}, "
    r"train_time: \d+\.\d{4}, lr: (\d+(?:\.\d+)?)(?:, |$)"
)


def run(folder, train=None, val=None, network=None, log=None, **values):
    """Train on made pictures; returns the Trainer."""
    train = train or ArrayBatches(*pictures(12), 4, shuffle=True)
    val = val or ArrayBatches(*pictures(7, seed=1), 4)
    trainer = make_trainer(folder, make_config(**values), train, val, network, log)
    trainer.fit()
    return trainer


# ---------------------------------------------------------------- lines


def test_the_contract_line_is_matched_by_the_pattern():
    text = (
        "Epoch [98/310], Step [300/1252], Loss: 1.4250,acc: 0.6624, read_time: 0.0069, train_time: 0.4234, lr: 0.0009"
    )
    assert TRAIN_LINE.match(text) and TRAIN_LINE.match(text + ", more: 1")


def test_lines_of_a_run(tmp_path):
    log = run(tmp_path, ArrayBatches(*pictures(28), 4), train__log_every=3, train__warmup_epochs=1).log
    lines = [TRAIN_LINE.match(line).groups() for line in log.matching("^Epoch .*Step")]
    # Every third step and the last one.
    assert [line[:4] for line in lines] == [(e, "2", s, "7") for e in "12" for s in "367"]
    assert [line[6] for line in lines] == ["0.000001"] * 3 + ["0.005005"] * 3
    assert len(log.matching(r"^Epoch \[\d/2\], avg_Loss: \d+\.\d{4}, avg_acc: [01]\.\d{4}$")) == 2
    assert len(log.matching(r"^Step \[2/2\], acc: [01]\.\d{4}, read_time: \d+\.\d{4}")) == 2
    told = r"^Made val acc is:[01]\.\d{4}, top5: 1\.0000, loss: \d+\.\d{4}, images: 7, weights: raw, best: "
    assert len(log.matching(told)) == 2


def test_metrics_of_a_run(tmp_path):
    log = run(tmp_path, ArrayBatches(*pictures(28), 4), train__log_every=3, train__warmup_epochs=1).log
    lines = [TRAIN_LINE.match(line).groups() for line in log.matching("^Epoch .*Step")]
    for line, values in zip(lines, log.of("train")):
        assert (values["epoch"], values["step"]) == (int(line[0]), int(line[2]))
        assert (f"{values['loss']:.4f}", f"{values['acc']:.4f}", short(values["lr"])) == line[4:]
    # One object per line with figures, and one per epoch from each part.
    assert (len(log.of("train")), len(log.of("epoch")), len(log.of("val"))) == (6, 2, 2)
    assert [(v["loss"], v["acc"], v["skipped"]) for v in log.of("epoch")] == [
        (v["loss"], v["acc"], 0) for v in log.of("train") if v["step"] == 7
    ]
    assert [(v["images"], v["top5"]) for v in log.of("val")] == [(7, 1.0)] * 2
    steps = [step for step, values in log.points if "train_loss" in values]
    assert steps == [3, 6, 7, 10, 13, 14]
    assert [step for step, values in log.points if "val_acc" in values] == [1, 2]


def test_the_same_run_through_the_real_log(tmp_path, capsys):
    log = RunLog(tmp_path)
    run(tmp_path, log=log)
    log.close()
    text = capsys.readouterr().out
    assert text == (tmp_path / "train.log").read_text() and sum(map(bool, map(TRAIN_LINE.match, text.split("\n")))) == 6
    assert {"config.yaml", "metrics.jsonl", "vdl", "checkpoints", "best.pdparams", "last.pdparams"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_rates_are_printed_without_trailing_zeros():
    assert [short(rate) for rate in (9.3368e-4, 0.0009, 1e-6, 0.001, 0.5, 1.0, 0.0)] == [
        "0.000934", "0.0009", "0.000001", "0.001", "0.5", "1", "0"
    ]  # fmt: skip


def test_figures_are_means_over_the_images_so_far(tmp_path):
    images, labels = pictures(10)
    config = {"train__epochs": 1, "train__lr": 1e-30, "train__weight_decay": 0.0, "train__smoothing": 0.0,
              "train__warmup_lr": 0.0, "train__min_lr": 0.0}  # fmt: skip
    paddle.seed(0)
    network = small_network(drop=0.0)
    trainer = run(tmp_path, ArrayBatches(images, labels, 4), network=network, **config)
    with paddle.no_grad():
        logits = network(paddle.to_tensor(images))
        losses = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels), reduction="none").numpy().ravel()
    right = logits.numpy().argmax(1) == labels
    for values, seen in zip(trainer.log.of("train"), (4, 8, 10)):
        assert values["loss"] == pytest.approx(losses[:seen].mean(), rel=1e-5)
        assert values["acc"] == pytest.approx(right[:seen].mean())


# ---------------------------------------------------------------- schedule and steps


def test_each_epoch_has_its_rate_and_its_order(tmp_path, monkeypatch):
    steps = []
    train = ArrayBatches(*pictures(12), 4, shuffle=True)
    trainer = make_trainer(tmp_path, make_config(train__epochs=4, train__warmup_epochs=2), train, train)
    trainer.val = ArrayBatches(*pictures(3), 4)
    monkeypatch.setattr(trainer.optimizer, "step", lambda: steps.append(trainer.optimizer.get_lr()))
    trainer.fit()
    wanted = [1e-6, 1e-6 + (1e-2 - 1e-6) / 2, 1e-5 + 0.5 * (1e-2 - 1e-5), 1e-5 + 0.5 * (1e-2 - 1e-5) * (1 - 0.5**0.5)]
    np.testing.assert_allclose(steps, np.repeat(wanted, 3), rtol=1e-9)
    orders = [sum(train.seen[i:i + 3], []) for i in range(0, 12, 3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_each_step_has_its_rate_and_the_line_that_in_force(tmp_path, monkeypatch):
    used = []
    values = {"train__epochs": 2, "train__warmup_epochs": 1, "train__schedule": "step", "train__batch_size": 4,
              "train__lr_base_batch": 8}  # fmt: skip
    train = ArrayBatches(*pictures(12), 4, shuffle=True)
    trainer = make_trainer(tmp_path, make_config(**values), train, train)
    monkeypatch.setattr(trainer.optimizer, "step", lambda: used.append(trainer.optimizer.get_lr()))
    trainer.fit()
    # The configuration's batch of 4, of 8 that the rates are meant for.
    wanted = [trainer.rates.head(epoch + step / 3) for epoch in (0, 1) for step in (0, 1, 2)]
    np.testing.assert_allclose(used, wanted, rtol=1e-9)
    assert len(set(used)) == 6
    assert used[:2] == pytest.approx([0.5e-6, 0.5 * (1e-6 + (1e-2 - 1e-6) / 3)])
    assert [values["lr"] for values in trainer.log.of("train")] == used
    assert [values["lr"] for values in trainer.log.of("epoch")] == [used[2], used[5]]
    recipe = make_config(**values, train__accumulate=3)
    assert make_trainer(tmp_path / "more", recipe, train, train).rates.scaling == 1.5


def test_lines_tell_the_best_so_far_once_there_is_one(tmp_path):
    log = run(tmp_path, train__epochs=3).log
    first, *later = [log.matching(rf"^Epoch \[{epoch}/3\], Step") for epoch in (1, 2, 3)]
    tops = [values["top1"] for values in log.of("val")]
    assert first and not any("best" in line for line in first)
    for epoch, lines in enumerate(later, 1):
        assert lines and all(line.endswith(f" run, best: {max(tops[:epoch]):.4f}") for line in lines)


def test_each_epoch_has_its_rates_and_the_line_that_of_the_head(tmp_path, monkeypatch):
    values = {"train__epochs": 4, "train__warmup_epochs": 2, "train__backbone_lr_scale": 0.1, "train__layer_decay": 0.5}
    batches, used = ArrayBatches(*pictures(12, size=16), 6), []
    trainer = make_trainer(tmp_path, make_config(**values), batches, batches, small_t2t())
    parameters = dict(trainer.network.named_parameters())
    watched = ("head.weight", "norm.weight", "blocks.0.norm1.bias", "cls_token")
    monkeypatch.setattr(trainer.optimizer, "step", lambda: used.append(
        [trainer.optimizer.get_lr() * parameters[name].optimize_attr["learning_rate"] for name in watched]
    ))  # fmt: skip
    trainer.fit()
    assert len(used) == 8
    for step, found in enumerate(used):
        np.testing.assert_allclose(found, [trainer.rates.of(name, step // 2) for name in watched], rtol=1e-9)
        assert found[0] > found[1] > found[2] > found[3] or step < 2
    heads = [trainer.rates.of("head.weight", epoch) for epoch in range(4)]
    assert [values["lr"] for values in trainer.log.of("train")] == list(np.repeat(heads, 2))
    assert [values["lr"] for values in trainer.log.of("epoch")] == heads


def test_max_steps_ends_each_epoch_early(tmp_path):
    log = run(tmp_path, train__max_steps=2).log
    assert [TRAIN_LINE.match(line).groups()[:4] for line in log.matching("Step .*Loss")] == [
        (e, "2", s, "2") for e in "12" for s in "12"
    ]
    assert run(tmp_path / "long", train__max_steps=99).log.matching(r"Step \[3/3\], Loss")


def test_val_every(tmp_path):
    log = run(tmp_path, train__epochs=5, train__val_every=2).log
    assert [values["epoch"] for values in log.of("val")] == [2, 4, 5]


def test_training_improves_and_the_best_epoch_is_kept(tmp_path):
    trainer = run(tmp_path, train__epochs=6)
    tops = [values["top1"] for values in trainer.log.of("val")]
    # Of equal epochs the first one is the best.
    assert trainer.best == Best(max(tops), tops.index(max(tops)) + 1)
    assert trainer.best.top1 > 0.8
    losses = [values["loss"] for values in trainer.log.of("epoch")]
    assert losses[-1] < 0.7 * losses[0]


def test_best_and_last_are_the_weights_of_those_epochs(tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.75, 0.75, 0.25])
    real = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda *a, **k: real(*a, **k)._replace(top1=next(accuracies)))
    train, kept = ArrayBatches(*pictures(12), 4), []
    trainer = make_trainer(tmp_path, make_config(train__epochs=4), train, ArrayBatches(*pictures(3), 4))
    keep = trainer._keep
    monkeypatch.setattr(trainer, "_keep", lambda *a: (kept.append(weights_of(trainer.network)), keep(*a)))
    assert trainer.fit() == Best(0.75, 2)
    from weights.paddle_file import read_weights

    assert_same(read_weights(tmp_path / "best.pdparams"), kept[1])
    assert_same(read_weights(tmp_path / "last.pdparams"), kept[3])
    assert [file.name for file in sorted(trainer.folder.checkpoints.iterdir())] == [
        "best", "epoch-0003-step-000000.npz", "epoch-0004-step-000000.npz", "latest"
    ]  # fmt: skip
    assert (trainer.folder.checkpoints / "best").read_text() == "epoch 2, top-1 0.7500, raw: best.pdparams\n"
    assert (trainer.folder.checkpoints / "latest").read_text() == "epoch-0004-step-000000.npz\n"


def test_no_accuracy_at_all_still_gives_a_best_epoch(tmp_path):
    wrong = ArrayBatches(pictures(3)[0] * 0, [2, 2, 2], 4)
    network = small_network()
    network[-1].bias.set_value(paddle.to_tensor([9.0, 0.0, 0.0]))
    assert run(tmp_path, ArrayBatches(pictures(4)[0], [0] * 4, 4), wrong, network).best == Best(0.0, 1)
    assert (tmp_path / "best.pdparams").exists()


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothing_equals_the_hand_computation(smoothing):
    logits = np.random.RandomState(0).standard_normal((5, 7)).astype("float32")
    labels = np.array([0, 6, 3, 3, 1])
    log_p = logits - np.log(np.exp(logits.astype("float64")).sum(1, keepdims=True))
    target = np.full((5, 7), smoothing / 7)
    target[np.arange(5), labels] += 1 - smoothing
    loss = smoothed_cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(labels), smoothing)
    assert loss.item() == pytest.approx(-(target * log_p).sum(1).mean(), rel=1e-6)


def test_validation_is_not_smoothed_and_training_is(tmp_path):
    images = np.zeros([4, 3], "float32")
    images[:, 1] = 30
    batches = ArrayBatches(images, [1, 1, 1, 1], 4)
    log = run(tmp_path, batches, batches, Lookup(), train__epochs=1, train__lr=1e-5, train__min_lr=0.0).log
    assert log.of("val")[0]["loss"] < 1e-3
    assert log.of("train")[0]["loss"] == pytest.approx(0.1 * 2 / 3 * 30, rel=1e-3)


# ---------------------------------------------------------------- stops


def plain_network():
    return paddle.nn.Sequential(paddle.nn.Flatten(), paddle.nn.Linear(192, 3))


def files(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("log_every", [1, 2, 50])
def test_a_loss_that_is_not_finite_stops_with_epoch_and_step(tmp_path, log_every):
    # Without a ReLU, which makes 0 of NaN on a CPU.
    first = run(tmp_path, network=plain_network(), train__epochs=1)
    before = files(tmp_path)
    images, labels = pictures(12)
    images[9] = np.nan
    # Not shuffled: image 9 comes in step 3.
    bad, val = ArrayBatches(images, labels, 4), ArrayBatches(*pictures(3), 4)
    config = make_config(train__epochs=3, train__log_every=log_every)
    trainer = make_trainer(tmp_path / "other", config, bad, val, plain_network())
    trainer.folder = first.folder
    trainer.restore(first.folder.latest()[0])
    with pytest.raises(NonFiniteLoss, match=r"loss is nan in epoch 2, step 3; lower train\.lr or set train\.clip_grad"):
        trainer.fit()
    assert files(tmp_path / "other").keys() == {"config.yaml", "lock"}
    shutil.rmtree(tmp_path / "other")
    assert files(tmp_path) == before


def test_weights_that_the_last_step_breaks_are_not_saved(tmp_path, monkeypatch):
    first = run(tmp_path, train__epochs=1)
    before = files(tmp_path)
    trainer = make_trainer(tmp_path, make_config(), ArrayBatches(*pictures(4), 4), first.val)
    (tmp_path / "config.yaml").write_bytes(before["config.yaml"])
    trainer.restore(first.folder.latest()[0])
    step = trainer.optimizer.step

    def explode():
        step()
        trainer.network[1].weight.set_value(trainer.network[1].weight * float("inf"))

    monkeypatch.setattr(trainer.optimizer, "step", explode)
    with pytest.raises(NonFiniteLoss, match=r"1\.weight is not finite after epoch 2; "):
        trainer.fit()
    assert files(tmp_path) == before


# ---------------------------------------------------------------- keyed randomness


@pytest.mark.parametrize("size, make", [(8, small_network), (16, lambda: small_t2t(drop_path_rate=0.5))])
def test_what_ran_before_changes_nothing(tmp_path, size, make):
    results = []
    for disturbance in (0, 5):
        paddle.seed(1)
        network = make()
        paddle.seed(100 + disturbance)
        paddle.randn([3 + disturbance])
        np.random.seed(disturbance)
        train = ArrayBatches(*pictures(12, size=size), 4, shuffle=True)
        val = ArrayBatches(*pictures(3 + disturbance, size=size), 2)
        trainer = run(tmp_path / str(disturbance), train, val, network, ListLog())
        results.append(weights_of(trainer.network))
    assert_same(*results)


def test_the_seeds_of_steps_epochs_runs_and_processes_differ(tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(loop.paddle, "seed", seeds.append)
    for run_seed in (1, 2):
        for rank in (0, 1):
            monkeypatch.setattr(loop.distributed, "rank", lambda rank=rank: rank)
            run(tmp_path / f"{run_seed} {rank}", train__seed=run_seed)
    # Those of make_trainer are the plain ones.
    keyed = [seed for seed in seeds if seed not in (1, 2)]
    assert len(keyed) == len(set(keyed)) == 2 * 2 * 2 * 3


def test_dropout_is_drawn_anew_in_every_step(tmp_path):
    class Watch(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.masks = small_network(), []
            self.inner[4].register_forward_post_hook(
                lambda layer, inputs, output: self.masks.append((output == 0).numpy()) if layer.training else None
            )

        def forward(self, x):
            return self.inner(x)

    network = Watch()
    run(tmp_path, network=network, train__epochs=3)
    assert len({mask.tobytes() for mask in network.masks}) == len(network.masks) == 9


def test_processes_that_would_start_apart_are_stopped(tmp_path, monkeypatch):
    batches = ArrayBatches(*pictures(4), 4)
    trainer = make_trainer(tmp_path, make_config(), batches, batches)
    monkeypatch.setattr(loop.distributed, "world_size", lambda: 2)
    monkeypatch.setattr(loop.distributed, "gather_rows", lambda rows: np.concatenate([rows, rows + 3]))
    with pytest.raises(UserError, match=r"epochs \[0, 3 and 3 steps\].*all machines share"):
        trainer.fit()
