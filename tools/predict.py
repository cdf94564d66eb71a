"""Classify images: `python tools/predict.py img.jpg --weights W` prints `class_id is: 923`, then names and scores.

IMG is an image file or a folder, which is searched for images. A run folder as W brings its own model, size, transform
and class names.
"""

import json
import sys
from pathlib import Path

from engine.arguments import Parser, add_weights, settle, words_and_settings
from errors import UserError, run_command
from startup import import_paddle

BATCH_SIZE = 16


def parse(argv):
    """The arguments, with the configuration still unread; `key=value` among the images are settings."""
    parser = Parser(prog="predict.py", description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", metavar="IMG", help="image files and folders; key=value are settings")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file (default: that of the run of --weights, else config/t2t_vit_7.yaml)"
    )
    add_weights(parser)
    parser.add_argument("--topk", type=int, default=5, metavar="K", help="classes to show for each image (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object per image instead of text")
    args = parser.parse_args(argv)
    args.images, args.overrides = words_and_settings(args.images)
    if not args.images:
        parser.error("no image given")
    if args.topk < 1:
        parser.error(f"argument --topk: {args.topk}: must be 1 or more")
    return args


def main(argv=None):
    """Predict as the arguments say. Returns 0, or 2 when an image could not be read; raises UserError."""
    args = parse(argv)
    config, weights = settle(args.config, args.weights, args.overrides)
    files = find_images(args.images)
    import_paddle()
    import wiring
    from data.decode import ImageError, decode_rgb
    from engine.distributed import choose_device

    choose_device(config.device)
    table = wiring.class_table(config, weights)
    network, _ = wiring.load_network(config, weights)
    transform = wiring.eval_transform(config)
    broken = 0
    for start in range(0, len(files), BATCH_SIZE):
        pictures = []
        for file in files[start : start + BATCH_SIZE]:
            try:
                pictures.append((file, transform(decode_rgb(file))))
            except ImageError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                broken += 1
        if pictures:
            ids, scores = classify(network, [pixels for _, pixels in pictures], config.data, args.topk)
            for (file, _), ids_row, scores_row in zip(pictures, ids, scores):
                show(file, ids_row, scores_row, table, as_json=args.json)
    return 2 if broken else 0


def find_images(words):
    """Image files named by files and folders, in order; raises UserError for what is not there or holds no image."""
    from data.listing import SUFFIXES, images_below

    found = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside = images_below(path)
            if not inside:
                raise UserError(f"{path}: no images in this folder; accepted are {' '.join(SUFFIXES)}")
            found += [path / name for name in inside]
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path}: no such image or folder; check the path")
    return found


def classify(network, pictures, data, topk):
    """Ids int64 [B, K] and probabilities float32 [B, K], best first, of uint8 pictures [S, S, 3].

    K is topk or the number of classes, whichever is smaller. data: engine.schema.DataConfig.
    """
    import numpy as np
    import paddle
    from data.loader import normalize

    with paddle.no_grad():
        images = normalize(paddle.to_tensor(np.stack(pictures)), data.mean, data.std)
        probabilities = paddle.nn.functional.softmax(network(images).astype("float32"), axis=1)
        scores, ids = probabilities.topk(min(topk, probabilities.shape[1]), axis=1)
    return ids.numpy(), scores.numpy()


def show(file, ids, scores, table, *, as_json):
    """Print one image's result. Without a table of names only ids are shown."""
    rows = []
    for index, score in zip(ids.tolist(), scores.tolist()):
        row = {"class_id": index, "score": round(score, 6)}
        if table:
            row["name"] = table.names[index]
            if table.wnids:
                row["wnid"] = table.wnids[index]
        rows.append(row)
    if as_json:
        print(json.dumps({"image": str(file), "class_id": rows[0]["class_id"], "top": rows}))
        return
    print(f"{file}\nclass_id is: {rows[0]['class_id']}")
    for row in rows:
        label = "  ".join(row[key] for key in ("wnid", "name") if key in row)
        print(f"  {row['class_id']:>4}  {row['score']:.4f}  {label}".rstrip())


if __name__ == "__main__":
    sys.exit(run_command(main))
