"""Processes meet, however late one comes, and hear of it when one ends."""

import socket
import threading
import time

import pytest
from engine import meeting
from engine.meeting import Meeting


class Store:
    """Paddle's TCPStore within one process."""

    def __init__(self):
        self.values, self.change = {}, threading.Condition()

    def set(self, key, value):
        with self.change:
            self.values[key] = value.encode()
            self.change.notify_all()

    def wait(self, key):
        with self.change:
            assert self.change.wait_for(lambda: key in self.values, 10)

    def get(self, key):
        return self.values[key]


def together(*calls):
    """Run functions in threads of their own; their results or exceptions."""
    results = [None] * len(calls)

    def run(place, call):
        try:
            results[place] = call()
        except RuntimeError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


@pytest.fixture(params=[2, 4])
def meetings(request):
    store, world = Store(), request.param
    made = together(*(lambda rank=rank: Meeting(store, "127.0.0.1", rank, world) for rank in range(world)))
    yield made
    for one in made:
        one.close()


def test_nobody_goes_on_before_all_are_there(meetings):
    for late in range(len(meetings)):
        events = []

        def come(rank, late=late, events=events):
            if rank == late:
                time.sleep(0.2)
                events.append("came")
            meetings[rank]()
            events.append("went on")

        together(*(lambda rank=rank: come(rank) for rank in range(len(meetings))))
        assert events == ["came", *["went on"] * len(meetings)]


def test_many_meetings(meetings):
    counts = [0] * len(meetings)

    def come(rank):
        for _ in range(200):
            meetings[rank]()
            counts[rank] += 1
            assert max(counts) - min(counts) <= 1

    together(*(lambda rank=rank: come(rank) for rank in range(len(meetings))))
    assert counts == [200] * len(meetings)


@pytest.mark.parametrize("ending", [0, 1])
def test_all_hear_that_one_has_ended(meetings, ending, monkeypatch):
    monkeypatch.setattr("engine.meeting._PATIENCE", 0.1)

    def end():
        time.sleep(0.2)
        meetings[ending].close()

    def come(rank):
        try:
            meetings[rank]()
        finally:
            # As the end of the process does.
            meetings[rank].close()

    calls = [lambda rank=rank: end() if rank == ending else come(rank) for rank in range(len(meetings))]
    heard = together(*calls)
    for rank, result in enumerate(heard):
        if rank != ending:
            known = ending if rank == 0 else 0
            assert isinstance(result, RuntimeError) and str(result) == f"process {known} has ended; its log tells why"


def test_strangers_are_shown_out():
    store = Store()

    def stranger():
        store.wait("t2t/meeting")
        port = int(store.get("t2t/meeting").split()[0])
        for text in (b"", b"x", b"x" * 40):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(text)
        return Meeting(store, "127.0.0.1", 1, 2)

    first, second = together(lambda: Meeting(store, "127.0.0.1", 0, 2), stranger)
    assert together(first, second) == [None, None]
    first.close()
    second.close()


def test_one_that_does_not_come_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(meeting, "_JOINING", 0.5)
    store = Store()
    first, second = together(lambda: Meeting(store, "127.0.0.1", 0, 4), lambda: Meeting(store, "127.0.0.1", 2, 4))
    assert str(first).startswith("of 4 processes, 1, 3 did not come within 0.5 s; their logs")
    second.close()
