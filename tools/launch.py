"""Run a command of tools/ in several processes under Paddle's launcher and answer for them as one process would.

    python tools/launch.py --nproc_per_node 2 tools/train.py --config config/quickstart.yaml train.epochs=5

The words before the program are options of `python -m paddle.distributed.launch`; scripts/launch.sh chooses them. What
each process writes lies in OUTPUT/launch/ while the job runs and after a failure that was no mistake of the user's,
OUTPUT being the run folder. Linux only: it reads /proc.
"""

import os
import sys
from pathlib import Path

from engine.arguments import DEFAULT_CONFIG, Parser, add_config, add_weights, settle
from engine.config import load_config, project_path
from errors import UserError, run_command
from launching.job import Job, Signals, say


def main(argv=None):
    """Run the job. Returns its exit code; raises UserError for what the user can mend."""
    words = sys.argv[1:] if argv is None else argv
    place = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if place is None:
        raise UserError(f"launch.py {' '.join(words)}: no program is named; give one such as tools/train.py")
    options, program, arguments = words[:place], words[place], words[place + 1:]
    output = run_folder(Path(program).stem, arguments)
    # Not by Paddle's --max_restart, which works with etcd only, and then not every time (2.6.2 and 3.3.1).
    restarts = int(os.environ.get("RESTARTS") or 0)
    with Signals() as signals:
        for attempt in range(restarts + 1):
            job = Job(options, program, arguments, output, signals, again=attempt > 0)
            code = job.run()
            if not job.may_restart or attempt == restarts:
                return code
            say(f"restart {attempt + 1} of {restarts}")
            job.wait_for_machines()
    return code


def run_folder(command, arguments):
    """The folder `output` of the configuration that the command will use. Raises UserError as the command would."""
    parser = Parser(prog=f"{command}.py")
    add_config(parser)
    if command == "train":
        args = parser.parse_args(arguments)
        config = load_config(args.config or DEFAULT_CONFIG, args.overrides)
    else:
        add_weights(parser)
        args = parser.parse_args(arguments)
        config, _ = settle(args.config, args.weights, args.overrides)
    return project_path(config.output)


if __name__ == "__main__":
    sys.exit(run_command(main))
