"""The soft splits of a network and what one final token sees, drawn over the image."""

import numpy as np
from PIL import Image, ImageDraw

from pictures import canvas
from pictures.canvas import BLUE, GREY, ORANGE, Key, Panel, Row
from pictures.splits import field, paths, stride_of, tokens_along_all

_SIDE = 310
_THIN = (255, 255, 255)


def tokens(title, pixels, splits, token, mixing):
    """(PIL RGB, list of lines of text) on the splits of a network.

    pixels: uint8 [S, S, 3]; splits: list of splits.Split, not empty; token: (row, column) among the final tokens;
    mixing: whether attention runs between the splits.
    """
    lines = [*split_lines(len(pixels), splits), *token_lines(len(pixels), splits, token)]
    lines.append(
        "Attention between the splits lets each token hear of every pixel besides; this is the splits alone."
        if mixing else "Before the blocks no token knows of other pixels."
    )  # fmt: skip
    keys = [
        Key(ORANGE, "the token's own cell: the pixels it would have if windows did not overlap"),
        Key(BLUE, "all pixels it is made of; in the lower row, the window in the middle"),
        Key(GREY, "this grey: padding outside the image"),
    ]
    everywhere = np.outer(*[paths(len(pixels), splits)] * 2)
    side = tokens_along_all(len(pixels), splits)[-1]
    upper = [
        Panel(_marked(pixels, splits, token), f"{side}x{side} final tokens; row {token[0]}, column {token[1]} marked"),
        _ways_panel(pixels, splits, token),
        Panel(
            canvas.overlay(pixels, everywhere, _SIDE, smallest=len(pixels) + 1),
            f"ways from each pixel to all tokens: {_span(everywhere)}",
        ),
    ]
    lower = [_windows_panel(pixels, splits[:count], token, splits[count:]) for count in range(len(splits), 0, -1)]
    return canvas.sheet(title, lines, keys, [Row("", upper), Row("", lower)]), lines


def split_lines(size, splits):
    """A line for each split: its windows, and how many tokens it makes of an image of `size` pixels."""
    sides = tokens_along_all(size, splits)
    for number, split in enumerate(splits, 1):
        start, stop = field(splits[:number], 0)
        yield (
            f"split {number}: windows of {split.kernel}x{split.kernel} every {split.stride}, padding {split.padding}: "
            f"{sides[number - 1]}x{sides[number - 1]} -> {sides[number]}x{sides[number]} tokens, each of "
            f"{stop - start}x{stop - start} pixels, every {stride_of(splits[:number])}"
        )


def token_lines(size, splits, token):
    """What one token is made of, and in how many ways pixels reach tokens."""
    (top, bottom), (left, right) = (field(splits, place) for place in token)
    stride = stride_of(splits)
    ways, everywhere = paths(size, splits, token[0]), np.outer(*[paths(size, splits)] * 2)
    most = ways.max() * paths(size, splits, token[1]).max()
    yield (
        f"token at row {token[0]}, column {token[1]}: pixels of rows {top} to {bottom - 1} and columns {left} to "
        f"{right - 1} ({bottom - top}x{right - left}; without overlap {stride}x{stride}), each in "
        + (f"up to {most} ways" if most > 1 else "one way")
    )
    yield f"ways from a pixel to the final tokens: {_span(everywhere)}"


def _marked(pixels, splits, token):
    """The image with the cells of the final tokens, one token's cell and all that it sees."""
    image, scale, stride = canvas.enlarge(pixels, _SIDE), _SIDE / len(pixels), stride_of(splits)
    draw = ImageDraw.Draw(image)
    for place in np.arange(0, len(pixels), stride) * scale:
        draw.line([place, 0, place, _SIDE], fill=_THIN)
        draw.line([0, place, _SIDE, place], fill=_THIN)
    _box(draw, [field(splits, place) for place in token], scale, BLUE)
    _box(draw, [(place * stride, (place + 1) * stride) for place in token], scale, ORANGE)
    return image


def _span(ways):
    return f"{ways.min()} (dark) to {ways.max()} (light)" if ways.min() < ways.max() else f"{ways.max()} everywhere"


