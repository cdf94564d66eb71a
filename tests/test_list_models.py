"""The table of networks."""

import pytest
from commands import mistake, run
from models import ROWS


def test_all_networks_with_their_figures():
    outcome = run("list_models")
    assert outcome.code == 0 and outcome.err == ""
    header, *rows = outcome.out.partition("\n\n")[0].splitlines()
    assert header.split()[0] == "name" and [row.split()[0] for row in rows] == list(ROWS)
    for row, entry in zip(rows, ROWS.values()):
        for cell in (f"{entry.params:,}", f"{entry.trainable:,}", f"{entry.macs:.3f} G", str(entry.top1), entry.source):
            assert cell in row, (entry.name, cell)
    assert "4,310,222" in rows[0] and "4,255,694" in rows[0]
    # Columns line up.
    start = header.index("params")
    assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)


@pytest.mark.parametrize(("pattern", "names"), [
    ("t2t_vit_t_*", ["t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"]),
    ("t2t_vit_7", ["t2t_vit_7"]),
])  # fmt: skip
def test_pattern(pattern, names):
    outcome = run("list_models", pattern)
    assert [row.split()[0] for row in outcome.out.partition("\n\n")[0].splitlines()[1:]] == names


def test_mistakes():
    mistake(run("list_models", "resnet*"), "resnet*", "no model has such a name", "t2t_vit_7")
    mistake(run("list_models", "a", "b"), "b", "--help")
