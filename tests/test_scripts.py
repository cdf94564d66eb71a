"""The shell scripts, run in a temporary copy of the project with stand-ins for Python, pip, Paddle and nvidia-smi."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from jobs import children

# Prints what it was called with; MODE makes it fail as the commands do, in the process RANK of several.
PROGRAM = """
import json, os, signal, sys, time
rank, mode, only = os.environ.get("PADDLE_TRAINER_ID", "0"), os.environ.get("MODE", ""), os.environ.get("RANK_OF_MODE")
names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PADDLE_MASTER")
print(json.dumps({"args": sys.argv[1:], "rank": rank, **{name: os.environ.get(name) for name in names}}), flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
def stop(number, _):
    time.sleep(float(os.environ.get("SAVING", 0)))
    print("stopped by " + signal.Signals(number).name + "; the state is in F" if rank == "0" else "stopped; 0 tells")
    sys.exit(1)
if mode and only not in (None, rank):
    # Another process fails; this one hears of it as gloo tells it.
    time.sleep(0.3)
    if mode in ("crash", "killed"):
        raise OSError("[gloo] Read error: Connection closed by peer")
    time.sleep(60)
if mode == "mistake":
    print("error: x=1: no such key; remove it", file=sys.stderr)
    sys.exit(2)
if mode == "usage":
    print("usage: train.py\\ntrain.py: error: unrecognized arguments: y", file=sys.stderr)
    sys.exit(2)
if mode == "crash":
    raise RuntimeError("boom")
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "verdict":
    print("target: missed")
    sys.exit(1)
if mode == "once" and not os.path.exists("once"):
    open("once", "w").close()
    raise RuntimeError("boom")
if mode in ("sleep", "train"):
    if mode == "train":
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    time.sleep(60)
"""
# What is relied on in Paddle's launcher: a log per process, processes that are its children, in sessions of their own
# and with their numbers in the environment, an end of all when one has failed, and an exit code that says little.
LAUNCHER = """
import json, os, signal, subprocess, sys, time
args = sys.argv[1:]
start = next(i for i, arg in enumerate(args) if arg.endswith(".py"))
options = dict(zip(args[:start:2], args[1:start:2]))
count = int(options.get("--nproc_per_node") or len(options["--gpus"].split(",")))
folder = options["--log_dir"]
if os.environ.get("MODE") == "no start":
    sys.exit("LAUNCH ERROR no port")
print("LAUNCH INFO chatter", file=sys.stderr)
with open(os.path.join(os.environ["NOTES"], "launcher.json"), "a") as file:
    file.write(json.dumps({"options": {k: v for k, v in options.items() if k != "--log_dir"}}) + "\\n")
workers = []
for rank in range(count):
    environment = {**os.environ, "PADDLE_TRAINER_ID": str(rank), "PADDLE_LOCAL_RANK": str(rank)}
    with open(os.path.join(folder, f"envlog.{rank}"), "w") as file:
        file.write(str(environment))
    log = open(os.path.join(folder, f"workerlog.{rank}"), "a")
    workers.append(subprocess.Popen([sys.executable, *args[start:]], stdout=log, stderr=log, env=environment,
                                    start_new_session=True))
while any(worker.poll() is None for worker in workers):
    time.sleep(0.2)
    if any(worker.poll() for worker in workers):
        print("LAUNCH ERROR Container failed !!!\\nenv {'PASSWORD': 'secret'}", file=sys.stderr)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in workers:
                worker.poll() is None and worker.send_signal(number)
            time.sleep(0.3)
for worker in workers:
    worker.wait()
sys.exit(next((worker.returncode for worker in workers if worker.returncode), 0))
"""
# Answers setup.sh's questions from the files beside it and notes every pip and venv command in calls.log.
PYTHON = """#!/usr/bin/env bash
case "$1 ${2:-}" in
"- ") cat >/dev/null; [[ -e $0.answer ]] || exit 1; printf '%s\\n' "$0"; cat "$0.answer" ;;
"-m pip")
    [[ $3 == --version ]] && exit 0
    echo "pip: ${*:4}" >>"$CALLS"
    [[ -e $0.pip_fails ]] && exit 1
    printf '\\n3.3.1\\nrequirements-cpu.txt\\n' >"$0.answer" ;;
