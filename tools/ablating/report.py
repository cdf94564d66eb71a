"""The result of an ablation: means and deviations, as Markdown and CSV."""

import csv
import io
import math
import statistics
from typing import NamedTuple


class Result(NamedTuple):
    """A network's accuracies. title, published, published_name: for tables; published in percent, of the counterpart.

    params: with this number of classes at this size; macs of one image. top1: dict seed -> accuracy in [0, 1].
    """

    network: str
    title: str
    params: int
    macs: int
    top1: dict
    published_name: str
    published: float

    @property
    def mean(self):
        return statistics.fmean(self.top1.values())

    @property
    def deviation(self):
        """Sample standard deviation over the seeds; nan for a single one."""
        return statistics.stdev(self.top1.values()) if len(self.top1) > 1 else math.nan


def difference(result, other):
    """(mean of `result` less that of `other`, its standard error), in points of percent; the error nan for one seed."""
    error = math.sqrt(sum(item.deviation**2 / len(item.top1) for item in (result, other)))
    return 100 * (result.mean - other.mean), 100 * error


def markdown(results, pairs, facts):
    """The report as text. results: list of Result; pairs: (network, the one compared with); facts: lines about it."""
    seeds = list(results[0].top1)
    header = ("network", "T2T module, blocks", "parameters", "MACs", *(f"seed {seed}" for seed in seeds), "mean",
              "deviation", "the paper's counterpart", "its top-1")  # fmt: skip
    rows = [
        (item.network, item.title, f"{item.params:,}", f"{item.macs / 1e6:.1f} M",
         *(f"{100 * item.top1[seed]:.2f}" for seed in seeds), f"{100 * item.mean:.2f}", _number(100 * item.deviation),
         item.published_name, f"{item.published}")
        for item in results
    ]  # fmt: skip
    table = [header, ("---",) * len(header), *rows]
    lines = ["# Ablation in small", "", *(f"- {fact}" for fact in facts), "",
             "Top-1 in percent after the last epoch; deviation: the sample standard deviation over the seeds.", "",
             *("| " + " | ".join(row) + " |" for row in table), ""]  # fmt: skip
    return "\n".join([*lines, *(f"- {line}" for line in compared(results, pairs))]) + "\n"


def compared(results, pairs):
    """A line for each pair: difference of the means, its standard error and the paper's difference."""
    named = {item.network: item for item in results}
    for one, other in pairs:
        own, error = difference(named[one], named[other])
        spread = "one seed" if math.isnan(error) else f"standard error {error:.2f}"
        published = named[one].published - named[other].published
        params = 100 * (named[one].params / named[other].params - 1)
        yield (f"{one} against {other}: {own:+.2f} points ({spread}), parameters {params:+.1f} "
               f"%; the paper: {published:+.1f} ({named[one].published_name} against {named[other].published_name})")


def comma_separated(results):
    """The results as CSV, a line for each run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("network", "seed", "top1", "parameters", "macs", "mean", "deviation"))
    for item in results:
        for seed, value in item.top1.items():
            writer.writerow((item.network, seed, f"{value:.6f}", item.params, item.macs, f"{item.mean:.6f}",
                             _number(item.deviation, 6)))  # fmt: skip
    return text.getvalue()


def _number(value, digits=2):
    return "" if math.isnan(value) else f"{value:.{digits}f}"
