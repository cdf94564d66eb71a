"""The processes of one training or evaluation. Every function also answers for a single process without a launcher."""

import hashlib
import os

import numpy as np
import paddle
import paddle.distributed as dist
from errors import UserError
from paddle.distributed import fleet
from startup import without_noise

from engine.meeting import Meeting

# Of the processes that `init` joined on CPUs.
_meeting = None


def choose_device(wanted):
    """Select the device: "auto" takes a GPU where there is one, "cpu", "gpu". Returns a line for the log.

    Raises UserError for "gpu" with a CPU build of Paddle or without a card.
    """
    built = paddle.device.is_compiled_with_cuda()
    cards = paddle.device.cuda.device_count() if built else 0
    if wanted == "gpu" and not cards:
        reason = "Paddle sees no NVIDIA card" if built else f"this Paddle {paddle.__version__} is a CPU build"
        raise UserError(f"device=gpu: {reason}; install paddlepaddle-gpu and a driver, or use device=auto")
    if wanted == "cpu" or not cards:
        paddle.device.set_device("cpu")
        # Transposes as views are copied element by element later, which costs a CPU a third of a training step.
        paddle.set_flags({"FLAGS_use_stride_kernel": False})
        return f"cpu, {os.environ.get('OMP_NUM_THREADS', '1')} thread(s)"
    # The launcher names the card of each process in this variable.
    card = os.environ.get("FLAGS_selected_gpus", "0").split(",")[0]  # noqa: SIM112
    paddle.device.set_device(f"gpu:{card}")
    return f"{paddle.device.get_device()}, {paddle.device.cuda.get_device_name()}"


def init():
    """Join the processes that the launcher started; alone, a group of one."""
    global _meeting
    with without_noise():
        if world_size() > 1 and "gpu" not in paddle.get_device():
            first = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
            store = paddle.base.core.create_or_get_global_tcp_store()
            _meeting = Meeting(store, first.rsplit(":", 1)[0], rank(), world_size())
            # Gloo does not wait for long in making the group either.
            meet()
        if _fleet_is_safe():
            fleet.init(is_collective=True, log_level="WARNING")
        else:
            dist.init_parallel_env()


def _fleet_is_safe():
    # fleet.init makes a dozen groups. Over gloo some starts of 3 or 4 processes then hang or end in "Connection
    # refused" (Paddle 2.6.2 and 3.3.1), so more than two CPU processes join in one plain group.
    return world_size() <= 2 or "gpu" in paddle.get_device()


def meet():
    """Wait until all processes are here, for as long as it takes; nothing on GPUs, where NCCL waits half an hour."""
    if _meeting:
        _meeting()


def rank():
    """Number of this process, 0 .. world_size() - 1."""
    return dist.get_rank()


def world_size():
    """Number of processes."""
    return dist.get_world_size()


def is_main():
    """Whether this process writes files and speaks."""
    return rank() == 0


def wrap(model):
    """The model whose backward pass averages gradients over all processes; parameters are broadcast from rank 0."""
    if world_size() == 1:
        # fleet.distributed_model of Paddle 3.3 takes a single process for a pipeline and fails.
        return model
    meet()
    return fleet.distributed_model(model) if _fleet_is_safe() else paddle.DataParallel(model)


@paddle.no_grad()
def broadcast(tensors):
    """Overwrite the paddle tensors of a dict, in its order, with those of rank 0."""
    if world_size() > 1:
        meet()
        for tensor in tensors.values():
            dist.broadcast(tensor, 0)


def check_same(values, remedy):
    """Raise UserError, in all processes alike, where one holds another value than rank 0; in two collectives.

    values: name -> paddle tensor or NumPy array, compared byte by byte, or what repr tells whole. The error names the
    first value that differs and the first process that has it, or says that the names are not the same.
    """
    if world_size() == 1:
        return
    # The number of names too, since arrays of different lengths cannot be gathered.
    names = gather_rows(np.array([[len(values), _digest(list(values))]]))
    if (names != names[0]).any():
        other = int((names != names[0]).any(axis=1).argmax())
        raise UserError(f"process {other} has {names[other, 0]} values to compare, process 0 has {names[0, 0]}, or "
                        f"others than these; {remedy}")
    digests = gather_rows(np.array([[_digest(value) for value in values.values()]]))
    differs = digests != digests[0]
    if differs.any():
        first = int(differs.any(axis=0).argmax())
        raise UserError(f"{list(values)[first]}: process {int(differs[:, first].argmax())} has another value than "
                        f"process 0; {remedy}")


def _digest(value):
    if isinstance(value, paddle.Tensor):
        value = value.numpy()
    data = np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def gather_rows(rows):
    """Concatenate a NumPy array [R, ...] of every process to [world_size * R, ...], in the order of ranks.

    R must be the same everywhere, as EpochBatchSampler makes it; int64 and float64 keep their type.
    """
    if world_size() == 1:
        return rows
    parts = []
    meet()
    dist.all_gather(parts, paddle.to_tensor(rows))
    return np.concatenate([part.numpy() for part in parts])
