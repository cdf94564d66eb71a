"""Evaluate weights on the validation images: `python tools/val.py --config config/t2t_vit_7.yaml --weights W`.

Prints top-1, top-5 and the mean cross entropy; exact for any number of processes and any batch size. Exit code 1 when
val.target_acc is set, the whole set was evaluated and the accuracy lies below.
"""

import sys

import numpy as np
from engine.arguments import Parser, add_config, add_weights, settle
from errors import UserError, run_command
from startup import import_paddle

RULE = "=" * 60


def parse(argv):
    """The arguments, with the configuration still unread."""
    parser = Parser(prog="val.py", description=__doc__.splitlines()[0])
    add_config(parser, "that of the run of --weights, else config/t2t_vit_7.yaml")
    add_weights(parser)
    return parser.parse_args(argv)


def main(argv=None):
    """Evaluate as the arguments say. Returns the exit code; raises UserError for what the user can mend."""
    args = parse(argv)
    config, weights = settle(args.config, args.weights, args.overrides)
    import_paddle()
    import wiring
    from engine import distributed
    from engine.evaluate import evaluate
    from engine.runlog import RunLog

    device = wiring.start(config)
    network, count = wiring.load_network(config, weights)
    trained = wiring.trained_classes(config, weights)
    batches = wiring.eval_batches(config, trained.names if trained else None)
    log = RunLog(enabled=distributed.is_main())
    log.line(device)
    log.line(f"model: {config.model.name} at {config.model.img_size} px; weights: {weights} ({count} tensors loaded)")
    log.line(f"weights: {wiring.weights_kind(weights)}")
    for line in wiring.data_notes(config, weights):
        log.line(line)
    log.line(
        f"val: {batches.samples} images, {wiring.eval_transform(config).describe()}, "
        f"batch {config.val.batch_size} x {distributed.world_size()}"
    )
    result = evaluate(network, batches, log_every=config.val.log_every, log=log)
    if not result.count:
        raise UserError(f"{batches.path(0)}: neither this image nor any other of {batches.samples} could be decoded; "
                        "check the files")
    code, verdict = judge(config.val, result, batches.samples)
    log.line(RULE)
    log.line(f"images: {result.count}, top-1: {result.top1:.4f}, top-5: {result.top5:.4f}, loss: {result.loss:.4f}")
    if result.skipped:
        log.line(f"{len(result.skipped)} of {batches.samples} images left out, since they could not be decoded:")
    for index in result.skipped:
        log.line(f"  {batches.path(index)}")
    log.line(verdict)
    log.line(RULE)
    log.line(f"{config.data.name} final val acc is:{result.top1:.4f}")
    log.close()
    # Paddle's launcher ends the others when one ends with an exit code; the first process has said all now.
    distributed.gather_rows(np.zeros([1, 1]))
    return code


def judge(settings, result, samples):
    """Exit code and a line on val.target_acc: it is judged only on the whole set it was published for.

    settings: engine.schema.ValConfig; result: engine.evaluate.Evaluation; samples: images in the set.
    """
    target = settings.target_acc
    if target is None:
        return 0, "target: none set (val.target_acc)"
    wanted = settings.target_images or samples
    if result.count != wanted or samples != wanted:
        return 0, f"target: {target:.4f} not judged: it holds for {wanted} images, {result.count} were evaluated"
    # Accuracies are published with four decimals, so that is the precision at which they are compared.
    reached = round(result.top1, 4) >= target
    word = "reached" if reached else "missed"
    return (0 if reached else 1), f"target: {target:.4f} {word} with {result.top1:.4f}"


if __name__ == "__main__":
    sys.exit(run_command(main))
