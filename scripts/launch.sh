#!/usr/bin/env bash
# launch.sh PROGRAM [CONFIG] [key=value ...]: runs a program of tools/ in one process or several; train.sh and val.sh
# call it. It stays in the caller's directory, so that relative file arguments mean what the caller sees.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$1
shift

stop() { printf '%s\n' "error: $*" >&2; exit 2; }
port() { [[ $1 =~ ^[1-9][0-9]{0,4}$ && $1 -le 65535 ]]; }
count() { [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]; }

usage() {
    cat <<EOF
usage: [VARIABLE=value ...] bash scripts/$(basename "$program" .py).sh [CONFIG] [key=value ...]

CONFIG is a YAML file, looked up in the current directory, then in the project's root. Variables:
  GPUS=0,1,2,3       one process on each of these cards (numbers as nvidia-smi shows them)
  NPROC=2            that many processes on the CPU
  NNODES=2 MASTER=host:port [RANK=0]
                     several machines: run the same command on each; MASTER is an address of the first
  RESTARTS=3         with several processes: start again up to so often after a failure that is not your mistake
  PORT_RANGE=35100:64000
                     ports of the processes on this machine, besides MASTER's and those that gloo asks the system for
  POD_IP=10.0.0.2    this machine's address, where its host name does not tell the others
  PYTHON=python3     the Python to use; without it, one on PATH that has Paddle, else ./.venv, made when absent
  OMP_NUM_THREADS    threads of each process; with NPROC, cores / NPROC by default
Without GPUS and NPROC there is one process, which chooses its device itself. What the program takes:

EOF
}

# check_gpus: refuses cards that do not exist, which would otherwise end in a job on fewer cards or on the CPU.
check_gpus() {
    local cards visible card seen=,
    [[ $GPUS =~ ^[0-9]+(,[0-9]+)*$ ]] || stop "GPUS=$GPUS: give card numbers joined by commas, such as GPUS=0,1"
    cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
    ((cards > 0)) || stop "GPUS=$GPUS, but no NVIDIA driver answers (nvidia-smi -L); unset GPUS, or use NPROC for the CPU"
    visible=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((cards - 1)))}
    for card in ${GPUS//,/ }; do
        [[ ,$visible, == *,$card,* && $card -lt $cards ]] ||
            stop "GPUS=$GPUS: there is no card $card among the visible ones ($visible of $cards); name fewer cards"
        [[ $seen != *,$card,* ]] || stop "GPUS=$GPUS: card $card is named twice"
        seen+=$card,
    done
}

# with_device DEVICE ARG...: the arguments, in $arguments, with device=DEVICE before the first key=value, so that a
# device= of the user's comes later and wins; all key=value stay together, as argparse wants them.
with_device() {
    local device=$1 argument
    shift
    arguments=()
    for argument in "$@"; do
        if [[ -n $device && $argument == [a-z]*=* ]]; then
            arguments+=("device=$device")
            device=
        fi
        arguments+=("$argument")
    done
    [[ -z $device ]] || arguments+=("device=$device")
}

gpus=${GPUS:-} nproc=${NPROC:-} nnodes=${NNODES:-1}
[[ -z $gpus || -z $nproc ]] || stop "GPUS=$gpus and NPROC=$nproc are both set: GPUS is for cards, NPROC for the CPU; unset one"
[[ -z $nproc ]] || count "$nproc" || stop "NPROC=$nproc: give a number of processes, such as NPROC=2"
count "$nnodes" || stop "NNODES=$nnodes: give a number of machines, such as NNODES=2"
if [[ -n ${PORT_RANGE:-} ]]; then
    { [[ $PORT_RANGE =~ ^[0-9]+:[0-9]+$ ]] && port "${PORT_RANGE%:*}" && port "${PORT_RANGE#*:}" &&
        ((${PORT_RANGE%:*} < ${PORT_RANGE#*:})); } ||
        stop "PORT_RANGE=$PORT_RANGE: give the first and the last port, such as PORT_RANGE=40000:41000"
fi
[[ ${RESTARTS:-0} =~ ^(0|[1-9][0-9]{0,3})$ ]] || stop "RESTARTS=$RESTARTS: give a number of new starts, such as RESTARTS=3"
[[ -z $gpus ]] || check_gpus

options=()
if ((nnodes > 1)); then
    [[ ${MASTER:-} =~ ^[^:/]+:[0-9]+$ ]] || stop "NNODES=$nnodes needs MASTER=host:port, found '${MASTER:-}'"
    port "${MASTER##*:}" || stop "MASTER=$MASTER: give a port from 1 to 65535"
    options+=(--nnodes "$nnodes" --master "$MASTER")
    if [[ -n ${RANK:-} ]]; then
        [[ $RANK =~ ^(0|[1-9][0-9]{0,3})$ && $RANK -lt $nnodes ]] || stop "RANK=$RANK: give this machine's number, 0 to $((nnodes - 1))"
        options+=(--rank "$RANK")
    fi
    if [[ -z $gpus && -z $nproc ]]; then
        ! nvidia-smi -L >/dev/null 2>&1 || stop "NNODES=$nnodes: say which cards of this machine to use, such as GPUS=0,1"
        nproc=1
    fi
elif [[ -n ${MASTER:-} ]]; then
    stop "MASTER=$MASTER is set but NNODES is not; set NNODES to the number of machines, or unset MASTER"
fi

if (($#)) && [[ $1 == -h || $1 == --help ]]; then
    usage
elif (($#)) && [[ $1 != *=* && $1 != -* ]]; then
    config=$1
    [[ -f $config ]] || config=$root/$1
    [[ -f $config ]] || stop "config $1: no such file in $PWD or $root; give a YAML file, or key=value for a setting"
    shift
    set -- --config "$config" "$@"
fi

python=$(bash "$root/scripts/setup.sh")
export PYTHONUNBUFFERED=1
# Paddle's launcher takes a list that is set but empty for one card without a number.
[[ -n ${CUDA_VISIBLE_DEVICES:-} ]] || unset CUDA_VISIBLE_DEVICES

if [[ -n $gpus ]]; then
    # Cards were asked for, so a Paddle without CUDA must refuse instead of falling back to the CPU.
    with_device gpu "$@"
    export CUDA_VISIBLE_DEVICES=$gpus
    options+=(--gpus "$gpus")
elif [[ -n $nproc ]]; then
    with_device cpu "$@"
    options+=(--nproc_per_node "$nproc")
else
    exec "$python" "$root/$program" "$@"
fi

if [[ ($gpus == *,* || $nproc -gt 1) || $nnodes -gt 1 ]]; then
    if [[ -n $nproc ]]; then
        # The launcher gives every process a card where Paddle sees one, and then joins them over NCCL.
        ! { nvidia-smi -L && "$python" -c 'from importlib.metadata import version; version("paddlepaddle-gpu")'; } \
            >/dev/null 2>&1 || stop "NPROC=$nproc is for machines or Paddles without cards, and this one has them; use GPUS"
        threads=$(($(getconf _NPROCESSORS_ONLN) / nproc))
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
    fi
    exec "$python" "$root/tools/launch.py" "${options[@]}" "$root/$program" "${arguments[@]}"
else
    exec "$python" "$root/$program" "${arguments[@]}"
fi
