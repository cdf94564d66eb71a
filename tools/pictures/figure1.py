"""Figure 1 of the paper: accuracy against multiply-adds and against size, a line for each family. Pillow alone."""

import itertools
import math
from typing import NamedTuple

from PIL import Image, ImageDraw

from pictures.canvas import font_of, text_width

WIDTH, HEIGHT = 1800, 960
_INK, _GREY, _GRID, _BACKGROUND = (25, 25, 25), (95, 95, 95), (228, 228, 228), (255, 255, 255)
_TITLE, _TEXT, _LABEL = 28, 20, 18
# From the top of a line of text to the middle of its letters, in font sizes.
_MIDDLE = 0.62
# Colours that stay apart for colour-blind readers, and a shape for each, as corners on a circle: (number, turn).
_STYLES = (
    ((0, 95, 175), (4, 0.5)), ((205, 75, 0), (3, 0.25)), ((0, 135, 100), (4, 0.0)), ((175, 60, 140), (5, 0.25)),
    ((70, 70, 70), (32, 0.0)), ((150, 105, 0), (3, 0.75)),
)  # fmt: skip
_RADIUS = 9
# Lines are drawn this much larger and reduced, since Pillow draws them without grey edges.
_FINE = 3
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other):
        """Whether the two have an area in common."""
        return (self.left < other.right and other.left < self.right
                and self.top < other.bottom and other.top < self.bottom)  # fmt: skip


class Panel(NamedTuple):
    """A diagram: the plot's box, and the ranges of x (logarithmic) and y."""

    box: Box
    x_range: tuple
    y_range: tuple

    def place(self, x, y):
        """Pixels of a value."""
        across = math.log(x / self.x_range[0]) / math.log(self.x_range[1] / self.x_range[0])
        up = (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return (self.box.left + across * (self.box.right - self.box.left),
                self.box.bottom - up * (self.box.bottom - self.box.top))  # fmt: skip


def draw(title, note, families, loose=()):
    """PIL RGB of the figure.

    title, note: lines above it. families: dict name -> list of points with the attributes label, macs (G), params (M),
    top1 (percent) and counted (False: drawn hollow), at most six families. loose: names of families that are no sizes
    of one network, whose points no line joins. Text is ASCII, which the font is limited to.
    """
    canvas = Image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), _BACKGROUND)
    panels = [
        (panel_of(families, number, field), field, caption)
        for number, (field, caption) in enumerate((("macs", "MACs of one image, G"), ("params", "parameters, M")))
    ]
    pen = ImageDraw.Draw(canvas)
    for panel, field, _ in panels:
        _draw_lines(pen, panel, families, field, loose)
    canvas = canvas.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(canvas)
    _write(pen, (60, 22), title, _TITLE, _INK)
    _write(pen, (60, 62), note, _LABEL, _GREY)
    for panel, field, caption in panels:
        _write_axes(pen, panel, caption)
        _write_labels(pen, panel, families, field, loose)
    return canvas


