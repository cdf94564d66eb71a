"""Text that fits, maps in the right grey, and rows that do not cover one another."""

import numpy as np
import pytest
from pictures import canvas
from pictures.canvas import BACKGROUND, GREEN, INK, RED, Key, Panel, Row
from PIL import Image, ImageFont


@pytest.fixture(params=["own", "bitmap"])
def font(request, monkeypatch):
    """Both kinds of font: Pillow's scalable one, and that of Pillow before 10.1, which takes no size."""
    if request.param == "bitmap":
        old = ImageFont.load_default_imagefont() if hasattr(ImageFont, "load_default_imagefont") else None
        old = old or ImageFont.load_default()
        monkeypatch.setattr(ImageFont, "load_default", lambda: old)
    canvas.font_of.cache_clear()
    yield request.param
    canvas.font_of.cache_clear()


def flat(colour, size=40):
    return Image.new("RGB", (size, size), colour)


def boxes(image, colour):
    """(top, left, bottom, right) of all pixels of one colour."""
    rows, columns = np.nonzero((np.asarray(image) == colour).all(axis=2))
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


def test_lines_fit_and_lose_no_word(font):
    text = "the quick brown fox jumps over the lazy dog and " * 3
    for width in (80, 200, 600):
        lines = canvas.wrap(text, width, 13)
        assert " ".join(lines).split() == text.split()
        assert all(canvas.text_width(line, 13) <= width for line in lines)
    assert canvas.wrap("", 100, 13) == []


def test_a_word_that_is_too_long_is_cut(font):
    lines = canvas.wrap("a " + "verylongword" * 20 + " b", 120, 13)
    assert lines[0] == "a" and lines[1].endswith("...") and lines[-1].endswith("b")
    assert all(canvas.text_width(line, 13) <= 120 for line in lines)


def test_letters_that_the_font_lacks(font):
    assert canvas.sheet("große Katze 小猫.jpg", [], [], [Row("日本", [Panel(flat(RED), "ü")])]).width


def test_no_text_is_clipped_and_no_panel_covered(font):
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 0, 200)]
    panels = [Panel(flat(colour), "a caption of several words, which needs lines") for colour in colours]
    rows = [Row("a label that is long\nsecond line", panels[:2]), Row("short", panels[2:3]), Row("", panels[3:])]
    sheet = canvas.sheet("A title " * 30, ["notes " * 60], [Key(GREEN, "key " * 60), Key(RED, "other")], rows)
    pixels = np.asarray(sheet)
    for colour in colours:
        top, left, bottom, right = boxes(sheet, colour)
        assert (bottom - top, right - left) == (40, 40) and (pixels[top:bottom, left:right] == colour).all()
    edge = np.concatenate([pixels[:8].reshape(-1, 3), pixels[-8:].reshape(-1, 3),
                           pixels[:, :8].reshape(-1, 3), pixels[:, -8:].reshape(-1, 3)])  # fmt: skip
    assert (edge == BACKGROUND).all(), "something reaches the margin"
    assert boxes(sheet, colours[0])[1] >= 16 + canvas.text_width("a label that is long", 13)
    # The second row is below the captions of the first.
    below = boxes(sheet, colours[0])[2]
    assert boxes(sheet, colours[2])[0] - below > 3 * 10


def test_frames_surround_their_panel():
    sheet = canvas.sheet("t", [], [], [Row("", [Panel(flat((1, 2, 3)), "", RED), Panel(flat((4, 5, 6)))])])
    top, left, bottom, right = boxes(sheet, (1, 2, 3))
    pixels = np.asarray(sheet)
    for row, column in ((top - 1, left), (bottom, left), (top, left - 1), (top, right)):
        assert tuple(pixels[row, column]) == RED
    assert (np.asarray(sheet) == RED).all(axis=2).sum() == 48 * 48 - 40 * 40


def test_grey_maps():
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    image = np.asarray(canvas.grey_map(values, 8, span=4.0))
    assert image[0, 0].tolist() == [0] * 3 and image[7, 7].tolist() == [255] * 3 and image[0, 7, 0] == 64
    assert np.asarray(canvas.grey_map(values, 8, span=400.0)).max() == 3, "a faint map stays dark"
    assert np.asarray(canvas.grey_map(np.ones((2, 2)), 8, span=0.0)).max() == 0


def test_heat_grows_lighter():
    grey = np.asarray(Image.fromarray(canvas.heat(np.linspace(0, 1, 50)[None])).convert("L")).astype(int)[0]
    assert (np.diff(grey) >= 0).all() and grey[-1] - grey[0] > 200


def test_the_largest_value_is_the_lightest_place():
    values = np.zeros((4, 4))
    values[1, 3], values[3, 0] = 0.02, 0.01
    image = np.asarray(canvas.overlay(np.full((8, 8, 3), 100, "uint8"), values, 64).convert("L"))
    assert image[16:32, 48:].min() > image[48:, :16].max() > image[:16].max()
    # Nothing anywhere is no division by zero.
    assert canvas.overlay(np.zeros((8, 8, 3), "uint8"), np.zeros((3, 3)), 16).size == (16, 16)


def test_text_is_written():
    sheet = np.asarray(canvas.sheet("Title", [], [], [Row("label", [Panel(flat((1, 2, 3)), "caption")])]))
    dark = (sheet.astype(int).sum(axis=2) < 3 * (INK[0] + 60)) & (sheet != (1, 2, 3)).any(axis=2)
    assert dark[:40].any() and dark[:, :60].any() and dark[-36:].any()


def test_names_with_other_letters_stay_different():
    names = ("a\u00f6.jpg", "a\u00fc.jpg", "a?.jpg")
    assert len({canvas.sheet(name, [], [], [Row("", [Panel(flat(RED))])]).tobytes() for name in names}) == 3
