#!/usr/bin/env bash
# predict.sh IMG... [--weights W] [--topk K] [--json]: sets up if needed, then runs tools/predict.py.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(bash "$root/scripts/setup.sh")
exec "$python" "$root/tools/predict.py" "$@"
