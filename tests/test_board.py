"""scripts/board.sh: VisualDL on the curves of runs, for any browser, and mistakes that end in one line."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from engine.runlog import RunLog


@pytest.fixture
def run(tmp_path):
    """A run folder with a curve of two points."""
    folder = tmp_path / "my run"
    folder.mkdir()
    log = RunLog(folder)
    for step in (1, 2):
        log.curves(step, train_loss=1 / step)
    log.close()
    return folder


def board(root, *words, **variables):
    env = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.Popen(["bash", str(root / "scripts" / "board.sh"), *map(str, words)], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "variables", "part"),
    [
        (["nowhere"], {}, "error: nowhere: no curves here"),
        (["RUN"], {"PORT": "no"}, "error: PORT=no"),
        (["RUN"], {"BOARD_LANG": "fr"}, "error: BOARD_LANG=fr"),
    ],
)
def test_mistakes(root, run, words, variables, part):
    made = board(root, *[run if word == "RUN" else word for word in words], **variables)
    out, err = made.communicate(timeout=60)
    assert (made.returncode, out, err.count("\n")) == (2, "", 1) and err.startswith(part)


def test_help(root):
    made = board(root, "--help")
    out, _ = made.communicate(timeout=60)
    assert made.returncode == 0 and "board.sh [RUN ...]" in out and "PORT=8040" in out


def answer(url):
    """Status and text of a page, asked for as a browser in neither English nor Chinese does."""
    request = urllib.request.Request(url, headers={"Accept-Language": "fr"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return reply.status, reply.read().decode("utf-8", "replace")


def test_curves_are_served_to_any_browser(root, run):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = board(root, run, PORT=str(port))
    try:
        for _ in range(120):
            try:
                status, text = answer(f"http://127.0.0.1:{port}/app/api/runs")
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None, server.communicate()
                time.sleep(0.5)
        assert status == 200 and "my run/vdl" in text
        assert answer(f"http://127.0.0.1:{port}/app")[0] == 200
        _, text = answer(f"http://127.0.0.1:{port}/app/api/scalar/list?run={urllib.request.quote(str(run / 'vdl'))}"
                         "&tag=train%2Floss")  # fmt: skip
        assert "0.5" in text
    finally:
        server.kill()
        server.communicate()
