"""Show what a network does with an image: `python tools/visualize.py IMG --weights W --kind features` writes a PNG.

features: maps of the T2T stages and of every block, as in Figure 2 of the paper, with those framed that show low-level
structure or nothing; --beside sets those of other networks below. attention: the class token's weights in every block,
and attention rollout. tokens: the soft splits and what one final token sees. The figures are printed as text too.
Weights and settings as for predict.py.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from engine.arguments import Parser, add_weights, settle, short_path, words_and_settings
from errors import UserError, run_command
from startup import import_paddle

KINDS = ("features", "attention", "tokens")
CHANNELS = 12
LARGEST = 2048
# Written into each picture, so that a later call knows which files it may replace unasked.
MARK = "T2T-ViT visualize.py"


def parse(argv):
    """The arguments, with the configuration still unread. Raises UserError for options that do not go together."""
    parser = Parser(prog="visualize.py", description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", metavar="IMG", help="one image file; key=value are settings")
    parser.add_argument("--kind", required=True, choices=KINDS, help="what to show")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file (default: that of the run of --weights, else config/t2t_vit_7.yaml)"
    )
    add_weights(parser)
    parser.add_argument("--output", metavar="PNG", help="file to write, replaced if it is there (default: IMG-KIND.png "
                        "in the current folder, which replaces nothing but a picture of this command)")  # fmt: skip
    parser.add_argument("--size", type=int, metavar="PX", help="show the image at this size; the position table of the "
                        "weights is resized (default: the size they were trained at)")  # fmt: skip
    parser.add_argument("--beside", metavar="W", action="append", default=[], help="features: weights of another "
                        "network to compare with, as --weights; may be given again")  # fmt: skip
    parser.add_argument("--channels", type=int, metavar="N", help=f"features: maps of each layer (default: {CHANNELS})")
    parser.add_argument("--heads", action="store_true", help="attention: each head of each block too")
    parser.add_argument("--token", metavar="ROW,COLUMN", help="tokens: the final token to look at, counted from 0 "
                        "(default: the middle one)")  # fmt: skip
    args = parser.parse_args(argv)
    args.images, args.overrides = words_and_settings(args.images)
    if len(args.images) != 1:
        parser.error(f"{len(args.images) or 'no'} images given, one is needed")
    for option, kind in (("beside", "features"), ("channels", "features"), ("heads", "attention"), ("token", "tokens")):
        if getattr(args, option) and args.kind != kind:
            parser.error(f"argument --{option}: goes with --kind {kind}")
    if args.beside and args.config:
        parser.error("argument --config: with --beside each network has the settings of its own weights")
    if args.channels is not None and args.channels < 1:
        parser.error(f"argument --channels: {args.channels}: must be 1 or more")
    return args


def main(argv=None):
    """Draw as the arguments say and print the figures and the file's name. Raises UserError."""
    args = parse(argv)
    image = Path(os.path.expanduser(args.images[0]))
    output = output_file(args.output, image, args.kind)
    chosen = [settle(args.config, weights, args.overrides) for weights in (args.weights, *args.beside)]
    import_paddle()
    from data.decode import decode_rgb
    from engine.distributed import choose_device

    choose_device(chosen[0][0].device)
    picture = decode_rgb(image)
    looks = [look(picture, config, weights, args.size) for config, weights in chosen]
    drawn, lines = draw(args, image.name, looks)
    save(drawn, output)
    for line in lines:
        print(line)
    print(f"written: {short_path(output)} ({drawn.width}x{drawn.height})")
    return 0


def output_file(given, image, kind):
    """The absolute path to write. Raises UserError for what must not be replaced and for folders that are missing."""
    path = (Path(os.path.expanduser(given)) if given else Path(f"{image.stem}-{kind}.png")).absolute()
    if path.suffix.lower() != ".png":
        raise UserError(f"--output {given}: the picture is a PNG; let the name end in .png")
    if not os.path.isdir(path.parent):
        raise UserError(f"--output {given}: no such folder: {path.parent}; create it or choose another")
    if os.path.isdir(path) or os.path.exists(path) and os.path.exists(image) and path.samefile(image):
        what = "this is a folder" if os.path.isdir(path) else "this is the image itself"
        raise UserError(f"--output {path}: {what}; choose another name")
    if not given and os.path.exists(path) and not _own_picture(path):
        raise UserError(f"{path} is there and no picture of this command; name another file with --output, or this one")
    return path