"-m venv")
    echo "venv: ${*:3}" >>"$CALLS"
    mkdir -p "${@: -1}/bin"; touch "${@: -1}/pyvenv.cfg"
    cp "$0" "${@: -1}/bin/python"; printf '\\n\\nrequirements-cpu.txt\\n' >"${@: -1}/bin/python.answer" ;;
"-c "*) [[ ! -e $0.import_fails ]] ;;
esac
"""


class Project:
    """A temporary copy of the scripts, with stand-ins first on PATH."""

    def __init__(self, root, folder):
        self.root = folder / "project"
        self.bin = folder / "bin"
        self.calls = folder / "calls.log"
        shutil.copytree(root / "scripts", self.root / "scripts")
        for name in ("requirements.txt", "requirements-cpu.txt"):
            shutil.copy(root / name, self.root)
        for name in ("tools", "config"):
            shutil.copytree(root / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.write(self.root / "tools/train.py", PROGRAM)
        self.write(self.root / "tools/val.py", PROGRAM)
        self.write(self.root / "tools/ablation.py", PROGRAM)
        self.write(self.root / "config/own.yaml", "base: t2t_vit_7.yaml\noutput: output/own\n")
        self.cards(0)
        drop = ("GPUS", "NPROC", "NNODES", "MASTER", "RANK", "PYTHON", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
                "RESTARTS", "PORT_RANGE")  # fmt: skip
        self.env = {key: value for key, value in os.environ.items() if key not in drop and key[:7] != "PADDLE_"}
        self.env = {**self.env, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "CALLS": str(self.calls),
                    "NOTES": str(folder)}  # fmt: skip

    @staticmethod
    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def stub(self, path, text):
        self.write(path, text).chmod(0o755)
        return path

    def cards(self, count):
        lines = "".join(f"echo 'GPU {index}: NVIDIA (UUID: {index})'\n" for index in range(count))
        self.stub(self.bin / "nvidia-smi", f"#!/usr/bin/env bash\n{lines}exit {0 if count else 9}\n")

    def python(self, name, *answer, folder=None):
        """A stand-in interpreter; `answer`: unsupported version, Paddle version, requirements file, missing lines."""
        path = self.stub((folder or self.bin) / name, PYTHON)
        if answer:
            self.write(path.with_name(path.name + ".answer"), "".join(f"{line}\n" for line in answer))
        return path

    def without_python(self):
        """Hide the machine's interpreters, whatever they are, behind ones that do not run."""
        for name in ("python3", "python", "python3.12", "python3.11", "python3.10", "python3.9"):
            self.python(name)

    def run(self, script, *args, cwd=None, **env):
        command = ["bash", str(self.root / "scripts" / script), *args]
        return subprocess.run(command, cwd=cwd or self.root, env={**self.env, **env}, capture_output=True, text=True)

    def noted(self):
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []


@pytest.fixture
def project(root, tmp_path):
    return Project(root, tmp_path)


@pytest.fixture
def launching(project, tmp_path):
    """A project whose setup.sh gives this interpreter, with a stand-in for Paddle's launcher."""
    project.stub(project.root / "scripts" / "setup.sh", f"#!/usr/bin/env bash\necho '{sys.executable}'\n")
    for package in ("paddle", "paddle/distributed", "paddle/distributed/launch"):
        project.write(tmp_path / "site" / package / "__init__.py", "")
    project.write(tmp_path / "site/paddle/distributed/launch/__main__.py", LAUNCHER)
    project.env["PYTHONPATH"] = str(tmp_path / "site")
    return project


