"""Several processes under Paddle's own launcher: deaths, signals and mistakes, and going on by the same command."""

import os
import re
import signal
import socket
import sys

import paddle
import pytest
from commands import cut_short, make_folders, settings
from jobs import Running, processes_about

GOING_ON = "\ngoing on "

pytestmark = pytest.mark.skipif(
    paddle.device.is_compiled_with_cuda(), reason="a Paddle with CUDA joins processes over NCCL, which needs cards"
)


@pytest.fixture
def train(root, tmp_path):
    """train(**settings, environment=...) -> a Running training of two processes, always into the same run folder."""
    make_folders(tmp_path / "train", count=12)
    make_folders(tmp_path / "val", count=1)
    output = tmp_path / "run"

    def start(environment=None, **more):
        words = settings(tmp_path, output, **{"train__epochs": 500, "train__log_every": 1, **more})
        command = ["bash", str(root / "scripts" / "train.sh"), *words]
        return Running(command, output, **(environment or {"NPROC": "2"}))

    yield start
    for pid in processes_about(output):
        os.kill(pid, signal.SIGKILL)


def test_each_rank_killed_in_turn_then_stopped_and_gone_on(train, root, tmp_path):
    for rank in (1, 0):
        running = train(train__save_steps=1)
        running.wait_for_steps(2)
        os.kill(running.ranks()[rank], signal.SIGKILL)
        code, seconds = running.end()
        assert code == 1 and seconds < 60
        # The others complain of it, and Paddle's launcher blames the first one of them.
        last = running.err.splitlines()
        assert len(last) == 1 and last[0].startswith(f"launch: process {rank} died without a word")
        assert "Traceback" not in running.out and "gloo" not in running.out
    for number in (signal.SIGTERM, signal.SIGINT):
        running = train()
        running.wait_for_steps()
        assert GOING_ON in running.out
        os.kill(running.process.pid, number)
        assert running.end()[0] == 1 and running.err == ""
        assert re.match(rf"stopped by {number.name}; the state is in .*\.npz: .*same command again$",
                        running.out.splitlines()[-1])  # fmt: skip
    assert len(list((running.output / "launch").iterdir())) == 4
    # The same total batch in one process is trained at the same rate.
    line = r"^batch: 4 per process x 2 = 8; (lr .*), weight decay .*?; (.* steps)$"
    first, last = re.search(line, running.out, re.M).groups()
    assert "; processes: 2\n" in running.out and running.out.count("batch: ") == 1
    more = {"train__epochs": 500, "train__log_every": 1, "train__batch_size": 8}
    alone = ["bash", str(root / "scripts" / "train.sh"), *settings(tmp_path, tmp_path / "alone", **more)]
    running = Running(alone, tmp_path / "alone")
    running.wait_for_steps()
    os.kill(running.process.pid, signal.SIGTERM)
    running.end()
    assert f"batch: 8 per process x 1 = 8; {first}" in running.out and f"; {last}\n" in running.out
    assert "; processes: 1\n" in running.out


def test_broken_image_ends_the_job_with_one_line(train, tmp_path):
    broken = cut_short(tmp_path / "train" / "ant" / "broken.JPEG")
    running = train(data__workers=2)
    code, _ = running.end()
    assert code == 2 and running.err.startswith(f"error: {broken}: broken image") and running.err.count("\n") == 1
    assert "Traceback" not in running.out and not (running.output / "launch").exists()


def test_a_refused_job_leaves_nothing_behind(train):
    running = train(device="gpu")
    code, _ = running.end()
    assert code == 2 and running.err.startswith("error: device=gpu: ") and running.err.count("\n") == 1
    assert not running.output.exists()


PROGRAM = """
import sys, time
sys.path.insert(0, TOOLS)
import startup
startup.obey_launcher()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_no_process_outlives_the_launchers(root, tmp_path, victim):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("TOOLS", repr(str(root / "tools"))))
    output = tmp_path / "run"
    command = [sys.executable, str(root / "tools" / "launch.py"), "--nproc_per_node", "2", str(program),
               f"output={output}"]  # fmt: skip
    running = Running(command, output)
    running.wait_for(lambda: sum("ready" in log.read_text() for log in output.glob("launch/*/workerlog.*")) == 2)
    os.kill(running.launcher() if victim == "launcher" else running.process.pid, signal.SIGKILL)
    code, _ = running.end()
    assert code == (1 if victim == "launcher" else -signal.SIGKILL)
    if victim == "launcher":
        assert running.err.startswith("launch: Paddle's launcher died by SIGKILL; ")


@pytest.mark.parametrize("rank", [0, 1])
def test_machines_hear_of_a_failure_before_their_processes_have_met(root, tmp_path, rank):
    program = tmp_path / "train.py"
    failure = f"if os.environ['PADDLE_TRAINER_ID'] == '{rank}':\n    time.sleep(3)\n    raise ValueError('boom')\n"
    program.write_text("import os\n" + PROGRAM.replace("TOOLS", repr(str(root / "tools"))).replace(
        "time.sleep(600)", f"{failure}time.sleep(600)"))  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"
    machines = [
        Running([sys.executable, str(root / "tools" / "launch.py"), "--nnodes", "2", "--master", master, "--rank",
                 number, "--nproc_per_node", "1", str(program), f"output={tmp_path / 'run'}"], tmp_path / number)
        for number in "01"
    ]  # fmt: skip
    logs = tmp_path / "run" / "launch"
    machines[rank].wait_for(lambda: any("ready" in log.read_text() for log in logs.glob("*/workerlog.0")))
    assert [one.end()[0] for one in machines] == [1, 1]
    own, other = machines[rank].err.splitlines(), machines[1 - rank].err.splitlines()
    assert "ValueError: boom" in own and own[-1].startswith(f"launch: process {rank} failed; the output of ")
    assert other[-2:] == ["ValueError: boom", f"launch: process {rank} failed on {socket.gethostname()}"]


def test_two_machines_train_lose_one_and_go_on(train):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        machines = {"NNODES": "2", "NPROC": "1", "MASTER": f"127.0.0.1:{free.getsockname()[1]}"}

    def start():
        first, second = (train({**machines, "RANK": rank}, train__save_steps=1) for rank in "01")
        first.wait_for_steps(2)
        return first, second

    first, second = start()
    os.kill(second.ranks()[0], signal.SIGKILL)
    assert [first.end()[0], second.end()[0]] == [1, 1]
    assert "process 1 died without a word" in second.err and "Loss:" not in second.out
    assert first.err.splitlines()[-1] == f"launch: process 1 died without a word by SIGKILL on {socket.gethostname()}"
    first, second = start()
    assert GOING_ON in first.out
    os.kill(second.process.pid, signal.SIGTERM)
    assert [first.end()[0], second.end()[0]] == [1, 1]
    assert first.out.splitlines()[-1].startswith("stopped by SIGTERM; the state is in ")
    assert "the first machine has saved it" in second.err
