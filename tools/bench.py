"""Measure a network and the loader: images/s and peak memory.

`python tools/bench.py --model t2t_vit_7 --batch 16` times inference, training and the loading of training images on
made JPEGs of 500x375. Timings are medians; run on an otherwise idle machine. Started by the launcher (`python -m
paddle.distributed.launch --nproc_per_node 2 tools/bench.py`), it times the training by all processes instead.
"""

import os
import sys
import tempfile
from pathlib import Path

from engine.arguments import Parser
from errors import UserError, run_command
from measure import peak, reset_peak, time_steps
from startup import import_paddle

MODES = ("inference", "training", "loader")
IMAGENET = 1_281_167  # training images


def parse(argv):
    """The arguments, checked."""
    parser = Parser(prog="bench.py", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="t2t_vit_7", help="published name (default: t2t_vit_7)")
    parser.add_argument("--img-size", type=int, default=224, metavar="S", help="pixels (default: 224)")
    parser.add_argument("--batch", type=int, default=16, metavar="B", help="images per step (default: 16)")
    parser.add_argument("--threads", type=int, metavar="T", help="CPU threads (default: all cores)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps, after one more (default: 5)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="what to measure (default: all)")
    args = parser.parse_args(argv)
    for name in ("batch", "steps", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: must be 1 or more")
    return args


def main(argv=None):
    """Print one line per mode."""
    args = parse(argv)
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    paddle = import_paddle()
    from engine import distributed
    from engine.distributed import choose_device
    from engine.runlog import clock
    from models import build_model

    if distributed.world_size() > 1:
        return scaling(args)
    print(f"Paddle {paddle.__version__}; {choose_device(args.device)}")
    print(f"{args.model} at {args.img_size} px, batch {args.batch}, median of {args.steps} steps")
    network = build_model(args.model, img_size=args.img_size)
    for mode in args.modes:
        reset_peak()
        if mode == "loader":
            with tempfile.TemporaryDirectory() as folder:
                plain, full = time_loaders(make_photos(folder), args.img_size, args.steps)
            print(f"loader: {1 / plain:.1f} images/s on one core (decode, random crop, resize, flip), "
                  f"{1 / full:.1f} with RandAugment")
            continue
        step = training_step(network, args.batch) if mode == "training" else inference_step(network, args.batch)
        seconds = time_steps([step], args.steps)[0]
        epoch = f", an ImageNet epoch in {clock(IMAGENET * seconds / args.batch)}" if mode == "training" else ""
        print(f"{mode}: {args.batch / seconds:.1f} images/s, {peak() >> 20} MiB peak memory{epoch}")
    return 0


def scaling(args):
    """Print, in the first process, how fast all train together, and how much of as many single ones that is."""
    import numpy as np
    import paddle
    from engine import distributed
    from models import build_model

    device = distributed.choose_device(args.device)
    distributed.init()
    world = distributed.world_size()
    network = build_model(args.model, img_size=args.img_size)
    alone = 0.0
    if distributed.is_main():
        print(f"Paddle {paddle.__version__}; {world} processes, each: {device}")
        print(f"{args.model} at {args.img_size} px, batch {args.batch} per process, median of {args.steps} steps")
        alone = args.batch / time_steps([training_step(network, args.batch)], args.steps)[0]
    seconds = time_steps([training_step(network, args.batch, distributed.wrap(network))], args.steps)[0]
    together = world * args.batch / distributed.gather_rows(np.array([[seconds]])).max()
    if distributed.is_main():
        print(f"training: {together:.1f} images/s together, {alone:.1f} by one process while the others wait; "
              f"efficiency {together / (world * alone):.2f}")
    return 0


def training_step(network, batch, model=None):
    """A function that runs forward, backward and an AdamW step on random images; model: `network` as wrapped."""
    import paddle
    from engine import distributed
    from engine.loss import smoothed_cross_entropy
    from engine.optim import build_optimizer

    images, labels = _images(network, batch), paddle.randint(0, network.num_classes, [batch])
    optimizer = build_optimizer(network, lr=1e-4, weight_decay=0.03)

    def step():
        network.train()
        if model:
            distributed.meet()
        smoothed_cross_entropy((model or network)(images), labels, 0.1).backward()
        optimizer.step()
        optimizer.clear_grad()
        if "gpu" in paddle.get_device():
            paddle.device.synchronize()

    return step


def inference_step(network, batch):
    """A function that runs the network on random images without gradients and fetches the logits."""
    import paddle

    images = _images(network, batch)

    def step():
        network.eval()
        with paddle.no_grad():
            network(images).numpy()

    return step


def _images(network, batch):
    import paddle

    return paddle.rand([batch, 3, network.img_size, network.img_size])


def make_photos(folder, count=64):
    """Write `count` made JPEGs of 500x375, coarse noise with the size on disk of photos, and return their paths."""
    import numpy as np
    from PIL import Image

    paths = []
    for i in range(count):
        pixels = np.random.RandomState(i).randint(0, 256, (75, 100, 3)).astype("uint8")
        picture = Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC)
        paths.append(Path(folder) / f"{i:03d}.jpg")
        picture.save(paths[-1], quality=90)
    return paths


def time_loaders(paths, img_size, repeats):
    """Median seconds per image, in this process, of the training transform, and of it with the official RandAugment."""
    import numpy as np
    from data.auto_augment import auto_augment
    from data.decode import decode_rgb
    from data.transforms import TrainTransform

    augment = auto_augment("rand-m9-mstd0.5-inc1", img_size, (0.485, 0.456, 0.406), "random")

    def loading(transform):
        def load_all():
            for index, path in enumerate(paths):
                transform(decode_rgb(path), np.random.default_rng((0, 0, index)))

        return load_all

    functions = [loading(TrainTransform(img_size)), loading(TrainTransform(img_size, augment=augment))]
    return [seconds / len(paths) for seconds in time_steps(functions, repeats)]


if __name__ == "__main__":
    sys.exit(run_command(main))
