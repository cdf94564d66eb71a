"""Lines on the console and in files, curves, and a bar that only terminals get."""

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest
from engine.runlog import RunLog, clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screen(text):
    """What a terminal shows of `text`, line by line."""
    lines = []
    for raw in text.split("\n"):
        shown = ""
        for part in raw.split("\r"):
            shown = part + shown[len(part):]
        lines.append(shown.rstrip())
    return lines


def scalars(folder):
    """{tag: [(step, value)]} of all VisualDL files in a folder, as VisualDL itself reads them."""
    from visualdl import LogReader

    (file,) = os.listdir(folder)
    reader = LogReader(file_path=os.path.join(folder, file))
    tags = reader.get_tags()["scalar"]
    return {tag.replace("%2F", "/"): [(r.id, r.value) for r in reader.get_data("scalar", tag)] for tag in tags}


def test_clock():
    assert [clock(s) for s in (0, 59.6, 61, 3599.4, 3600, 90061)] == [
        "0:00:00", "0:01:00", "0:01:01", "0:59:59", "1:00:00", "25:01:01"
    ]  # fmt: skip


def test_a_line_goes_to_the_console_and_the_file(tmp_path):
    stream = io.StringIO()
    log = RunLog(tmp_path, stream=stream)
    log.line("first")
    log.line("zwölf")
    # Before close(): a killed run keeps its lines.
    assert stream.getvalue() == (tmp_path / "train.log").read_text("utf-8") == "first\nzwölf\n"
    log.close()


def test_metrics_are_one_object_per_line(tmp_path):
    log = RunLog(tmp_path, stream=io.StringIO())
    log.metrics(kind="train", epoch=1, loss=1.5)
    log.metrics(kind="val", epoch=1, top1=0.25)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"kind": "train", "epoch": 1, "loss": 1.5}, {"kind": "val", "epoch": 1, "top1": 0.25}
    ]  # fmt: skip
    log.close()


def test_files_are_appended_to_and_curves_go_on_in_one_file(tmp_path, capsys, monkeypatch):
    now = time.time()
    for part in range(2):
        # VisualDL names its files by the second unless told otherwise.
        monkeypatch.setattr(time, "time", lambda part=part: now + 60 * part)
        log = RunLog(tmp_path)
        log.line(f"part {part}")
        log.metrics(part=part)
        for step in range(3 * part + 1, 3 * part + 4):
            log.curves(step, train_loss=step / 2, train_step_time=0.25)
        log.curves(part + 1, val_acc=0.5 + part / 4)
        log.close()
    assert capsys.readouterr().out == "part 0\npart 1\n"
    assert (tmp_path / "train.log").read_text() == "part 0\npart 1\n"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    found = scalars(tmp_path / "vdl")
    assert set(found) == {"train/loss", "train/step_time", "val/acc"}
    assert found["train/loss"] == [(step, step / 2) for step in range(1, 7)]
    assert found["val/acc"] == [(1, 0.5), (2, 0.75)]


def test_files_are_cut_back_to_their_positions(tmp_path):
    log = RunLog(tmp_path, stream=io.StringIO(), positions={})
    log.line("äöü")
    log.metrics(step=1)
    log.curves(1, train_loss=0.5)
    kept = log.positions()
    assert kept == {name: (tmp_path / name).stat().st_size for name in kept} and len(kept) == 3
    log.line("lost")
    log.metrics(step=2)
    log.curves(2, train_loss=0.25)
    log.close()
    log = RunLog(tmp_path, stream=io.StringIO(), positions=kept)
    log.line("more")
    log.metrics(step=2)
    log.curves(2, train_loss=0.125)
    log.close()
    assert (tmp_path / "train.log").read_text("utf-8") == "äöü\nmore\n"
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    assert scalars(tmp_path / "vdl")["train/loss"] == [(1, 0.5), (2, 0.125)]
    # A shorter file, say after a power failure, is not filled up.
    RunLog(tmp_path, stream=io.StringIO(), positions=dict.fromkeys(kept, 10**6)).close()
    assert re.match("äöü\nmore\n.*shorter than when.*\n$", (tmp_path / "train.log").read_text("utf-8"))
    RunLog(tmp_path, stream=io.StringIO(), positions={}).close()
    assert (tmp_path / "train.log").stat().st_size == (tmp_path / "metrics.jsonl").stat().st_size == 0


