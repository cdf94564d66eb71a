"""The small networks of Table 7: what they are, how large, and that they are no published names."""

import paddle
import pytest
import t2t
from commands import run
from errors import UserError
from models import ROWS, build_model, list_models
from models.ablation import PAIRS, SMALL
from models.macs import count_parameters

# With ten classes at 64 px, as they are trained.
PARAMS = {"t2t_vit_7_wo_t2t": 3_888_906, "t2t_vit_c_7": 3_886_154, "t2t_vit_7": 4_009_712, "t2t_vit_7_wide": 4_028_568}


@pytest.mark.parametrize("name", SMALL)
def test_sizes_are_locked(name):
    with paddle.LazyGuard():
        network = build_model(name, img_size=64, num_classes=10)
    assert count_parameters(network)[0] == PARAMS[name]
    # Of the pair that is compared at equal size, and of the others too, as near as the T2T modules allow.
    assert abs(PARAMS[name] / PARAMS["t2t_vit_7"] - 1) < (0.02 if "wide" in name else 0.04)


@pytest.mark.parametrize("name", SMALL)
def test_they_are_the_networks_of_table_7_in_small(name):
    with paddle.LazyGuard():
        small, large = build_model(name), build_model(SMALL[name].counterpart)
    assert ROWS[SMALL[name].counterpart].top1 and small.img_size == 224
    assert small.tokens_to_token.tokens_type == large.tokens_to_token.tokens_type
    assert (len(small.blocks) < 7) == (len(large.blocks) < 14) == ("wide" in name)
    assert small.embed_dim == (472 if "wide" in name else 256)
    assert {one for pair in PAIRS for one in pair} == set(SMALL)


def test_they_are_not_listed_among_the_published_ones():
    assert set(SMALL) & set(list_models()) == {"t2t_vit_7"} and SMALL["t2t_vit_7"].factory is t2t.t2t_vit_7
    assert "t2t_vit_c_7" not in run("list_models").out
    with pytest.raises(UserError, match="model t2t_vit_7_wo_t2t: splits=.*leave them out"):
        build_model("t2t_vit_7_wo_t2t", splits=((7, 2, 2), (3, 1, 1), (3, 1, 1)))
