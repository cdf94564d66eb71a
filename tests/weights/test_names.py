"""Names of other ports to official ones: every name of a network, both token types, wrappers and collisions."""

import re

import pytest
from models import build_model
from weights.files import WeightsError
from weights.names import official_names


def names_of(model):
    return list(build_model(model, img_size=16, num_classes=3).state_dict())


def paddlevit(name):
    name = name.replace("tokens_to_token.attention", "patch_embed.attn")
    return name.replace("tokens_to_token.project", "patch_embed.proj")


def timm(name):
    return name.replace("tokens_to_token.", "patch_embed.")


def mmpretrain(name):
    if name.startswith("head."):
        return name.replace("head.", "head.layers.head.")
    name = re.sub(r"^blocks\.", "encoder.", name)
    if "." in name and not name.startswith("norm."):
        name = re.sub(r"\.norm([12])\.", r".ln\1.", name)
        name = name.replace(".mlp.fc1.", ".ffn.layers.0.0.").replace(".mlp.fc2.", ".ffn.layers.1.")
    return f"backbone.{name}"


PORTS = [
    ("t2t_vit_7", paddlevit, "PaddleViT"),
    ("t2t_vit_t_14", paddlevit, "PaddleViT"),
    ("t2t_vit_7", timm, "timm"),
    ("t2t_vit_t_14", timm, "timm"),
    ("t2t_vit_t_14", mmpretrain, "mmpretrain"),
]


@pytest.mark.parametrize(("model", "port", "title"), PORTS)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_every_name_of_a_port(model, port, title, prefix):
    official = names_of(model)
    theirs = [prefix + port(name) for name in official]
    assert theirs != official
    naming = official_names(theirs)
    assert naming.dialect == title and naming.prefix == prefix
    assert list(naming.names) == official
    assert list(naming.names.values()) == theirs


@pytest.mark.parametrize("model", ["t2t_vit_7", "t2t_vit_t_14", "t2t_vit_c_14", "t2t_vit_14_wo_t2t"])
def test_official_names_stay(model):
    official = names_of(model)
    assert official_names(official) == ("official", "", {name: name for name in official})


def test_names_of_each_kind_are_those_of_the_ports():
    # Written out, so that the functions above cannot be wrong in the same way as the table.
    table = {
        "patch_embed.attn1.w": "tokens_to_token.attention1.w",
        "patch_embed.attn2.kqv.weight": "tokens_to_token.attention2.kqv.weight",
        "patch_embed.attn1.mlp.2.bias": "tokens_to_token.attention1.mlp.2.bias",
        "patch_embed.proj.weight": "tokens_to_token.project.weight",
        "blocks.10.mlp.fc1.weight": "blocks.10.mlp.fc1.weight",
    }
    assert official_names(table).names == {official: theirs for theirs, official in table.items()}
    table = {
        "backbone.cls_token": "cls_token",
        "backbone.tokens_to_token.attention1.attn.qkv.weight": "tokens_to_token.attention1.attn.qkv.weight",
        "backbone.tokens_to_token.attention2.ln2.bias": "tokens_to_token.attention2.norm2.bias",
        "backbone.tokens_to_token.attention1.ffn.layers.0.0.weight": "tokens_to_token.attention1.mlp.fc1.weight",
        "backbone.tokens_to_token.project.bias": "tokens_to_token.project.bias",
        "backbone.encoder.3.ln1.weight": "blocks.3.norm1.weight",
        "backbone.encoder.3.ffn.layers.1.bias": "blocks.3.mlp.fc2.bias",
        "backbone.norm.weight": "norm.weight",
        "head.layers.head.weight": "head.weight",
    }
    assert official_names(table).names == {official: theirs for theirs, official in table.items()}


def test_wrappers_are_taken_off_only_where_every_name_has_them():
    assert official_names(["module.module.cls_token", "module.module.norm.bias"]).prefix == "module.module."
    naming = official_names(["module._orig_mod.cls_token", "module._orig_mod.module.bias"])
    assert naming.prefix == "module._orig_mod." and list(naming.names) == ["cls_token", "module.bias"]
    naming = official_names(["module.cls_token", "norm.bias"])
    assert naming.prefix == "" and list(naming.names) == ["module.cls_token", "norm.bias"]
    assert official_names([]).names == {}


def test_a_plain_vit_is_not_taken_for_another_port():
    assert list(official_names(["cls_token", "patch_embed.proj.weight"]).names) == [
        "cls_token", "patch_embed.proj.weight"
    ]  # fmt: skip


def test_two_tensors_with_one_name():
    with pytest.raises(WeightsError, match=r"^patch_embed.proj.bias and tokens_to_token.project.bias are both tokens_"):
        official_names(["patch_embed.attn1.w", "patch_embed.proj.bias", "tokens_to_token.project.bias"])
