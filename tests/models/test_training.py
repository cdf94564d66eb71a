"""Training the networks beside T2T-ViT: decay, rates by layer, and BatchNorm's statistics in averages and cut runs."""

import shutil

import numpy as np
import paddle
import pytest
from commands import make_folders, mistake, process, run, settings
from engine.checkpoint import RunFolder
from engine.ema import Ema
from engine.optim import decay_split
from engine.rates import Rates
from engine_fakes import assert_same, make_config
from models import build_model
from models.macs import is_statistic
from weights.paddle_file import read_weights


def lazy(name):
    with paddle.LazyGuard():
        return build_model(name)


@pytest.mark.parametrize(
    ("name", "decayed", "undecayed"),
    [
        ("t2t_vit_16_ghost", "blocks.0.attn.cheap_operation_q.weight", "blocks.0.attn.proj.bias"),
        ("t2t_vit_14_se", "blocks.3.attn.se_layer.fc.0.weight", "cls_token"),
        ("t2t_vit_dense", "blocks.3.linear.weight", "blocks.3.linear.bias"),
        ("vit_s_16", "tokens_to_token.project.weight", "pos_embed"),
        ("resnet50", "blocks.1.conv1.weight", "blocks.1.bn1.weight"),
        ("mobilenet_v3", "blocks.17.2.weight", "blocks.17.2.bias"),
    ],
)  # fmt: skip
def test_decay(name, decayed, undecayed):
    network = lazy(name)
    with_decay, without = decay_split(network)
    assert decayed in with_decay and undecayed in without
    shapes = {key: p.shape for key, p in network.named_parameters() if not p.stop_gradient}
    assert set(with_decay) | set(without) == set(shapes) and not any(map(is_statistic, shapes))
    assert {key for key in without if len(shapes[key]) > 1} <= {"cls_token", "pos_embed"}
    assert all(len(shapes[key]) > 1 for key in with_decay)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("t2t_vit_14_se", 14), ("t2t_vit_dense", 19 + 3), ("t2t_vit_16_ghost", 16), ("vit_s_16", 8), ("resnet50", 17),
     ("mobilenet_v2", 19), ("mobilenet_v3", 18)],
)  # fmt: skip
def test_distances_from_the_head(name, layers):
    network = lazy(name)
    rates = Rates(network, make_config(train__layer_decay=0.5).train, total_batch=2)
    assert rates.depth == layers == len(network.blocks)
    assert rates.distance("head.weight") == 0
    for number in range(layers):
        names = [key for key in rates.parameters if key.startswith(f"blocks.{number}.")]
        assert names and {rates.distance(key) for key in names} == {layers - number}
    rest = [key for key in rates.parameters if not key.startswith(("blocks.", "head.", "norm."))]
    assert bool(rest) == hasattr(network, "cls_token")
    assert all(rates.distance(key) == layers + 1 for key in rest)


def test_statistics_are_averaged_and_swapped():
    network = build_model("mobilenet_v1", num_classes=2)
    ema = Ema(network, 0.5)
    start = {key: value.numpy().copy() for key, value in network.state_dict().items() if is_statistic(key)}
    network(paddle.rand([2, 3, 32, 32]))
    now = {key: network.state_dict()[key].numpy().copy() for key in start}
    ema.update()
    assert len(start) == 2 * 27
    for key, value in start.items():
        assert not np.array_equal(now[key], value)
        np.testing.assert_allclose(ema.state_dict()[key].numpy(), (value + now[key]) / 2, atol=1e-6)
    with ema.swapped():
        assert np.array_equal(network.state_dict()[key].numpy(), ema.state_dict()[key].numpy())
    assert all(np.array_equal(network.state_dict()[key].numpy(), now[key]) for key in start)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train", ("ant", "bee"), count=4)
    make_folders(folder / "val", ("ant", "bee"), count=1, seed=50)
    return folder


def words(photos, folder, **more):
    recipe = {"model__name": "mobilenet_v1", "model__num_classes": 2, "model__drop_path": 0.0, "model__drop_rate": 0.1,
              "train__ema_decay": 0.5, "train__save_steps": 1, "train__keep": 9}  # fmt: skip
    return settings(photos, folder, **{**recipe, **more})


def test_a_cut_training_goes_on_with_the_statistics_bit_for_bit(photos, tmp_path):
    straight, again = tmp_path / "straight", tmp_path / "again"
    assert run("train", *words(photos, straight)).code == 0
    shutil.copytree(straight, again)
    files = sorted((again / "checkpoints").glob("*.npz"))
    kept = again / "checkpoints" / "epoch-0000-step-000001.npz"
    assert kept in files and len(files) > 3
    for file in files:
        if file != kept:
            file.unlink()
    outcome = process("train", *words(photos, again))
    assert (outcome.code, outcome.err) == (0, "")
    assert "going on in epoch 1 after step 1" in outcome.out
    (first, _), (second, _) = RunFolder(straight).latest(), RunFolder(again).latest()
    assert_same(first["arrays"], second["arrays"])
    statistics = [key for key in first["arrays"] if is_statistic(key)]
    assert len(statistics) == 2 * 2 * 27
    for name in ("best", "last", "last_ema"):
        assert (straight / f"{name}.pdparams").read_bytes() == (again / f"{name}.pdparams").read_bytes()
    weights = read_weights(straight / "last.pdparams")
    for key in filter(is_statistic, weights):
        assert np.array_equal(weights[key], first["arrays"][f"model/{key}"]) and weights[key].any(), key
    # The commands that read weights take them too.
    assert run("val", "--weights", straight, "device=cpu").code == 0


def test_a_transformers_setting_is_refused_in_one_line(photos, tmp_path):
    outcome = run("train", *words(photos, tmp_path / "run", model__drop_path=0.1))
    mistake(outcome, "mobilenet_v1", "drop_path_rate=0.1", "model.drop_path=0")
    assert not (tmp_path / "run").exists()
