#!/usr/bin/env bash
# ablation.sh [CONFIG] [--seeds N] [key=value ...]: sets up if needed, then runs tools/ablation.py in one process.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if (($#)) && [[ $1 != *=* && $1 != -* ]]; then
    config=$1
    [[ -f $config ]] || config=$root/$1
    shift
    set -- --config "$config" "$@"
fi
python=$(bash "$root/scripts/setup.sh")
exec "$python" "$root/tools/ablation.py" "$@"
