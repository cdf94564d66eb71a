"""Drawing with Pillow alone: text, colours, enlarged maps, and a sheet of labelled rows of panels."""

from functools import cache
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image, ImageDraw, ImageFont

BACKGROUND, INK, GREY = (255, 255, 255), (20, 20, 20), (110, 110, 110)
GREEN, RED, BLUE, ORANGE = (0, 150, 60), (215, 30, 30), (40, 90, 220), (240, 140, 0)

_MARGIN, _GAP, _FRAME = 16, 8, 4
_TEXT, _SMALL = 15, 13
# From nothing to most, dark to light, so that it reads without colours too.
_HEAT = np.array([(0, 0, 30), (75, 15, 110), (185, 50, 90), (245, 140, 20), (255, 250, 170)], dtype=np.float64)


class Panel(NamedTuple):
    """A picture of a row. image: PIL RGB; caption: text below, wrapped; frame: a colour around it, or None."""

    image: Image.Image
    caption: str = ""
    frame: Optional[tuple] = None


class Row(NamedTuple):
    """A row of the sheet: text on its left, in lines, and panels."""

    label: str
    panels: list


class Key(NamedTuple):
    """A line of the legend: a frame's colour and what it means."""

    colour: tuple
    text: str


def sheet(title, notes, keys, rows):
    """PIL RGB of a sheet: a title, lines of text, a legend (list of Key), and rows (list of Row) below one another."""
    labels = max((text_width(line, _SMALL) for row in rows for line in row.label.splitlines()), default=0)
    left = _MARGIN + labels + (_GAP if labels else 0)
    width = left + max(sum(_outer(panel)[0] + _GAP for panel in row.panels) for row in rows) - _GAP + _MARGIN
    width = max(width, 640)
    head = [(line, _TEXT, None) for line in wrap(title, width - 2 * _MARGIN, _TEXT)]
    head += [(line, _SMALL, None) for note in notes for line in wrap(note, width - 2 * _MARGIN, _SMALL)]
    for key in keys:
        lines = wrap(key.text, width - 2 * _MARGIN - 24, _SMALL)
        head += [(line, _SMALL, key.colour if number == 0 else BACKGROUND) for number, line in enumerate(lines)]
    heights = [_row_height(row) for row in rows]
    top = _MARGIN + sum(_line(size) for _, size, _ in head) + _GAP
    canvas = Image.new("RGB", (width, top + sum(heights) + _GAP * (len(rows) - 1) + _MARGIN), BACKGROUND)
    _write_head(ImageDraw.Draw(canvas), head)
    for row, height in zip(rows, heights):
        _put_row(canvas, row, left, top)
        top += height + _GAP
    return canvas


def wrap(text, width, size):
    """Text in lines of at most `width` pixels at this size; a word that is too long is cut."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
            while text_width(lines[-1], size) > width and len(word) > 1:
                word = word[:-1]
                lines[-1] = f"{word}..."
    return [line for line in lines if line]


def text_width(text, size):
    """Pixels that a line of text takes at this size."""
    # Of all ways to measure, the one that every Pillow since 9.1 has for both kinds of fonts.
    return font_of(size).getmask(_plain(text)).size[0] + 2 if text else 0


@cache
def font_of(size):
    """Pillow's own font, since no font file is there on every machine. It has ASCII letters."""
    try:
        return ImageFont.load_default(size)
    except TypeError:
        # Before Pillow 10.1 there is one size, 11 pixels.
        return ImageFont.load_default()


def grey_map(values, side, span):
    """One map float [h, w] as PIL RGB side x side, its smallest value black and `span` above it white."""
    scaled = (values - values.min()) / span if span > 0 else np.zeros_like(values)
    image = Image.fromarray(np.uint8(np.clip(scaled, 0, 1) * 255 + 0.5))
    # Cells of a map stay visible as long as they can be of one size.
    even = side % max(values.shape) == 0 or side >= 4 * max(values.shape)
    return image.resize((side, side), Image.Resampling.NEAREST if even else Image.Resampling.BILINEAR).convert("RGB")


def heat(values):
    """Colours uint8 [..., 3] of values in 0..1."""
    place = np.clip(values, 0, 1) * (len(_HEAT) - 1)
    return np.uint8(np.stack([np.interp(place, range(len(_HEAT)), channel) for channel in _HEAT.T], axis=-1) + 0.5)


def overlay(pixels, values, side, smallest=7):
    """Map float [h, w], not negative, in colours over the grey image uint8 [S, S, 3]: PIL RGB side x side.

    The largest value has the lightest colour. Cells of maps below `smallest` are drawn as they are, since there is
    hardly anything to smooth between.
    """
    grey = Image.fromarray(pixels).convert("L").resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
    scaled = Image.fromarray((values / max(values.max(), 1e-30)).astype(np.float32))
    way = Image.Resampling.BICUBIC if len(values) >= smallest else Image.Resampling.NEAREST
    colours = Image.fromarray(heat(np.asarray(scaled.resize((side, side), way))))
    return Image.blend(grey, colours, 0.6)


def enlarge(pixels, side):
    """Image uint8 [S, S, 3] as PIL RGB side x side."""
    way = Image.Resampling.NEAREST if side >= 4 * len(pixels) else Image.Resampling.BICUBIC
    return Image.fromarray(pixels).resize((side, side), way)


def _put_row(canvas, row, left, top):
    draw = ImageDraw.Draw(canvas)
    for number, line in enumerate(row.label.splitlines()):
        _text(draw, (_MARGIN, top + number * _line(_SMALL)), line, _SMALL, INK if number == 0 else GREY)
    for panel in row.panels:
        width, _ = _outer(panel)
        if panel.frame:
            draw.rectangle([left, top, left + width - 1, top + panel.image.height + 2 * _FRAME - 1], fill=panel.frame)
        canvas.paste(panel.image, (left + _FRAME, top + _FRAME))
        below = top + panel.image.height + 2 * _FRAME
        for number, line in enumerate(_captions(panel)):
            _text(draw, (left + _FRAME, below + number * _line(_SMALL)), line, _SMALL, INK)
        left += width + _GAP


def _write_head(draw, head):
    top = _MARGIN
    for line, size, colour in head:
        if colour:
            draw.rectangle([_MARGIN, top + 2, _MARGIN + 13, top + 13], outline=colour, width=3)
        _text(draw, (_MARGIN + (24 if colour else 0), top), line, size, INK)
        top += _line(size)


def _row_height(row):
    return max(
        [len(row.label.splitlines()) * _line(_SMALL)]
        + [_outer(panel)[1] + len(_captions(panel)) * _line(_SMALL) for panel in row.panels]
    )


def _outer(panel):
    """(width, height) of a panel with room for its frame, without caption."""
    return panel.image.width + 2 * _FRAME, panel.image.height + 2 * _FRAME


def _captions(panel):
    return wrap(panel.caption, panel.image.width, _SMALL)


def _text(draw, place, text, size, colour):
    draw.text(place, _plain(text), fill=colour, font=font_of(size))


def _line(size):
    return size + 5


def _plain(text):
    # Pillow's own font has no other letters, and no font file is there on every machine. Names stay different.
    return text.encode("ascii", "backslashreplace").decode()
