"""Kill -9 of each process in turn: how long until the whole job is gone, and does the same command go on?

    python tests/kill_ranks.py [--processes 2] [--rounds 10]

Trains T2T-ViT-7 on made images of 16 px, on the CPU, in a temporary folder. Each line is one death. Exit code 0 when
every job was gone within 60 s, with the right process named, and went on afterwards.
"""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
LIMIT = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    from commands import make_folders

    folder = Path(tempfile.mkdtemp())
    try:
        for line in header():
            print(line)
        make_folders(folder / "train", count=12)
        make_folders(folder / "val", count=1)
        return kill(folder, args.processes, args.rounds)
    finally:
        shutil.rmtree(folder)


def header():
    """Command, versions, commit, hardware."""
    from startup import import_paddle

    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    yield f"# command: python tests/kill_ranks.py {' '.join(sys.argv[1:])}"
    yield f"# Python {platform.python_version()}, Paddle {import_paddle().__version__}, commit {commit.stdout.strip()}"
    yield f"# {os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f} at the start"


def kill(folder, processes, rounds):
    """Do the rounds; the exit code."""
    from commands import settings
    from jobs import Running

    words = settings(folder, folder / "run", train__epochs=100000, train__log_every=1, train__save_steps=1)
    good = count = 0
    for number in range(rounds):
        for rank in range(processes):
            job = Running(["bash", str(ROOT / "scripts" / "train.sh"), *words], folder / "run", NPROC=str(processes))
            job.wait_for_steps(2)
            went_on = count == 0 or "\ngoing on " in job.out
            os.kill(job.ranks()[rank], signal.SIGKILL)
            code, seconds = job.end()
            named = job.err.startswith(f"launch: process {rank} died without a word") and job.err.count("\n") == 1
            right = code == 1 and seconds < LIMIT and named and went_on
            good, count = good + right, count + 1
            print(f"round {number + 1}, rank {rank}: all gone after {seconds:.1f} s, exit code {code}, named: {named}, "
                  f"had gone on: {went_on}", flush=True)  # fmt: skip
    print(f"{good} of {count} jobs were gone within {LIMIT} s, named the process and went on", flush=True)
    return 0 if good == count else 1


if __name__ == "__main__":
    sys.exit(main())
