"""Environment and noise at the start, in this process and in fresh ones."""

import os
import subprocess
import sys
import warnings

import pytest
import startup
from commands import make_folders, make_weights, process, settings
from startup import prepare_environment, without_noise

NAMES = ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "GLOG_minloglevel", "CUDA_VISIBLE_DEVICES", "PADDLE_LOCAL_SIZE")


@pytest.fixture
def environment(monkeypatch):
    """os.environ without the variables in question; put back afterwards."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_variables_are_set_where_they_are_not(environment):
    environment.setattr(startup, "_cores", lambda: 6)
    environment.setattr(startup, "_amd_with_avx2", lambda: True)
    prepare_environment()
    assert [os.environ.get(name) for name in NAMES[:3]] == ["6", "5", "2"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_variables_of_the_user_stay(environment):
    for name in NAMES[:4]:
        environment.setenv(name, "3")
    prepare_environment()
    assert [os.environ[name] for name in NAMES[:4]] == ["3"] * 4


def test_kernels_are_chosen_for_amd_only(environment):
    environment.setattr(startup, "_amd_with_avx2", lambda: False)
    prepare_environment()
    assert "MKL_DEBUG_CPU_TYPE" not in os.environ


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 4, "1"), (4, 0, "4")])
def test_processes_of_one_machine_share_its_cores(environment, cores, processes, threads):
    environment.setattr(startup, "_cores", lambda: cores)
    environment.setenv("PADDLE_LOCAL_SIZE", str(processes))
    prepare_environment()
    assert os.environ["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(("value", "left"), [("", None), ("0", "0"), ("1,2", "1,2"), ("-1", "-1")])
def test_empty_list_of_cards_is_removed(environment, value, left):
    environment.setenv("CUDA_VISIBLE_DEVICES", value)
    prepare_environment()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == left


def test_known_notices_are_held_back_and_all_else_passes(capsys):
    with without_noise():
        print("======================= Modified FLAGS detected =======================", file=sys.stderr)
        print("FLAGS(name='FLAGS_x', current_value=1)", file=sys.stderr)
        print("x.py:9: UserWarning: No ccache found.\n  warnings.warn(warning_message)", file=sys.stderr)
        print("ImportError: libcudart.so: cannot open shared object file", file=sys.stderr)
        print("something nobody has seen before", file=sys.stderr)
    assert capsys.readouterr().err == (
        "ImportError: libcudart.so: cannot open shared object file\nsomething nobody has seen before\n"
    )


def test_what_is_held_is_passed_on_after_an_exception(capsys):
    with pytest.raises(OSError, match="broken"), without_noise():
        print("the reason", file=sys.stderr)
        raise OSError("broken")
    assert capsys.readouterr().err == "the reason\n"


def test_warnings_of_others_still_show():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        startup.import_paddle()
        warnings.warn("No ccache found. Please be aware", stacklevel=1)
        warnings.warn("/dev/shm has 64 MiB free", RuntimeWarning, stacklevel=1)
    assert [str(item.message) for item in caught] == ["/dev/shm has 64 MiB free"]


def test_first_import_of_paddle_is_silent(root, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(root / 'tools')!r}); from startup import import_paddle; " \
           "print(import_paddle().__version__)"
    bare = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() and done.stderr == "", done


def test_evaluation_is_silent_on_stderr(tmp_path):
    # Set but empty, this variable keeps Paddle from joining processes on the CPU.
    make_folders(tmp_path / "val", count=1)
    make_weights(tmp_path / "w")
    outcome = process("val", "--weights", tmp_path / "w", *settings(tmp_path, "unused"), CUDA_VISIBLE_DEVICES="")
    assert outcome.code == 0 and outcome.err == "", outcome
