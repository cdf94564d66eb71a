"""Files that real PyTorch wrote, in and out; PyTorch runs in a process of its own and never in this one."""

import numpy as np
import pytest
from commands import run
from test_convert import in_paddle, random_state, same
from torch_python import run_torch
from weights.paddle_file import read_weights, save_weights

WRITE = """
import argparse, sys
import numpy, torch
arrays = dict(numpy.load(sys.argv[1]))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = torch.nn.Parameter(torch.zeros(3))
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
net.cls_token.sum().backward()
optimizer.step()
def tensors(prefix="", plus=0):
    # As a state dict has them: Linear weights may be views that do not lie in order.
    return {prefix + name: torch.from_numpy(numpy.asfortranarray(array + plus)) for name, array in arrays.items()}
state = torch.nn.Module.state_dict(net).__class__(tensors("module."))
contents = {
    "training": {"epoch": 3, "arch": "t2t_vit_7", "state_dict": state, "state_dict_ema": tensors(plus=1),
                 "optimizer": optimizer.state_dict(), "version": 2, "metric": 71.7,
                 "args": argparse.Namespace(model="t2t_vit_7", lr=1e-3, mean=(0.5, 0.5), resume=None, aa="rand")},
    "ema": {"state_dict_ema": tensors()},
    "cifar": {"net": state, "acc": 98.3, "epoch": 60},
    "bare": {name: torch.nn.Parameter(tensor) for name, tensor in tensors().items()},
    "half": {"model": {name: tensor.half() for name, tensor in tensors().items()}},
    "bfloat16": {"model": {name: tensor.bfloat16() for name, tensor in tensors().items()}},
}
for name, content in contents.items():
    for zipped in (True, False):
        torch.save(content, f"{sys.argv[2]}/{name}-{zipped}.pth.tar", _use_new_zipfile_serialization=zipped)
rounded = {name: tensor.bfloat16().float().numpy() for name, tensor in tensors().items()}
numpy.savez(sys.argv[2] + "/bfloat16.npz", **rounded)
"""
READ = """
import sys
import numpy, torch
state = torch.load(sys.argv[1], weights_only=True)
numpy.savez(sys.argv[2], **{name: tensor.numpy() for name, tensor in state.items()})
print(all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in state.values()))
"""


@pytest.fixture(scope="module")
def state():
    """T2T-ViT-7 in PyTorch's layout, with a square head."""
    return random_state()


@pytest.fixture(scope="module")
def written(state, tmp_path_factory):
    """A folder of files that PyTorch wrote from `state`."""
    folder = tmp_path_factory.mktemp("torch")
    np.savez(folder / "state.npz", **state)
    run_torch(WRITE, folder / "state.npz", folder)
    return folder


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["training", "ema", "cifar", "bare", "half", "bfloat16"])
def test_every_tensor_is_exact(written, state, tmp_path, name, zipped):
    outcome = run("convert", written / f"{name}-{zipped}.pth.tar", tmp_path / "w.pdparams")
    assert outcome.code == 0, outcome
    expected = {
        "training": lambda: {key: array + 1 for key, array in state.items()},
        "half": lambda: {key: array.astype("f2").astype("f4") for key, array in state.items()},
        "bfloat16": lambda: dict(np.load(written / "bfloat16.npz")),
    }.get(name, lambda: state)()
    assert same(read_weights(tmp_path / "w"), in_paddle(expected))
    taken = {"training": "state_dict_ema", "ema": "state_dict_ema", "cifar": "net", "bare": "the file itself"}
    assert f"taken: {taken.get(name, 'model')}" in outcome.out
    assert f"PyTorch ({'zip' if zipped else 'legacy'})" in outcome.out


def test_raw_weights_on_demand(written, state, tmp_path):
    assert run("convert", written / "training-False.pth.tar", tmp_path / "w", "--key", "state_dict").code == 0
    assert same(read_weights(tmp_path / "w"), in_paddle(state))


@pytest.mark.parametrize("suffix", [".pt", ".pth.tar"])
def test_pytorch_loads_what_is_written(state, tmp_path, suffix):
    file = save_weights(in_paddle(state), tmp_path / "w")
    assert run("convert", file, tmp_path / f"x{suffix}").code == 0
    assert run_torch(READ, tmp_path / f"x{suffix}", tmp_path / "x.npz").strip() == "True"
    assert same(dict(np.load(tmp_path / "x.npz")), state)
