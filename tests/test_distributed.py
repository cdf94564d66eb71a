"""Real processes under Paddle's launcher: the same figures as one process, and weights that stay together."""

import json
import os
import re
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
from data.loader import EpochBatchSampler, build_loader
from data.transforms import EvalTransform
from engine import distributed
from engine.distributed import choose_device, gather_rows, wrap
from engine_fakes import make_config, make_trainer, small_convnet
from errors import UserError
from PIL import Image
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
    return [{"folder": folder, **json.loads((folder / f"rank{rank}.json").read_text())} for rank in range(world)]


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
    config = make_config(model__num_classes=10, train__lr=2e-3)
    trainer = make_trainer(folder, config, Batches(loader, (0.5,) * 3, (0.25,) * 3), None, network)
    trainer._train_epoch(0, time.perf_counter())
    return str(save_weights(network.state_dict(), folder / "trained"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """24 images of three classes with their lists; `uneven.txt` has 20 of them and a broken one."""
    folder = tmp_path_factory.mktemp("made")
    lines = []
    for index in range(24):
        pixels = np.random.RandomState(index).randint(0, 256, (20, 24, 3)).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{index:02d}.png")
        lines.append(f"{index:02d}.png {index % 3}\n")
    (folder / "broken.png").write_text("no image")
    lists = dict.fromkeys(("plain", "windows", "mixed", "taught"), lines)
    lists.update(uneven=[*lines[:10], "broken.png 1\n", *lines[10:20]], val=lines[:7])
    for name, content in lists.items():
        (folder / f"{name}.txt").write_text("".join(content))
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory, digits, weights, made, root):
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
            job = {"weights": weights, "sets": sets, "batch_sizes": BATCH_SIZES, "pictures": str(made)}
            if world in (1, 4):
                # They go on with a run that two processes began.
                job["cut"] = str(of(2)[0]["folder"] / "rank0" / "cut")
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
        # The wrong ones in the last, smaller batch: a mean of batch means would be 0.667.
        assert found["last 4"][0] == 0.8 and found["last 4"][1] == 1.0
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


# ---------------------------------------------------------------- the same training, however it is split

CASES = ("plain", "windows", "mixed", "taught", "uneven")
LIMIT = 1e-5
split = pytest.mark.parametrize("world", [2, 4])


def losses(results, *keys):
    """Mean loss of each step over the images of all processes."""
    rows = []
    for result in results:
        for key in ("ways", *keys):
            result = result[key]
        rows.append(result["losses"])
    loss, count = np.moveaxis(np.array(rows), 2, 0)
    return (loss * count).sum(axis=0) / count.sum(axis=0)


def tensors(results, name):
    with np.load(results[0]["folder"] / f"{name}.npz") as archive:
        return {key: archive[key] for key in archive.files}


def assert_close(ours, theirs):
    """All weights, averages and moments."""
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert np.abs(value.astype("float64") - theirs[name]).max() < LIMIT, name


@split
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_processes_changes_no_loss_and_no_weight(results, world, case):
    alone, several = losses(results(1), "cases", case), losses(results(world), "cases", case)
    assert len(alone) == (12 if case == "windows" else 6) and np.abs(several - alone).max() < LIMIT
    assert np.ptp(alone) > 100 * LIMIT
    assert_close(tensors(results(world), case), tensors(results(1), case))
    ways = [result["ways"]["cases"][case] for result in results(world)]
    (expected,) = (result["ways"]["cases"][case] for result in results(1))
    assert len({way["digest"] for way in ways}) == 1
    # What is logged: mean loss and skipped images of each epoch, and both kinds of weights on the validation images.
    for (loss, skipped), (wanted, count) in zip(ways[0]["epochs"], expected["epochs"]):
        assert abs(loss - wanted) < LIMIT and skipped == count == (case == "uneven")
    for (kind, top1, loss, images), wanted in zip(ways[0]["val"], expected["val"]):
        assert [kind, top1, images] == [wanted[0], wanted[1], 7] and abs(loss - wanted[2]) < LIMIT


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_batch_in_two_windows_gives_the_same(results, world):
    plain, windows = losses(results(1), "cases", "plain"), losses(results(world), "cases", "windows")
    assert np.abs(windows.reshape([-1, 2]).mean(axis=1) - plain).max() < LIMIT
    assert_close(tensors(results(world), "windows"), tensors(results(1), "plain"))


@pytest.mark.parametrize("world", [1, 4])
def test_a_run_that_two_processes_began_goes_on_with_others(results, world):
    straight = losses(results(1), "cases", "plain")
    begun = np.array([result["ways"]["cut"] for result in results(2)])[..., 0].mean(axis=0)
    on = losses(results(world), "on", "same")
    assert len(on) == 4 and np.abs(np.concatenate([begun[:2], on]) - straight).max() < LIMIT
    assert_close(tensors(results(world), "on"), tensors(results(1), "plain"))
    (note,) = results(world)[0]["ways"]["on"]["same"]["notes"]
    assert re.fullmatch(r"going on in epoch 1 after step 2 from \S+step-000002\.npz", note)


@pytest.mark.parametrize("world, step, again", [(1, 5, 1), (4, 1, 4)])
def test_another_total_batch_repeats_only_the_images_it_says(results, world, step, again):
    ways = [result["ways"]["on"]["other"] for result in results(world)]
    note = ways[0]["notes"][0]
    assert f"after step {step} from" in note
    assert note.endswith(f"(the total batch was 8, now {3 * world}; {again} images of the epoch come again)")
    sampler = EpochBatchSampler(range(24), 24, shuffle=True, seed=42)
    (order,) = sampler
    seen = sum((way["seen"] for way in ways), [])
    assert sorted(seen) == sorted(index for _, index in order[16 - again:])


def test_dropout_differs_between_processes_and_is_the_same_again(results):
    first, second = (result["ways"]["masks"] for result in results(2))
    for runs in (first, second):
        assert runs[0] == runs[1] and len(runs[0]) > 20
    # Drop path of four images has few outcomes, dropout none twice.
    assert sum(a == b for a, b in zip(first[0], second[0])) < len(first[0]) / 4


def test_a_slow_save_holds_nobody_up_for_good(results):
    assert [result["ways"]["slow"] for result in results(2)] == [2, 2]


@pytest.mark.parametrize("name, text", [
    ("array", r"b: process 1 has another value than process 0; see to it"),
    ("names", r"process 1 has 2 values to compare, process 0 has 1, or others than these; see to it"),
    ("settings", r"train\.lr: process 1 has .*"),
    ("images", r"data\.train_dir=\S+: process 1 has .*; all machines need the same images"),
    ("state", r"optimizer/cls_token/moment1_0: process 1 has .* run folder output=\S+ on a shared disk"),
    ("frozen", r"model/pos_embed: process 1 has .*"),
    ("teacher", r"extra/teacher/sha256: process 1 has .*"),
    ("place", r"output=\S+: the processes would go on after epochs \[0, 1\]; put .*"),
])
def test_processes_that_do_not_agree_all_say_so(results, name, text):
    for result in results(2):
        assert re.fullmatch(text, result["ways"]["refused"][name])
