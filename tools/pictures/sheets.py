"""Feature maps and attention, drawn on a sheet, and the same figures as lines of text."""

import math

import numpy as np

from pictures import canvas
from pictures.attention import class_attention, rollout_map
from pictures.canvas import GREEN, RED, Key, Panel, Row
from pictures.judging import DEAD, LARGE, LOW_LEVEL, SMALLEST_EDGES, judge

# Cells of 4, 8 and 16 pixels of an image of 224 fill this evenly.
_MAP = 112
_PER_ROW = 6
# The mean and twelve heads; networks with more go on below.
_HEADS_PER_ROW = 13
# Layers of each network where several are compared; the paper's Figure 2 has three.
_DEPTHS = 4
_ALL = "all that were judged"


def features(title, pixels, layers, channels):
    """Feature maps by layer: (PIL RGB, list of lines of text).

    pixels: uint8 [S, S, 3]; layers: dict name -> float32 [C, h, w]; channels: how many of each layer are drawn, evenly
    spread over all. The shares in the text are of all channels.
    """
    rows, lines = _layers(pixels, layers, channels, drawn=layers)
    image = Row("image", [Panel(canvas.enlarge(pixels, 2 * _MAP))])
    return canvas.sheet(title, [_note(channels)], _keys(), [image, *rows]), [*_rule(), *lines]


def comparison(title, networks, channels):
    """Feature maps of several networks below one another, as in Figure 2: (PIL RGB, list of lines of text).

    networks: list of (name, pixels, layers), the last two as for `features`. Of each network _DEPTHS layers are drawn,
    evenly spread from the first to the last; the text has all of them.
    """
    rows, lines = [Row("image", [Panel(canvas.enlarge(networks[0][1], 2 * _MAP))])], _rule()
    for name, pixels, layers in networks:
        names = list(layers)
        more, text = _layers(pixels, layers, channels, drawn=[names[place] for place in _spread(len(names), _DEPTHS)])
        rows += [Row(name, []), *more]
        lines += ["", name, *text]
    notes = [_note(channels), f"Of each network {_DEPTHS} layers, evenly spread from its first to its last."]
    return canvas.sheet(title, notes, _keys(), rows), lines


def _layers(pixels, layers, channels, drawn):
    """(rows of the layers named in `drawn`, lines of text of all of them) for one network."""
    rows, judged = [], []
    width = max(len(name) for name in (*layers, _ALL))
    lines = [f"{'layer':{width}}  {'grid':>9}  channels  low-level    dead  too large"]
    for name, maps in layers.items():
        verdict = judge(maps, pixels)
        judged.append(verdict)
        grid, shares = f"{maps.shape[1]}x{maps.shape[2]}", _shares([verdict])
        lines.append(_line(f"{name:{width}}  {grid:>9}  {len(maps):>8}", shares))
        if name in drawn:
            named = (f"{share} {what}" for share, what in zip(shares, ("low-level", "dead", "too large")))
            label = "\n".join([name, f"{len(maps)} x {grid}", *named])
            rows.append(Row(label, _map_panels(maps, verdict, channels)))
    count = sum(len(maps) for maps in layers.values())
    lines.append(_line(f"{_ALL:{width}}  {'':>9}  {count:>8}", _shares(judged)))
    return rows, lines


def _line(start, shares):
    return f"{start}  {shares[0]:>9}  {shares[1]:>6}  {shares[2]:>9}"


def _shares(verdicts):
    """Of the channels that were judged, the shares that are low-level, dead, too large, as words."""
    return [
        _share([verdict.low_level for verdict in verdicts if verdict.edges_judged]),
        *(_share([getattr(verdict, kind) for verdict in verdicts if verdict.judged]) for kind in ("dead", "large")),
    ]


def _share(flags):
    return f"{100 * np.concatenate(flags).mean():.1f} %" if flags else "-"


