"""The speed floors, measured: this project's network and loader against plain ones, in one run, in turn.

    python tests/speed_floors.py [repeats]

Not a test: timing decides nothing automatically. The figures of record are in log/speed_floors.log.

Yardsticks: tests/plain_t2t.py for the network, paddle.vision.transforms for the loader. Threads, matrix kernels and
memory allocation are the same for both sides. `FLAGS_use_stride_kernel` is Paddle's default (on) for the plain network
in the first rows, and what the commands set (off) for both sides in the rows after.
"""

import platform
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tools"), str(Path(__file__).resolve().parent)]
from startup import import_paddle  # noqa: E402

paddle = import_paddle()
import bench  # noqa: E402
import measure  # noqa: E402
import numpy as np  # noqa: E402
import t2t  # noqa: E402
from data.decode import decode_rgb  # noqa: E402
from data.loader import normalize  # noqa: E402
from data.transforms import TrainTransform  # noqa: E402
from engine.distributed import choose_device  # noqa: E402
from paddle.vision import transforms  # noqa: E402
from PIL import Image  # noqa: E402
from plain_t2t import PlainT2TViT  # noqa: E402

BATCH, SIZE = 16, 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def with_flag(step, stride):
    """step() under FLAGS_use_stride_kernel=stride."""

    def run():
        paddle.set_flags({"FLAGS_use_stride_kernel": stride})
        step()

    return run


def networks(repeats):
    plain, ours = PlainT2TViT(), t2t.t2t_vit_7(drop_path_rate=0.0)
    plain.num_classes, plain.img_size = ours.num_classes, ours.img_size
    for name, make in (("training", bench.training_step), ("inference", bench.inference_step)):
        steps = [make(plain, BATCH), make(ours, BATCH)]
        for label, flags in (("Paddle's default flags / the commands'", (True, False)),
                             ("the commands' flags for both", (False, False)),
                             ("Paddle's default flags for both", (True, True))):
            pair = [with_flag(step, flag) for step, flag in zip(steps, flags)]
            theirs, mine = measure.time_steps(pair, repeats)
            print(f"{name}, {label}: plain {BATCH / theirs:.2f}, ours {BATCH / mine:.2f} images/s, "
                  f"ratio {theirs / mine:.2f}", flush=True)


def loaders(repeats):
    reference = transforms.Compose([
        transforms.RandomResizedCrop(SIZE), transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paths = bench.make_photos(folder)

        def theirs():
            for path in paths:
                reference(Image.open(path).convert("RGB"))

        def mine(transform):
            for index, path in enumerate(paths):
                transform(decode_rgb(path), np.random.default_rng((0, 0, index)))

        official, same = TrainTransform(SIZE), TrainTransform(SIZE, hflip=0.0, interpolation="bilinear")
        def normalised():
            pixels = [same(decode_rgb(path), np.random.default_rng((0, 0, i))) for i, path in enumerate(paths)]
            normalize(paddle.to_tensor(np.stack(pixels)), MEAN, STD)

        steps = [theirs, lambda: mine(same), lambda: mine(official), normalised]
        plain, *ours = (seconds / len(paths) for seconds in measure.time_steps(steps, repeats))
    print(f"loader, one core, paddle.vision's RandomResizedCrop, ToTensor, Normalize: {1 / plain:.1f} images/s")
    for label, own in zip(("same crop and filter, uint8 as the workers give it",
                           "official recipe (random filter, flip), uint8",
                           "same crop and filter, normalised on top (in the main process)"), ours):
        print(f"loader, ours, {label}: {1 / own:.1f} images/s, ratio {plain / own:.2f}")


if __name__ == "__main__":
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"Paddle {paddle.__version__}, NumPy {np.__version__}, Python {platform.python_version()}; "
          f"{choose_device('cpu')}; T2T-ViT-7, batch {BATCH}, {SIZE} px, median of {repeats} in turn")
    networks(repeats)
    loaders(repeats)
