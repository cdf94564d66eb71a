"""Train a network: `python tools/train.py --config config/quickstart.yaml train.epochs=5`.

One process, or one of several under `python -m paddle.distributed.launch` (scripts/train.sh does that). A run folder
that holds a checkpoint is continued after the step that it was saved at, by the same command.
"""

import os
import sys
from dataclasses import replace

import numpy as np
from engine.arguments import DEFAULT_CONFIG, Parser, add_config, command_line, short_path, starting_point
from engine.config import load_config, project_path
from errors import run_command
from startup import import_paddle


def parse(argv):
    """The arguments, with the configuration still unread."""
    parser = Parser(prog="train.py", description=__doc__.splitlines()[0])
    add_config(parser)
    return parser.parse_args(argv)


def main(argv=None):
    """Train as the arguments say. Returns the exit code; raises UserError for what the user can mend."""
    args = parse(argv)
    config_file = args.config or DEFAULT_CONFIG
    config, init = starting_point(load_config(config_file, args.overrides))
    paddle = import_paddle()
    import teaching
    import wiring
    from data.classes import save_class_names
    from engine import distributed
    from engine.checkpoint import RunFolder
    from engine.loop import Trainer
    from engine.runlog import RunLog

    device = wiring.start(config)
    train = wiring.train_batches(config)
    samples = train.loader.dataset.samples
    config = replace(config, model=replace(config.model, num_classes=samples.num_classes))
    # Only predict needs the names, but a mistake in them should not show after days of training.
    wiring.class_table(config, None)
    val = wiring.eval_batches(config, samples.class_names)
    folder = RunFolder(project_path(config.output))
    state, notes = folder.examine(config, train.samples, train.fingerprint())
    if state:
        wiring.check_same_classes(config, folder.path, samples.class_names)
    paddle.seed(config.train.seed)
    network = wiring.build_network(config)
    if config.train.init:
        notes += _init(network, config, init, state)
    optimizer = wiring.freeze_and_optimize(network, config)
    ema = wiring.moving_average(network, config)
    complete = state is not None and state["meta"]["epoch"] >= config.train.epochs
    distillation, lines = (None, []) if complete else teaching.distillation(config, samples.class_names)
    if distributed.is_main() and not complete:
        folder.create(config)
        if samples.class_names:
            save_class_names(samples.class_names, folder.path / wiring.CLASSES_FILE)
    # The logs go on where the state was saved; checkpoints of earlier versions do not tell where that was.
    positions = (None if complete else state["meta"].get("logs")) if state else {}
    main_process = distributed.is_main()
    log = RunLog(folder.path if main_process else None, enabled=main_process, positions=positions)
    try:
        for line in (*_facts(config, config_file, device, network, train, val), *lines, *notes):
            log.line(line)
        trainer = Trainer(network, optimizer, train, val, config, folder, log, ema, distillation=distillation)
        if state:
            for line in trainer.restore(state):
                log.line(line)
        if complete:
            log.line(f"the run is complete; to train longer raise train.epochs (now {config.train.epochs}), "
                     "to train anew choose another output")
        best = trainer.fit()
        if trainer.stopped:
            _tell_stop(str(trainer.stopped), log)
            return trainer.stopped.exit_code
        for line in _farewell(config, best, val.path(0)):
            log.line(line)
    finally:
        log.close()
    return 0


def _tell_stop(text, log):
    """Say how to go on; all processes call this."""
    from engine import distributed

    log.line(text)
    if not distributed.is_main():
        # Into the log of this process, where tools/launch.py looks.
        print("stopped; the first process tells how to go on", flush=True)
    # Paddle's launcher ends the others when one has ended with an exit code.
    distributed.gather_rows(np.zeros([1, 1]))


def _init(network, config, init, state):
    """Start from train.init unless the run goes on from a checkpoint; lines for the log."""
    import wiring
    from weights.files import resolve_weights

    if state:
        return [f"train.init={config.train.init} is not read again: the run goes on from its checkpoint"]
    return list(wiring.start_from(network, config, init or resolve_weights(project_path(config.train.init))))


