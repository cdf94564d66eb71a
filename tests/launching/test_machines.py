"""Supervisors of several machines hear of each other's ends, through the server of Paddle's own launcher."""

import contextlib
import json
import socket
import time
import urllib.request

import pytest
from launching import machines
from launching.machines import Machines
from paddle.distributed.launch.utils.kv_server import KVServer


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def server(port):
    """A started KVServer, to be stopped by `server.stop()` at most once."""
    running = KVServer(port)
    running.start()
    yield running
    if not running.stopped:
        running.stop()


@pytest.fixture
def machine(port, monkeypatch):
    """machine(name) -> Machines that has begun; all are closed at the end."""
    for name, seconds in {"_EVERY": 0.05, "_SILENCE": 1.0, "_REFUSED": 0.5}.items():
        monkeypatch.setattr(machines, name, seconds)
    with contextlib.ExitStack() as stack:

        def start(name):
            monkeypatch.setattr(machines, "_TOKEN", name)
            one = stack.enter_context(contextlib.closing(Machines(f"127.0.0.1:{port}")))
            one.begin()
            return one

        yield start


def heard(one, seconds=10):
    end = time.monotonic() + seconds
    while not one.news and time.monotonic() < end:
        time.sleep(0.02)
    return one.news


def words(port):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/t2t/") as answer:
            return {key[-1]: json.loads(value) for key, value in json.load(answer).items()}
    except urllib.error.HTTPError:
        return {}


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_all_others_hear_why_one_failed(server, machine):
    a, b, c = (machine(name) for name in "abc")
    b.tell("Traceback\nValueError: \x1b[31mboom", mistake=False)
    b.tell("later", mistake=True)
    for one in (a, c):
        assert heard(one).text == "Traceback\nValueError: [31mboom"
        assert one.news.restart and not one.news.mistake
    assert not b.news


def test_a_mistake_is_told_as_one(server, machine):
    a, b = machine("a"), machine("b")
    a.tell("error: x", mistake=True, restart=False)
    assert heard(b).mistake and not b.news.restart


def test_what_is_heard_is_not_told_back(server, port, machine):
    a, b = machine("a"), machine("b")
    a.tell("first")
    assert heard(b).text == "first"
    b.tell("an echo of it")
    assert "text" not in words(port)["b"]


def test_machines_that_live_or_have_done_their_part_are_no_news(server, port, machine):
    a, b, c = (machine(name) for name in "abc")
    wait_for(lambda: set(words(port)) == {"a", "b", "c"})
    c.close()
    assert set(words(port)) == {"a", "b"}
    assert not heard(a, 2.0) and not b.news
    # Ended for the others' sake: they know more of it.
    b.tell(None)
    assert not heard(a, 1.5)


def test_a_machine_that_falls_silent_has_gone(server, port, machine):
    a, b = machine("a"), machine("b")
    wait_for(lambda: words(port).get("b", {}).get("beats", 0) > 2 and set(words(port)) == {"a", "b"})
    b._closed.set()
    assert heard(a).text == f"launch: machine {socket.gethostname()} has gone" and a.news.restart


def test_the_first_machine_that_has_gone(server, port, machine):
    one = machine("a")
    wait_for(lambda: "a" in words(port))
    server.stop()
    assert heard(one).text == f"launch: the launcher of the first machine, 127.0.0.1:{port}, has gone"


def test_the_first_machine_may_come_late(port, machine):
    one = machine("a")
    assert not heard(one, 1.5)
    server = KVServer(port)
    server.start()
    wait_for(lambda: "a" in words(port))
    assert not one.news
    one.close()
    server.stop()


STRANGERS = ("", "[]", "{", '"text"', '{"text": 1}', '{"beats": []}', '{"beats": 1}', "null")


def test_words_of_strangers_do_no_harm(server, port, machine):
    one, other = machine("a"), machine("b")
    for value in STRANGERS:
        with server.kv_lock:
            server.kv["/t2t/stranger"] = value.encode()
        assert not heard(one, 0.3)
    with server.kv_lock:
        del server.kv["/t2t/stranger"]
    other.tell("failed")
    assert heard(one).text == "failed"


def test_a_new_start_waits_for_the_first_machine_to_end_the_old_one(server, port, machine):
    old = machine("a")
    old.tell("failed")
    old.close()
    again = Machines(f"127.0.0.1:{port}")
    assert again.still_ending()
    server.stop()
    assert not again.still_ending()
    fresh = KVServer(port)
    fresh.start()
    assert not again.still_ending()
    fresh.stop()


def test_a_single_machine_has_nobody_to_talk_to():
    one = Machines(None)
    one.begin()
    assert not one.still_ending()
    one.tell("failed")
    one.close()
    assert one.news is None
