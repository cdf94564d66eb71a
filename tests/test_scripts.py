"""The shell scripts, run in a temporary copy of the project with stand-ins for Python, pip, Paddle and nvidia-smi."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

# Prints what it was called with; arguments of the form mode=... make it fail as the commands do.
PROGRAM = """
import json, os, sys, time
rank = os.environ.get("FAKE_RANK", "0")
names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")
print(json.dumps({"args": sys.argv[1:], "rank": rank, **{name: os.environ.get(name) for name in names}}))
if "mode=mistake" in sys.argv:
    print("error: x=1: no such key; remove it", file=sys.stderr)
    sys.exit(2)
if "mode=usage" in sys.argv:
    print("usage: train.py\\ntrain.py: error: unrecognized arguments: y", file=sys.stderr)
    sys.exit(2)
if "mode=crash" in sys.argv and rank == "1":
    raise RuntimeError("boom")
if "mode=sleep" in sys.argv:
    time.sleep(60)
"""
# What the scripts rely on in Paddle's launcher: a log per worker, rank 0's output on stdout, its own messages on
# stderr, the exit code of the first worker that failed, an end on SIGTERM.
LAUNCHER = """
import json, os, signal, subprocess, sys
args = sys.argv[1:]
start = next(i for i, arg in enumerate(args) if arg.endswith(".py"))
options = dict(zip(args[:start:2], args[1:start:2]))
count = int(options.get("--nproc_per_node") or len(options["--gpus"].split(",")))
os.makedirs(options["--log_dir"], exist_ok=True)
workers = []
def end(*_):
    for worker in workers: worker.terminate()
    sys.exit(15)
signal.signal(signal.SIGTERM, end)
print("LAUNCH INFO chatter", file=sys.stderr)
print(json.dumps({"launcher": {key: value for key, value in options.items() if key != "--log_dir"}}), flush=True)
for rank in range(count):
    log = open(os.path.join(options["--log_dir"], f"workerlog.{rank}"), "w")
    workers.append(subprocess.Popen([sys.executable, *args[start:]], stdout=log, stderr=log,
                                    env={**os.environ, "FAKE_RANK": str(rank)}))
codes = [worker.wait() for worker in workers]
print(open(os.path.join(options["--log_dir"], "workerlog.0")).read(), end="", flush=True)
if any(codes):
    print("LAUNCH ERROR Container failed !!!", file=sys.stderr)
sys.exit(next((code for code in codes if code), 0))
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
        self.write(self.root / "tools/train.py", PROGRAM)
        self.write(self.root / "tools/val.py", PROGRAM)
        self.write(self.root / "config/own.yaml", "")
        self.cards(0)
        drop = ("GPUS", "NPROC", "NNODES", "MASTER", "RANK", "PYTHON", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        self.env = {key: value for key, value in os.environ.items() if key not in drop and key[:7] != "PADDLE_"}
        self.env = {**self.env, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "CALLS": str(self.calls)}

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
    (report,) = reports(launching.run(script, "a=1", "b=x y", CUDA_VISIBLE_DEVICES=""))
    assert report["args"] == ["a=1", "b=x y"]
    assert report["CUDA_VISIBLE_DEVICES"] is None and report["PYTHONUNBUFFERED"] == "1"


def test_config_is_found_from_the_caller_then_from_the_root(launching, tmp_path):
    (report,) = reports(launching.run("train.sh", "config/own.yaml", "a=1", cwd=tmp_path))
    assert report["args"] == ["--config", str(launching.root / "config/own.yaml"), "a=1"]
    launching.write(tmp_path / "config/own.yaml", "")
    (report,) = reports(launching.run("train.sh", "config/own.yaml", cwd=tmp_path))
    assert report["args"] == ["--config", "config/own.yaml"]
    refused(launching.run("train.sh", "config/absent.yaml", cwd=tmp_path), "config/absent.yaml", str(tmp_path))


def test_help_tells_the_variables_and_what_the_program_takes(launching):
    done = launching.run("train.sh", "--help")
    words = ("GPUS=", "NPROC=", "NNODES=", "PYTHON=", "scripts/train.sh [CONFIG]", '["--help"]')
    assert all(word in done.stdout for word in words)


def test_exit_code_passes_through(launching):
    done = launching.run("train.sh", "mode=mistake")
    assert (done.returncode, done.stderr) == (2, "error: x=1: no such key; remove it\n")


def test_processes_on_the_cpu(launching):
    launcher, report = reports(launching.run("train.sh", "config/own.yaml", "a=1", NPROC="2", CUDA_VISIBLE_DEVICES=""))
    assert launcher["launcher"] == {"--nproc_per_node": "2"}
    assert report["args"] == ["--config", "config/own.yaml", "device=cpu", "a=1"] and report["rank"] == "0"
    assert report["CUDA_VISIBLE_DEVICES"] is None
    assert int(report["OMP_NUM_THREADS"]) == max(1, os.cpu_count() // 2)
    assert list((launching.root / "output/launch").iterdir()) == []
    assert reports(launching.run("train.sh", NPROC="2", OMP_NUM_THREADS="3"))[1]["OMP_NUM_THREADS"] == "3"


def test_cards(launching):
    launching.cards(4)
    launcher, report = reports(launching.run("val.sh", "--weights", "w", GPUS="0,2"))
    assert launcher["launcher"] == {"--gpus": "0,2"}
    assert report["args"] == ["--weights", "w", "device=gpu"] and report["CUDA_VISIBLE_DEVICES"] == "0,2"
    (report,) = reports(launching.run("train.sh", "a=1", GPUS="3"))
    assert report["args"] == ["device=gpu", "a=1"] and report["CUDA_VISIBLE_DEVICES"] == "3"


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
])
def test_wrong_variables_are_refused(launching, env, parts):
    launching.cards(2)
    refused(launching.run("train.sh", "a=1", **env), *parts)
    launching.cards(0)
    refused(launching.run("train.sh", GPUS="0"), "GPUS=0", "no NVIDIA driver")


def test_several_machines(launching):
    machines = {"NNODES": "2", "MASTER": "10.0.0.1:8090"}
    launcher, _ = reports(launching.run("train.sh", **machines))
    assert launcher["launcher"] == {"--nnodes": "2", "--master": "10.0.0.1:8090", "--nproc_per_node": "1"}
    launching.cards(1)
    launcher, _ = reports(launching.run("train.sh", **machines, RANK="1", GPUS="0"))
    assert launcher["launcher"].items() >= {"--nnodes": "2", "--rank": "1", "--gpus": "0"}.items()


MISTAKES = {"mistake": "error: x=1: no such key; remove it\n", "usage": "train.py: error: unrecognized arguments: y\n"}


@pytest.mark.parametrize(("mode", "line"), MISTAKES.items())
def test_mistake_in_the_workers_is_told_once(launching, mode, line):
    done = launching.run("train.sh", f"mode={mode}", NPROC="2")
    assert (done.returncode, done.stderr) == (2, line)
    assert "error:" not in done.stdout


def test_crash_of_a_worker_names_the_logs(launching):
    done = launching.run("train.sh", "mode=crash", NPROC="2")
    (logs,) = (launching.root / "output/launch").iterdir()
    assert done.returncode == 1 and "Container failed" in done.stderr and "chatter" not in done.stderr
    assert str(logs) in done.stderr and "boom" in (logs / "workerlog.1").read_text(encoding="utf-8")


def test_sigterm_ends_the_launcher(launching):
    command, env = ["bash", str(launching.root / "scripts/train.sh"), "mode=sleep"], {**launching.env, "NPROC": "2"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert "launcher" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 15


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
