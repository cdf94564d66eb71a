"""Who may import whom, what an import may do, and constructs that the code must not hold. Read from the sources."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

OWN = {"t2t", "models", "data", "engine", "wiring", "errors", "startup", "train", "val", "predict", "bench", "convert",
       "list_models", "weights", "checking", "official_stages", "launch", "launching", "measure",
       "visualize", "pictures", "tables", "teaching", "ablation", "ablating"}  # fmt: skip
PARTS = {"t2t", "models", "data", "weights", "engine", "wiring", "errors", "startup", "checking",
         "launching", "measure", "pictures", "teaching", "ablating"}  # fmt: skip
# Folder or module -> modules of the project that it may import. Whatever is not listed is a command.
ALLOWED = {
    "t2t": set(),
    "errors": set(),
    "startup": set(),
    "models": {"t2t", "models", "errors"},
    "pictures": {"t2t", "pictures", "errors"},
    # Of weights only the reader of pickles, which CIFAR's python version consists of; see the test below.
    "data": {"data", "weights", "errors"},
    "weights": {"weights", "errors"},
    "engine": {"engine", "weights", "errors", "startup"},
    "measure": set(),
    "wiring": PARTS - {"t2t", "checking", "launching", "measure", "pictures", "teaching", "ablating"},
    "teaching": {"wiring", "models", "engine", "weights", "errors"},
    "ablating": {"ablating", "engine", "errors", "startup"},
    "launching": {"launching", "errors", "startup"},
    "checking": {"official_stages", "errors"},
    # A program for a Python without Paddle, started by checking in a process of its own.
    "official_stages": set(),
}
# What runs when a module is imported may only define things.
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def sources():
    return sorted((Path(__file__).resolve().parents[1] / "tools").rglob("*.py"))


@pytest.fixture(params=sources(), ids=lambda file: "/".join(file.parts[-2:]))
def source(request):
    """A file of tools/ and its syntax tree."""
    return request.param, ast.parse(request.param.read_text(encoding="utf-8"))


def part_of(file, root):
    """The part of the project that a file belongs to, or its own name for a command."""
    return file.relative_to(root / "tools").parts[0].removesuffix(".py")


def imported(tree):
    """Top names of all that is imported anywhere in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module.partition(".")[0]


def test_every_module_is_known(root):
    assert {part_of(file, root) for file in sources()} <= OWN


def test_imports_go_one_way(source, root):
    file, tree = source
    part = part_of(file, root)
    own = set(imported(tree)) & OWN
    assert own <= ALLOWED.get(part, PARTS), f"{part} may not import {sorted(own - ALLOWED.get(part, PARTS))}"


def test_data_knows_nothing_of_weights_but_the_reader_of_pickles(source, root):
    file, tree = source
    if part_of(file, root) == "data":
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        allowed = {"weights.pickles", "weights.pickled_arrays"}
        assert {name for name in modules if name.partition(".")[0] == "weights"} <= allowed


def test_network_stands_alone(root):
    tree = ast.parse((root / "tools" / "t2t.py").read_text(encoding="utf-8"))
    assert set(imported(tree)) - set(sys.stdlib_module_names if sys.version_info >= (3, 10) else {"math"}) <= {
        "paddle", "numpy"
    }  # fmt: skip


def test_nothing_imports_torch(source, root):
    file, tree = source
    if part_of(file, root) != "official_stages":
        assert not {"torch", "torchvision", "timm"} & set(imported(tree))


def test_imports_only_define(source):
    file, tree = source
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        assert isinstance(node, DEFINITIONS) or text or guard, f"{file.name}:{node.lineno}: {ast.unparse(node)}"


def test_importing_prints_nothing_and_changes_nothing(root, tmp_path):
    names = [".".join(file.relative_to(root / "tools").with_suffix("").parts).removesuffix(".__init__")
             for file in sources()]  # fmt: skip
    code = f"""
import os, random, sys
sys.path.insert(0, {str(root / 'tools')!r})
from startup import import_paddle
paddle = import_paddle()
import numpy
def state():
    return dict(os.environ), random.getstate(), str(numpy.random.get_state()), os.getcwd(), paddle.get_device()
before = state()
for name in {names!r}:
    __import__(name)
assert state() == before
assert "torch" not in sys.modules and "visualdl" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_exceptions_are_named(source):
    file, tree = source
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            assert not re.search(r"\b(Exception|BaseException|everything)\b", caught), f"{file.name}:{node.lineno}"


def test_no_assert_checks_input(source):
    file, tree = source
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], file.name


def test_only_commands_and_the_run_log_print(source, root):
    file, tree = source
    if part_of(file, root) in ALLOWED and file.stem not in ("runlog", "errors"):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        printed = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        assert not printed, f"{file.name}: lines {printed}"


def test_scalars_are_taken_with_item(source):
    # float(t), int(t) and t.numpy()[0] fail on tensors of some shapes, depending on the versions of Paddle and NumPy.
    file, tree = source
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"\.numpy\(\)\s*\[0\]", text), file.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("float", "int"):
            # Names that hold tensors wherever they occur in this project.
            assert not re.match(r"(loss|logits|correct|images|labels|tensor|parameter)\b(?!\.item)",
                                ast.unparse(node.args[0]) if node.args else ""), f"{file.name}:{node.lineno}"


def test_files_and_functions_are_short(source):
    file, tree = source
    if file.stem != "t2t":
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 350
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{file.name}: {node.name}"
