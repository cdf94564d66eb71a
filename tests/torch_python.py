"""Real PyTorch for tests, always in a process of its own: PyTorch and Paddle in one process can crash each other."""

import functools
import os
import subprocess
import sys

import pytest

# Importing torch would take seconds.
_LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@functools.lru_cache(maxsize=1)
def _find():
    """A Python that has torch, or the reason why there is none."""
    named = os.environ.get("T2T_TORCH_PYTHON", "")
    for python in filter(None, (sys.executable, named)):
        try:
            done = subprocess.run([python, "-c", _LOOK], capture_output=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"T2T_TORCH_PYTHON={python} does not start ({type(error).__name__})"
        if done.returncode == 0:
            return python, ""
    if named:
        return None, f"T2T_TORCH_PYTHON={named} has no torch"
    return None, f"{sys.executable} has no torch; set T2T_TORCH_PYTHON to a Python that has it"


def torch_python():
    """The Python to run PyTorch with: this one, else that of T2T_TORCH_PYTHON; skips the test where neither has it."""
    python, reason = _find()
    if python is None:
        pytest.skip(reason)
    return python


def run_torch(code, *arguments):
    """Run `code` with PyTorch, `arguments` in sys.argv[1:], and return what it printed."""
    done = subprocess.run(
        [torch_python(), "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the PyTorch program failed:\n{done.stderr}")
    return done.stdout
