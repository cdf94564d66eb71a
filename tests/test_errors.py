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


def program(root, line, **where):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from errors import run_command\n"
        f"def main(argv):\n    {line}\n"
        "sys.exit(run_command(main))"
    )
    command = [sys.executable, "-c", code, str(root / "tools")]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=False, **where)


@pytest.mark.parametrize("lines", [1, 100000])
def test_output_on_a_full_disk_is_one_line(root, lines):
    with open("/dev/full", "w") as full:
        ended = program(root, f"print('line\\n' * {lines})", stdout=full)
    assert ended.returncode == 2
    assert ended.stderr == "error: standard output: No space left on device; write it elsewhere\n"


def test_other_failures_of_files_keep_their_traceback(root):
    ended = program(root, "print('line'); open('/dev/full', 'w').write('x' * 100000)", stdout=subprocess.DEVNULL)
    assert ended.returncode == 1 and "Traceback" in ended.stderr and "No space left" in ended.stderr