def test_what_was_removed_from_a_file_is_told(tmp_path, capsys):
    log = RunLog(tmp_path, positions={})
    log.line("one")
    log.metrics(number=1)
    positions = log.positions()
    log.close()
    (tmp_path / "metrics.jsonl").unlink()
    RunLog(tmp_path, positions=positions).close()
    assert "\nmetrics.jsonl: shorter than when the state was saved;" in capsys.readouterr().out
    RunLog(tmp_path, positions={**positions, "metrics.jsonl": 0}).close()
    assert "shorter" not in capsys.readouterr().out


def test_values_that_are_not_finite_break_neither_file(tmp_path):
    log = RunLog(tmp_path, stream=io.StringIO())
    for step, value in enumerate([1.0, float("nan"), float("inf"), 2.0], 1):
        log.metrics(step=step, loss=value)
        log.curves(step, val_loss=value)
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines] == [1.0, None, None, 2.0]
    assert scalars(tmp_path / "vdl")["val/loss"] == [(1, 1.0), (4, 2.0)]


def test_positions_are_those_of_the_disk(tmp_path, monkeypatch):
    log, synced = RunLog(tmp_path, stream=io.StringIO()), []
    monkeypatch.setattr(os, "fsync", synced.append)
    log.positions()
    log.close()
    assert len(set(synced)) == 3


def test_a_silent_log_has_no_positions(tmp_path):
    assert RunLog(tmp_path, enabled=False).positions() == RunLog().positions() == {}


# ---------------------------------------------------------------- the bar


def test_the_bar_on_a_terminal(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("engine.runlog.time.monotonic", lambda: now[0])
    stream = Terminal()
    log = RunLog(stream=stream)
    log.progress("step 1/2", 0.5)
    assert screen(stream.getvalue()) == ["[" + "#" * 15 + "." * 15 + "] step 1/2"]
    # Not more than ten times a second.
    now[0] += 0.05
    log.progress("step 2/2", 1.0)
    assert "2/2" not in stream.getvalue()
    now[0] += 0.06
    log.progress("end", 1.0)
    assert screen(stream.getvalue()) == ["[" + "#" * 30 + "] end"], "nothing is left of the longer bar"
    log.line("a line")
    assert screen(stream.getvalue()) == ["a line", ""]
    now[0] += 1
    log.progress("more", 0.0)
    log.close()
    assert screen(stream.getvalue()) == ["a line", ""]


def test_no_bar_where_the_output_is_not_a_terminal(tmp_path):
    stream = io.StringIO()
    log = RunLog(tmp_path, stream=stream)
    log.progress("step 1/2", 0.5)
    log.line("a line")
    log.progress("step 2/2", 1.0)
    log.close()
    assert stream.getvalue() == "a line\n" == (tmp_path / "train.log").read_text()


def test_the_bar_never_reaches_the_file(tmp_path):
    log = RunLog(tmp_path, stream=Terminal())
    log.progress("step 1/2", 0.5)
    log.line("a line")
    log.close()
    assert (tmp_path / "train.log").read_text() == "a line\n"


# ---------------------------------------------------------------- silence


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_disabled_log_is_silent(tmp_path, stream):
    stream = stream()
    log = RunLog(tmp_path, enabled=False, stream=stream)
    log.line("text")
    log.metrics(a=1)
    log.curves(1, train_loss=1.0)
    log.progress("bar", 0.5)
    log.close()
    assert stream.getvalue() == "" and list(tmp_path.iterdir()) == []


def test_without_a_folder_there_are_lines_only(capsys):
    log = RunLog()
    log.metrics(a=1)
    log.curves(1, train_loss=1.0)
    log.line("text")
    log.close()
    assert capsys.readouterr() == ("text\n", "")


def test_without_a_folder_visualdl_is_not_imported(root):
    # It takes seconds that val and predict need not wait.
    code = f"import sys; sys.path.insert(0, {str(root / 'tools')!r}); from engine.runlog import RunLog; RunLog(); " \
           "sys.exit('visualdl' in sys.modules)"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
