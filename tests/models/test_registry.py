"""Every published name: exact counts, multiply-adds, a configuration that runs."""

import numpy as np
import paddle
import pytest
from engine.config import ROOT, load_config
from errors import UserError
from models import ROWS, build_model, list_models
from models.macs import count_macs

# Measured on the official networks by a tracing counter, in G at 224 px.
OFFICIAL_MACS = {
    "t2t_vit_7": 1.156, "t2t_vit_10": 1.527, "t2t_vit_12": 1.775, "t2t_vit_14": 4.800, "t2t_vit_19": 8.503,
    "t2t_vit_24": 13.692, "t2t_vit_t_14": 6.106, "t2t_vit_t_19": 9.808, "t2t_vit_t_24": 14.998,
    "t2t_vit_14_resnext": 4.800, "t2t_vit_14_wide": 5.242,
}  # fmt: skip


@pytest.mark.parametrize("name", list_models())
def test_counts_are_locked(name):
    row, network = ROWS[name], build_model(name)
    sizes = [(int(np.prod(p.shape)), p.stop_gradient) for p in network.parameters()]
    assert sum(size for size, _ in sizes) == row.params
    assert sum(size for size, frozen in sizes if not frozen) == row.trainable
    assert round(count_macs(network, row.img_size) / 1e9, 3) == row.macs
    assert network.training


@pytest.mark.parametrize("name", OFFICIAL_MACS)
def test_macs_are_the_official_networks(name):
    assert ROWS[name].macs == pytest.approx(OFFICIAL_MACS[name], rel=0.005)


def test_macs_of_known_layers():
    layers = paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 8, 4, stride=4), paddle.nn.Flatten(2), paddle.nn.Linear(16, 5), paddle.nn.LayerNorm(5)
    )
    assert count_macs(layers, 16) == 8 * 16 * 48 + 8 * 5 * 16 + 5 * 8 * 5


@pytest.mark.parametrize("name", list_models())
def test_every_model_has_a_configuration_with_its_size(name):
    config = load_config(ROOT / "config" / f"{name}.yaml")
    assert config.model.img_size == ROWS[name].img_size
    assert config.model.name in (name, name.replace("_384", ""))


@pytest.mark.parametrize("name", [n for n in list_models() if not n.endswith("384")])
def test_every_model_takes_a_step(name):
    network = build_model(name, img_size=32, num_classes=4, drop_path_rate=0.1)
    loss = paddle.nn.functional.cross_entropy(network(paddle.rand([2, 3, 32, 32])), paddle.to_tensor([0, 3]))
    loss.backward()
    assert np.isfinite(loss.item())
    assert all(p.grad is not None for p in network.parameters() if not p.stop_gradient)


def test_patterns():
    assert list_models("t2t_vit_t_*") == ["t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"]
    assert len(list_models()) == len(ROWS) == 14


def test_mistakes_name_the_remedy():
    with pytest.raises(UserError, match="did you mean t2t_vit_14"):
        build_model("t2tvit14")
    with pytest.raises(UserError, match="multiple of 16"):
        build_model("t2t_vit_7", img_size=200)
