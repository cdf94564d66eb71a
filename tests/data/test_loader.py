"""Who gets which sample in which epoch, loaders that survive being left early, and the normalisation."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import paddle
import pytest
from data import loader as loader_module
from data.dataset import FAILED, ImageDataset
from data.decode import ImageError
from data.listing import read_samples
from data.loader import EpochBatchSampler, build_loader, normalize, shared_memory_shortage
from data.transforms import EvalTransform, TrainTransform
from errors import UserError
from PIL import Image

WORLDS, BATCHES, LENGTHS = (1, 2, 3, 4), (1, 2, 4, 7), range(1, 31)


def ranks(n, batch_size, world, epoch=0, **kwargs):
    """Per rank: (batches of indices, sampler)."""
    result = []
    for rank in range(world):
        sampler = EpochBatchSampler(range(n), batch_size, world=world, rank=rank, **kwargs)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert all(e == epoch for batch in batches for e, _ in batch)
        result.append(([[index for _, index in batch] for batch in batches], sampler))
    return result


# --- sampler


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_rank_has_equal_batches_and_together_they_cover_all(shuffle):
    for world in WORLDS:
        for batch_size in BATCHES:
            for n in LENGTHS:
                parts = ranks(n, batch_size, world, shuffle=shuffle, seed=5)
                sizes = [[len(batch) for batch in batches] for batches, _ in parts]
                assert all(one == sizes[0] for one in sizes)
                assert all(size == batch_size for size in sizes[0][:-1]) and 1 <= sizes[0][-1] <= batch_size
                real = []
                for batches, sampler in parts:
                    flat = sum(batches, [])
                    real += flat[:len(flat) - sampler.repeats]
                # Leaving the repeats out, each index is there exactly once.
                assert sorted(real) == list(range(n)), (world, batch_size, n)
                assert sum(sampler.repeats for _, sampler in parts) < world


@pytest.mark.parametrize("shuffle", [False, True])
def test_drop_last(shuffle):
    for world in WORLDS:
        for batch_size in BATCHES:
            for n in LENGTHS:
                parts = ranks(n, batch_size, world, shuffle=shuffle, drop_last=True)
                full = n // (world * batch_size)
                flat = sum((sum(batches, []) for batches, _ in parts), [])
                for batches, sampler in parts:
                    assert sampler.kept_incomplete == (full == 0)
                    assert len(batches) == max(1, full)
                    if full:
                        assert all(len(batch) == batch_size for batch in batches) and sampler.repeats == 0
                if full:
                    assert len(set(flat)) == len(flat) == full * world * batch_size
                else:
                    assert set(flat) == set(range(n))


def test_global_batches_do_not_depend_on_the_number_of_processes():
    for n in (24, 29, 48, 53):
        one = ranks(n, 12, 1, epoch=3, shuffle=True, seed=9)[0][0]
        for world in (2, 3, 4):
            parts = [batches for batches, _ in ranks(n, 12 // world, world, epoch=3, shuffle=True, seed=9)]
            joined = [sum(blocks, []) for blocks in zip(*parts)]
            assert len(joined) == len(one)
            for ours, theirs in zip(joined, one):
                # Only the filling of the last batch depends on the number of processes.
                assert set(theirs) <= set(ours) and 0 <= len(ours) - len(theirs) < world


@pytest.mark.parametrize("world, batch_size", [(1, 12), (2, 6), (3, 4), (6, 2)])
def test_opposite_samples_are_the_same_for_any_number_of_processes(world, batch_size):
    def pairs(batches):
        return {frozenset(pair) for batch in batches for pair in zip(batch, batch[::-1])}

    # The last batch has 8 samples, so each of 2 processes has an even block of it, too.
    one = pairs(ranks(32, 12, 1, shuffle=True, seed=9)[0][0][: None if world < 3 else 2])
    parts = ranks(32, batch_size, world, shuffle=True, seed=9)
    found = set().union(*(pairs(batches[: None if world < 3 else 2]) for batches, _ in parts))
    assert found == one and all(len(pair) == 2 for pair in found)


def test_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return sum(ranks(30, 4, 1, epoch=epoch, shuffle=True, seed=seed)[0][0], [])

    first = order(1, 4)
    np.random.seed(0)
    assert order(1, 4) == first
    assert order(1, 5) != first and order(2, 4) != first
    assert sum(ranks(30, 4, 1, epoch=4)[0][0], []) == list(range(30))


def test_fewer_samples_than_processes():
    parts = ranks(2, 7, 4)
    assert [batches for batches, _ in parts] == [[[0]], [[1]], [[0]], [[1]]]
    assert [sampler.repeats for _, sampler in parts] == [0, 0, 1, 1]


def test_cancel_ends_one_iteration_only():
    sampler = EpochBatchSampler(range(10), 2)
    running = iter(sampler)
    next(running)
    sampler.cancel()
    assert list(running) == [] and len(list(sampler)) == 5


@pytest.mark.parametrize("kwargs, text", [
    ({"batch_size": 0}, "batch_size=0"), ({"batch_size": 1, "rank": 2, "world": 2}, "rank=2"),
])
def test_impossible_numbers(kwargs, text):
    with pytest.raises(UserError, match=text):
        EpochBatchSampler(range(4), **kwargs)
    with pytest.raises(UserError, match="empty"):
        EpochBatchSampler([], 1)


# --- loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos")
    for label in "ab":
        (path / label).mkdir()
        for i in range(20):
            noise = np.random.RandomState(ord(label) + i).randint(0, 256, (30, 40, 3)).astype("uint8")
            Image.fromarray(noise).save(path / label / f"{i:02}.jpg")
    return path


@pytest.fixture
def build(folder):
    """Make loaders that are closed when the test ends."""
    made = []

    def make(train=True, on_error="stop", samples=None, **kwargs):
        samples = samples or read_samples(str(folder), num_classes=2)
        transform = TrainTransform(16) if train else EvalTransform(16)
        dataset = ImageDataset(samples, transform, train=train, seed=3, on_error=on_error)
        settings = {"batch_size": 4, "shuffle": train, "seed": 3, "rank": 0, "world": 1, "drop_last": train,
                    "workers": 0, **kwargs}
        made.append(build_loader(dataset, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def epoch_of(loader, epoch, stop=None):
    loader.batch_sampler.set_epoch(epoch)
    result = {}
    for step, (images, labels, indices) in enumerate(loader):
        assert images.dtype == paddle.uint8 and images.shape[1:] == [16, 16, 3] and images.place.is_cpu_place()
        assert labels.dtype == indices.dtype == paddle.int64
        for pixels, label, index in zip(images.numpy(), labels.numpy(), indices.numpy()):
            result[int(index)] = (int(label), pixels.tobytes())
        if stop and step + 1 == stop:
            break
    return result


def test_bytes_do_not_depend_on_workers_batch_or_world(build):
    plain = epoch_of(build(), 1)
    assert len(plain) == 40 and [plain[i][0] for i in range(40)] == [0] * 20 + [1] * 20
    assert epoch_of(build(workers=2), 1) == plain
    assert epoch_of(build(workers=2, use_shared_memory=False), 1) == plain
    halves = [epoch_of(build(batch_size=10, world=2, rank=rank), 1) for rank in (0, 1)]
    assert {**halves[0], **halves[1]} == plain
    other = epoch_of(build(), 2)
    assert all(other[i][1] != plain[i][1] for i in range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_epochs_early(build, workers):
    """Each epoch begins with its own first batch, with nothing left over from the one before."""
    loader, fresh = build(workers=workers), build()
    for epoch in range(3):
        assert epoch_of(loader, epoch, stop=3) == epoch_of(fresh, epoch, stop=3)
    assert epoch_of(loader, 3) == epoch_of(fresh, 3)
    assert epoch_of(loader, 4) == epoch_of(fresh, 4)


def test_what_is_left_of_an_epoch_is_not_decoded(build, monkeypatch):
    loader = build(workers=2, batch_size=1)
    epoch_of(loader, 0, stop=1)
    abandoned = loader._running
    left = []
    monkeypatch.setattr(abandoned, "_on_output_batch", lambda call=abandoned._on_output_batch: left.append(call()))
    epoch_of(loader, 1, stop=1)
    # Of 40 batches: those already on their way, two per worker.
    assert len(left) <= 1 + 4


def test_leaving_by_an_exception(build):
    loader, fresh = build(workers=2), build()

    def fail():
        for _ in loader:
            raise KeyError("loop")

    with pytest.raises(KeyError):
        fail()
    assert epoch_of(loader, 1) == epoch_of(fresh, 1)


def test_open_files_and_processes_stay_flat(build):
    loader = build(workers=2)
    files, children = [], []
    for epoch in range(4):
        epoch_of(loader, epoch, stop=None if epoch % 2 else 2)
        gc.collect()
        files.append(len(os.listdir("/proc/self/fd")))
        children.append(len(multiprocessing.active_children()))
    # Loaders of earlier tests may still be letting go of theirs.
    assert max(files[1:]) <= files[0] and len(set(children)) == 1
    loader.close()
    assert len(multiprocessing.active_children()) == children[0] - 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_may_begin_at_any_batch(build, workers, monkeypatch):
    loader, whole = build(workers=workers), list(epoch_of(build(), 1).items())
    asked = []
    monkeypatch.setattr(type(loader.dataset), "__getitem__", lambda self, key, get=ImageDataset.__getitem__:
                        (asked.append(key), get(self, key))[1])  # fmt: skip
    for start in (3, 9, 10, 11, 0):
        loader.batch_sampler.set_epoch(1, start)
        found = [int(index) for _, _, indices in loader for index in indices.numpy()]
        assert found == [index for index, _ in whole][4 * start:]
        assert len(loader.batch_sampler) == 10
    # What comes before is not decoded.
    assert workers or len(asked) == 28 + 4 + 0 + 0 + 40
    loader.batch_sampler.set_epoch(1, 5)
    loader.batch_sampler.set_epoch(1)
    assert len(list(loader)) == 10


def test_the_last_smaller_batch_is_left_out_like_the_others():
    sampler = EpochBatchSampler(range(10), 4)
    for start in range(4):
        sampler.set_epoch(0, start)
        assert [len(batch) for batch in sampler] == [4, 4, 2][start:]


def test_workers_end_with_a_killed_training_and_not_by_its_signals(folder, tmp_path):
    code = """
