#!/usr/bin/env bash
# train.sh [CONFIG] [key=value ...]: sets up if needed, then runs tools/train.py; --help tells all, GPUS, NPROC and NNODES too.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" tools/train.py "$@"
