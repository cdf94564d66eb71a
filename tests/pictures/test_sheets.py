"""The three sheets on made maps: figures in the text, frames and marks in the picture."""

import numpy as np
import pytest
from pictures.canvas import BLUE, GREEN, ORANGE, RED
from pictures.judging import edges, shrink
from pictures.sheets import attention, comparison, features
from pictures.splits import Split
from pictures.token_sheet import tokens

PIXELS = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
T2T = [Split(7, 4, 2), Split(3, 2, 1), Split(3, 2, 1)]
# A frame's edge, 4 pixels of the 120 of a panel of features.
FRAME = 120 * 120 - 112 * 112


def count(image, colour):
    return int((np.asarray(image) == colour).all(axis=2).sum())


def test_features_frames_and_shares():
    maps = np.random.default_rng(1).standard_normal((8, 16, 16)).astype("float32")
    edge = shrink(edges(PIXELS)[0], (16, 16))
    maps[1] = edge / edge.std()
    maps[2] = maps[5] = 0
    maps[3] *= 50
    small = maps[:, :2, :2]
    sheet, lines = features("t", PIXELS, {"first": maps, "second": small}, 8)
    first, second, both = (line.split() for line in lines[-3:])
    assert first == ["first", "16x16", "8", "12.5", "%", "25.0", "%", "12.5", "%"]
    assert second[:4] == ["second", "2x2", "8", "-"], "no edges on so few cells"
    # Dead and too large are judged in both, 16 maps; the edges in the first alone. A flat map stays flat when cut.
    assert both[:6] == ["all", "that", "were", "judged", "16", "12.5"] and both[7:9] == ["25.0", "%"]
    assert count(sheet, GREEN) - count_of_legend(GREEN) == FRAME
    # Three in each row.
    assert count(sheet, RED) - 2 * count_of_legend(RED) == 6 * FRAME
    # Half of the channels: 0, 2, 5 and 7.
    fewer, again = features("t", PIXELS, {"first": maps}, 4)
    assert again[-2].split() == first and count(fewer, GREEN) == count_of_legend(GREEN)
    assert count(fewer, RED) - 2 * count_of_legend(RED) == 2 * FRAME


def count_of_legend(colour):
    from pictures.canvas import Key, Panel, Row, sheet
    from PIL import Image

    return count(sheet("t", [], [Key(colour, "x")], [Row("", [Panel(Image.new("RGB", (9, 9)))])]), colour)


def test_features_fewer_channels_than_asked_for():
    maps = np.random.default_rng(1).standard_normal((3, 4, 4)).astype("float32")
    many, _ = features("t", PIXELS, {"a": maps}, 50)
    three, _ = features("t", PIXELS, {"a": maps}, 3)
    assert many.size == three.size


def test_comparison():
    maps = np.random.default_rng(1).standard_normal((8, 16, 16)).astype("float32")
    dead = maps.copy()
    dead[2] = 0
    ones = {f"layer{number}": maps for number in range(7)}
    others = {**ones, "layer1": dead, "layer4": dead}
    sheet, lines = comparison("t", [("one", PIXELS, ones), ("other", PIXELS[::-1], others)], 8)
    texts = {name: lines[lines.index(name) + 2 :][:8] for name in ("one", "other")}
    for name, shares in (("one", ["0.0"] * 7), ("other", ["0.0", "12.5", "0.0", "0.0", "12.5", "0.0", "0.0"])):
        assert [line.split()[0] for line in texts[name][:7]] == list(ones), "every layer is in the text"
        assert [line.split()[5] for line in texts[name][:7]] == shares
        assert texts[name][7].split()[4] == "56"
    assert texts["other"][7].split()[7] == "3.6", "two of 56"
    # Drawn are layers 0, 2, 4 and 6, and of those one is dead.
    assert count(sheet, RED) - 2 * count_of_legend(RED) == FRAME


def test_comparison_of_a_network_with_few_layers():
    maps = np.random.default_rng(1).standard_normal((8, 16, 16)).astype("float32")
    both = [("one", PIXELS, {"a": maps}), ("other", PIXELS, {"a": maps, "b": maps})]
    sheet, _ = comparison("t", both, 8)
    more, _ = comparison("t", [*both, both[0]], 8)
    # A heading and one layer.
    assert sheet.width == more.width and 120 < more.height - sheet.height < 180


def test_attention_figures():
    weights = np.full((2, 5, 5), 0.2)
    weights[:, 0] = [0.1, 0.1, 0.1, 0.6, 0.1]
    sheet, lines = attention("t", PIXELS, [weights, weights], heads=False)
    assert lines[1].split() == ["0", "0.1000", "0.6000", "1,", "0"] and lines[2].split()[0] == "1"
    # 0.5 A + 0.5 I has the class row (.55, .05, .05, .3, .05), and .6 and .1 in the others. Squared, the class row has
    # .55 * .55 + .45 * .1 = .3475 for itself and .55 * .3 + .3 * .6 + .15 * .1 = .36 for the third patch.
    assert lines[-1] == "rollout: own weight 0.3475, largest 0.3600 at row 1, column 0"
    each, _ = attention("t", PIXELS, [weights, weights], heads=True)
    assert each.size != sheet.size


def test_attention_of_many_heads_goes_on_below():
    weights = np.full((32, 5, 5), 0.2)
    few, _ = attention("t", PIXELS, [weights[:12]], heads=True)
    many, _ = attention("t", PIXELS, [weights], heads=True)
    assert many.width == few.width and many.height > few.height


@pytest.mark.parametrize("token", [(0, 0), (0, 1), (1, 1)])
def test_tokens_of_t2t(token):
    sheet, lines = tokens("t", PIXELS, T2T, token, mixing=True)
    assert lines[0] == ("split 1: windows of 7x7 every 4, padding 2: 32x32 -> 8x8 tokens, each of 7x7 pixels, every 4")
    assert lines[2].endswith("4x4 -> 2x2 tokens, each of 31x31 pixels, every 16")
    rows, columns = (("-14 to 16", "2 to 32")[place] for place in token)
    assert f"pixels of rows {rows} and columns {columns} (31x31; without overlap 16x16), " in lines[3]
    assert lines[3].endswith("each in up to 9 ways")
    assert lines[4] == "ways from a pixel to the final tokens: 1 (dark) to 25 (light)"
    assert "hear of every pixel" in lines[5] and len(lines) == 6
    assert count(sheet, ORANGE) > 500 and count(sheet, BLUE) > 500


def test_tokens_that_do_not_overlap():
    sheet, lines = tokens("t", PIXELS, [Split(16, 16, 0)], (1, 0), mixing=False)
    assert "pixels of rows 16 to 31 and columns 0 to 15 (16x16; without overlap 16x16), each in one way" in lines[1]
    assert lines[2] == "ways from a pixel to the final tokens: 1 everywhere" and "no token" in lines[3]
    assert sheet.width > 900


def test_the_cell_is_where_the_token_is():
    # Of the first panel, 310 pixels for 32: the cell of row 1, column 0 is its lower left quarter.
    sheet, _ = tokens("t", PIXELS, [Split(16, 16, 0)], (1, 0), mixing=False)
    pixels = (np.asarray(sheet) == ORANGE).all(axis=2)
    rows, columns = np.nonzero(pixels[:, :340])
    legend = rows.min() + 20
    rows, columns = rows[rows > legend], columns[rows > legend]
    assert rows.max() - rows.min() == columns.max() - columns.min() == 154
    assert columns.min() == 20
