"""Every published name: exact counts, multiply-adds, a configuration that runs."""

from functools import partial

import numpy as np
import paddle
import pytest
import wiring
from commands import make_folders, make_list
from engine.config import ROOT, load_config
from engine.loss import soft_cross_entropy
from engine.rates import Rates
from engine.step import TrainingStep
from errors import UserError
from models import ROWS, build_model, list_models
from models.cnn import CNN
from models.macs import count_macs, count_parameters, is_statistic

# Measured on the official networks by a tracing counter, in G at 224 px.
OFFICIAL_MACS = {
    "t2t_vit_7": 1.156, "t2t_vit_10": 1.527, "t2t_vit_12": 1.775, "t2t_vit_14": 4.800, "t2t_vit_19": 8.503,
    "t2t_vit_24": 13.692, "t2t_vit_t_14": 6.106, "t2t_vit_t_19": 9.808, "t2t_vit_t_24": 14.998,
    "t2t_vit_14_resnext": 4.800, "t2t_vit_14_wide": 5.242, "t2t_vit_14_se": 4.801,
    "t2t_vit_16_ghost": 3.820,
}  # fmt: skip


CNNS = [name for name in list_models() if ROWS[name].factory.func is CNN]
TRANSFORMERS = [name for name in list_models() if name not in CNNS]


@pytest.mark.parametrize("name", list_models())
def test_parameters_are_locked(name):
    with paddle.LazyGuard():
        network = build_model(name)
    assert count_parameters(network) == (ROWS[name].params, ROWS[name].trainable)


def macs_of(name):
    """count_macs of a transformer at its image size; where all blocks are alike, of one block times their number."""
    size = ROWS[name].img_size
    if name.endswith("_dense"):
        return count_macs(build_model(name), size)
    with paddle.LazyGuard():
        depth = len(build_model(name).blocks)
    none, one = (count_macs(build_model(name, depth=blocks), size) for blocks in (0, 1))
    return none + depth * (one - none)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_macs_of_transformers_are_locked(name):
    assert round(macs_of(name) / 1e9, 3) == ROWS[name].macs


def test_counting_one_block_is_counting_all():
    network = build_model("t2t_vit_7")
    assert macs_of("t2t_vit_7") == count_macs(network, 224)
    assert network.training


def test_statistics_are_no_parameters():
    layers = paddle.nn.Sequential(paddle.nn.Conv2D(3, 8, 1), paddle.nn.BatchNorm2D(8))
    layers[0].weight.stop_gradient = True
    assert count_parameters(layers) == (24 + 8 + 16, 8 + 16)
    assert [is_statistic(name) for name in layers.state_dict()] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("name", list_models())
def test_no_row_lacks_a_figure_or_its_source(name):
    row = ROWS[name]
    assert row.name == name and row.title and row.source
    assert row.params >= row.trainable > 0 and row.macs > 0 and 50 < row.top1 < 100
    # What is far from the published figures has its reason beside it.
    assert abs(row.params_difference) < 0.7 or row.note
    assert row.params_difference == pytest.approx((row.params / row.published_params / 1e6 - 1) * 100)
    assert row.macs_difference == pytest.approx((row.macs / row.published_macs - 1) * 100)


def test_differences_where_nothing_is_published():
    row = ROWS["t2t_vit_7"]._replace(published_params=None, published_macs=None)
    assert (row.params_difference, row.macs_difference) == (None, None)


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


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of four made images in two classes, and their list."""
    folder = make_folders(tmp_path_factory.mktemp("photos"), ("ant", "bee"), count=2)
    return folder, make_list(folder, folder / "list.txt")


def configured(name, photos, **more):
    """The configuration config/NAME.yaml, for the made images at 32 px."""
    words = {
        "model.img_size": 32, "data.train_dir": photos[0], "data.train_list": photos[1], "data.workers": 0,
        "train.batch_size": 2, "train.warmup_epochs": 0, **{key.replace("__", "."): more[key] for key in more},
    }  # fmt: skip
    return load_config(ROOT / "config" / f"{name}.yaml", [f"{key}={value}" for key, value in words.items()])


def trained(config, network):
    """Take one step as the configuration says; names of the tensors that it changed and of those it did not."""
    paddle.seed(1)
    optimizer = wiring.freeze_and_optimize(network, config)
    optimizer.set_lr(Rates(network, config.train, total_batch=2).scale(0))
    before = {key: value.numpy().copy() for key, value in network.state_dict().items()}
    batches = wiring.train_batches(config)
    batches.set_epoch(0)
    batch = next(iter(batches))
    network.train()
    loss, logits = TrainingStep(network, optimizer, soft_cross_entropy)(batch.images, batch.targets, last=True)
    assert np.isfinite(loss.item()) and list(logits.shape) == [2, config.model.num_classes]
    same = {key for key, value in network.state_dict().items() if np.array_equal(value.numpy(), before[key])}
    return set(before) - same, same


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_configuration_of_a_transformer_takes_a_step(monkeypatch, photos, name):
    row = ROWS[name]
    if not name.endswith("_dense"):
        # Two of its blocks, which are all alike, stand for them.
        monkeypatch.setitem(ROWS, name, row._replace(factory=partial(row.factory, depth=2)))
    config = configured(name, photos, model__num_classes=4)
    network = wiring.build_network(config)
    _, same = trained(config, network)
    assert same == {key for key, parameter in network.named_parameters() if parameter.stop_gradient}


@pytest.mark.parametrize("name", CNNS)
def test_macs_of_convolutional_networks_and_a_step(photos, name):
    # One network for both, as drawing its weights takes longer than the rest.
    config = configured(name, photos)
    network = wiring.build_network(config)
    assert round(count_macs(network, ROWS[name].img_size) / 1e9, 3) == ROWS[name].macs
    changed, same = trained(config, network)
    # Biases whose effect the next BatchNorm takes out again have no gradient.
    assert not [key for key in same if not key.endswith(".bias")]
    assert sum(map(is_statistic, changed)) == 2 * sum(isinstance(x, paddle.nn.BatchNorm2D) for x in network.sublayers())


def test_patterns():
    assert list_models("t2t_vit_t_*") == ["t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"]
    assert len(list_models()) == len(ROWS) == 34


def test_mistakes_name_the_remedy():
    with pytest.raises(UserError, match="did you mean t2t_vit_14"):
        build_model("t2tvit14")
    with pytest.raises(UserError, match="multiple of 16"):
        build_model("t2t_vit_7", img_size=200)