def reports(done):
    """The JSON lines that the stand-ins printed."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done, *parts):
    """The run must have ended as a user's mistake: exit code 2, nothing started, one line on stderr with `parts`."""
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.mark.parametrize("script", ["train.sh", "val.sh"])
def test_one_process_by_default(launching, script):
    (report,) = reports(launching.run(script, "train.epochs=1", "data.name=x y", CUDA_VISIBLE_DEVICES=""))
    assert report["args"] == ["train.epochs=1", "data.name=x y"]
    assert report["CUDA_VISIBLE_DEVICES"] is None and report["PYTHONUNBUFFERED"] == "1"


def test_config_is_found_from_the_caller_then_from_the_root(launching, tmp_path):
    (report,) = reports(launching.run("train.sh", "config/own.yaml", "train.epochs=1", cwd=tmp_path))
    assert report["args"] == ["--config", str(launching.root / "config/own.yaml"), "train.epochs=1"]
    launching.write(tmp_path / "config/own.yaml", "")
    (report,) = reports(launching.run("train.sh", "config/own.yaml", cwd=tmp_path))
    assert report["args"] == ["--config", "config/own.yaml"]
    refused(launching.run("train.sh", "config/absent.yaml", cwd=tmp_path), "config/absent.yaml", str(tmp_path))


def test_ablation_takes_the_same_words(launching, tmp_path):
    own = ["--config", str(launching.root / "config/own.yaml")]
    for words, expected in (
        (["config/own.yaml", "--seeds", "2", "a.b=1"], [*own, "--seeds", "2", "a.b=1"]),
        (["--seeds", "2"], ["--seeds", "2"]), (["a.b=1"], ["a.b=1"]), ([], []),
    ):  # fmt: skip
        (report,) = reports(launching.run("ablation.sh", *words, cwd=tmp_path))
        assert report["args"] == expected


def test_help_tells_the_variables_and_what_the_program_takes(launching):
    done = launching.run("train.sh", "--help")
    words = ("GPUS=", "NPROC=", "NNODES=", "PYTHON=", "scripts/train.sh [CONFIG]", '["--help"]')
    assert all(word in done.stdout for word in words)


def launched(project):
    """The options of Paddle's launcher, of each start."""
    file = project.calls.with_name("launcher.json")
    return [json.loads(line)["options"] for line in file.read_text(encoding="utf-8").splitlines()]


def logs(project, output="output/t2t_vit_7"):
    """The folders with logs of processes."""
    return sorted((project.root / output / "launch").glob("*"))


def test_exit_code_passes_through(launching):
    done = launching.run("train.sh", MODE="mistake")
    assert (done.returncode, done.stderr) == (2, "error: x=1: no such key; remove it\n")


