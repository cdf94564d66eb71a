"""Networks with frozen parameters: gradients, steps, and several processes. Run as a program it is one of these."""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS.parent / "tools"), str(TESTS)]
    from startup import import_paddle

    import_paddle()

import numpy as np  # noqa: E402
import paddle  # noqa: E402
import pytest  # noqa: E402
import t2t  # noqa: E402
from engine import distributed  # noqa: E402
from engine.optim import freeze  # noqa: E402
from engine_fakes import (  # noqa: E402
    ArrayBatches,
    assert_same,
    make_config,
    make_trainer,
    pictures,
    small_t2t,
    weights_of,
)

CASES = {
    "head only": ["[!h]*"],
    "t2t module": ["tokens_to_token.*"],
    "position and features": ["pos_embed", "*.w"],
    "norm weights": ["*.norm1.weight"],
    "norm biases": ["*.norm2.bias", "tokens_to_token.attention?.norm1.bias"],
    "norms": ["*norm*"],
    "kqv": ["*.kqv.*", "*.qkv.*"],
    "kqv and its norm": ["*.kqv.*", "*.qkv.*", "*.norm1.*"],
    "biases": ["*.bias"],
    "matrices": ["*.fc?.weight", "*.proj.weight", "*.project.weight"],
    "first of two": ["tokens_to_token.attention1.*", "blocks.0.*"],
    "middle": ["tokens_to_token.attention2.*", "blocks.1.*", "cls_token"],
    "head frozen": ["head.*"],
    "all but a bias": ["[!b]*", "blocks.1.*", "blocks.0.[!m]*", "blocks.0.mlp.fc2.*", "blocks.0.mlp.fc1.weight"],
}
both_modules = pytest.mark.parametrize("tokens_type", ["performer", "transformer"])


def gradients(tokens_type, patterns, cpu_forms, monkeypatch):
    """Gradients by name of one loss, in training mode with the same dropout for all."""
    monkeypatch.setattr(t2t, "CPU_FORMS", cpu_forms)
    paddle.seed(3)
    network = small_t2t(tokens_type=tokens_type)
    freeze(network, patterns)
    paddle.seed(7)
    logits = network(paddle.to_tensor(pictures(4, size=16)[0]))
    (logits * paddle.to_tensor([[1.0, -2.0, 3.0]])).square().sum().backward()
    return {name: p.grad.numpy() for name, p in network.named_parameters() if p.grad is not None}, network


@pytest.mark.parametrize("cpu_forms", [True, False])
@both_modules
def test_the_others_keep_their_gradients(tokens_type, cpu_forms, monkeypatch):
    whole, network = gradients(tokens_type, [], cpu_forms, monkeypatch)
    assert set(whole) == {name for name, p in network.named_parameters() if not p.stop_gradient}
    for case, patterns in CASES.items():
        if tokens_type == "transformer":
            patterns = [p for p in patterns if ".kqv." not in p and p != "*.w"]
        found, network = gradients(tokens_type, patterns, cpu_forms, monkeypatch)
        trained = {name for name, p in network.named_parameters() if not p.stop_gradient}
        assert set(found) == trained
        assert len(trained) < len(whole) or case == "position and features"
        for name, value in found.items():
            scale = np.abs(whole[name]).max()
            np.testing.assert_allclose(value / scale, whole[name] / scale, atol=2e-6, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("cpu_forms", [True, False])
def test_frozen_first_layers_cost_no_backward_pass(cpu_forms, monkeypatch):
    monkeypatch.setattr(t2t, "CPU_FORMS", cpu_forms)
    images = paddle.to_tensor(pictures(2, size=16)[0])
    network = small_t2t()
    assert not network.tokens_to_token(images).stop_gradient
    freeze(network, ["tokens_to_token.*", "cls_token", "blocks.0.*"])
    # What needs no gradient is not recorded: blocks.1 is the first that is.
    assert network.tokens_to_token(images).stop_gradient
    record = []
    for block in network.blocks:
        block.register_forward_post_hook(lambda layer, inputs, output: record.append(output.stop_gradient))
    assert not network(images).stop_gradient
    assert record == [True, False]
    freeze(network, ["[!h]*"])
    assert network.forward_features(images).stop_gradient and not network(images).stop_gradient


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("case", ["head only", "t2t module", "norm weights", "kqv and its norm"])
def test_frozen_tensors_stay_bit_for_bit(tmp_path, kind, case):
    frozen, before, after = train(tmp_path, CASES[case], kind)[:3]
    assert_same({name: after[name] for name in frozen}, {name: before[name] for name in frozen})
    assert all((after[name] != before[name]).any() for name in after if name not in frozen)


def train(folder, patterns, kind, seed=0):
    """Three steps with weight decay and two rates: frozen names, weights before and after, losses."""
    paddle.seed(seed)
    network = small_t2t(drop_path_rate=0.1)
    config = make_config(train__epochs=1, train__max_steps=3, train__freeze=tuple(patterns), train__optimizer=kind,
                         train__decayed="all", train__backbone_lr_scale=0.5)  # fmt: skip
    batches = ArrayBatches(*pictures(12, size=16, seed=seed), 4)
    trainer = make_trainer(folder, config, batches, ArrayBatches(*pictures(3, size=16), 2), network)
    # Only now: make_trainer gives all processes the weights of the first one.
    before = weights_of(network)
    trainer.fit()
    frozen = [name for name, parameter in network.named_parameters() if parameter.stop_gradient]
    return frozen, before, weights_of(network), [values["loss"] for values in trainer.log.of("train")]


# ---------------------------------------------------------------- several processes

LAUNCHED = ("position and features", "head only", "t2t module", "first of two", "norm weights")


def work(folder):
    """Train every case on this process's own data; what came of it goes to FOLDER/rank<r>.json."""
    distributed.choose_device("cpu")
    distributed.init()
    result = {}
    for case in LAUNCHED:
        for kind in ("adamw", "sgd"):
            own = folder / f"{distributed.rank()} {case} {kind}"
            frozen, before, after, losses = train(own, CASES[case], kind, seed=distributed.rank())
            result[f"{case} {kind}"] = {
                "frozen": frozen,
                "changed": [name for name in after if (after[name] != before[name]).any()],
                "sums": {name: float(np.abs(value).sum(dtype="float64")) for name, value in after.items()},
                "losses": losses,
            }
    (folder / f"rank{distributed.rank()}.json").write_text(json.dumps(result))


def test_two_processes_train_what_is_not_frozen(tmp_path, monkeypatch):
    if paddle.device.cuda.device_count():
        pytest.skip("Paddle's launcher gives every process a card where it sees one; this test runs on the CPU")
    import test_distributed

    monkeypatch.setattr(test_distributed, "WORKER", Path(__file__))
    first, second = test_distributed.launch(2, tmp_path)
    for result in (first, second):
        del result["folder"]
    assert len(first) == len(second) == 2 * len(LAUNCHED)
    for case, result in first.items():
        assert len(result["losses"]) == 3 and np.isfinite(result["losses"]).all()
        assert set(result["changed"]) == set(result["sums"]) - set(result["frozen"]), case
        # Gradients were averaged: after steps on different data the weights are equal.
        assert result == second[case], case


if __name__ == "__main__":
    work(Path(sys.argv[1]))
