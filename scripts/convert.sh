#!/usr/bin/env bash
# convert.sh SRC DST [--key NAME] [--model NAME] [--check] ...: sets up if needed, then runs tools/convert.py.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/scripts/setup.sh")
exec "$python" "$root/tools/convert.py" "$@"