def test_processes_on_the_cpu(launching):
    more = {"CUDA_VISIBLE_DEVICES": "", "PADDLE_MASTER": "of.a.cluster:1"}
    (report,) = reports(launching.run("train.sh", "config/own.yaml", "train.epochs=1", NPROC="2", **more))
    assert launched(launching) == [{"--nproc_per_node": "2"}]
    assert report["args"] == ["--config", "config/own.yaml", "device=cpu", "train.epochs=1"] and report["rank"] == "0"
    assert report["CUDA_VISIBLE_DEVICES"] is None and report["PADDLE_MASTER"] is None
    assert int(report["OMP_NUM_THREADS"]) == max(1, os.cpu_count() // 2)
    assert not (launching.root / "output").exists()
    assert reports(launching.run("train.sh", NPROC="2", OMP_NUM_THREADS="3"))[0]["OMP_NUM_THREADS"] == "3"


def test_cards(launching):
    launching.cards(4)
    weights = launching.write(launching.root / "w.pdparams", "")
    (report,) = reports(launching.run("val.sh", "--weights", str(weights), GPUS="0,2"))
    assert launched(launching) == [{"--gpus": "0,2"}]
    assert report["args"] == ["--weights", str(weights), "device=gpu"] and report["CUDA_VISIBLE_DEVICES"] == "0,2"
    (report,) = reports(launching.run("train.sh", "train.epochs=1", GPUS="3"))
    assert report["args"] == ["device=gpu", "train.epochs=1"] and report["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.parametrize(("env", "parts"), [
    ({"GPUS": "0,2"}, ["GPUS=0,2", "no card 2"]),
    ({"GPUS": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["no card 0"]),
    ({"GPUS": "0,0"}, ["twice"]),
    ({"GPUS": "0,"}, ["GPUS=0,:"]), ({"GPUS": "a"}, ["GPUS=a"]),
    ({"GPUS": "0", "NPROC": "2"}, ["GPUS=0", "NPROC=2"]),
    ({"NPROC": "0"}, ["NPROC=0"]), ({"NPROC": "two"}, ["NPROC=two"]), ({"NNODES": "-1"}, ["NNODES=-1"]),
    ({"NNODES": "2"}, ["MASTER=host:port"]),
    ({"NNODES": "2", "MASTER": "host"}, ["'host'"]),
    ({"NNODES": "2", "MASTER": "host:1", "RANK": "2", "GPUS": "0"}, ["RANK=2"]),
    ({"NNODES": "2", "MASTER": "host:1"}, ["GPUS=0,1"]),
    ({"MASTER": "host:1"}, ["NNODES"]),
    ({"NPROC": "2", "RESTARTS": "-1"}, ["RESTARTS=-1"]),
    ({"NNODES": "2", "MASTER": "host:65536", "NPROC": "1"}, ["MASTER=host:65536", "1 to 65535"]),
    ({"NPROC": "2", "PORT_RANGE": "foo"}, ["PORT_RANGE=foo", "40000:41000"]),
    ({"NPROC": "2", "PORT_RANGE": "10:5"}, ["PORT_RANGE=10:5"]),
    ({"NPROC": "2", "PORT_RANGE": "1:65536"}, ["PORT_RANGE=1:65536"]),
])
def test_wrong_variables_are_refused(launching, env, parts):
    launching.cards(2)
    refused(launching.run("train.sh", "train.epochs=1", **env), *parts)
    launching.cards(0)
    refused(launching.run("train.sh", GPUS="0"), "GPUS=0", "no NVIDIA driver")


def test_several_machines(launching):
    machines = {"NNODES": "2", "MASTER": "10.0.0.1:8090"}
    done = launching.run("train.sh", **machines)
    assert done.returncode == 0 and "waiting for the processes of all machines" in done.stderr
    launching.cards(1)
    assert launching.run("train.sh", **machines, RANK="1", GPUS="0").returncode == 0
    first, second = launched(launching)
    assert first == {"--nnodes": "2", "--master": "10.0.0.1:8090", "--nproc_per_node": "1"}
    assert second == {"--nnodes": "2", "--master": "10.0.0.1:8090", "--rank": "1", "--gpus": "0"}


@pytest.mark.parametrize("word", ["train.epoch", "--weight"])
def test_what_one_process_would_refuse_is_refused_before_any_is_started(launching, word):
    refused(launching.run("train.sh", f"{word}=1", NPROC="2"), word)
    assert not (launching.root / "output").exists()


MISTAKES = {"mistake": "error: x=1: no such key; remove it\n", "usage": "train.py: error: unrecognized arguments: y\n"}


@pytest.mark.parametrize("rank", ["0", "1", None])
@pytest.mark.parametrize(("mode", "line"), MISTAKES.items())
def test_mistake_in_a_process_is_told_once_and_not_tried_again(launching, mode, line, rank):
    only = {"RANK_OF_MODE": rank} if rank else {}
    done = launching.run("train.sh", MODE=mode, NPROC="2", RESTARTS="3", **only)
    assert (done.returncode, done.stderr) == (2, line)
    assert "error:" not in done.stdout and len(launched(launching)) == 1


@pytest.mark.parametrize("rank", ["0", "1", "2"])
def test_crash_of_a_process_shows_its_own_words(launching, rank):
    done = launching.run("train.sh", MODE="crash", RANK_OF_MODE=rank, NPROC="3")
    (folder,) = logs(launching)
    *report, last = done.stderr.splitlines()
    assert done.returncode == 1 and report[0].startswith("Traceback") and report[-1] == "RuntimeError: boom"
    assert last == f"launch: process {rank} failed; the output of each process is in {folder}"
    assert "Traceback" not in done.stdout and "gloo" not in done.stdout + done.stderr
    assert "boom" in (folder / f"workerlog.{rank}").read_text(encoding="utf-8")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_killed_process_is_named_although_the_others_fail_louder(launching, rank):
    done = launching.run("train.sh", MODE="killed", RANK_OF_MODE=rank, NPROC="2")
    assert done.returncode == 1 and done.stdout.count("\n") == 1
    (folder,) = logs(launching)
    where = f"the output of each process is in {folder}\n"
    assert done.stderr in (f"launch: process {rank} died without a word by SIGKILL; {where}",
                           # Where the launcher has taken the exit code first.
                           f"launch: process {rank} died without a word; {where}")  # fmt: skip


def test_logs_are_kept_and_hold_no_environment(launching):
    for count in (1, 2):
        done = launching.run("train.sh", "config/own.yaml", MODE="crash", NPROC="2")
        assert done.returncode == 1 and len(logs(launching, "output/own")) == count
    for folder in logs(launching, "output/own"):
        assert {file.name for file in folder.iterdir()} == {"launcher.log", "workerlog.0", "workerlog.1"}
        assert "secret" not in (folder / "launcher.log").read_text(encoding="utf-8")
        assert folder.stat().st_mode & 0o077 == 0
    # A run that ends well removes its own only.
    assert launching.run("train.sh", "config/own.yaml", NPROC="2").returncode == 0
    assert len(logs(launching, "output/own")) == 2


def test_verdict_of_the_program_is_no_failure(launching):
    done = launching.run("train.sh", MODE="verdict", NPROC="2", RESTARTS="1")
    assert (done.returncode, done.stderr) == (1, "") and done.stdout.endswith("target: missed\n")
    assert len(launched(launching)) == 1


def test_launcher_that_cannot_start(launching):
    done = launching.run("train.sh", MODE="no start", NPROC="2")
    assert done.returncode == 1 and "LAUNCH ERROR no port" in done.stderr and "before any process" in done.stderr


def test_restarts_after_a_crash(launching):
    done = launching.run("train.sh", MODE="once", NPROC="2", RESTARTS="2")
    assert done.returncode == 0 and "launch: restart 1 of 2\n" in done.stderr and len(launched(launching)) == 2
    done = launching.run("train.sh", MODE="crash", NPROC="2", RESTARTS="1")
    assert done.returncode == 1 and done.stderr.count("RuntimeError: boom") == 2 and len(launched(launching)) == 4


class Running:
    """train.sh with two processes in the background, as far as both are ready."""

    def __init__(self, project, mode, **env):
        command, before = ["bash", str(project.root / "scripts/train.sh")], set(logs(project))
        self.process = subprocess.Popen(
            command, env={**project.env, "NPROC": "2", "MODE": mode, **env}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            # Whoever runs the tests in the background has them ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.launcher = self.workers = None
        self._wait_for(lambda: sum("ready" in file.read_text(encoding="utf-8") for folder in logs(project)
                                   if folder not in before for file in folder.glob("workerlog.*")) == 2)  # fmt: skip
        (self.launcher,) = children(self.process.pid)
        self.workers = children(self.launcher)

    @staticmethod
    def _wait_for(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    def end(self):
        """(exit code, stdout, stderr); no process is left."""
        out, err = self.process.communicate(timeout=60)
        self._wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in (self.launcher, *self.workers)))
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all_processes_and_the_line_is_shown(launching, number):
    # Paddle's launcher would cut the saving off; the stand-in does so after 0.3 s.
    running = Running(launching, "train", SAVING="1")
    os.kill(running.process.pid, number)
    code, out, err = running.end()
    assert (code, err) == (1, "")
    assert out.splitlines()[-1] == f"stopped by {number.name}; the state is in F"


def test_ctrl_c_on_a_terminal_and_sigterm_to_the_group_reach_the_processes_once(launching):
    for number in (signal.SIGINT, signal.SIGTERM):
        running = Running(launching, "train")
        # Paddle's launcher would end the processes after 30 s.
        assert os.getpgid(running.launcher) != running.process.pid
        os.killpg(running.process.pid, number)
        assert running.end()[1].splitlines()[-1] == f"stopped by {number.name}; the state is in F"


def test_sigterm_to_paddles_launcher_is_passed_on(launching):
    running = Running(launching, "train", SAVING="1")
    os.kill(running.launcher, signal.SIGTERM)
    code, out, err = running.end()
    assert (code, err) == (1, "") and out.splitlines()[-1] == "stopped by SIGTERM; the state is in F"


def test_programs_without_a_state_end_as_alone(launching):
    for number, code, words in ((signal.SIGTERM, 143, ""), (signal.SIGINT, 1, "interrupted\n")):
        running = Running(launching, "sleep")
        os.kill(running.process.pid, number)
        assert running.end()[::2] == (code, words)


def test_second_ctrl_c_ends_at_once(launching):
    running = Running(launching, "train", SAVING="60")
    os.kill(running.process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.end()[::2] == (1, "interrupted\n")


def test_reader_that_goes_away_stops_the_job(launching):
    running = Running(launching, "train")
    running.process.stdout.close()
    running.process.stdout = None
    # What is written next finds no reader.
    with open(logs(launching)[-1] / "workerlog.0", "a") as file:
        file.write("a line\n")
    assert running.end()[0] == 1


def chosen(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_given_interpreter_is_taken_as_it_is(project, tmp_path):
    own = project.python("own", "", "2.6.2", "requirements.txt", folder=tmp_path)
    done = project.run("setup.sh", PYTHON=str(own))
    assert (chosen(done), done.stderr, project.noted()) == (f"{own}\n", "", [])
    assert chosen(project.run("setup.sh", PYTHON="./own", cwd=tmp_path)).endswith("/own\n")


UNFIT = [((), "does not run"), (("3.13", "3.3.1", ""), "Python 3.13"), (("", "", ""), "has no Paddle")]


@pytest.mark.parametrize(("answer", "part"), UNFIT)
def test_unfit_given_interpreter_is_refused(project, tmp_path, answer, part):
    own = project.python("own", *answer, folder=tmp_path)
    refused(project.run("setup.sh", PYTHON=str(own)), f"PYTHON={own}", part)


def test_only_what_is_missing_is_installed_and_never_paddle(project, tmp_path):
    own = project.python("own", "", "2.6.2", "requirements.txt", "visualdl>=2.5,<3", folder=tmp_path)
    done = project.run("setup.sh", PYTHON=str(own))
    assert chosen(done) == f"{own}\n" and "visualdl>=2.5,<3" in done.stderr
    assert len(project.noted()) == 1
    chosen(project.run("setup.sh", PYTHON=str(own)))
    assert len(project.noted()) == 1
    project.write(tmp_path / "own.answer", "\n2.6.2\nrequirements.txt\nnumpy<2\n")
    project.write(tmp_path / "own.pip_fails", "")
    assert "numpy<2" in project.run("setup.sh", PYTHON=str(own)).stderr.splitlines()[-1]


def test_interpreter_on_path_with_paddle_comes_before_the_venv(project):
    project.python("python3", "", "", "")
    found = project.python("python", "", "3.3.1", "requirements-cpu.txt")
    assert chosen(project.run("setup.sh")) == f"{found}\n"
    assert project.noted() == []


@pytest.mark.parametrize(("cards", "file"), [(0, "requirements-cpu.txt"), (1, "requirements.txt")])
def test_venv_is_made_once(project, cards, file):
    project.cards(cards)
    project.without_python()
    project.python("python3", "3.13", "", "")
    project.python("python3.11", "", "", "")
    venv = project.root / ".venv"
    assert chosen(project.run("setup.sh")) == f"{venv}/bin/python\n"
    assert project.noted()[0] == f"venv: --clear {venv}" and project.noted()[1].endswith(f"-r {project.root}/{file}")
    # The second run neither installs nor imports.
    project.write(venv / "bin/python.import_fails", "")
    assert chosen(project.run("setup.sh")) == f"{venv}/bin/python\n"
    assert len(project.noted()) == 2


def test_unfinished_venv_is_finished(project):
    project.without_python()
    project.python("python", "", "", "", folder=project.root / ".venv/bin")
    assert chosen(project.run("setup.sh")) == f"{project.root}/.venv/bin/python\n"
    assert [call.split()[0] for call in project.noted()] == ["pip:"]


def test_venv_that_cannot_be_mended_is_named(project):
    project.without_python()
    project.python("python", "", "3.3.1", "requirements-cpu.txt", folder=project.root / ".venv/bin")
    project.write(project.root / ".venv/bin/python.import_fails", "")
    refused(project.run("setup.sh"), ".venv has a Paddle that cannot be imported", "remove it")
    shutil.rmtree(project.root / ".venv")
    project.write(project.root / ".venv/mine.txt", "keep")
    refused(project.run("setup.sh"), ".venv is not a Python environment")
    assert (project.root / ".venv/mine.txt").read_text(encoding="utf-8") == "keep"


def test_no_supported_python(project):
    project.without_python()
    project.python("python3", "3.8", "", "")
    refused(project.run("setup.sh"), "Python 3.9 to 3.12 is needed, found 3.8")


def test_bounds_follow_the_paddle_that_is_there(project, tmp_path):
    """Against real metadata: a NumPy that Paddle 3 takes is out of bounds for Paddle 2."""
    site = tmp_path / "site"
    versions = {"paddlepaddle": "2.6.2", "numpy": "2.1.0", "protobuf": "5.29.6", "setuptools": "65.5.0",
                "PyYAML": "6.0.2", "pillow": "11.0.0", "visualdl": "2.5.3"}
    for name, version in versions.items():
        project.write(site / f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    project.write(site / "paddle/__init__.py", "raise ImportError('the check must not import Paddle')")
    # pip itself records its arguments; the parser it carries is still found.
    project.write(site / "pip/__init__.py", "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n")
    record = "import os, sys; open(os.environ['CALLS'], 'a').write(open(sys.argv[-1]).read())"
    project.write(site / "pip/__main__.py", record)
    env = {"PYTHON": sys.executable, "PYTHONPATH": str(site)}
    done = project.run("setup.sh", **env)
    assert chosen(done) == f"{sys.executable}\n" and done.stderr.endswith("(Paddle 2.6.2): numpy>=1.22,<2\n")
    given = [line.split()[0] for line in project.noted()]
    assert "protobuf>=3.20.2,<6" in given and not any(line.startswith("paddlepaddle") for line in given)
    shutil.move(site / "paddlepaddle-2.6.2.dist-info", site / "paddlepaddle-3.3.1.dist-info")
    project.write(site / "paddlepaddle-3.3.1.dist-info/METADATA", "Name: paddlepaddle\nVersion: 3.3.1\n")
    done = project.run("setup.sh", **env)
    assert (chosen(done), done.stderr) == (f"{sys.executable}\n", "")
