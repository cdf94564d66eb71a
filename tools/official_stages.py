"""Outputs of the official PyTorch network, stage by stage. Runs in a process of its own, under a Python with torch.

`checking.compare_official` starts it: PyTorch and Paddle in one process can crash each other. Called as

    python official_stages.py FOLDER CHECKOUT FACTORY OPTIONS

FOLDER/request.npz holds `input` [B, 3, S, S] and the weights under their official names in PyTorch's layout; CHECKOUT
is a clone of yitu-opensource/T2T-ViT; FACTORY is a function of its models/t2t_vit.py, or module.function of another
module in its models/, and OPTIONS its keyword arguments as JSON. Writes FOLDER/stages.npz: the output of every stage
(`stage_names`) and `about`, a line on what ran.
Any failure ends in a traceback and exit code 1; the caller reads its last line.
"""

import importlib
import json
import platform
import sys
from pathlib import Path
from types import ModuleType

import numpy as np


def stage_names(depth):
    """Official names of the layers whose outputs are compared, in the order of the forward pass, for `depth` blocks."""
    t2t = "tokens_to_token"
    return [f"{t2t}.attention1", f"{t2t}.attention2", t2t, *(f"blocks.{i}" for i in range(depth)), "norm", "head"]


def main(folder, checkout, factory, options):
    """See the text of the module."""
    # Python put this file's folder there, whose `models` and `data` are not the checkout's.
    sys.path[0] = checkout
    import torch

    about = import_timm()
    module, _, function = factory.rpartition(".")
    network = getattr(import_official(checkout, module or "t2t_vit"), function)(**json.loads(options))
    with np.load(Path(folder) / "request.npz", allow_pickle=False) as request:
        arrays = {name: torch.from_numpy(request[name]) for name in request.files}
    images = arrays.pop("input")
    network.load_state_dict(arrays, strict=True)
    stages = run(network, images)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {about}"
    np.savez(Path(folder) / "stages.npz", about=np.array(versions), **stages)


def run(network, images):
    """Dict stage -> np.ndarray after one forward pass in eval mode."""
    import torch

    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            seen[name] = output.numpy().copy()

        return hook

    modules = dict(network.eval().named_modules())
    for name in stage_names(len(network.blocks)):
        modules[name].register_forward_hook(keep(name))
    with torch.no_grad():
        network(images)
    return seen


def import_official(checkout, module):
    """The checkout's module models.`module`.

    models/__init__.py is passed over: it loads the other networks of the package, whose needs are not ours.
    """
    package = ModuleType("models")
    package.__path__ = [str(Path(checkout) / "models")]
    sys.modules["models"] = package
    return importlib.import_module(f"models.{module}")


def import_timm():
    """Import timm, or put a stand-in in its place, and return a few words on which it is.

    The official code asks for timm 0.3.4, which fails to import beside a torch of today, and takes nothing from it
    that this comparison depends on: initial values (overwritten by the weights), stochastic depth (an identity in
    eval mode), and a list of models.
    """
    try:
        for name in ("layers", "helpers", "registry"):
            importlib.import_module(f"timm.models.{name}")
        return f"timm {sys.modules['timm'].__version__}"
    except (ImportError, AttributeError, RuntimeError) as error:
        reason = "".join(str(error).splitlines()[:1])
    _stand_in()
    return f"timm: stand-in ({reason})"


def _stand_in():
    from torch import nn

    for name in ("timm", "timm.models", "timm.models.layers", "timm.models.helpers", "timm.models.registry"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
    layers, helpers, registry = (sys.modules[f"timm.models.{name}"] for name in ("layers", "helpers", "registry"))
    layers.DropPath = nn.Identity
    layers.trunc_normal_ = nn.init.trunc_normal_
    layers.to_2tuple = lambda x: x if isinstance(x, tuple) else (x, x)
    # Called for pretrained=True only.
    helpers.load_pretrained = None
    registry.register_model = lambda function: function


if __name__ == "__main__":
    main(*sys.argv[1:])