import os, sys, time
sys.path[:0] = sys.argv[1:3]
from startup import import_paddle
import_paddle()
from data.dataset import ImageDataset
from data.listing import read_samples
from data.loader import build_loader
from data.transforms import EvalTransform
dataset = ImageDataset(read_samples(sys.argv[3], num_classes=2), EvalTransform(16), train=False, seed=0)
loader = build_loader(dataset, batch_size=4, shuffle=False, seed=0, rank=0, world=1, drop_last=False, workers=2)
running = iter(loader)
next(running)
print(*(worker.pid for worker in loader._running._workers), flush=True)
signal_came = []
import signal
signal.signal(signal.SIGTERM, lambda *_: signal_came.append(1))
while not signal_came:
    time.sleep(0.01)
print(len(list(running)), flush=True)
time.sleep(60)
"""
    tools = loader_module.__file__.rpartition("/data/")[0]
    process = subprocess.Popen([sys.executable, "-c", code, tools, "", str(folder)], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        workers = [int(word) for word in process.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "9\n"
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{worker}/cmdline") for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(os.path.exists(f"/proc/{worker}/cmdline") for worker in workers)
    # Nor do they leave their batches in the memory.
    assert not [name for name in os.listdir("/dev/shm") for worker in workers if f"_{worker}_" in name]


def test_undecodable_image_in_a_worker(build, folder, tmp_path):
    cut = tmp_path / "cut.jpg"
    content = (folder / "a" / "00.jpg").read_bytes()
    cut.write_bytes(content[:len(content) * 6 // 10])
    (tmp_path / "list.txt").write_text(f"{folder}/a/00.jpg 0\ncut.jpg 1\n{folder}/b/00.jpg 1\n")
    samples = read_samples(str(tmp_path), str(tmp_path / "list.txt"), num_classes=2)
    loader = build(train=False, samples=samples, workers=2)
    (images, labels, indices), = list(loader)
    assert labels.numpy().tolist() == [0, FAILED, 1] and indices.numpy().tolist() == [0, 1, 2]
    with pytest.raises(ImageError, match="cut.jpg.*truncated"):
        loader.dataset.check_batch(labels, indices)


def test_settings_reach_paddle(build):
    assert build(workers=2).use_shared_memory
    assert not build(workers=2, use_shared_memory=False).use_shared_memory
    with pytest.raises(UserError, match="data.workers=-1"):
        build(workers=-1)


def test_small_shared_memory_is_avoided(build, monkeypatch):
    hint = shared_memory_shortage(64, 224, 4, free=64 << 20)
    assert "/dev/shm has 64 MiB free" in hint and "data.use_shared_memory=false" in hint
    assert shared_memory_shortage(64, 224, 4, free=1 << 30) is None
    monkeypatch.setattr(loader_module, "_SHM", "/nowhere")
    assert shared_memory_shortage(64, 224, 4) is None
    monkeypatch.setattr(loader_module, "shared_memory_shortage", lambda *_: "too small")
    with pytest.warns(RuntimeWarning, match="too small"):
        loader = build(workers=2)
    assert not loader.use_shared_memory
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        build(workers=2, use_shared_memory=False)
        build(workers=0)


# --- normalisation


def test_normalize_every_value():
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), (2, 16, 16, 3)).copy()
    images[1] = images[1, ::-1, :, :]
    result = normalize(paddle.to_tensor(images), mean, std)
    assert result.shape == [2, 3, 16, 16] and result.dtype == paddle.float32
    expected = ((images / 255.0 - mean) / std).transpose(0, 3, 1, 2)
    assert np.abs(result.numpy() - expected).max() < 1e-6
    assert result.place._equals(paddle.zeros([1]).place)


def test_normalize_keeps_channels_apart():
    images = np.zeros((1, 2, 4, 3), np.uint8)
    images[0, 0, 3, 0] = 255
    result = normalize(paddle.to_tensor(images), [0, 0, 0], [1, 0.5, 0.25]).numpy()
    assert result[0, 0, 0, 3] == 1 and np.count_nonzero(result) == 1
