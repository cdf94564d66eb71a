#!/usr/bin/env bash
# Finds or makes a Python with Paddle and prints its absolute path, alone, on stdout; progress goes to stderr.
# First of: $PYTHON; python3 or python on PATH if it has Paddle; ./.venv, made when absent.
# Paddle is never reinstalled or upgraded; of the other packages only what is missing or out of bounds is installed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ready=$root/.venv/t2t-ready

say() { printf '%s\n' "setup: $*" >&2; }
stop() { printf '%s\n' "error: $*" >&2; exit 2; }

# probe PYTHON: prints the executable, the Python version if it is not a supported one, the Paddle version, the
# requirements file for it, and the lines of that file that are not met. Reads metadata only: importing Paddle takes
# seconds.
probe() {
    (cd "$root" && "$1" - <<'PY'
import importlib.util
import sys
from importlib import metadata

print(sys.executable)
print("" if (3, 9) <= sys.version_info[:2] <= (3, 12) else "%d.%d" % sys.version_info[:2])


def installed(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


paddle = ""
spec = importlib.util.find_spec("paddle")
# An uninstalled Paddle can leave an empty folder, a package without origin.
if spec and spec.origin:
    # A Paddle built by hand may have no metadata, or 0.0.0 as its version; it counts as a new one.
    paddle = installed("paddlepaddle-gpu") or installed("paddlepaddle") or "0.0.0"
wanted = "requirements.txt" if paddle.startswith("2.") else "requirements-cpu.txt"
print(paddle)
print(wanted)
if paddle:
    # pip carries the parser of requirement lines, so nothing else need be installed for it.
    from pip._vendor.packaging.requirements import Requirement

    for line in open(wanted, encoding="utf-8"):
        text = line.split("#")[0].strip()
        if text and not text.startswith("paddlepaddle"):
            need = Requirement(text)
            version = installed(need.name)
            if version is None or not need.specifier.contains(version, prereleases=True):
                print(text)
PY
    )
}

# look PYTHON: the answers of probe in $executable, $unsupported, $paddle, $file and the array $missing.
look() {
    local lines
    lines=$(probe "$1" 2>/dev/null) || return 1
    mapfile -t missing <<<"$lines"
    executable=${missing[0]} unsupported=${missing[1]:-} paddle=${missing[2]:-} file=${missing[3]:-}
    missing=("${missing[@]:4}")
}

pip_install() {
    "$executable" -m pip install --quiet --disable-pip-version-check "$@" >&2
}

# complete: brings the packages beside Paddle within their bounds in $executable.
complete() {
    ((${#missing[@]})) || return 0
    say "installing into $executable (Paddle $paddle): ${missing[*]}"
    # All lines but Paddle's go to pip, so that installing one cannot push another out of its bounds.
    pip_install -r <(grep -v '^paddlepaddle' "$root/$file") ||
        stop "pip could not install '${missing[*]}' into $executable; install them by hand and run this again"
}

# base_python: a Python that can make ./.venv.
base_python() {
    local candidate found=none
    for candidate in python3 python python3.12 python3.11 python3.10 python3.9; do
        look "$candidate" || continue
        [[ -z $unsupported ]] && return 0
        found=$unsupported
    done
    stop "Python 3.9 to 3.12 is needed, found $found; install one or set PYTHON to a Python that has Paddle"
}

make_venv() {
    local venv=$root/.venv
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        if [[ -e $venv && ! -e $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
            stop "$venv is not a Python environment; move it away or set PYTHON to a Python that has Paddle"
        fi
        base_python
        say "making $venv with $executable"
        "$executable" -m venv --clear "$venv" >&2 ||
            stop "$executable cannot make $venv; install its venv module (python3-venv on Debian) or set PYTHON"
    fi
    look "$venv/bin/python" || stop "$venv does not work; remove it and run this again"
    [[ -z $unsupported ]] || stop "$venv has Python $unsupported, 3.9 to 3.12 is needed; remove it and run this again"
    if [[ -z $paddle ]]; then
        file=requirements-cpu.txt
        nvidia-smi -L >/dev/null 2>&1 && file=requirements.txt
        say "installing $file into $venv (minutes)"
        pip_install -r "$root/$file" || stop "pip could not install $file into $venv; mend what it says and run this again"
        look "$venv/bin/python"
    fi
    complete
    # An interrupted installation leaves files that look installed; only an import shows.
    if ! "$executable" -c 'import paddle, numpy, yaml, PIL, visualdl' >/dev/null 2>&1; then
        stop "$venv has a Paddle that cannot be imported; remove it and run this again, or set PYTHON"
    fi
    touch "$ready"
}

if [[ -n ${PYTHON:-} ]]; then
    [[ $PYTHON == */* && $PYTHON != /* ]] && PYTHON=$PWD/$PYTHON
    look "$PYTHON" || stop "PYTHON=$PYTHON does not run; set it to a Python that has Paddle, or unset it"
    [[ -z $unsupported ]] || stop "PYTHON=$PYTHON is Python $unsupported; 3.9 to 3.12 is needed"
    [[ -n $paddle ]] || stop "PYTHON=$PYTHON has no Paddle; install it there, or unset PYTHON to use ./.venv"
    complete
else
    for candidate in python3 python; do
        look "$candidate" && [[ -n $paddle && -z $unsupported ]] && break
        paddle=
    done
    if [[ -n $paddle ]]; then
        complete
    elif [[ -e $ready ]] && look "$root/.venv/bin/python" && [[ -n $paddle ]]; then
        complete
    else
        make_venv
    fi
fi
printf '%s\n' "$executable"