def panel_of(families, number, field):
    """The Panel of the left (0) or right (1) diagram, wide enough for all points."""
    points = list(itertools.chain(*families.values()))
    values = [getattr(point, field) for point in points]
    tops = [point.top1 for point in points]
    left = 105 + number * (WIDTH // 2 - 5)
    box = Box(left, 115, left + WIDTH // 2 - 145, HEIGHT - 85)
    return Panel(box, (min(values) / 2.7, max(values) * 1.7), (math.floor(min(tops)) - 1, math.ceil(max(tops)) + 0.5))


def places_of_labels(panel, families, field, loose=()):
    """Where the labels go: list of (point's pixels, label, Box of its text), in the order of the families.

    A label keeps off markers and other labels, off lines and off places that are nearer to another point where it can,
    and stays as near to its own as that allows. Each is placed in turn, those in the thick of it first, and all of them
    again until nothing moves.
    """
    points = [(panel.place(getattr(p, field), p.top1), p.label) for line in families.values() for p in line]
    paths = _paths(panel, families, field)
    lines = [pair for name, path in paths.items() if name not in loose for pair in zip(path, path[1:])]
    crowding = [sum(math.dist(place, other) < 120 for other, _ in points) for place, _ in points]
    boxes = {}
    for _ in range(4):
        before = dict(boxes)
        for number in sorted(range(len(points)), key=lambda number: -crowding[number]):
            taken = [_marker_box(place) for place, _ in points]
            taken += [box for other, box in boxes.items() if other != number] + [_legend_box(panel, families)]
            others = [place for other, (place, _) in enumerate(points) if other != number]
            least = math.inf
            for box in _candidates(*points[number]):
                # No box costs less than its distance.
                if _gap(box, points[number][0]) < least:
                    cost = _cost(box, points[number][0], others, taken, lines, panel.box)
                    least, boxes[number] = min((least, boxes.get(number)), (cost, box), key=lambda pair: pair[0])
        if boxes == before:
            break
    return [(*point, boxes[number]) for number, point in enumerate(points)]


def _candidates(place, label):
    """Boxes around a point, the nearest ones first."""
    width, height = text_width(label, _LABEL), _LABEL + 4
    for distance in (4, 7, 10, 14, 18, 23, 28, 34, 40, 48, 57, 67, 80):
        for step in range(24):
            angle = step * math.pi / 12
            x = place[0] + math.cos(angle) * (_RADIUS + distance + width / 2)
            y = place[1] - math.sin(angle) * (_RADIUS + distance + height / 2)
            yield Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _cost(box, place, others, taken, lines, inside):
    wrong = sum(box.meets(other) for other in taken)
    wrong += box.left < inside.left or box.right > inside.right or box.top < inside.top or box.bottom > inside.bottom
    own = _gap(box, place)
    doubtful = sum(_gap(box, other) < own + 4 for other in others)
    covered = sum(_crosses(box, *line) for line in lines)
    between = sum(place not in line and _meet(place, _nearest(box, place), *line) for line in lines)
    return 1000 * wrong + 100 * covered + 40 * between + 25 * doubtful + own


def _nearest(box, place):
    """The point of a box that is nearest to another point."""
    return min(max(place[0], box.left), box.right), min(max(place[1], box.top), box.bottom)


def _gap(box, place):
    """Pixels from a point to the nearest edge of a box."""
    return math.dist(place, _nearest(box, place))


def _meet(start, end, other_start, other_end):
    """Whether two straight lines cross."""

    def side(a, b, c):
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    return (side(start, end, other_start) * side(start, end, other_end) < 0
            and side(other_start, other_end, start) * side(other_start, other_end, end) < 0)  # fmt: skip


def _crosses(box, start, end):
    """Whether a part of a straight line lies in a box."""
    low, high = 0.0, 1.0
    for a, b, least, most in zip(start, end, box[:2], box[2:]):
        if a == b and not least < a < most:
            return False
        if a != b:
            near, far = sorted(((least - a) / (b - a), (most - a) / (b - a)))
            low, high = max(low, near), min(high, far)
    return low < high


def _marker_box(place):
    return Box(place[0] - _RADIUS, place[1] - _RADIUS, place[0] + _RADIUS, place[1] + _RADIUS)


def _paths(panel, families, field):
    """Dict name -> the pixels of the family's points from left to right."""
    return {
        name: sorted(panel.place(getattr(point, field), point.top1) for point in points)
        for name, points in families.items()
    }


def _draw_lines(pen, panel, families, field, loose):
    box = panel.box
    for x in _ticks(panel):
        place = panel.place(x, panel.y_range[0])
        _line(pen, [place, (place[0], box.top)], _GRID, 1.5)
    for y in range(math.ceil(panel.y_range[0]), math.floor(panel.y_range[1]) + 1, 2):
        place = panel.place(panel.x_range[0], y)
        _line(pen, [place, (box.right, place[1])], _GRID, 1.5)
    _line(pen, [(box.left, box.top), (box.left, box.bottom), (box.right, box.bottom)], _GREY, 2)
    for (name, path), (colour, _) in zip(_paths(panel, families, field).items(), _STYLES):
        if name not in loose:
            _line(pen, path, tuple(round(255 - (255 - part) * 0.55) for part in colour), 3.5)
    for points, (colour, shape) in zip(families.values(), _STYLES):
        for point in points:
            _marker(pen, panel.place(getattr(point, field), point.top1), colour, shape, point.counted)
    legend = _legend_box(panel, families)
    for number, (_, (colour, shape)) in enumerate(zip(families, _STYLES)):
        _marker(pen, (legend.left + 20, legend.top + 22 + number * 30), colour, shape, True)


def _write_axes(pen, panel, caption):
    box = panel.box
    for x in _ticks(panel):
        text, (across, _) = f"{x:g}", panel.place(x, panel.y_range[0])
        _write(pen, (across - text_width(text, _TEXT) / 2, box.bottom + 8), text, _TEXT, _GREY)
    for y in range(math.ceil(panel.y_range[0]), math.floor(panel.y_range[1]) + 1, 2):
        _, down = panel.place(panel.x_range[0], y)
        _write(pen, (box.left - 10 - text_width(f"{y}", _TEXT), down - _MIDDLE * _TEXT), f"{y}", _TEXT, _GREY)
    caption += " (logarithmic)"
    _write(pen, ((box.left + box.right - text_width(caption, _TEXT)) / 2, box.bottom + 40), caption, _TEXT, _INK)
    _write(pen, (box.left + 8, box.top - 8), "top-1, %", _TEXT, _INK)


def _write_labels(pen, panel, families, field, loose):
    colours = [style[0] for line, style in zip(families.values(), _STYLES) for _ in line]
    for (place, label, box), colour in zip(places_of_labels(panel, families, field, loose), colours):
        nearest, gap = _nearest(box, place), _gap(box, place)
        if gap > 2 * _RADIUS:
            edge = [a + (b - a) * 1.3 * _RADIUS / gap for a, b in zip(place, nearest)]
            pen.line([*edge, *nearest], fill=colour, width=1)
        _write(pen, (box.left, box.top), label, _LABEL, colour)
    legend = _legend_box(panel, families)
    for number, (name, (colour, _)) in enumerate(zip(families, _STYLES)):
        down = legend.top + 22 + number * 30 - _MIDDLE * _TEXT
        _write(pen, (legend.left + 42, down), name, _TEXT, colour)


def _legend_box(panel, families):
    width = 54 + max(text_width(name, _TEXT) for name in families)
    return Box(panel.box.right - width, panel.box.bottom - 30 * len(families) - 24, panel.box.right - 6,
               panel.box.bottom - 8)  # fmt: skip


def _ticks(panel):
    return [tick for tick in _TICKS if panel.x_range[0] <= tick <= panel.x_range[1]]


def _line(pen, path, colour, width):
    pen.line([(x * _FINE, y * _FINE) for x, y in path], fill=colour, width=round(width * _FINE), joint="curve")


def _marker(pen, place, colour, shape, filled):
    corners, turn = shape
    # Shapes of few corners look smaller than a circle around the same corners.
    radius = _RADIUS * (1.25 if corners == 3 else 1.1 if corners < 6 else 0.9)
    angles = [2 * math.pi * (turn + number / corners) + (math.pi / 4 if corners == 4 and turn else 0)
              for number in range(corners)]  # fmt: skip
    outline = [((place[0] + radius * math.cos(angle)) * _FINE, (place[1] - radius * math.sin(angle)) * _FINE)
               for angle in angles]  # fmt: skip
    pen.polygon(outline, fill=colour if filled else _BACKGROUND)
    pen.line([*outline, outline[0], outline[1]], fill=colour, width=round(2.5 * _FINE), joint="curve")


def _write(pen, place, text, size, colour):
    pen.text(place, text, fill=colour, font=font_of(size))
