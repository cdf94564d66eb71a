"""By hand: process 0 takes its time to write a checkpoint while the others wait; the training must go on.

    python -m paddle.distributed.launch --nproc_per_node 2 tests/slow_save.py 90

The number of seconds is the argument. The suite has the same with one second (test_distributed.py).
"""

import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent / "tools"), str(TESTS)]

from startup import import_paddle  # noqa: E402

paddle = import_paddle()

from engine import distributed  # noqa: E402
from engine_fakes import ArrayBatches, make_config, make_trainer, pictures  # noqa: E402


def main(seconds):
    """Train two epochs; the checkpoint of the first one is slow. Prints in the first process."""
    distributed.choose_device("cpu")
    distributed.init()
    world, rank = distributed.world_size(), distributed.rank()
    with tempfile.TemporaryDirectory() as folder:
        batches = ArrayBatches(*pictures(24), 4, world=world, rank=rank, shuffle=True)
        trainer = make_trainer(Path(folder), make_config(), batches, batches)
        save, waits = trainer.folder.save, [seconds]

        def slowly(*arguments):
            time.sleep(waits.pop() if waits else 0)
            return save(*arguments)

        trainer.folder.save = slowly
        start = time.time()
        trainer.fit()
    if distributed.is_main():
        epochs = [round(float(values["loss"]), 6) for values in trainer.log.of("epoch")]
        print(f"Paddle {paddle.__version__}, {world} processes: {len(epochs)} epochs in {time.time() - start:.0f} s "
              f"with a save of {seconds:g} s, losses {epochs}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(float(sys.argv[1]))