def _own_picture(path):
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG",)) as picture:
            return picture.info.get("Software") == MARK
    except (OSError, SyntaxError, ValueError):
        return False


def network_at(config, weights, size):
    """The network of the weights, in evaluation mode, for images of `size` pixels (None: its own), and its Config."""
    import wiring
    from weights.loading import initialise

    network, _ = wiring.load_network(config, weights)
    if size in (None, config.model.img_size):
        return network, config
    if not 1 <= size <= LARGEST:
        raise UserError(f"--size {size}: must be 1 to {LARGEST} pixels")
    resized = replace(config, model=replace(config.model, img_size=size))
    other = wiring.build_network(resized)
    initialise(other, {name: tensor.numpy() for name, tensor in network.state_dict().items()}, source=weights)
    other.eval()
    return other, resized


class Look(NamedTuple):
    """What one network does with the image. model: its name; weights: their file, in short; pixels: uint8 [S, S, 3],
    what it saw before normalisation; seen: pictures.watching.Observed.
    """

    model: str
    weights: str
    pixels: Any
    seen: Any

    def title(self):
        """Network, weights and size, as a picture names them."""
        return f"{self.model}, {self.weights} at {len(self.pixels)} px"


def look(picture, config, weights, size):
    """Run the network of the weights on a PIL RGB image, at `size` pixels or its own. Raises UserError."""
    import paddle
    import wiring
    from data.loader import normalize
    from pictures.watching import watch

    network, config = network_at(config, weights, size)
    pixels = wiring.eval_transform(config)(picture)
    seen = watch(network, normalize(paddle.to_tensor(pixels[None]), config.data.mean, config.data.std))
    return Look(config.model.name, f"{weights.parent.name}/{weights.name}", pixels, seen)


def draw(args, image, looks):
    """(PIL RGB, list of lines) of the kind asked for. Raises UserError for a kind that the network cannot show."""
    from pictures.sheets import attention, comparison, features
    from pictures.token_sheet import tokens

    channels = args.channels or CHANNELS
    if args.beside:
        networks = [(one.title(), one.pixels, one.seen.layers) for one in looks]
        return comparison(f"Features of {image} in {len(looks)} networks", networks, channels)
    [one] = looks
    pixels, seen = one.pixels, one.seen
    title = f"{args.kind.capitalize()} of {image} in {one.title()}"
    if args.kind == "features":
        return features(title, pixels, seen.layers, channels)
    if not seen.attention:
        raise UserError(f"--kind {args.kind}: {one.model} has no tokens and no attention; use --kind features")
    if args.kind == "attention":
        return attention(title, pixels, seen.attention, args.heads)
    token = chosen_token(args.token, seen.splits, len(pixels))
    return tokens(title, pixels, seen.splits, token, mixing=seen.mixing)


def chosen_token(given, splits, size):
    """(row, column) of `--token ROW,COLUMN`, or of the middle token. Raises UserError."""
    from pictures.splits import tokens_along_all

    side = tokens_along_all(size, splits)[-1]
    words = (given or f"{side // 2},{side // 2}").split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() and int(word) < side for word in words):
        raise UserError(f"--token {given}: must be ROW,COLUMN, both from 0 to {side - 1}")
    return tuple(int(word) for word in words)


def save(picture, path):
    """Write the PNG under another name and put it in its place."""
    from PIL.PngImagePlugin import PngInfo
    from weights.atomic import whole_file

    info = PngInfo()
    info.add_text("Software", MARK)
    with whole_file(path) as partial:
        picture.save(partial, "PNG", pnginfo=info)


if __name__ == "__main__":
    sys.exit(run_command(main))
