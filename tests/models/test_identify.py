"""Finding the row of the registry by names and shapes, in both layouts, and what is said of weights that fit none."""

import paddle
import pytest
from errors import UserError
from models import ROWS, build_model, identify
from models.identify import PADDLE, PYTORCH, compare, exact_rows, linear_weights


def lazy(name, **arguments):
    """A row's network without values."""
    with paddle.LazyGuard():
        return build_model(name, **arguments)


def shapes_of(name, layout=PADDLE, **arguments):
    """dict name -> shape of a row's tensors as a file of that layout has them."""
    return shapes_in(lazy(name, **arguments), layout)


def shapes_in(network, layout):
    """The same of a network."""
    turned = linear_weights(network) if layout == PYTORCH else ()
    return {key: tuple(tensor.shape)[:: -1 if key in turned else 1] for key, tensor in network.state_dict().items()}


@pytest.mark.parametrize("name", list(ROWS))
def test_every_row_is_found(name):
    network = lazy(name)
    # Heads leave no trace in shapes; the first row of the table is taken and the other one named.
    first = {"t2t_vit_14_resnext": "t2t_vit_14", "vit_resnext": "vit_s_16"}
    heads = ["t2t_vit_14_resnext"]
    alike = {"t2t_vit_14": heads, "t2t_vit_14_384": heads, "vit_s_16": ["vit_resnext"]}
    for layout in (PADDLE, PYTORCH):
        match = identify(shapes_in(network, layout))
        assert not match.differences and match.differences.layout == layout
        assert (match.img_size, match.num_classes) == (ROWS[name].img_size, 1000)
        assert match.name == first.get(name, name)
        assert match.alike == alike.get(match.name, [])


@pytest.mark.parametrize(("img_size", "num_classes"), [(16, 1), (96, 10), (384, 1000), (512, 21841), (64, 256)])
def test_image_size_and_classes_are_free(img_size, num_classes):
    for name in ("t2t_vit_7", "t2t_vit_t_14"):
        match = identify(shapes_of(name, PYTORCH, img_size=img_size, num_classes=num_classes))
        assert not match.differences
        assert (match.name, match.img_size, match.num_classes) == (name, img_size, num_classes)


def test_rows_of_one_network_are_told_apart_by_the_image_size():
    assert identify(shapes_of("t2t_vit_14", img_size=384)).name == "t2t_vit_14_384"
    assert identify(shapes_of("t2t_vit_14_384", img_size=224)).name == "t2t_vit_14"
    assert identify(shapes_of("t2t_vit_14", img_size=96)).name == "t2t_vit_14"


def test_a_hint_decides_between_alike_rows_and_no_others():
    shapes = shapes_of("t2t_vit_14")
    match = identify(shapes, hint="t2t_vit_14_resnext")
    assert match.name == "t2t_vit_14_resnext" and match.alike == ["t2t_vit_14"]
    assert identify(shapes, hint="t2t_vit_14_384").name == "t2t_vit_14"
    for hint in ("t2t_vit_7", "resnet50", ""):
        assert identify(shapes, hint=hint).name == "t2t_vit_14"
    large = shapes_of("t2t_vit_14", img_size=384)
    assert identify(large, hint="t2t_vit_14").name == "t2t_vit_14_384"
    assert identify(large, hint="t2t_vit_14_resnext").name == "t2t_vit_14_resnext"


def test_a_given_model_is_taken_whatever_the_shapes():
    match = identify(shapes_of("t2t_vit_14"), model="t2t_vit_14_resnext")
    assert match.name == "t2t_vit_14_resnext" and not match.differences
    match = identify(shapes_of("t2t_vit_14"), model="t2t_vit_7")
    assert match.name == "t2t_vit_7" and match.differences
    with pytest.raises(UserError, match="did you mean t2t_vit_7"):
        identify(shapes_of("t2t_vit_14"), model="t2t_vit_77")


