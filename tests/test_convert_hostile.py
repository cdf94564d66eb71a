"""Every file of `hostile_files` through the converter: exit code 2, one line, nothing run or left, little memory."""

import json
import subprocess
import sys

import pytest
from hostile_files import CANARY, hostile_files

CONVERT = """
import contextlib, io, json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import convert
from errors import run_command

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

base = peak()
for path in sorted(map(Path, json.load(sys.stdin)), key=lambda path: path.stat().st_size):
    start, err = time.process_time(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = run_command(convert.main, [str(path), sys.argv[2]])
    print(json.dumps([path.name, code, err.getvalue(), time.process_time() - start, peak() - base,
                      path.stat().st_size / 2**20, "paddle" in sys.modules]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's peak memory from /proc")
def test_every_hostile_file_is_refused(root, tmp_path):
    (tmp_path / "in").mkdir()
    files = hostile_files(tmp_path / "in")
    before = sorted(path.name for path in (tmp_path / "in").iterdir())
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, str(root / "tools"), str(tmp_path / "out" / "w.pdparams")],
        input=json.dumps([str(path) for _, path in files]), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(files) >= 40
    for name, code, err, seconds, memory, megabytes, paddle in lines:
        assert seconds < 10, (name, seconds)
        assert code == 2, (name, code, err)
        assert err.startswith("error: ") and err.count("\n") == 1 and str(tmp_path / "in" / name) in err, (name, err)
        assert memory <= 2 * megabytes + 200, (name, memory)
        assert not paddle, name
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == before and CANARY not in before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    print(f"{len(files)} files; the slowest took {max(line[3] for line in lines):.1f} s")
