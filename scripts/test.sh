#!/usr/bin/env bash
# test.sh [pytest arguments]: sets up if needed, checks the style, runs the tests (all of tests/ unless paths are given).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(bash scripts/setup.sh)
if ! "$python" -c 'import importlib.metadata as m; m.version("pytest"); m.version("ruff")' 2>/dev/null; then
    "$python" -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt >&2
fi

paths=(tests)
for argument in "$@"; do
    # A path may name one test: tests/test_x.py::test_y.
    [[ -e ${argument%%::*} ]] && paths=()
done
"$python" -m ruff check --quiet --config tests/ruff.toml tools tests lit_data
exec "$python" -m pytest -c tests/pytest.ini "${paths[@]+"${paths[@]}"}" "$@"
