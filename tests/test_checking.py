"""The fingerprint of a network, and its comparison with the official code: figures, processes, ways to fail."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import checking
import numpy as np
import paddle
import pytest
from checking import compare_official, fingerprint, fixed_images
from data.decode import decode_rgb
from data.loader import normalize
from data.transforms import EvalTransform
from errors import UserError
from models import ROWS, build_model
from official_stages import stage_names
from official_weights import fill, images, linear_weights, official_value
from torch_python import torch_python

DOUBLE = Path(__file__).parent / "official_double"
SIZE = 32
# Stands for a Python with torch: keeps what it was given, then does what the test says.
FAKE = """#!{python}
import os, shutil, subprocess, sys, time
_, option, script, folder, checkout, factory, options = sys.argv
here = {here!r}
shutil.copy(folder + "/request.npz", here)
with open(here + "/arguments", "w") as file:
    file.write("\\n".join([option, script, folder, checkout, factory, options]))
{body}
"""
KNOWN = """\
fingerprint: 2 images of noise, 32 px -> logits [2, 10]
image 1: mean -0.017, deviation 0.944, top 5: 5 3 2 1 0
image 1: logits 0 1 3 4 5 6 8 9 are -0.163 0.510 1.407 -0.859 1.535 -1.304 -0.496 -0.615
image 2: mean -0.023, deviation 0.864, top 5: 5 2 3 1 0
image 2: logits 0 1 3 4 5 6 8 9 are 0.031 0.413 0.555 -0.956 1.659 -1.241 -0.883 -0.178
""".splitlines()
ANSWER = "shutil.copy(here + '/answer.npz', folder + '/stages.npz')"


def network(name="t2t_vit_7", **options):
    """A network of known weights at 32 px with ten classes, in eval mode."""
    built = fill(build_model(name, **{"img_size": SIZE, "num_classes": 10, **options}))
    built.eval()
    return built


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(body) -> path of an interpreter that runs `body`; the default one of the comparison meanwhile."""

    def make(body):
        file = tmp_path / "python"
        file.write_text(FAKE.format(python=sys.executable, here=str(tmp_path), body=body), encoding="utf-8")
        file.chmod(0o755)
        monkeypatch.setenv(checking.TORCH_PYTHON, str(file))
        return file

    monkeypatch.setattr(checking.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    yield make
    assert not list((tmp_path / "temporary").iterdir()), "the folder of the request is still there"


@pytest.fixture
def answer(tmp_path):
    """answer(network, change) writes what the fake answers: the network's own outputs after change(stages)."""

    def make(built, change=lambda stages: None):
        names = stage_names(len(built.blocks))
        stages = {name: array.copy() for name, array in checking._outputs(built, names, images(2, SIZE)).items()}
        change(stages)
        np.savez(tmp_path / "answer.npz", about=np.array("torch 0"), **stages)

    return make


# ---------------------------------------------------------------- fingerprint


def test_the_fingerprint_is_the_same_every_time():
    first = fingerprint(network())
    assert first == fingerprint(network()) and len(first) == 5
    assert first[0] == "fingerprint: 2 images of noise, 32 px -> logits [2, 10]"


def test_the_fingerprint_tells_the_logits():
    built = network(num_classes=100)
    with paddle.no_grad():
        logits = built(paddle.to_tensor(images(2, SIZE))).numpy()
    lines = fingerprint(built)
    for image, row in enumerate(logits):
        text = lines[1 + 2 * image]
        assert text.endswith("top 5: " + " ".join(map(str, np.argsort(-row)[:5])))
        mean, deviation = text.split("mean ")[1].split(", top")[0].split(", deviation ")
        np.testing.assert_allclose([float(mean), float(deviation)], [row.mean(), row.std()], atol=6e-4)
        chosen, values = lines[2 + 2 * image].partition("logits ")[2].split(" are ")
        assert chosen == "0 14 28 42 57 71 85 99"
        np.testing.assert_allclose([float(v) for v in values.split()], row[[int(c) for c in chosen.split()]], atol=6e-4)


def test_the_fingerprint_shows_a_change_of_any_parameter():
    built = network()
    first, transposed = fingerprint(built), linear_weights(built)
    for name, parameter in built.named_parameters():
        before = parameter.numpy()
        shape = before.shape[::-1] if name in transposed else before.shape
        other = official_value(f"other.{name}", shape)
        parameter.set_value(other.T if name in transposed else other)
        assert fingerprint(built) != first, name
        parameter.set_value(before)
    assert fingerprint(built) == first


def test_the_fingerprint_forgives_float_noise():
    # Matrix products in another order, by another number of threads or on another machine, differ by this much.
    built, other = network(num_classes=1000), network(num_classes=1000)
    noise = np.random.RandomState(0).uniform(-3e-6, 3e-6, 1000).astype("float32")
    other.head.bias.set_value(other.head.bias.numpy() + noise)
    assert_alike(fingerprint(built), fingerprint(other))


def test_the_fingerprint_is_that_of_other_machines_and_versions():
    assert_alike(fingerprint(network()), KNOWN)


def assert_alike(first, second):
    """Assert that two fingerprints differ by one digit at most, as they may."""
    first, second = " ".join(first).split(), " ".join(second).split()
    moved = [(a, b) for a, b in zip(first, second) if a != b]
    assert len(first) == len(second) and len(moved) <= 1, moved
    assert all(abs(float(a.strip(",")) - float(b.strip(","))) < 0.0011 for a, b in moved), moved


def test_the_network_is_left_as_it_was():
    built = network()
    built.train()
    trained = fingerprint(built)
    assert built.training and built.blocks[0].training
    assert not built.head._forward_post_hooks
    built.eval()
    assert fingerprint(built) == trained and not built.training


def test_few_classes_and_broken_weights_have_a_fingerprint():
    built = network(num_classes=2)
    assert fingerprint(built)[2].startswith("image 1: logits 0 1 are ")
    built.norm.bias.set_value(np.full(256, np.nan, "float32"))
    assert "mean nan" in fingerprint(built)[1]


def test_nothing_is_printed_as_minus_zero():
    assert [checking._rounded(value) for value in (-4e-4, 4e-4, -6e-4)] == ["0.000", "0.000", "-0.001"]


# ---------------------------------------------------------------- the comparison without torch


def test_the_request_holds_the_weights_as_pytorch_stores_them(fake, answer, tmp_path):
    built = network()
    answer(built)
    fake(ANSWER)
    compare_official(built, "t2t_vit_7", DOUBLE)
    with np.load(tmp_path / "request.npz") as request:
        arrays = dict(request)
    np.testing.assert_array_equal(arrays.pop("input"), images(2, SIZE))
    assert set(arrays) == {name for name, _ in built.named_parameters()}
    for name, array in arrays.items():
        assert array.dtype == np.float32
        if name != "pos_embed":
            np.testing.assert_array_equal(array, official_value(name, array.shape), name)
    assert arrays["blocks.0.mlp.fc1.weight"].shape == (512, 256)
    assert arrays["tokens_to_token.attention1.w"].shape == (32, 64)


@pytest.mark.parametrize(("name", "options", "factory", "expected"), [
    ("t2t_vit_7", {}, "t2t_vit_7", {"img_size": 32, "num_classes": 10}),
    ("t2t_vit_14_384", {"img_size": 16}, "t2t_vit_14", {"img_size": 16, "num_classes": 10}),
    ("t2t_vit_14_se", {"img_size": 16}, "t2t_vit_se.t2t_vit_14_se", {"img_size": 16, "num_classes": 10}),
    ("t2t_vit_7", {"qk_scale": 0.0625}, "t2t_vit_7", {"img_size": 32, "num_classes": 10, "qk_scale": 0.0625}),
])  # fmt: skip
def test_the_official_network_gets_the_settings_of_ours(fake, tmp_path, name, options, factory, expected):
    fake("sys.exit(3)")
    with pytest.raises(UserError, match="exit code 3, no message"):
        compare_official(network(name, **options), name, DOUBLE)
    option, script, _, checkout, called, text = (tmp_path / "arguments").read_text(encoding="utf-8").split("\n")
    assert (option, Path(script).name, checkout, called) == ("-B", "official_stages.py", str(DOUBLE), factory)
    assert json.loads(text) == expected


def test_equal_outputs_agree(fake, answer):
    built = network()
    answer(built, lambda stages: stages.update(norm=np.stack([stages["norm"]] * 5, axis=1)))
    fake(ANSWER)
    report = compare_official(built, "t2t_vit_7", DOUBLE)
    assert report.agrees
    assert report[0] == f"official: t2t_vit_7(img_size=32, num_classes=10) of {DOUBLE}; torch 0"
    assert report[1] == f"here: t2t_vit_7; Paddle {paddle.__version__}, cpu"
    assert [line.split()[0] for line in report[2:-1]] == stage_names(7)
    assert all("largest difference 0.0e+00" in line for line in report[2:])
    assert report[-1].endswith("limit 2e-05: the networks agree")


@pytest.mark.parametrize("stage", ["tokens_to_token.attention2", "blocks.3", "norm", "head"])
@pytest.mark.parametrize("share", [0.9, 1.1, np.nan, np.inf])
def test_a_difference_counts_from_the_limit_on(fake, answer, stage, share):
    built = network()

    def change(stages):
        flat = stages[stage].reshape(-1)
        # The element nearest to 0, where float32 can hold the difference.
        flat[np.abs(flat).argmin()] += share * checking.LIMIT * stages[stage].std()

    answer(built, change)
    fake(ANSWER)
    report = compare_official(built, "t2t_vit_7", DOUBLE)
    assert report.agrees == (share < 1)
    line = next(line for line in report if line.split()[0] == stage)
    assert line.endswith("<- differs") == (not report.agrees)
    assert report[-1].endswith("agree" if report.agrees else f"DIFFER, first at {stage}")
    assert report[-1].startswith("largest difference ") and f"({stage})" in report[-1]
    if np.isfinite(share):
        np.testing.assert_allclose(float(line.split("ratio ")[1].split()[0]), share * checking.LIMIT, rtol=0.04)


def test_the_rounding_of_outliers_is_no_difference(fake, answer):
    built = network()
    built.cls_token.set_value(np.where(np.arange(256) == 3, 900, built.cls_token.numpy()).astype("float32"))

    def change(stages):
        for name in stages:
            stages[name] = (stages[name] * np.float32(1 + 1e-6)).astype("float32")

    answer(built, change)
    fake(ANSWER)
    assert compare_official(built, "t2t_vit_7", DOUBLE).agrees


def refused(*parts, name="t2t_vit_7", directory=DOUBLE, python=None, built=None):
    """Assert that the comparison ends with one line that holds all `parts`."""
    with pytest.raises(UserError) as caught:
        compare_official(built or network(), name, directory, python)
    text = str(caught.value)
    assert "\n" not in text and not [part for part in parts if part not in text], text
    return text


def test_models_without_official_counterpart_are_refused():
    for name in ("t2t_vit_c_14", "t2t_vit_14_wo_t2t", "mobilenet_v1"):
        refused(name, "no such network", name=name, built=build_model(name, img_size=16, num_classes=2))
    without = {name for name in set(ROWS) - set(checking.OFFICIAL) if name.startswith("t2t_")}
    assert without == {"t2t_vit_c_14", "t2t_vit_14_wo_t2t"}
    assert all(name.startswith("t2t_") for name in checking.OFFICIAL)


def test_folders_that_are_no_checkout_are_refused(tmp_path):
    refused(str(tmp_path / "nowhere"), "no such folder", "yitu-opensource/T2T-ViT", directory=tmp_path / "nowhere")
    refused(str(tmp_path), "models/t2t_vit.py is not in it", "yitu-opensource/T2T-ViT", directory=tmp_path)
    refused("models/t2t_vit.py is not in it", directory=DOUBLE / "models")
    refused("models/t2t_vit_dense.py is not in it", name="t2t_vit_dense", directory=DOUBLE)


def test_interpreters_that_do_not_start_are_refused(tmp_path, monkeypatch):
    refused(str(tmp_path / "none"), "No such file", "T2T_TORCH_PYTHON", python=str(tmp_path / "none"))
    (tmp_path / "text").write_text("not a program", encoding="utf-8")
    refused("Permission denied", python=str(tmp_path / "text"))
    (tmp_path / "text").chmod(0o755)
    refused("Exec format error", python=str(tmp_path / "text"))
    monkeypatch.setenv("T2T_TORCH_PYTHON", "~/no-such-python")
    refused(os.path.expanduser("~/no-such-python"), "does not start")


@pytest.mark.parametrize(("body", "parts"), [
    ("raise ModuleNotFoundError(\"No module named 'torch'\")", ("No module named 'torch'", "install torch")),
    ("raise ModuleNotFoundError(\"No module named 'numpy'\")", ("No module named 'numpy'", "install torch and numpy")),
    ("raise ImportError('cannot import name container_abcs')", ("cannot import name container_abcs", "clone of")),
    ("sys.exit('RuntimeError: Error(s) in loading:\\n\\tMissing key: w\\n\\n')", ("failed under", ": Missing key: w;")),
    ("sys.exit('x' * 5000)", ("x" * 300,)),
    ("os.write(2, b'caf\\xe9 \\x00'); sys.exit(1)", ("caf",)),
    ("os.kill(os.getpid(), 9)", ("exit code -9, no message",)),
    ("sys.exit(0)", ("exit code 0, no message",)),
])  # fmt: skip
def test_failures_of_the_official_code_are_told_in_a_line(fake, body, parts):
    python = fake(body)
    assert len(refused(str(python), "T2T_TORCH_PYTHON", *parts)) < 800


def test_the_interpreter_is_the_named_one_else_of_the_environment_else_this_one(fake, monkeypatch, tmp_path):
    python = fake("sys.exit(5)")
    refused("exit code 5", python=None)
    refused("No such file", python=str(tmp_path / "none"))
    monkeypatch.setenv("T2T_TORCH_PYTHON", str(tmp_path / "none"))
    refused("exit code 5", python=str(python))
    monkeypatch.delenv("T2T_TORCH_PYTHON")
    monkeypatch.setattr(sys, "executable", str(python))
    refused("exit code 5")


def test_outputs_of_another_shape_are_refused(fake, answer):
    built = network()
    answer(built, lambda stages: stages.update(head=stages["head"][:, :9]))
    fake(ANSWER)
    refused("stage head", "[2, 9]", "[2, 10]", built=built)


def ended(file):
    """Wait until the process whose id is in `file` is gone."""
    process = int(file.read_text(encoding="utf-8"))
    for _ in range(100):
        # A process without parent to collect it stays as a zombie in some containers.
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


# As a wrapper does that starts the true interpreter and waits for it.
SLOW = """
child = subprocess.Popen(["sleep", "60"])
with open(here + "/new", "w") as file:
    file.write(str(child.pid))
os.rename(here + "/new", here + "/child")
child.wait()
"""


def test_a_comparison_that_takes_too_long_is_ended(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "TIME_LIMIT", 3)
    fake(SLOW)
    start = time.monotonic()
    refused("no result within 3 s", "smaller model")
    assert time.monotonic() - start < 20
    assert ended(tmp_path / "child")


def test_ctrl_c_ends_the_comparison_and_its_processes(fake, tmp_path):
    fake(SLOW)

    def interrupt():
        while not (tmp_path / "child").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compare_official(network(), "t2t_vit_7", DOUBLE)
    thread.join()
    assert ended(tmp_path / "child")


# ---------------------------------------------------------------- the comparison with torch


def test_the_double_agrees_whatever_timm_is_there(tmp_path, monkeypatch):
    python = torch_python()
    report = compare_official(network(), "t2t_vit_7", DOUBLE, python)
    assert report.agrees, "\n".join(report)
    assert "timm: stand-in (" in report[0] or "timm 0" in report[0] or "timm 1" in report[0]
    # As timm 0.3.4 does beside a torch of today: it fails when part of it is loaded.
    timm = tmp_path / "timm"
    (timm / "models").mkdir(parents=True)
    (timm / "__init__.py").write_text("__version__ = '0.3.4'\nfrom .models import layers\n", encoding="utf-8")
    (timm / "models" / "__init__.py").touch()
    (timm / "models" / "layers.py").write_text("from torch._six import container_abcs\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = compare_official(network("t2t_vit_t_14"), "t2t_vit_t_14", DOUBLE, python)
    assert report.agrees, "\n".join(report)
    assert "timm: stand-in (No module named 'torch._six')" in report[0]
    # One that imports is taken.
    (timm / "models" / "layers.py").write_text("", encoding="utf-8")
    (timm / "models" / "helpers.py").touch()
    (timm / "models" / "registry.py").write_text("def register_model(f):\n    return f\n", encoding="utf-8")
    report = compare_official(network(qk_scale=0.0625), "t2t_vit_7", DOUBLE, python)
    assert report.agrees and report[0].endswith("timm 0.3.4") and "qk_scale=0.0625" in report[0]


def test_a_network_of_another_official_module():
    report = compare_official(network("t2t_vit_14_se"), "t2t_vit_14_se", DOUBLE, torch_python())
    assert report.agrees, "\n".join(report)


@pytest.mark.parametrize(("name", "old", "new", "first"), [
    ("t2t_vit_7", "EPSILON = 1e-5", "EPSILON = 1e-6", "tokens_to_token.attention1"),
    ("t2t_vit_7", "k, q, v =", "q, k, v =", "tokens_to_token.attention1"),
    ("t2t_vit_t_14", "1, n**-0.5", "1, 64**-0.5", "tokens_to_token.attention1"),
    ("t2t_vit_7", "q, k, v = (", "k, q, v = (", "blocks.0"),
    ("t2t_vit_7", "self.norm = nn.LayerNorm(width, eps=EPSILON)", "self.norm = nn.LayerNorm(width, eps=1e-3)", "norm"),
])  # fmt: skip
def test_a_change_of_the_official_code_is_seen_where_it_is(tmp_path, name, old, new, first):
    python = torch_python()
    shutil.copytree(DOUBLE, tmp_path / "changed")
    file = tmp_path / "changed" / "models" / "t2t_vit.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    report = compare_official(network(name), name, tmp_path / "changed", python)
    assert not report.agrees
    assert report[-1].endswith(f"the networks DIFFER, first at {first}"), "\n".join(report)
    assert not list((tmp_path / "changed").rglob("__pycache__"))


def test_weights_that_do_not_fit_the_official_network_are_told(tmp_path):
    shutil.copytree(DOUBLE, tmp_path / "other")
    file = tmp_path / "other" / "models" / "t2t_vit.py"
    file.write_text(file.read_text(encoding="utf-8").replace("bias=False", "bias=True"), encoding="utf-8")
    refused("failed under", "attn.qkv.bias", directory=tmp_path / "other", python=torch_python())


def test_the_input_is_that_of_the_reference_tensors():
    np.testing.assert_array_equal(fixed_images(SIZE), images(2, SIZE))


def test_photos_give_the_same_logits_and_classes(root, monkeypatch):
    """Four photos and noise through T2T-ViT-7 at 224 px: logits within 1e-4, the same five best classes."""
    python = torch_python()
    transform, pixels = EvalTransform(224), []
    for file in sorted((root / "lit_data" / "ILSVRC2012").rglob("*.JPEG"))[:4]:
        pixels.append(transform(decode_rgb(file)))
    photos = normalize(paddle.to_tensor(np.stack(pixels)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).numpy()
    monkeypatch.setattr(checking, "fixed_images", lambda size: np.concatenate([photos, images(1, size)]))
    compare, heads = checking._compare, []
    monkeypatch.setattr(
        checking, "_compare", lambda ours, official, names: heads.extend([ours["head"], official["head"]])
        or compare(ours, official, names)
    )  # fmt: skip
    built = fill(build_model("t2t_vit_7"))
    built.eval()
    assert compare_official(built, "t2t_vit_7", DOUBLE, python).agrees
    ours, official = heads
    assert ours.shape == (5, 1000) and np.abs(ours - official).max() <= 1e-4
    assert np.array_equal(np.argsort(ours)[:, -5:], np.argsort(official)[:, -5:])
