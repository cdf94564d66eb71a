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
    assert "4.3 M, 1.1 G     +0.2 %, +5.1 %" in rows[0]
    # Columns line up.
    start = header.index("params")
    assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)


def test_notes_follow_the_table():
    notes = [f"{row.name}: {row.note}" for row in ROWS.values() if row.note]
    assert run("list_models").out.splitlines()[-len(notes) :] == notes
    assert run("list_models", "vit_sw").out.splitlines()[-1] == f"vit_sw: {ROWS['vit_sw'].note}"
    assert "MACs count" in run("list_models", "t2t_vit_10").out.splitlines()[-3]


@pytest.mark.parametrize(("pattern", "names"), [
    ("t2t_vit_t_*", ["t2t_vit_t_14", "t2t_vit_t_19", "t2t_vit_t_24"]),
    ("t2t_vit_7", ["t2t_vit_7"]),
    ("mobilenet*", ["mobilenet_v1", "mobilenet_v2", "mobilenet_v2_140", "mobilenet_v3"]),
])  # fmt: skip
def test_pattern(pattern, names):
    outcome = run("list_models", pattern)
    assert [row.split()[0] for row in outcome.out.partition("\n\n")[0].splitlines()[1:]] == names


def test_mistakes():
    mistake(run("list_models", "vgg*"), "vgg*", "no model has such a name", "t2t_vit_7")
    mistake(run("list_models", "a", "b"), "b", "--help")
