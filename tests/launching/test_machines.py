"""Supervisors of several machines hear of each other's ends, through files in the run folder that they share."""

import contextlib
import json
import os
import socket
import time

import pytest
from launching import machines
from launching.machines import Machines


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(job="j") -> Machines that has begun; all are closed at the end."""
    for name, value in {"_EVERY": 0.03, "_PATIENCE": 15}.items():
        monkeypatch.setattr(machines, name, value)
    with contextlib.ExitStack() as stack:

        def start(job="j"):
            one = stack.enter_context(contextlib.closing(Machines(tmp_path / "launch" / "machines")))
            one.begin(job)
            return one

        yield start


def heard(one, seconds=10.0):
    end = time.monotonic() + seconds
    while not one.news and time.monotonic() < end:
        time.sleep(0.01)
    return one.news


def words(one):
    return json.loads(one._file.read_text())


def wait_until_all_know(*some):
    end = time.monotonic() + 10
    while any(len(one._silent) < len(some) - 1 for one in some):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_others_hear_why_one_failed(machine):
    a, b, c = (machine() for _ in "abc")
    b.tell("Traceback\nValueError: \x1b[31mboom" + "x" * 100_000)
    b.tell("later", mistake=True)
    for one in (a, c):
        assert heard(one).text.startswith("Traceback\nValueError: [31mboomx")
        assert one.news.restart and not one.news.mistake
    assert not b.news


def test_a_mistake_is_told_as_one(machine):
    a, b = machine(), machine()
    a.tell("error: x", mistake=True, restart=False)
    assert heard(b).mistake and not b.news.restart


def test_one_that_comes_late_hears_it_too(machine):
    a = machine()
    a.tell("failed")
    a.close()
    late = machine()
    late.listen()
    assert late.news.text == "failed"


def test_what_is_heard_is_not_told_back(machine):
    a, b = machine(), machine()
    a.tell("first")
    assert heard(b).text == "first"
    b.tell("an echo of it")
    assert "text" not in words(b)


def test_machines_that_live_or_have_done_their_part_are_no_news(machine):
    a, b, c = (machine() for _ in "abc")
    wait_until_all_know(a, b, c)
    b.close()
    c.leave_nothing()
    assert words(b)["over"] and not c._file.exists()
    assert not heard(a, 1.5)
    assert not a.others_left()


@pytest.mark.parametrize("other", ["k", "", "J"])
def test_other_jobs_are_not_heard(machine, other):
    a, b = machine("j"), machine(other)
    b.tell("failed")
    b._closed.set()
    assert not heard(a, 1.0) and not a.others_left()


def test_a_machine_that_falls_silent_has_gone(machine):
    a, b = machine(), machine()
    wait_until_all_know(a, b)
    for _ in range(40):
        # Asking more often is no longer silence.
        a.listen()
    assert a.others_left() and not a.news
    b._closed.set()
    assert heard(a).text == f"launch: machine {socket.gethostname()} has gone" and a.news.restart
    assert not a.others_left()


def test_a_disk_that_does_not_answer_is_no_silence(machine, monkeypatch):
    a, b = machine(), machine()
    wait_until_all_know(a, b)

    def fail(*_, **__):
        raise OSError

    with monkeypatch.context() as broken:
        broken.setattr(Machines, "_others", fail)
        broken.setattr(Machines, "_say", fail)
        assert not heard(a, 1.5)
    assert not heard(a, 1.5) and not b.news
    b.tell("failed")
    assert heard(a).text == "failed"


STRANGERS = ("", "[]", "{", '"text"', "null", "7", "[" * 100_000, '{"job": "j"}', '{"job": "j", "beats": []}')


def test_damaged_words_do_no_harm(machine):
    one, other = machine(), machine()
    stranger = one._folder / "a.json"
    for value in STRANGERS:
        stranger.write_text(value)
        assert not heard(one, 0.2)
    stranger.write_bytes(b"\xff\xfe")
    assert not heard(one, 0.2)
    other.tell("failed")
    assert heard(one).text == "failed"


def test_a_new_start_waits_for_the_others_to_end_the_old_one(machine):
    a, b = machine(), machine()
    wait_until_all_know(a, b)
    a.tell("failed")
    a.close()
    assert a.others_left()
    assert heard(b)
    b.close()
    assert not a.others_left()


def test_nothing_stays_of_a_job_that_ended_well(machine, tmp_path):
    a, b = machine(), machine()
    a.leave_nothing()
    b.leave_nothing()
    assert not list((tmp_path / "launch").iterdir())


def test_old_words_are_removed(machine, tmp_path):
    folder = tmp_path / "launch" / "machines"
    folder.mkdir(parents=True)
    for name, age in (("old", 700), ("new", 100)):
        (folder / f"{name}.json").write_text("{}")
        os.utime(folder / f"{name}.json", (time.time() - age,) * 2)
    machine()
    assert not (folder / "old.json").exists() and (folder / "new.json").exists()


def test_a_single_machine_has_nobody_to_talk_to():
    one = Machines(None)
    one.begin("j")
    one.tell("failed")
    one.listen()
    assert not one.others_left()
    one.close()
    one.leave_nothing()
    assert one.news is None


def test_before_the_processes_are_there_nothing_is_written(tmp_path):
    one = Machines(tmp_path / "machines")
    one.tell("failed")
    one.close()
    assert not (tmp_path / "machines").exists()
