"""One of several processes under Paddle's launcher: evaluates and trains as test_distributed.py asks.

    python -m paddle.distributed.launch --nproc_per_node 2 distributed_worker.py FOLDER

FOLDER/job.json: {"weights": file, "sets": {name: [folder, list file]}, "batch_sizes": [...], "pictures": folder,
"cut": run folder of rank 0 that a group of two left, for the others}. Each process writes its results to
FOLDER/rank<r>.json.
"""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent / "tools"), str(TESTS)]

from startup import import_paddle  # noqa: E402

paddle = import_paddle()

import numpy as np  # noqa: E402
import t2t  # noqa: E402
from data.batches import Batches  # noqa: E402
from data.dataset import ImageDataset  # noqa: E402
from data.listing import read_samples  # noqa: E402
from data.loader import build_loader  # noqa: E402
from data.transforms import EvalTransform  # noqa: E402
from distributed_training import digest, train_in_several_ways  # noqa: E402
from engine import distributed  # noqa: E402
from engine.evaluate import evaluate  # noqa: E402
from engine_fakes import (  # noqa: E402
    ArrayBatches,
    Lookup,
    make_config,
    make_trainer,
    pictures,
    small_convnet,
    small_t2t,
    weights_of,
)
from weights.loading import load_weights  # noqa: E402
from weights.paddle_file import read_weights  # noqa: E402


def file_batches(folder, list_file, batch_size):
    dataset = ImageDataset(
        read_samples(folder, list_file, num_classes=10), EvalTransform(32, 1.0, "bicubic"), train=False, seed=0
    )
    loader = build_loader(
        dataset, batch_size=batch_size, shuffle=False, seed=0, rank=distributed.rank(),
        world=distributed.world_size(), drop_last=False, workers=0,
    )  # fmt: skip
    return Batches(loader, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def evaluate_files(job):
    network = small_convnet()
    load_weights(network, read_weights(job["weights"]), source="test")
    return {
        f"{name} {size}": evaluate(network, file_batches(*files, size))
        for name, files in job["sets"].items() for size in job["batch_sizes"]
    }  # fmt: skip


def evaluate_arrays():
    """Few images: ten of which 0 and 1 are wrong, five, one, and ten of which some cannot be decoded."""
    logits = np.random.RandomState(0).standard_normal((10, 3)).astype("float32")
    labels = logits.argmax(1)
    labels[:2] = (labels[:2] + 1) % 3

    def of(count, batch_size, failed=()):
        batches = ArrayBatches(logits[:count], labels[:count], batch_size, world=distributed.world_size(),
                               rank=distributed.rank(), failed=failed)  # fmt: skip
        return evaluate(Lookup(), batches)

    found = {f"ten {size}": of(10, size) for size in (1, 2, 4)}
    # 4, 4 and 2 images, where the two wrong ones are the last.
    batches = ArrayBatches(logits[::-1].copy(), labels[::-1].copy(), 4, world=distributed.world_size(),
                           rank=distributed.rank())  # fmt: skip
    found["last 4"] = evaluate(Lookup(), batches)
    return {**found, "five 2": of(5, 2), "one 64": of(1, 64), "broken 2": of(10, 2, (0, 5))}


def train(folder, network, batches):
    """Three steps; what came of them."""
    config = make_config(train__epochs=1, train__max_steps=3)
    trainer = make_trainer(folder, config, batches, ArrayBatches(*pictures(3, size=16), 2), network)
    before = weights_of(network)
    trainer.fit()
    after = weights_of(network)
    return {
        "digest": digest(after),
        "changed": sorted(name for name in after if (after[name] != before[name]).any()),
        "losses": [values["loss"] for values in trainer.log.of("train")],
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
    }


def train_on_own_data(folder, head_only):
    """Data and initial weights differ from process to process."""
    rank = distributed.rank()
    paddle.seed(100 + rank)
    network = small_t2t(drop_path_rate=0.1)
    network.pos_embed.set_value(network.pos_embed + rank)
    if head_only:
        for name, parameter in network.named_parameters():
            parameter.stop_gradient = not name.startswith("head.")
    return train(folder, network, ArrayBatches(*pictures(12, size=16, seed=rank), 4))


def train_on_shared_batches(folder):
    """Global batches of 12 images, split among the processes; without dropout, so that the split cannot matter."""
    world = distributed.world_size()
    paddle.seed(1)
    network = t2t.T2TViT(16, "transformer", num_classes=3, embed_dim=32, depth=2, num_heads=2)
    batches = ArrayBatches(*pictures(36, size=16), 12 // world, world=world, rank=distributed.rank(), shuffle=True)
    return train(folder, network, batches)


def main(folder):
    """Do everything in the group of processes that the launcher made."""
    distributed.choose_device("cpu")
    distributed.init()
    rank = distributed.rank()
    own = folder / f"rank{rank}"
    job = json.loads((folder / "job.json").read_text())
    gathered = distributed.gather_rows(np.array([[rank, 0.1 * rank]]))
    integers = distributed.gather_rows(np.full([2, 1], 2**53 + 1 + rank))
    result = {
        "rank": rank,
        "world": distributed.world_size(),
        "main": distributed.is_main(),
        "gathered": gathered.tolist(),
        "integers": integers[:, 0].tolist(),
        "files": evaluate_files(job),
        "arrays": evaluate_arrays(),
        "own data": train_on_own_data(own / "own", head_only=False),
        "head only": train_on_own_data(own / "head", head_only=True),
        "shared batches": train_on_shared_batches(own / "shared"),
        "ways": train_in_several_ways(folder, own, job) if distributed.world_size() != 3 else None,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
