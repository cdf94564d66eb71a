"""Real processes under Paddle's launcher: the same figures as one process, and weights that stay together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
from data.batches import Batches
from data.dataset import ImageDataset
from data.listing import read_samples
from data.loader import build_loader
from data.transforms import EvalTransform
from engine import distributed
from engine.distributed import choose_device, gather_rows, wrap
from engine_fakes import make_config, make_trainer, small_convnet
from errors import UserError
from weights.paddle_file import save_weights

WORKER = Path(__file__).with_name("distributed_worker.py")
BATCH_SIZES = (1, 2, 4, 7)
TIMEOUT = 150
FROZEN = {"pos_embed", "tokens_to_token.attention1.w", "tokens_to_token.attention2.w"}

several = pytest.mark.parametrize("world", [2, 3, 4])


def processes_about(text):
    """Numbers of the processes with `text` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def launch(world, folder):
    """Run the worker in `world` processes; their results in the order of ranks. No process outlives this call."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PADDLE_", "FLAGS_", "CUDA_VISIBLE"))}
    environment["OMP_NUM_THREADS"] = str(max(len(os.sched_getaffinity(0)) // world, 1))
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(world),
               "--log_dir", str(folder / "log"), str(WORKER), str(folder)]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    finally:
        # The launcher ends its workers when it is asked to.
        process.terminate()
        process.wait(30)
        time.sleep(0.2)
        left = processes_about(str(folder))
        for number in left:
            os.kill(number, signal.SIGKILL)
    logs = "\n".join(file.read_text(errors="replace")[-3000:] for file in (folder / "log").glob("workerlog.*"))
    assert process.returncode == 0, f"{output[-2000:]}\n{logs}"
    assert not left, "processes were left over"
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def digits(root):
    """Folder and list of the digits that ship with the project, for training and for validation."""
    folder = root / "lit_data" / "digits"
    return {split: [str(folder), str(folder / f"{split}_list.txt")] for split in ("train", "val")}


@pytest.fixture(scope="module")
def weights(tmp_path_factory, digits):
    """A network trained briefly on digits, so that its accuracy is neither chance nor perfect."""
    folder = tmp_path_factory.mktemp("trained")
    dataset = ImageDataset(
        read_samples(*digits["train"], num_classes=10), EvalTransform(32, 1.0, "bicubic"), train=False, seed=0
    )
    loader = build_loader(dataset, batch_size=32, shuffle=True, seed=0, rank=0, world=1, drop_last=True, workers=0)
    paddle.seed(0)
    network = small_convnet()
    trainer = make_trainer(folder, make_config(model__num_classes=10), Batches(loader, (0.5,) * 3, (0.25,) * 3), None,
                           network)  # fmt: skip
    trainer._train_epoch(0, 2e-3, time.perf_counter())
    return str(save_weights(network.state_dict(), folder / "trained"))


@pytest.fixture(scope="module")
def results(tmp_path_factory, digits, weights, root):
    """results(world) -> one dict per process, from one launch for each world."""
    if paddle.device.cuda.device_count():
        pytest.skip("Paddle's launcher gives every process a card where it sees one; these tests run on the CPU")
    shared = Path(os.environ.get("T2T_SHARED", root.parent / "shared")) / "data" / "sign_digits"
    sets = {"digits": digits["val"]}
    if shared.is_dir():
        sets["signs"] = [str(shared / "images"), str(shared / "val.txt")]
    known = {}

    def of(world):
        if world not in known:
            # One failed launch is enough: the tests that follow fail at once.
            known[world] = None
            folder = tmp_path_factory.mktemp(f"world{world}")
            job = {"weights": weights, "sets": sets, "batch_sizes": BATCH_SIZES}
            (folder / "job.json").write_text(json.dumps(job))
            known[world] = launch(world, folder)
        assert known[world], f"the launch of {world} processes failed in an earlier test"
        return known[world]

    return of


# ---------------------------------------------------------------- without a launcher


def test_one_process_answers_alone():
    distributed.init()
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    rows = np.arange(6).reshape(2, 3)
    assert gather_rows(rows) is rows
    network = paddle.nn.Linear(2, 2)
    assert wrap(network) is network


@pytest.mark.skipif(paddle.device.is_compiled_with_cuda(), reason="needs a CPU build of Paddle")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"device=gpu: this Paddle .* is a CPU build; install paddlepaddle-gpu"):
        choose_device("gpu")
    assert choose_device("auto").startswith("cpu, ")


# ---------------------------------------------------------------- processes


@several
def test_ranks_and_gathered_rows(results, world):
    for rank, result in enumerate(results(world)):
        assert (result["rank"], result["world"], result["main"]) == (rank, world, rank == 0)
        assert result["gathered"] == [[r, 0.1 * r] for r in range(world)]
        # Beyond what float64 holds: integers must stay integers.
        assert result["integers"] == [2**53 + 1 + r for r in range(world) for _ in range(2)]


def check_set(results, world, name, images):
    (reference,) = [result["files"][f"{name} 1"] for result in results(1)]
    top1, top5, loss, count, skipped = reference
    assert count == images and skipped == []
    for right in (top1 * images, top5 * images):
        assert abs(right - round(right)) < 1e-9 and 0 < right < images
    for result in results(world):
        for size in BATCH_SIZES:
            found = result["files"][f"{name} {size}"]
            assert found[:2] == [top1, top5] and found[3:] == [images, []], (world, size)
            assert found[2] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_accuracy_on_digits_is_the_same_to_the_last_digit(results, world):
    check_set(results, world, "digits", 355)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_accuracy_on_hand_signs_is_the_same_to_the_last_digit(shared_dir, results, world):
    check_set(results, world, "signs", 409)


def test_the_network_has_learnt_something(results):
    assert 0.2 < results(1)[0]["files"]["digits 1"][0] < 0.99


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_few_images(results, world):
    for result in results(world):
        found = result["arrays"]
        for size in (1, 2, 4):
            assert found[f"ten {size}"][0] == 0.8 and found[f"ten {size}"][3] == 10
            assert found[f"ten {size}"][2] == pytest.approx(found["ten 1"][2], abs=1e-6)
        # Images 0 and 1 are wrong.
        assert (found["five 2"][0], found["five 2"][3]) == (0.6, 5)
        assert (found["one 64"][0], found["one 64"][3]) == (0.0, 1)
        assert (found["broken 2"][0], found["broken 2"][3:]) == (7 / 8, [8, [0, 5]])


# ---------------------------------------------------------------- training


@several
@pytest.mark.parametrize("case", ["own data", "head only"])
def test_weights_stay_equal_on_different_data(results, world, case):
    (alone,) = results(1)
    digests = {result[case]["digest"] for result in results(world)}
    assert len(digests) == 1
    # Process 0 had the same data and the same initial weights when it was alone.
    assert alone[case]["digest"] not in digests


@several
def test_frozen_tensors_under_several_processes(results, world):
    for result in results(world):
        # Process 0 gave the others its weights, so there every tensor may differ from what it was.
        if result["rank"] == 0:
            assert set(result["head only"]["changed"]) == {"head.weight", "head.bias"}
            assert not FROZEN & set(result["own data"]["changed"])
            assert {"cls_token", "tokens_to_token.attention1.kqv.weight"} <= set(result["own data"]["changed"])


@several
def test_a_batch_gives_the_same_losses_however_it_is_split(results, world):
    (alone,) = results(1)
    assert len(alone["shared batches"]["losses"]) == 3
    for result in results(world):
        np.testing.assert_allclose(result["shared batches"]["losses"], alone["shared batches"]["losses"], rtol=1e-4)


@several
def test_only_the_first_process_writes(results, world):
    for result in results(world):
        written = set(result["own data"]["files"]) - {"config.yaml", "lock"}
        kept = {f"checkpoints/{name}" for name in ("epoch-0001-step-000000.npz", "latest", "best")}
        assert written == ({"best.pdparams", "last.pdparams"} | kept if result["rank"] == 0 else set())