@pytest.mark.parametrize(
    ("name", "lost"),
    [("t2t_vit_14", "blocks.3.norm1.bias"), ("t2t_vit_14", "cls_token"), ("t2t_vit_14", "blocks.12.mlp.fc1.weight"),
     ("t2t_vit_14", "blocks.0.attn.proj.weight"), ("t2t_vit_t_19", "norm.weight"), ("t2t_vit_t_19", "head.bias"),
     ("t2t_vit_7", "head.weight"), ("t2t_vit_7", "pos_embed"), ("t2t_vit_dense", "head.weight"),
     ("t2t_vit_dense", "blocks.3.linear.bias"), ("t2t_vit_16_ghost", "blocks.2.mlp.cheap_operation3.weight"),
     ("resnet50", "blocks.0.1._mean")],
)  # fmt: skip
def test_one_missing_tensor_is_all_that_differs(name, lost):
    shapes = shapes_of(name, PYTORCH)
    shape = shapes.pop(lost)
    match = identify(shapes)
    assert match.name == name
    assert match.differences.missing == {lost: shape} and len(match.differences) == 1


def test_a_cut_network_is_none_of_the_rows():
    # Its count is that of no row, whatever the others are.
    for name, depth in (("vit_l_16", 8), ("vit_sw", 3), ("vit_s_16", 9), ("t2t_vit_14_se", 12)):
        assert identify(shapes_of(name, depth=depth)).differences


def test_extra_tensors_and_other_shapes_are_listed():
    shapes = {**shapes_of("t2t_vit_7", PYTORCH), "aux_head.weight": (1000, 256), "blocks.0.norm1.bias": (257,)}
    match = identify(shapes)
    assert match.name == "t2t_vit_7"
    assert match.differences.extra == {"aux_head.weight": (1000, 256)}
    assert match.differences.unlike == {"blocks.0.norm1.bias": ((257,), (256,))}


def test_other_widths_depths_and_nothing_at_all_fit_no_row():
    match = identify(shapes_of("t2t_vit_7", embed_dim=128))
    assert match.name == "t2t_vit_7" and match.differences.unlike
    for shapes in ({}, {"w": (3,)}, {"head.bias": (0,)}, {"head.bias": (), "cls_token": ()}, {"pos_embed": (0, 0, 0)}):
        assert identify(shapes).differences


def test_a_position_table_that_is_no_square_grid_is_another_shape():
    for shape in ((1, 198, 256), (197, 256), (1, 1, 256), (2, 197, 256), (1, 197, 384), (1, 10**8 + 1, 1)):
        match = identify({**shapes_of("t2t_vit_7"), "pos_embed": shape})
        assert match.name == "t2t_vit_7"
        assert match.differences.unlike == {"pos_embed": (shape, (1, 197, 256))}


def test_layout_is_that_of_the_oblong_layers():
    network = build_model("t2t_vit_7", img_size=16, num_classes=3)
    shapes = shapes_of("t2t_vit_7", PYTORCH, img_size=16, num_classes=3)
    assert compare(network, shapes).layout == PYTORCH
    # One layer that lies the other way round is a defect, not a vote.
    shapes["blocks.0.attn.qkv.weight"] = (256, 768)
    differences = compare(network, shapes)
    assert differences.layout == PYTORCH
    assert differences.unlike == {"blocks.0.attn.qkv.weight": ((256, 768), (768, 256))}
    square = {name: shape for name, shape in shapes.items() if len(set(shape)) == 1}
    assert compare(network, square).layout is None


def test_linear_weights_are_found_by_type_alone():
    network = build_model("t2t_vit_7", img_size=16, num_classes=3)
    linear = linear_weights(network)
    assert {"tokens_to_token.attention1.proj.weight", "blocks.0.attn.proj.weight", "head.weight"} <= linear
    two_axes = {name for name, tensor in network.state_dict().items() if len(tensor.shape) == 2}
    assert two_axes - linear == {"tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}
    assert linear_weights(paddle.nn.Linear(2, 3)) == {"weight"}
    assert linear_weights(paddle.nn.Embedding(2, 3)) == set()


def test_candidates_come_from_the_count_alone():
    assert exact_rows(shapes_of("t2t_vit_14", img_size=32, num_classes=7)) == [
        "t2t_vit_14", "t2t_vit_14_384", "t2t_vit_14_resnext"
    ]  # fmt: skip
    assert exact_rows(shapes_of("t2t_vit_24")) == ["t2t_vit_24"]
    # Neither BatchNorm's statistics nor a head wider than the class token confuse it.
    assert exact_rows(shapes_of("mobilenet_v1", num_classes=7)) == ["mobilenet_v1"]
    headless = {name: shape for name, shape in shapes_of("t2t_vit_dense").items() if not name.startswith("head.")}
    assert exact_rows(headless) == ["t2t_vit_dense"]
