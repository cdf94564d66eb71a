#!/usr/bin/env bash
# Two machines as two network namespaces, joined by a virtual cable: train, kill a process, go on, stop, go on to the
# end. Needs root and iproute2; run from anywhere: PYTHON=... bash tests/two_namespaces.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
export PYTHON=${PYTHON:-python3} OMP_NUM_THREADS=1

cleanup() {
    for name in a b; do
        ip netns pids t2t-$name 2>/dev/null | xargs -r kill -9 || true
        ip netns del t2t-$name 2>/dev/null || true
        rm -rf /etc/netns/t2t-$name
    done
    rm -rf "$work"
}
trap cleanup EXIT

for name in a b; do
    ip netns add t2t-$name
    ip netns exec t2t-$name ip link set lo up
done
ip link add veth-a netns t2t-a type veth peer name veth-b netns t2t-b
number=1
for name in a b; do
    ip netns exec t2t-$name ip addr add 10.77.0.$number/24 dev veth-$name
    ip netns exec t2t-$name ip link set veth-$name up
    mkdir -p /etc/netns/t2t-$name
    printf '%s\n' "10.77.0.$number machine-$name" "127.0.0.1 localhost" >/etc/netns/t2t-$name/hosts
    number=$((number + 1))
done

# machine NAME RANK EPOCHS: the command of the README in its namespace, under a host name of its own.
machine() {
    # shellcheck disable=SC2016  # the inner shell expands these
    exec ip netns exec t2t-$1 unshare --uts bash -c 'hostname "$0"; shift; exec "$@"' machine-$1 - \
        env NNODES=2 NPROC=1 RANK=$2 MASTER=10.77.0.1:8765 bash scripts/train.sh config/quickstart.yaml \
        model.img_size=32 data.workers=0 train.epochs=$3 train.max_steps=6 train.save_steps=1 train.log_every=1 \
        train.warmup_epochs=1 output="$work/run" >"$work/$1.out" 2>"$work/$1.err"
}

start() {
    machine a 0 "$1" & a=$!
    machine b 1 "$1" & b=$!
}

finish() {
    local code=0
    wait $a || code=$?
    echo "$1: exit code of the first machine $code"
    code=0
    wait $b || code=$?
    echo "$1: exit code of the second machine $code; processes left: $(ip netns pids t2t-a | wc -l) and $(ip netns pids t2t-b | wc -l)"
    sed "s#$work#OUTPUT#g" "$work/a.err" "$work/b.err"
    grep -E "processes:|batch:|^going on|stopped by|^best top-1" "$work/a.out" | sed "s#$work#OUTPUT#g"
}

after_steps() {
    until [[ $(grep -c "Loss: " "$work/a.out") -ge $1 ]]; do sleep 0.2; done
}

start 1000
after_steps 3
for pid in $(ip netns pids t2t-b); do
    if grep -qz '^PADDLE_LOCAL_RANK=' "/proc/$pid/environ"; then victim=$pid && break; fi
done
kill -9 "$victim"
finish "a process of the second machine killed"
start 1000
after_steps 3
kill -TERM $b
finish "SIGTERM to the second machine"
epochs=$(($(grep -o 'Epoch \[[0-9]*' "$work/run/train.log" | tail -1 | tr -dc 0-9) + 1))
start $epochs
finish "gone on to the end"
