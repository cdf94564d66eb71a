"""Means, deviations and differences of an ablation, as text and as a plot."""

import csv
import io
import math

import numpy as np
import pytest
from ablating.plot import axis, draw
from ablating.report import Result, comma_separated, compared, difference, markdown


def results(seeds=3):
    with_t2t = dict(zip(range(42, 42 + seeds), (0.9, 0.92, 0.97)))
    without = dict(zip(range(42, 42 + seeds), (0.5, 0.6, 0.55)))
    return [Result("plain", "no T2T", 1000, 2_000_000, without, "Plain-14", 79.5),
            Result("t2t", "T2T", 1020, 2_500_000, with_t2t, "T2T-14", 81.5)]  # fmt: skip


def test_mean_deviation_and_difference():
    plain, t2t = results()
    assert t2t.mean == pytest.approx(0.93) and t2t.deviation == pytest.approx(np.std([0.9, 0.92, 0.97], ddof=1))
    points, error = difference(t2t, plain)
    assert points == pytest.approx(38.0)
    assert error == pytest.approx(100 * math.sqrt((t2t.deviation**2 + plain.deviation**2) / 3))


def test_markdown_holds_every_run_and_the_pairs():
    text = markdown(results(), [("t2t", "plain")], ["made up"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[0][4:9] == ["seed 42", "seed 43", "seed 44", "mean", "deviation"]
    assert rows[2] == ["plain", "no T2T", "1,000", "2.0 M", "50.00", "60.00", "55.00", "55.00", "5.00", "Plain-14",
                       "79.5"]  # fmt: skip
    assert rows[3][4:9] == ["90.00", "92.00", "97.00", "93.00", "3.61"]
    assert "- made up\n" in text
    assert text.splitlines()[-1] == ("- t2t against plain: +38.00 points (standard error 3.56), parameters +2.0 %; the "
                                     "paper: +2.0 (T2T-14 against Plain-14)")  # fmt: skip


def test_csv_has_a_line_for_each_run():
    rows = list(csv.DictReader(io.StringIO(comma_separated(results()))))
    seeds = ["42", "43", "44"]
    assert [(row["network"], row["seed"]) for row in rows] == [(name, s) for name in ("plain", "t2t") for s in seeds]
    assert [float(row["top1"]) for row in rows] == [0.5, 0.6, 0.55, 0.9, 0.92, 0.97]
    assert (rows[5]["mean"], rows[5]["deviation"], rows[5]["parameters"]) == ("0.930000", "0.036056", "1020")


def test_one_seed_has_no_deviation():
    (line,) = compared(results(1), [("t2t", "plain")])
    assert "+40.00 points (standard error )" not in line and "one seed" in line
    assert math.isnan(results(1)[0].deviation)
    assert "nan" not in markdown(results(1), [], []) + comma_separated(results(1))


def test_the_plot_shows_every_run_the_mean_and_its_span():
    plain, t2t = results()
    picture = np.asarray(draw([plain, t2t], "A title"))
    dots = (picture == (120, 160, 210)).all(axis=2)
    means = (picture == (190, 40, 40)).all(axis=2)
    for row in (0, 1):
        band = slice(64 + 64 * row, 128 + 64 * row)
        columns = np.flatnonzero(dots[band].any(axis=0))
        # Three dots: three groups of columns.
        assert 1 + (np.diff(columns) > 1).sum() == 3
        assert means[band].any()
    # The second network lies to the right of the first.
    assert np.flatnonzero(dots[128:192].any(axis=0)).min() > np.flatnonzero(dots[64:128].any(axis=0)).max()
    single = np.asarray(draw(results(1), "A title"))
    assert single.shape == picture.shape


@pytest.mark.parametrize(("values", "expected"), [
    ([93.2, 95.1], (92, 96, 1)), ([99.9], (99, 100, 1)), ([0.0, 100.0], (0, 100, 10)), ([10.0, 55.0], (5, 60, 10)),
    ([50.0, 97.0], (45, 100, 10)),
])  # fmt: skip
def test_axis(values, expected):
    assert axis(values)[2] == expected[2]
    low, high, step = axis(values)
    assert low <= min(values) and max(values) <= high and (high - low) / step <= 10
