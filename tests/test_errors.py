"""What a command does when it is interrupted or nobody reads its output."""

import subprocess
import sys

import pytest
from errors import UserError, run_command


def test_interruption_is_one_line(capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    assert run_command(interrupted) == 1
    assert capsys.readouterr().err == "interrupted\n"


def test_defects_keep_their_traceback():
    def defect(argv):
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        run_command(defect)


def test_mistakes_become_one_line(capsys):
    def mistake(argv):
        raise UserError("a thing\nover two lines")

    assert run_command(mistake) == 2
    assert capsys.readouterr().err == "error: a thing over two lines\n"


@pytest.mark.parametrize("lines", [1, 100000])
def test_a_reader_that_goes_away_leaves_no_traceback(root, lines):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from errors import run_command\n"
        "def main(argv):\n"
        "    sys.stdin.readline()\n"
        f"    print('\\n'.join(['line'] * {lines}))\n"
        "sys.exit(run_command(main))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root / "tools")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    process.stdin.write(b"go\n")
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 1
