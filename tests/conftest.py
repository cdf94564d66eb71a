"""Fixtures every test may use. `tools/` is put on sys.path, as a user of the Python interface would."""

import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from startup import import_paddle  # noqa: E402

import_paddle()
# pytest names the modules of tests/data `data.test_...` and would take tests/data for the package of that name, unless
# the one in tools/ has been imported before.
for folder in sorted(ROOT.joinpath("tests").iterdir()):
    if ROOT.joinpath("tools", folder.name, "__init__.py").is_file():
        importlib.import_module(folder.name)

# A shell that starts the tests in the background has Ctrl-C ignored, which tests send to themselves and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root():
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir():
    """Reference tensors and test images kept outside the project; tests that need them skip without."""
    folder = Path(os.environ.get("T2T_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder}; set T2T_SHARED to run this test")
    return folder
