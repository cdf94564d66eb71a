"""Every file of `hostile_files` ends in one line, within 10 seconds, runs nothing and takes little memory."""

import json
import subprocess
import sys

import pytest
from hostile_files import CANARY, hostile_files

# The peak of a process outlives exec when asked of getrusage, so that a child of a process with Paddle would seem
# large from the start; /proc counts the program's own memory.
READ = r"""
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from weights.files import WeightsError
from weights.paddle_file import read_weights
from weights.safetensors_file import read_safetensors
from weights.torch_file import Tensor, read_torch

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def tensors(tree):
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(item)

def outcome(path):
    try:
        if path.suffix == ".pdparams":
            read_weights(path)
        else:
            content = (read_safetensors if path.suffix == ".safetensors" else read_torch)(path)
            kept = [tensor.array() for tensor in tensors(content.tree)]
        return "accepted"
    except WeightsError as error:
        return "refused: " + str(error)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

base = peak()
for path in sorted(map(Path, json.load(sys.stdin)), key=lambda path: path.stat().st_size):
    start = time.perf_counter()
    text = outcome(path)
    megabytes = path.stat().st_size / 2**20
    print(json.dumps([path.name, text, time.perf_counter() - start, peak() - base, megabytes]), flush=True)
print(json.dumps(sorted(set(sys.modules) & {"paddle", "torch", "PIL"})))
"""

# Refused for their own reason, not for one that comes later.
WORDS = {
    "tar.pth.tar": "is a tar archive",
    "zip_member_twice.pth": "the archive holds 'archive/data/0' twice",
    "zip_overlap.pth": "parts of the archive overlap",
    "zip_many_members.pth": "more than 20000 members",
    "zip_encrypted.pth": "is encrypted",
    "zip_compressed.pth": "is compressed",
    "zip_two_names.pth": "two names",
    "zip_two_objects.pth": "none of torch.save",
    "zip_torchscript.pth": "a TorchScript program",
    "zip_path_up.pth": "a path that leads out of it: 'archive/../../canary'",
    "stream_os_system.pth": "the file asks for posix.system",
    "zip_expanded.pth": "'head.weight' is an expanded tensor",
    "name_twice.safetensors": "the header holds 'w' twice",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's peak memory from /proc")
def test_every_hostile_file_is_refused(root, tmp_path):
    files = hostile_files(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(root / "tools")],
        input=json.dumps([str(path) for _, path in files]), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, modules = [json.loads(line) for line in done.stdout.splitlines()]
    assert modules == [], "the reading needs NumPy and safetensors alone"
    assert len(lines) == len(files) >= 40 and WORDS.keys() <= {name for name, _ in files}
    wrong = [line for line in lines if not line[1].startswith("refused: ")]
    assert not wrong, "\n".join(map(str, wrong))
    for name, text, seconds, memory, megabytes in lines:
        assert "\n" not in text and len(text) < 600 and str(tmp_path / name) in text, text
        assert WORDS.get(name, "") in text, text
        assert seconds < 10, (name, seconds)
        assert memory <= 2 * megabytes + 200, (name, memory)
    assert not (tmp_path / CANARY).exists() and {path.name for path in tmp_path.iterdir()} == before