def _spread(count, most):
    """At most `most` of the places 0 to count - 1, evenly spread from the first to the last."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(int)


def _note(channels):
    return ("Not attention maps, but features reshaped from the tokens (class token left out), or a convolution's "
            f"maps; up to {channels} channels of each layer, evenly spread. Shares are of all channels of the layer.")


def _keys():
    return [Key(colour, text) for colour, text in zip((GREEN, RED, RED), _rule())]


def _rule():
    return [
        "low-level structure: the image's edges explain its fine structure, multiple correlation at least "
        f"{LOW_LEVEL:g} (judged on {SMALLEST_EDGES}x{SMALLEST_EDGES} cells and more)",
        f"dead: standard deviation at most {DEAD:g} times the layer's median",
        f"too large: largest absolute value above {LARGE:g} times the layer's median",
    ]


def _map_panels(maps, verdict, channels):
    # A dead map stays flat: its faint rest is not blown up to full contrast.
    floor = DEAD * np.median(np.ptp(maps.reshape(len(maps), -1), axis=1))
    panels = []
    for channel in _spread(len(maps), channels):
        values = maps[channel]
        frame = RED if verdict.dead[channel] or verdict.large[channel] else None
        frame = GREEN if verdict.low_level[channel] else frame
        panels.append(Panel(canvas.grey_map(values, _MAP, max(np.ptp(values), floor)), f"{channel}", frame))
    return panels


def attention(title, pixels, blocks, heads):
    """The class token's attention: (PIL RGB, list of lines of text).

    pixels: uint8 [S, S, 3]; blocks: list of [h, N, N], rows sum to 1, not empty; heads: draw each head too.
    """
    lines = ["block  own weight  largest  at row, column"]
    panels, rows = [], []
    for number, weights in enumerate(blocks):
        maps, own = class_attention(weights)
        mean = maps.mean(axis=0)
        row, column = (int(place) for place in np.unravel_index(mean.argmax(), mean.shape))
        lines.append(f"{number:>5}  {own.mean():>10.4f}  {mean.max():>7.4f}  {row}, {column}")
        caption = f"block {number}: own {own.mean():.2f}, max {mean.max():.3f}"
        panels.append(Panel(canvas.overlay(pixels, mean, _MAP if heads else 2 * _MAP), "mean" if heads else caption))
        if heads:
            each = [Panel(canvas.overlay(pixels, one, _MAP), f"head {head}") for head, one in enumerate(maps)]
            label = f"block {number}\nown {own.mean():.2f}\nmax {mean.max():.3f}"
            rows += _rows(label, [panels[-1], *each], _HEADS_PER_ROW)
    flow = rollout_map(blocks)
    row, column = (int(place) for place in np.unravel_index(flow.argmax(), flow.shape))
    lines.append(f"rollout: own weight {1 - flow.sum():.4f}, largest {flow.max():.4f} at row {row}, column {column}")
    first = [
        Panel(canvas.enlarge(pixels, 2 * _MAP), "image"),
        Panel(canvas.overlay(pixels, flow, 2 * _MAP), f"rollout: own {1 - flow.sum():.2f}, max {flow.max():.3f}"),
    ]
    if not heads:
        columns = min(_PER_ROW, max(2, math.ceil(math.sqrt(len(panels)))))
        rows = _rows("", panels, columns)
    notes = [
        "Weights of the class token on the patches, " + ("for each head." if heads else "mean over the heads.")
        + " own: the weight on itself; max: the largest on a patch. Each panel has its own scale: dark is 0, light its "
        "largest value.",
        "Rollout: product over the blocks of 0.5 A + 0.5 I, A the mean over the heads (Abnar and Zuidema, 2020).",
    ]
    return canvas.sheet(title, notes, [], [Row("", first), *rows]), lines


def _rows(label, panels, columns):
    """Rows of at most `columns` panels, the label beside the first."""
    return [Row("" if start else label, panels[start : start + columns]) for start in range(0, len(panels), columns)]
