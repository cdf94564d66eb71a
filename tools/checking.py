"""What `convert.py --check` says about a network: a fingerprint to compare by eye, and the official code beside it."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import paddle
from errors import UserError
from official_stages import stage_names
from paddle import nn

# A difference up to this share of a stage's values is float noise. Right networks stay below 3e-6, a LayerNorm
# epsilon of 1e-6 instead of 1e-5 goes past 2e-4 in some of them: log/convert_check.log.
LIMIT = 2e-5
TIME_LIMIT = 600
TORCH_PYTHON = "T2T_TORCH_PYTHON"
# Name in the registry -> function of the official models/t2t_vit.py, or module.function of another one in models/.
OFFICIAL = {
    **{f"t2t_vit_{size}": f"t2t_vit_{size}" for size in (7, 10, 12, 14, 19, 24, "t_14", "t_19", "t_24")},
    "t2t_vit_14_384": "t2t_vit_14",
    "t2t_vit_14_resnext": "t2t_vit_14_resnext",
    "t2t_vit_14_wide": "t2t_vit_14_wide",
    "t2t_vit_14_se": "t2t_vit_se.t2t_vit_14_se",
    "t2t_vit_dense": "t2t_vit_dense.t2t_vit_dense",
    "t2t_vit_16_ghost": "t2t_vit_ghost.t2t_vit_16_ghost",
}


class Comparison(list):
    """Lines of text on a comparison. `agrees`: every stage is within LIMIT."""

    agrees = False


def fixed_images(size):
    """The input of all checks, float32 [2, 3, size, size]: noise from a fixed seed, the same everywhere."""
    return np.random.RandomState(20210128).standard_normal((2, 3, size, size)).astype("float32")


def fingerprint(network):
    """Lines of text on the logits of a T2TViT for `fixed_images`: equal for equal weights, to be compared by eye.

    No hash: Paddle versions, thread counts and processors differ by 3e-6 or so in every logit, and however coarsely
    logits are rounded, some of a thousand lie on a boundary and would turn the whole hash over. Printed with three
    decimals, one digit in 200 or so moves by one, which the eye forgives; other weights change all of them.
    """
    logits = _outputs(network, ["head"], fixed_images(network.img_size))["head"].astype("float64")
    chosen = np.linspace(0, logits.shape[1] - 1, min(8, logits.shape[1])).round().astype(int)
    numbers = " ".join(map(str, chosen))
    lines = [f"fingerprint: 2 images of noise, {network.img_size} px -> logits {list(logits.shape)}"]
    for image, row in enumerate(logits, start=1):
        top = " ".join(map(str, np.argsort(-row, kind="stable")[:5]))
        values = " ".join(map(_rounded, row[chosen]))
        lines.append(f"image {image}: mean {_rounded(row.mean())}, deviation {_rounded(row.std())}, top 5: {top}")
        lines.append(f"image {image}: logits {numbers} are {values}")
    return lines


def compare_official(network, model_name, directory, python=None):
    """Run a T2TViT and the official PyTorch code on the same weights and input -> Comparison, a line for each stage.

    The code in `directory`, a clone of github.com/yitu-opensource/T2T-ViT, is EXECUTED: name only what you trust.
    It runs in a process of its own under `python`, an interpreter with torch (default: T2T_TORCH_PYTHON, else this
    one), and builds the function that `model_name`, a name of the registry, stands for: no dropout, this network's
    image size and classes, and the published scale of the attention unless this network has another.

    Each line tells the largest difference between two outputs, the deviation of the official one, and the largest of
    |difference| / (deviation + |value| / 10), which LIMIT holds for. The last part of the divisor leaves room for the
    rounding of single values far larger than the rest. The last line is the verdict.

    Raises UserError: a model without official counterpart, no such directory, no torch, official code that fails or
    takes longer than TIME_LIMIT seconds.
    """
    if model_name not in OFFICIAL:
        raise UserError(
            f"model {model_name}: the official code has no such network to compare with; leave the comparison out"
        )
    module = f"{OFFICIAL[model_name].rpartition('.')[0] or 't2t_vit'}.py"
    if not Path(directory, "models", module).is_file():
        wrong = f"models/{module} is not in it" if Path(directory).is_dir() else "no such folder"
        raise UserError(f"official code {directory}: {wrong}; name a clone of github.com/yitu-opensource/T2T-ViT")
    python = os.path.expanduser(python or os.environ.get(TORCH_PYTHON) or sys.executable)
    images = fixed_images(network.img_size)
    options = {"img_size": network.img_size, "num_classes": network.num_classes, **_scale(network)}
    with tempfile.TemporaryDirectory(prefix="t2t_check_") as folder:
        np.savez(Path(folder, "request.npz"), input=images, **_official_weights(network))
        _run_official([str(Path(directory).resolve()), OFFICIAL[model_name], json.dumps(options)], folder, python)
        with np.load(Path(folder, "stages.npz"), allow_pickle=False) as stages:
            official = {name: stages[name] for name in stages.files}
    names = stage_names(len(network.blocks))
    report = _compare(_outputs(network, names, images), official, names)
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    report.insert(0, f"official: {OFFICIAL[model_name]}({settings}) of {directory}; {official['about'].item()}")
    report.insert(1, f"here: {model_name}; Paddle {paddle.__version__}, {paddle.get_device()}")
    return report


def _rounded(value):
    # Adding 0 turns -0.0 into 0.0: the sign of nothing is noise.
    return f"{round(float(value), 3) + 0.0:.3f}"


def _outputs(network, names, images):
    """Dict name of a sublayer -> its output for images [B, 3, S, S], np.ndarray, in eval mode."""
    seen, layers, training = {}, dict(network.named_sublayers()), network.training

    def keep(name):
        def hook(layer, inputs, output):
            seen[name] = output.numpy()

        return hook

    network.eval()
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(layers[name].register_forward_post_hook(keep(name)).remove)
        stack.enter_context(paddle.no_grad())
        network(paddle.to_tensor(images))
    if training:
        network.train()
    return seen


def _official_weights(network):
    """Dict official name -> float32 array in PyTorch's layout."""
    transposed = {f"{name}.weight" for name, layer in network.named_sublayers() if isinstance(layer, nn.Linear)}
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return {name: array.T if name in transposed else array for name, array in arrays.items()}


