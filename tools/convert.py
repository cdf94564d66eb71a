"""Convert weights: `python tools/convert.py 81.5_T2T_ViT_14.pth.tar output/t2t_vit_14.pdparams`.

SRC: a file of PyTorch, Paddle or safetensors, of the official release or another port, or a run folder. DST: its suffix
chooses .pdparams, .safetensors, or PyTorch's .pth, .pt, .pth.tar. Strict: every tensor is used or named with --drop.
"""

import sys

from engine.arguments import DEFAULT_CONFIG, SPLIT_KEYS, Parser, add_config, command_line, run_folder_of, short_path
from engine.config import ROOT, load_config
from engine.schema import ModelConfig
from errors import UserError, run_command
from startup import import_paddle
from weights.messages import misfits, source_lines
from weights.record import DATA_KEYS, Record, read_record, record_file, sha256_of
from weights.sources import PADDLE, arrays_of, choose, read_source
from weights.targets import in_layout, target_of, write


def parse(argv):
    """The arguments, with nothing read yet."""
    parser = Parser(prog="convert.py", description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="SRC", help="weights file or run folder")
    parser.add_argument("target", metavar="DST", help="file to write: .pdparams .safetensors .pth .pt .pth.tar")
    add_config(parser, "that of the run of SRC, else its record, else config/<model>.yaml")
    parser.add_argument("--key", metavar="NAME", help="dictionary in SRC (default: state_dict_ema, or the next)")
    parser.add_argument("--model", metavar="NAME", help="network (default: found by names and shapes)")
    parser.add_argument("--drop", metavar="PATTERN", action="append", default=[],
                        help="leave out the tensors with such names, as 'aux_head.*'; can be given several times")
    parser.add_argument("--overwrite", action="store_true", help="replace DST where it exists")
    parser.add_argument("--check", action="store_true", help="load into the network and print a fingerprint of logits")
    parser.add_argument("--official", metavar="DIR", help="official checkout to compare with, stage by stage")
    args = parser.parse_args(argv)
    if args.model is None:
        args.model = dict(word.partition("=")[::2] for word in args.overrides).get("model.name")
    return args


def main(argv=None):
    """Convert as the arguments say. Returns the exit code; raises UserError for what the user can mend."""
    args = parse(argv)
    target = target_of(args.target, overwrite=args.overwrite)
    source = read_source(args.source)
    if target.path.exists() and target.path.samefile(source.path):
        raise UserError(f"{target.path} is SRC itself; choose another name for DST")
    known = read_record(source.path)
    choice = choose(source, key=args.key, drop=args.drop)
    arrays = arrays_of(source, choice)
    print(*source_lines(source, choice), sep="\n")
    import_paddle()
    from models import identify

    run = run_folder_of(source.path)
    config_file = args.config or (run / "config.yaml" if run and not known else None)
    hint = load_config(config_file).model.name if config_file else known.model if known else source.model
    match = identify({name: array.shape for name, array in arrays.items()}, model=args.model, hint=hint)
    layout = check_match(source, choice, match, args.model)
    tell_match(match, layout, args.model)
    usual = cifar_recipe(source, choice, match) or config_of(match.name)
    config = settings(args, match, config_file or (None if known else usual), known)
    arrays = in_layout({name: arrays[name] for name in match.names}, match.linear, turn=layout != target.layout)
    code = 0
    if args.check or args.official:
        paddle_arrays = in_layout(arrays, match.linear, turn=target.layout != PADDLE)
        code = check(paddle_arrays, match, config, args.official)
    if code == 0:
        record = Record(
            source=source.path.name, source_sha256=sha256_of(source.path), dictionary=choice.dictionary,
            model=match.name, img_size=match.img_size, num_classes=match.num_classes, qk_scale=config.model.qk_scale,
            data=noted_data(config), tensors=len(arrays), parameters=sum(array.size for array in arrays.values()),
            sha256="", classes=class_names(match, run, known),
        )  # fmt: skip
        tell_target(target, write(target, arrays, record))
    return code


def check_match(source, choice, match, given):
    """The layout of the file's Linear weights; UserError where names, shapes or layout are not the network's."""
    missing, extra, unlike, layout = match.differences
    lines, summary = misfits(choice, missing, extra, unlike)
    if summary:
        print(*lines, sep="\n")
        nearest = "" if given else ", the nearest network"
        raise UserError(
            f"{source.path}, {choice.dictionary}: not the weights of {match.name}{nearest}: {summary}; "
            "use a complete file, or see --drop, --key and --model in --help"
        )
    if source.layout and layout != source.layout:
        raise UserError(
            f"{source.path}: its Linear weights lie as {layout} keeps them, though this is a file of {source.layout}: "
            "an earlier conversion failed to transpose them; convert the file it was made from"
        )
    return layout


