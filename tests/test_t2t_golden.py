"""Equality with the official network: reference tensors where they are at hand, a small own reference always."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
import t2t
from models import build_model
from official_weights import fill, images, linear_weights

GOLDEN = (
    *("t2t_vit_7", "t2t_vit_14", "t2t_vit_24", "t2t_vit_t_14", "t2t_vit_14_resnext", "t2t_vit_14_wide"),
    *("t2t_vit_14_se", "t2t_vit_dense", "t2t_vit_16_ghost"),
)
OWN = Path(__file__).parent / "golden" / "t2t_vit_7_64px.npz"
TOLERANCE = 2e-5


def record_stages(network):
    """Hook the T2T module and the blocks; the returned dict fills during the next forward pass."""
    seen = {}

    def keep(name, cut):
        def hook(layer, inputs, output):
            seen[name] = cut(output)

        return hook

    t2t_module = network.tokens_to_token
    t2t_module.attention1.register_forward_post_hook(keep("t2t_stage1", lambda y: y[:, :8]))
    t2t_module.attention2.register_forward_post_hook(keep("t2t_stage2", lambda y: y[:, :8]))
    t2t_module.register_forward_post_hook(keep("t2t_tokens", lambda y: y[:, :8]))
    for i, block in enumerate(network.blocks):
        block.register_forward_post_hook(keep(f"block{i:02d}_cls", lambda y: y[:, 0]))
    return seen


def compare(network, reference, x, grad):
    """Largest difference of logits and all stages, after one pass with or without gradients."""
    seen = record_stages(network)
    with paddle.set_grad_enabled(grad):
        seen["logits"] = network(paddle.to_tensor(x))
    stages = [name for name in reference.files if name == "logits" or name.startswith(("t2t_", "block"))]
    assert len(stages) == len(network.blocks) + 4
    for name in stages:
        difference = np.abs(seen[name].numpy() - reference[name]).max()
        assert difference <= TOLERANCE, f"{name}: {difference}"
    return seen["logits"]


def shapes_in_pytorch(network):
    """dict name -> shape of a parameter in PyTorch's layout."""
    turned = linear_weights(network)
    return {n: tuple(p.shape)[:: -1 if n in turned else 1] for n, p in network.named_parameters()}


@pytest.mark.parametrize("name", GOLDEN)
def test_equals_the_official_network(shared_dir, name):
    reference = np.load(shared_dir / "golden" / f"{name}.npz")
    network = fill(build_model(name))
    network.eval()
    assert shapes_in_pytorch(network) == dict(
        zip(reference["param_names"].tolist(), map(tuple, json.loads(reference["param_shapes"].item())))
    )
    np.testing.assert_allclose(network.pos_embed[:, :4].numpy(), reference["pos_embed_head"], atol=1e-6, rtol=0)
    compare(network, reference, images(), grad=False)
    logits = compare(network, reference, images(), grad=True)
    loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor([923, 7]))
    assert abs(loss.item() - reference["loss"]) < TOLERANCE
    loss.backward()
    parameters = dict(network.named_parameters())
    trainable = {n for n, p in parameters.items() if not p.stop_gradient}
    assert trainable == set(reference["grad_names"].tolist())
    for grad_name, norm in zip(reference["grad_names"].tolist(), reference["grad_norms"]):
        ours = np.linalg.norm(parameters[grad_name].grad.numpy().astype("float64"))
        assert abs(ours - norm) <= 1e-4 * norm, grad_name


def test_equals_its_own_reference_at_64_px():
    # Made by this network while it agreed with the official one; holds the project without the reference tensors.
    reference = np.load(OWN)
    network = fill(t2t.t2t_vit_7(img_size=64, num_classes=10))
    network.eval()
    logits = compare(network, reference, images(2, 64), grad=True)
    paddle.nn.functional.cross_entropy(logits, paddle.to_tensor([3, 7])).backward()
    for name, parameter in network.named_parameters():
        if not parameter.stop_gradient:
            norm = reference[f"grad/{name}"]
            assert abs(np.linalg.norm(parameter.grad.numpy().astype("float64")) - norm) <= 1e-4 * norm, name


def test_every_layer_norm_has_the_official_epsilon():
    network = fill(t2t.t2t_vit_7())
    network.eval()
    norms = [layer for layer in network.sublayers() if isinstance(layer, paddle.nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 7 + 1
    assert {layer._epsilon for layer in norms} == {1e-5}


def write_own_reference():
    """Write the small reference; run by hand: python tests/test_t2t_golden.py"""
    network = fill(t2t.t2t_vit_7(img_size=64, num_classes=10))
    network.eval()
    seen = record_stages(network)
    seen["logits"] = network(paddle.to_tensor(images(2, 64)))
    loss = paddle.nn.functional.cross_entropy(seen["logits"], paddle.to_tensor([3, 7]))
    loss.backward()
    arrays = {name: value.numpy() for name, value in seen.items()}
    for name, parameter in network.named_parameters():
        if not parameter.stop_gradient:
            arrays[f"grad/{name}"] = np.linalg.norm(parameter.grad.numpy().astype("float64"))
    np.savez_compressed(OWN, **arrays)


if __name__ == "__main__":
    write_own_reference()
