"""Where fine-tuning begins: another head, another image size, everything else as strict as ever."""

import numpy as np
import paddle
import pytest
from models import build_model
from weights.files import WeightsError
from weights.loading import initialise, resize_positions


def network(seed, **changed):
    paddle.seed(seed)
    return build_model("t2t_vit_7", **{"img_size": 32, "num_classes": 5, **changed})


def arrays_of(layer):
    return {name: np.array(tensor.numpy()) for name, tensor in layer.state_dict().items()}


def changed_names(before, after):
    return {name for name in before if not np.array_equal(before[name], after[name])}


@pytest.fixture(scope="module")
def state():
    return arrays_of(network(1))


def test_the_same_network_is_loaded_whole(state):
    fresh = network(2)
    assert initialise(fresh, state, source="W") == (len(state), [])
    assert not changed_names(state, arrays_of(fresh))


@pytest.mark.parametrize("classes", [3, 9])
def test_only_the_head_is_new_where_the_classes_differ(state, classes):
    fresh = network(2, num_classes=classes)
    own = arrays_of(fresh)
    start = initialise(fresh, state, source="W")
    assert start == (len(state) - 2, [f"head re-initialised (5 -> {classes} classes)"])
    after = arrays_of(fresh)
    # The fresh head is the network's own, not zeros or the file's.
    assert np.array_equal(after["head.weight"], own["head.weight"]) and after["head.weight"].any()
    others = [name for name in state if not name.startswith("head.")]
    assert all(np.array_equal(after[name], state[name]) for name in others)
    assert fresh(paddle.zeros([2, 3, 32, 32])).shape == [2, classes]


@pytest.mark.parametrize("size, tokens", [(64, 17), (16, 2)])
def test_the_position_table_follows_the_image_size_both_ways(state, size, tokens):
    fresh = network(2, img_size=size)
    start = initialise(fresh, state, source="W")
    assert start.loaded == len(state)
    (note,) = start.notes
    assert f"from 2x2 to {size // 16}x{size // 16} tokens (32 -> {size} px, bicubic)" in note
    after = arrays_of(fresh)
    assert after["pos_embed"].shape == (1, tokens, 256)
    assert np.array_equal(after["pos_embed"][:, 0], state["pos_embed"][:, 0])
    assert np.array_equal(after["pos_embed"], resize_positions(state["pos_embed"], size // 16))
    assert all(np.array_equal(after[name], state[name]) for name in state if name != "pos_embed")


def test_head_and_size_at_once(state):
    start = initialise(network(2, img_size=64, num_classes=4), state, source="W")
    assert start.loaded == len(state) - 2 and len(start.notes) == 2


@pytest.mark.parametrize(
    "spoil, part",
    [
        (lambda s: s.pop("blocks.3.norm1.bias"), "1 missing (blocks.3.norm1.bias)"),
        (lambda s: s.update(extra=s["norm.bias"]), "1 unexpected (extra)"),
        (lambda s: s.update({"norm.bias": s["norm.bias"][:-1]}), "norm.bias: file (255,), model (256,)"),
        (lambda s: s.pop("head.bias"), "1 missing (head.bias)"),
        # A head whose two tensors disagree is damaged, not one for other classes.
        (lambda s: s.update({"head.bias": s["head.bias"][:-1]}), "4 classes"),
        (lambda s: s.update({"head.weight": s["head.weight"].T}), "head.weight"),
        (lambda s: s.update({"pos_embed": s["pos_embed"][:, :4]}), "pos_embed"),
        (lambda s: s.update({"norm.weight": np.full(256, np.nan, "float32")}), "norm.weight holds NaN"),
    ],
)
def test_anything_else_is_refused_and_changes_nothing(state, spoil, part):
    broken = dict(state)
    spoil(broken)
    fresh = network(2)
    before = arrays_of(fresh)
    with pytest.raises(WeightsError) as caught:
        initialise(fresh, broken, source="W")
    assert part in str(caught.value) and "\n" not in str(caught.value)
    assert not changed_names(before, arrays_of(fresh))


# ---------------------------------------------------------------- the resized table


@pytest.mark.parametrize("side", [24, 7, 4, 1])
def test_table_against_pytorch(root, side):
    # Written by torch.nn.functional.interpolate(mode="bicubic", align_corners=False), PyTorch 2.13.
    reference = np.load(root / "tests" / "golden" / "pos_embed_resize.npz")
    made = resize_positions(reference["table"], side)
    assert made.dtype == np.float32 and made.shape == (1, 1 + side * side, 6)
    assert np.abs(made - reference[f"side{side}"]).max() < 1e-5
    assert np.array_equal(made[:, 0], reference["table"][:, 0])


def test_table_against_the_official_one(shared_dir):
    from t2t import sinusoid_table

    reference = np.load(shared_dir / "golden" / "recipe.npz")["pos_embed_14to24"]
    made = resize_positions(np.asarray(sinusoid_table(197, 384)).reshape(1, 197, 384), 24)
    assert np.abs(made[0, ::16] - reference.reshape(-1, 384)).max() < 1e-5


def test_table_of_the_same_size_is_left_alone(state):
    assert resize_positions(state["pos_embed"], 2) is state["pos_embed"]


@pytest.mark.parametrize("shape", [(1, 6, 8), (2, 5, 8), (1, 1, 8), (5, 8)])
def test_no_square_table(shape):
    with pytest.raises(WeightsError, match="no table of a square grid"):
        resize_positions(np.zeros(shape, "float32"), 3)