def _facts(config, config_file, device, network, train, val):
    """What the run consists of, derived numbers included, one line each."""
    import paddle
    import wiring
    from engine.distributed import world_size
    from engine.optim import decay_split
    from engine.rates import Rates
    from models.macs import count_parameters

    recipe = config.train
    count, trainable = count_parameters(network)
    decayed, undecayed = decay_split(network, recipe.decayed)
    yield f"config: {short_path(config_file)}; run folder: {config.output}; Paddle {paddle.__version__}"
    yield device
    yield (f"model: {config.model.name} at {config.model.img_size} px, {config.model.num_classes} classes, "
           f"{count:,} parameters ({trainable:,} trained: {len(decayed)} tensors with weight decay, "
           f"{len(undecayed)} without)")
    if recipe.freeze:
        frozen, names = sum(p.stop_gradient for p in network.parameters()), ",".join(recipe.freeze)
        total = len(network.parameters())
        yield f"train.freeze={names}: {frozen} of {total} tensors are frozen, pos_embed and w included"
    rates = Rates(network, recipe, recipe.batch_size * world_size() * recipe.accumulate)
    yield from rates.describe()
    after = "".join(f" {part.describe()}" for part in (train.mixing, train.erasing) if part)
    yield f"train: {train.samples} images, {train.loader.dataset.transform.describe()}{after}"
    if recipe.ema_decay is not None or recipe.accumulate > 1 or recipe.amp != "off":
        warm = ", with warm-up" if recipe.ema_warmup else ""
        yield f"train.ema_decay={recipe.ema_decay}{warm}, train.accumulate={recipe.accumulate}, train.amp={recipe.amp}"
    yield f"val: {val.samples} images, {wiring.eval_transform(config).describe()}"
    yield from wiring.unseen_classes(val)
    yield from _batch_facts(config, train, rates.scaling)


def _batch_facts(config, train, scaling):
    """How images become steps, and what happens to those that do not fill a batch."""
    from engine.distributed import world_size

    recipe, batch = config.train, config.train.batch_size * world_size()
    parts = f"{recipe.batch_size} per process x {world_size()}" + f" x {recipe.accumulate}" * (recipe.accumulate > 1)
    lr = f"{recipe.lr * scaling:g} ({'scaled' if recipe.lr_base_batch else 'used as given'})"
    yield (f"batch: {parts} = {batch * recipe.accumulate}; lr {lr}, weight decay {recipe.weight_decay:g}; "
           f"{recipe.epochs} epochs of {min(len(train), recipe.max_steps or len(train))} steps")
    rest = train.samples % batch
    if train.loader.batch_sampler.kept_incomplete:
        yield f"data.drop_last: {rest} images do not fill one batch of {batch}; the incomplete batch is used"
    elif rest and config.data.drop_last:
        yield f"data.drop_last: the last {rest} images of each epoch's order do not fill a batch and are left out"
    elif rest:
        yield f"the last batch of each epoch has {rest} images"


def _farewell(config, best, image):
    """The commands to try next, as they can be typed in the current directory. The weights bring config.yaml along."""
    folder = project_path(config.output)
    kept = [name for name in ("best", "last") if (folder / f"{name}.pdparams").is_file()]
    gone = "" if "best" in kept else " (best.pdparams has been removed)"
    weights = short_path(folder / f"{(kept or ['best'])[0]}.pdparams")
    yield f"best top-1: {best.top1:.4f} in epoch {best.epoch}{gone}; weights: {weights}"
    if not kept:
        return
    yield f"validate: {command_line('val.py', '--weights', weights)}"
    # Images of an archive have no file of their own.
    if os.path.isfile(image):
        yield f"predict:  {command_line('predict.py', short_path(image), '--weights', weights)}"


if __name__ == "__main__":
    sys.exit(run_command(main))