def _scale(network):
    """qk_scale as keyword argument where the network has another than the published one."""
    attention = network.blocks[0].attn
    published = (network.embed_dim // attention.num_heads) ** -0.5
    return {} if math.isclose(attention.scale, published) else {"qk_scale": attention.scale}


def _run_official(arguments, folder, python):
    """Run official_stages.py in `folder`, which holds its request; raises UserError unless it left its answer."""
    script, log = Path(__file__).with_name("official_stages.py"), Path(folder, "stderr")
    with open(log, "wb") as stderr:
        try:
            process = subprocess.Popen(
                [python, "-B", str(script), folder, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"python {python} does not start ({error.strerror}); set {TORCH_PYTHON} to a Python that has torch"
            ) from error
        try:
            code = process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise UserError(
                f"official code {arguments[0]}: no result within {TIME_LIMIT} s under {python}; "
                "free the processor and run it again, or check a smaller model"
            ) from error
        finally:
            # Ctrl-C comes by here too. The whole group, since `python` may be a script that started another one.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code or not Path(folder, "stages.npz").is_file():
        raise UserError(_failure(arguments[0], python, code, log.read_text(encoding="utf-8", errors="replace")))


def _failure(directory, python, code, text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = lines[-1][:300] if lines else f"exit code {code}, no message"
    if "No module named 'torch'" in cause or "No module named 'numpy'" in cause:
        return f"python {python}: {cause}; install torch and numpy there or set {TORCH_PYTHON} to a Python with them"
    return (
        f"official code {directory} failed under {python}: {cause}; "
        f"use an unchanged clone of github.com/yitu-opensource/T2T-ViT, or another Python by {TORCH_PYTHON}"
    )


def _compare(ours, official, names):
    report, ratios, largest = Comparison(), {}, {}
    for name in names:
        theirs = official[name].astype("float64")
        if name == "norm" and theirs.ndim == 3:
            # The official code normalises all tokens and then takes the class token, this network the other way round.
            theirs = theirs[:, 0]
        if theirs.shape != ours[name].shape:
            shapes = f"{list(theirs.shape)} in the official code, {list(ours[name].shape)} here"
            raise UserError(f"stage {name}: {shapes}; use an unchanged clone of github.com/yitu-opensource/T2T-ViT")
        # Inf - inf and the like are NaN, which fails below.
        with np.errstate(invalid="ignore", over="ignore"):
            difference, deviation = np.abs(ours[name] - theirs), theirs.std()
            allowed = deviation + np.abs(theirs) / 10 + np.finfo("float32").tiny
            ratios[name], largest[name] = (difference / allowed).max(), difference.max()
        figures = f"largest difference {largest[name]:.1e}, deviation {deviation:.3g}, ratio {ratios[name]:.1e}"
        report.append(f"{name:26} {figures}" + ("" if ratios[name] <= LIMIT else "  <- differs"))
    first = next((name for name in names if not ratios[name] <= LIMIT), None)
    report.agrees = first is None
    end = f"largest difference {_largest(largest)}, largest ratio {_largest(ratios)}, limit {LIMIT:.0e}"
    report.append(f"{end}: the networks " + ("agree" if report.agrees else f"DIFFER, first at {first}"))
    return report


def _largest(values):
    name = max(values, key=lambda name: math.inf if math.isnan(values[name]) else values[name])
    return f"{values[name]:.1e} ({name})"
