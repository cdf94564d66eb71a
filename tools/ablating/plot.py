"""Plot of an ablation, drawn with Pillow alone: a line for each network, a dot for each run, the mean its span."""

import math

from PIL import Image, ImageDraw, ImageFont

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT, _BOTTOM = 1000, 64, 64, 330, 40, 60
_INK, _GREY, _DOT, _MEAN = (30, 30, 30), (214, 214, 214), (120, 160, 210), (190, 40, 40)


def draw(results, title):
    """PIL RGB. results: list of ablating.report.Result; the axis is top-1 in percent."""
    image = Image.new("RGB", (_WIDTH, _TOP + _ROW * len(results) + _BOTTOM), "white")
    canvas, font = ImageDraw.Draw(image), _font(16)
    low, high, step = axis([100 * value for item in results for value in item.top1.values()])
    bottom = _TOP + _ROW * len(results)

    def across(percent):
        return round(_LEFT + (percent - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT))

    canvas.text((20, 16), title, _INK, _font(18))
    for number in range(round((high - low) / step) + 1):
        tick = low + number * step
        canvas.line([across(tick), _TOP, across(tick), bottom], _GREY)
        _centred(canvas, (across(tick), bottom + 6), f"{tick:g}", font)
    _centred(canvas, ((_LEFT + _WIDTH - _RIGHT) // 2, bottom + 30), "top-1 (%): each run, mean and deviation", font)
    for number, item in enumerate(results):
        middle = _TOP + _ROW * number + _ROW // 2
        canvas.text((20, middle - 20), item.network, _INK, font)
        canvas.text((20, middle + 2), item.title, (110, 110, 110), _font(14))
        mean, deviation = 100 * item.mean, 100 * item.deviation
        if not math.isnan(deviation):
            # The axis need not hold the ends of the span.
            ends = [across(min(max(mean + sign * deviation, low), high)) for sign in (-1, 1)]
            canvas.line([ends[0], middle, ends[1], middle], _MEAN, 2)
        canvas.line([across(mean), middle - 14, across(mean), middle + 14], _MEAN, 3)
        for value in item.top1.values():
            place = across(100 * value)
            canvas.ellipse([place - 6, middle - 6, place + 6, middle + 6], _DOT, _INK)
    return image


def axis(values):
    """(low, high, step) around `values` in percent: at most ten steps of 1, 2, 5, 10 or 20, within 0 to 100."""
    for step in (1, 2, 5, 10, 20):
        low = max(step * math.floor((min(values) - 0.5) / step), 0)
        high = min(step * math.ceil((max(values) + 0.5) / step), 100)
        if (high - low) / step <= 10:
            return low, high, step
    raise ValueError(f"values={values}: must be between 0 and 100")


def _centred(canvas, place, text, font):
    left, _, right, _ = canvas.textbbox((0, 0), text, font)
    canvas.text((place[0] - (right - left) / 2, place[1]), text, _INK, font)


def _font(size):
    try:
        return ImageFont.load_default(size)
    except TypeError:
        # Before Pillow 10.1 there is one size.
        return ImageFont.load_default()