def tell_match(match, layout, given):
    """Print the network and how it was found."""
    why = "as --model says" if given else "by parameter count, names and shapes"
    print(f"model: {match.name} at {match.img_size} px, {match.num_classes} classes, {why}")
    for name in match.alike:
        print(f"note: {name} has the same names and shapes; --model {name} if it is that")
    print(f"layout: {len(match.linear)} Linear weights as {layout} keeps them")


def settings(args, match, config_file, record):
    """engine.schema.Config with the data settings to note: those of a file, else of SRC's record, else of the model."""
    noted = {}
    if record and not config_file:
        noted = {"model.qk_scale": record.qk_scale, **{f"data.{key}": record.data[key] for key in DATA_KEYS}}
    file = config_file or config_of(match.name)
    config = load_config(file, args.overrides, record=noted, source=str(args.source))
    for key in SPLIT_KEYS:
        if getattr(config.model, key) != getattr(ModelConfig(), key):
            raise UserError(f"model.{key}={list(getattr(config.model, key))}: only networks with the published soft "
                            "splits are converted; use the run folder as it is")  # fmt: skip
    for key in ("img_size", "num_classes"):
        if any(word.startswith(f"model.{key}=") for word in args.overrides):
            given, found = getattr(config.model, key), getattr(match, key)
            if given != found:
                raise UserError(f"model.{key}={given} (command line): the weights have {found}; leave it out")
    return config


def check(arrays, match, config, official):
    """Load the arrays into the network, print a fingerprint and, given a checkout, the comparison; the exit code."""
    from checking import compare_official, fingerprint
    from models import build_model
    from weights.loading import load_weights

    network = build_model(match.name, img_size=match.img_size, num_classes=match.num_classes,
                          qk_scale=config.model.qk_scale)  # fmt: skip
    print(f"check: {load_weights(network, arrays, source='converted')} tensors loaded")
    network.eval()
    print(*fingerprint(network), sep="\n")
    if official is None:
        return 0
    comparison = compare_official(network, match.name, official)
    print(*comparison, sep="\n")
    return 0 if comparison.agrees else 1


def class_names(match, run, known):
    """Names of the classes that SRC's record or run tells, in id order, or None."""
    from data.classes import load_class_table

    if known:
        return known.classes
    file = run / "classes.txt" if run else None
    return list(load_class_table(file, match.num_classes).names) if file and file.is_file() else None


def cifar_recipe(source, choice, match):
    """The recipe of the authors' CIFAR files, which their transfer_learning.py writes as net, acc, epoch; or None."""
    if choice.dictionary != "net" or not {"acc", "epoch"} <= set(source.tree) or match.num_classes not in (10, 100):
        return None
    file = ROOT / "config" / f"finetune_cifar{match.num_classes}.yaml"
    print(f"data: as in {file.relative_to(ROOT)}, since the official transfer script saves files of this form; "
          "--config FILE for another")  # fmt: skip
    return file


def config_of(name):
    """The shipped recipe of a network."""
    file = ROOT / "config" / f"{name}.yaml"
    return file if file.is_file() else DEFAULT_CONFIG


def noted_data(config):
    """The data settings of a configuration that go into a record."""
    data = {key: getattr(config.data, key) for key in DATA_KEYS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def tell_target(target, record):
    """Print what was written and the command to try next."""
    size = target.path.stat().st_size
    print(f"written: {target.path}: {record.tensors} tensors, {record.parameters:,} parameters, {size:,} bytes, "
          f"sha256 {record.sha256[:16]}")  # fmt: skip
    data = ", ".join(f"{key} {value}" for key, value in record.data.items())
    print(f"record: {record_file(target.path)}: {data}")
    if target.layout == PADDLE:
        file = config_of(record.model)
        config = load_config(file)
        # With the recipe goes the accuracy to be reached, which holds for its own settings only.
        same = (config.model.img_size, config.model.num_classes, noted_data(config)) == (
            record.img_size, record.num_classes, record.data)  # fmt: skip
        weights = short_path(target.path)
        if same and file.stem == record.model:
            print(f"next: {command_line('val.py', '--config', short_path(file), '--weights', weights)}")
        else:
            print(f"next: {command_line('predict.py', 'IMG', '--weights', weights)}")


if __name__ == "__main__":
    sys.exit(run_command(main))
