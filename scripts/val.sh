#!/usr/bin/env bash
# val.sh [CONFIG] [key=value ...]: sets up if needed, then runs tools/val.py; --help tells all, GPUS, NPROC and NNODES too.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" tools/val.py "$@"
