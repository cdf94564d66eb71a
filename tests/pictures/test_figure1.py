"""The drawing of Figure 1: places, labels that do not overlap, markers and lines."""

from collections import namedtuple
from itertools import combinations

import numpy as np
import pytest
from models.paper import FIGURE_1_LOOSE, figure_1
from pictures import figure1
from pictures.canvas import font_of
from PIL import ImageFont

Point = namedtuple("Point", "label macs params top1 counted")
FIELDS = ("macs", "params")


def panels(families):
    return [(figure1.panel_of(families, number, field), field) for number, field in enumerate(FIELDS)]


def test_places_on_logarithmic_and_plain_axes():
    panel = figure1.Panel(figure1.Box(100, 50, 300, 250), (1, 100), (70, 80))
    assert panel.place(1, 70) == (100, 250)
    assert panel.place(10, 75) == pytest.approx((200, 150))
    assert panel.place(100, 80) == pytest.approx((300, 50))


def test_panels_hold_all_points_and_lie_side_by_side():
    families = figure_1()
    boxes = []
    for panel, field in panels(families):
        boxes.append(panel.box)
        for point in (point for points in families.values() for point in points):
            x, y = panel.place(getattr(point, field), point.top1)
            assert panel.box.left + 20 < x < panel.box.right - 20 and panel.box.top + 20 < y < panel.box.bottom - 20
    assert boxes[0].right < boxes[1].left - 60 and boxes[1].right < figure1.WIDTH


def inside(outer, box):
    return outer.left <= box.left and box.right <= outer.right and outer.top <= box.top and box.bottom <= outer.bottom


def overlaps(panel, labels):
    """Pairs of what must not overlap in a panel; asserts that all labels are inside it."""
    boxes = [(label, box) for _, label, box in labels]
    markers = [(f"marker of {label}", figure1.Box(x - 9, y - 9, x + 9, y + 9)) for (x, y), label, _ in labels]
    assert all(inside(panel.box, box) for _, box in boxes)
    found = [(a[0], b[0]) for a, b in combinations(boxes, 2) if a[1].meets(b[1])]
    return found + [(a, b) for a, box in boxes for b, marker in markers if box.meets(marker)]


@pytest.fixture(scope="module", params=[0, 1], ids=FIELDS)
def drawn(request):
    """A panel of the paper's networks: (Panel, field, families, labels in their places)."""
    families = figure_1()
    panel, field = panels(families)[request.param]
    return panel, field, families, figure1.places_of_labels(panel, families, field, FIGURE_1_LOOSE)


@pytest.fixture(scope="module")
def picture():
    return figure1.draw("", "", figure_1(), FIGURE_1_LOOSE)


def test_labels_of_the_paper_s_networks_do_not_overlap(drawn):
    panel, _, families, labels = drawn
    assert [label for _, label, _ in labels] == [point.label for points in families.values() for point in points]
    assert overlaps(panel, labels) == []


def test_labels_stand_by_their_points_in_the_family_s_colour(drawn, picture):
    _, _, families, labels = drawn
    colours = [style[0] for style, points in zip(figure1._STYLES, families.values()) for _ in points]
    pixels = np.asarray(picture)
    for (place, label, box), colour in zip(labels, colours):
        assert np.hypot(*(np.clip(place, box[:2], box[2:]) - place)) < 60, label
        text = pixels[round(box.top) : round(box.bottom), round(box.left) : round(box.right)]
        assert (text == colour).all(axis=2).sum() > 20, label


def test_no_label_lies_on_a_line_of_a_family(drawn):
    panel, field, families, labels = drawn
    for name, points in families.items():
        path = sorted(panel.place(getattr(point, field), point.top1) for point in points)
        for start, end in zip(path, path[1:]) if name not in FIGURE_1_LOOSE else ():
            line = np.linspace(start, end, 400)
            for _, label, box in labels:
                assert not ((line > box[:2]) & (line < box[2:])).all(axis=1).any(), (name, label)


def test_a_crowd_of_points_finds_places():
    crowd = [Point(f"network {n}", 5 * 1.05**n, 20 * 1.05**n, 80 + 0.1 * (n % 3), True) for n in range(8)]
    families = {"a": crowd, "b": [Point("far", 100, 400, 70, True), Point("near", 0.5, 2, 70, True)]}
    for panel, field in panels(families):
        assert overlaps(panel, figure1.places_of_labels(panel, families, field)) == []


def made():
    return {
        "joined": [Point("a", 1, 1, 70, True), Point("b", 100, 100, 80, True)],
        "loose": [Point("c", 1, 1, 80, True), Point("d", 100, 100, 70, False)],
    }


def pixel(picture, place):
    return picture.getpixel(tuple(round(value) for value in place))


def test_markers_lines_and_hollow_points():
    families = made()
    picture = figure1.draw("title", "note", families, loose=("loose",))
    first, second = (style[0] for style in figure1._STYLES[:2])
    for panel, field in panels(families):
        for name, colour in zip(families, (first, second)):
            for point in families[name]:
                found = pixel(picture, panel.place(getattr(point, field), point.top1))
                assert found == (colour if point.counted else (255, 255, 255))
        # A quarter of the way from a to b, and from c to d.
        on_line, beside = panel.place(100**0.25, 72.5), panel.place(100**0.25, 77.5)
        red, _, blue = pixel(picture, on_line)
        assert blue - red > 60
        assert pixel(picture, beside) == (255, 255, 255)
    joined = figure1.draw("title", "note", families)
    assert pixel(joined, panels(families)[0][0].place(100**0.25, 77.5)) != (255, 255, 255)


def test_the_font_of_an_old_pillow_will_do(monkeypatch):
    bitmap = getattr(ImageFont, "load_default_imagefont", ImageFont.load_default)()
    monkeypatch.setattr(ImageFont, "load_default", lambda: bitmap)
    font_of.cache_clear()
    try:
        families = made()
        assert figure1.draw("title", "note", families).size == (figure1.WIDTH, figure1.HEIGHT)
        panel, field = panels(families)[0]
        assert overlaps(panel, figure1.places_of_labels(panel, families, field)) == []
    finally:
        font_of.cache_clear()