def _ways_panel(pixels, splits, token):
    """The surroundings of a token with the ways from each pixel to it."""
    fields, stride = [field(splits, place) for place in token], stride_of(splits)
    region = [(start - stride // 2, stop + stride // 2) for start, stop in fields]
    ways = np.outer(*(paths(len(pixels), splits, place) for place in token))
    image, scale = _zoom(pixels, ways, region)
    draw = ImageDraw.Draw(image)
    cell = [(place * stride, (place + 1) * stride) for place in token]
    for box, colour in ((fields, BLUE), (cell, ORANGE)):
        _box(draw, [(a - start, b - start) for (a, b), (start, _) in zip(box, region)], scale, colour)
    return Panel(image, f"ways from each pixel to this token: 0 (dark) to {ways.max()} (light)")


def _windows_panel(pixels, splits, token, later):
    """A token of the last of `splits`: the windows that it is made of, as pixels, and how many hold each pixel."""
    for split in reversed(later):
        # The middle one of the windows of the next split.
        token = [place * split.stride - split.padding + split.kernel // 2 for place in token]
    split, inner = splits[-1], splits[:-1]
    region = [field(splits, place) for place in token]
    members = [range(place * split.stride - split.padding, place * split.stride - split.padding + split.kernel)
               for place in token]  # fmt: skip
    windows = [[field(inner, member) for member in axis] for axis in members]
    counts = [np.zeros(stop - start) for start, stop in region]
    for axis, count, (start, _) in zip(windows, counts, region):
        for first, last in axis:
            count[first - start : last - start] += 1
    held = np.outer(*counts)
    image, scale = _zoom(pixels, held, region, cut=True)
    draw = ImageDraw.Draw(image)
    for rows in windows[0]:
        for columns in windows[1]:
            _box(draw, _moved((rows, columns), region), scale, _THIN, 1)
    middle = [axis[len(axis) // 2] for axis in windows]
    _box(draw, _moved(middle, region), scale, BLUE)
    number, wide = len(splits), region[0][1] - region[0][0]
    if not inner:
        return Panel(image, f"a token of split {number}: {wide}x{wide} pixels, one square each")
    inside = windows[0][0][1] - windows[0][0][0]
    return Panel(
        image,
        f"a token of split {number}: {split.kernel}x{split.kernel} tokens of split {number - 1}, windows of "
        f"{inside}x{inside} pixels every {stride_of(inner)}; {held.min():.0f} (dark) to {held.max():.0f} (light) of "
        "them hold a pixel",
    )


def _moved(box, region):
    return [(start - origin, stop - origin) for (start, stop), (origin, _) in zip(box, region)]


def _zoom(pixels, values, region, cut=False):
    """(picture, scale) of a region ((top, bottom), (left, right)) in whole pixels, `values` in colours over it.

    values: float [S, S], or of the region itself with cut=True. What lies outside the image is grey.
    """
    (top, bottom), (left, right) = region
    size, scale = len(pixels), _SIDE // max(bottom - top, right - left)
    padded = np.full((bottom - top, right - left, 3), GREY, np.uint8)
    rows, columns = (slice(max(start, 0), min(stop, size)) for start, stop in region)
    place = (slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left))
    padded[place] = pixels[rows, columns]
    shown = np.zeros(padded.shape[:2])
    shown[place] = values[place] if cut else values[rows, columns]
    grey = np.asarray(Image.fromarray(padded).convert("L").convert("RGB"), dtype=np.float64)
    colours = canvas.heat(shown / max(shown.max(), 1)).astype(np.float64)
    inside = np.zeros(padded.shape[:2], bool)
    inside[place] = True
    mixed = np.where(inside[..., None], 0.4 * grey + 0.6 * colours, padded)
    image = Image.fromarray(np.uint8(mixed + 0.5))
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST), scale


def _box(draw, box, scale, colour, width=3):
    """Outline ((top, bottom), (left, right)), in pixels of the image before it was enlarged."""
    (top, bottom), (left, right) = box
    draw.rectangle([left * scale, top * scale, right * scale - 1, bottom * scale - 1], outline=colour, width=width)
