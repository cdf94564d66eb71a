#!/usr/bin/env bash
# board.sh [RUN ...]: opens VisualDL on the curves of one run folder or several, by default of all below output/.
# Variables: PORT=8040 HOST=127.0.0.1 BOARD_LANG=en (or zh). It runs until Ctrl-C.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

stop() { printf '%s\n' "error: $*" >&2; exit 2; }

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
fi
if (($# == 0)); then
    for folder in "$root"/output/*/vdl; do
        [[ -d $folder ]] && set -- "$@" "${folder%/vdl}"
    done
    (($#)) || stop "no run below $root/output has curves yet; train first, or name a run folder"
fi
folders=()
for run in "$@"; do
    [[ -d $run/vdl ]] || stop "$run: no curves here ($run/vdl is missing); name the run folder of a training"
    folders+=("$(cd "$run" && pwd)/vdl")
done
language=${BOARD_LANG:-en}
[[ ${BOARD_LANG:-} || ${LC_ALL:-${LANG:-}} != zh* ]] || language=zh
[[ $language == en || $language == zh ]] || stop "BOARD_LANG=$language: VisualDL speaks en and zh"
[[ ${PORT:-8040} =~ ^[1-9][0-9]{0,4}$ ]] || stop "PORT=$PORT: give a port number, such as PORT=8041"

python=$(bash "$root/scripts/setup.sh")
# Without a language VisualDL 2.5 answers 500 to a browser that asks for neither English nor Chinese; without the last
# option it reports each start to its makers.
exec "$python" -c 'import sys; from visualdl.server.app import main; sys.exit(main())' --logdir "${folders[@]}" \
    --host "${HOST:-127.0.0.1}" --port "${PORT:-8040}" --language "$language" --disable-telemetry
