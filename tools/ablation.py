"""Train the pairs of the paper's Table 7 in small, with several seeds each: `python tools/ablation.py`.

Networks of T2T-ViT-7's size without T2T, with convolutions and with T2T, and a shallow and wide one against the deep
and narrow one, all with the same recipe and budget. The same command goes on where it was stopped. The output folder
then holds a run folder for each training and ablation.md, ablation.csv and ablation.png.
"""

import platform
import sys
import time

from ablating.report import Result, comma_separated, markdown
from ablating.runs import Training, epochs_done, finished, plan, top1
from engine.arguments import Parser, add_config, command_line, short_path
from engine.config import ROOT, project_path
from engine.runlog import clock
from engine.settings import code_version
from errors import UserError, run_command
from startup import import_paddle

DEFAULT = ROOT / "config" / "ablation_small.yaml"


def parse(argv):
    """The arguments, with the configuration still unread."""
    parser = Parser(prog="ablation.py", description=__doc__.splitlines()[0])
    add_config(parser, "config/ablation_small.yaml")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each network (default: 3)")
    args = parser.parse_args(argv)
    if not 1 <= args.seeds <= 100:
        parser.error(f"argument --seeds: {args.seeds}: must be between 1 and 100")
    return args


def main(argv=None):
    """Train what is left and report. Returns the exit code; raises UserError for what the user can mend."""
    args = parse(argv)
    import_paddle()
    from models.ablation import PAIRS, SMALL

    runs = plan(args.config or DEFAULT, args.overrides, list(SMALL), args.seeds)
    sizes = measured(runs, SMALL)
    for network, (params, macs) in sizes.items():
        print(f"{network}: {SMALL[network].title}, {params:,} parameters, {macs / 1e6:.1f} M MACs", flush=True)
    code = train(runs)
    if code is not None:
        return code
    write(runs, sizes, PAIRS, args)
    return 0


def measured(runs, small):
    """(parameters, MACs) of each network as it will be trained, by name. Raises UserError for mistakes in the settings.

    What every training would find out about the data is found out here, before the first one.
    """
    from dataclasses import replace

    import wiring
    from models.macs import count_macs, count_parameters

    distinct = {run.network: run.config for run in runs}
    data = next(iter(distinct.values()))
    samples = wiring.train_batches(data).loader.dataset.samples
    wiring.eval_batches(data, samples.class_names)
    sizes = {}
    for name, config in distinct.items():
        network = wiring.build_network(replace(config, model=replace(config.model, num_classes=samples.num_classes)))
        sizes[name] = count_parameters(network)[0], count_macs(network, config.model.img_size)
    return sizes


def train(runs):
    """Train the runs that are not finished. None when all are, else the exit code to end with."""
    clocked = Clock(runs)
    for number, run in enumerate(runs, 1):
        name = f"[{number}/{len(runs)}] {run.network}, seed {run.seed}"
        if finished(run):
            print(f"{name}: finished already", flush=True)
            continue
        print(f"{name}: {short_path(run.folder)}", flush=True)
        clocked.begin(run)

        def tell(epoch, loss, accuracy, run=run, name=name):
            left = clocked.done(run, epoch)
            print(f"{name}: epoch {epoch}/{run.epochs}, loss {loss}, acc {accuracy}, left: {clock(left)}", flush=True)

        training = Training(run)
        code = training(tell)
        if training.asked or not code and not finished(run):
            print(f"stopped; {command_line('ablation.py', *sys.argv[1:])} goes on", flush=True)
            return code or 0
        if code:
            print(f"the training in {run.folder} failed with exit code {code}", file=sys.stderr)
            return 1
        print(f"{name}: top-1 {top1(run):.4f}", flush=True)
    return None


class Clock:
    """Estimates the time left from the seconds of an epoch of each network; an unknown one is taken for an average."""

    def __init__(self, runs):
        self.left = {(run.network, run.seed): 0 if finished(run) else run.epochs - epochs_done(run) for run in runs}
        self.seconds = {}
        self._since, self._epoch = None, 0

    def begin(self, run):
        self._since, self._epoch = time.monotonic(), epochs_done(run)

    def done(self, run, epoch):
        """Note that a run has finished so many epochs; seconds left for all runs."""
        self.seconds[run.network] = (time.monotonic() - self._since) / max(epoch - self._epoch, 1)
        self.left[run.network, run.seed] = run.epochs - epoch
        average = sum(self.seconds.values()) / len(self.seconds)
        return sum(count * self.seconds.get(network, average) for (network, _), count in self.left.items())


def write(runs, sizes, pairs, args):
    """Write the table and the plot into the output folder and print the table."""
    import paddle
    from ablating.plot import draw
    from models import ROWS
    from models.ablation import SMALL

    results = []
    for network, (params, macs) in sizes.items():
        row, title = ROWS[SMALL[network].counterpart], SMALL[network].title
        found = {run.seed: top1(run) for run in runs if run.network == network}
        results.append(Result(network, title, params, macs, found, row.title, row.top1))
    config = runs[0].config
    facts = [
        f"{config.data.name}: {config.model.img_size} px, {config.train.epochs} epochs of batches of "
        f"{config.train.batch_size}, lr {config.train.lr:g}, seeds {', '.join(map(str, results[0].top1))}",
        f"config {short_path(args.config or DEFAULT)} {' '.join(args.overrides)}".rstrip(),
        f"Paddle {paddle.__version__}, Python {platform.python_version()}, commit {code_version()}",
    ]
    folder = project_path(runs[0].config.output).parent
    text = markdown(results, pairs, facts)
    try:
        (folder / "ablation.md").write_text(text, encoding="utf-8")
        (folder / "ablation.csv").write_text(comma_separated(results), encoding="utf-8")
        draw(results, f"{config.data.name} at {config.model.img_size} px, {config.train.epochs} epochs").save(
            folder / "ablation.png"
        )
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; free some space and start again") from error
    print(text, end="")
    print(f"written: {', '.join(short_path(folder / f'ablation.{kind}') for kind in ('md', 'csv', 'png'))}")


if __name__ == "__main__":
    sys.exit(run_command(main))
