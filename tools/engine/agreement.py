"""That all processes hold the same: asked before the first step of a training, and brought about for evaluations."""

import numpy as np
from errors import UserError

from engine import distributed


def check_agreement(trainer):
    """Raise UserError, in all processes alike, where they begin at other places or with other tensors.

    trainer: engine.loop.Trainer. The tensors are all that a step reads and changes: parameters, frozen ones included,
    averages, the optimiser's moments and the loss scale as restored. Processes at different places would wait for each
    other for ever; with different tensors they would train different networks without a sign of it.
    """
    if distributed.world_size() == 1:
        return
    output = trainer.config.output
    places = distributed.gather_rows(np.array([trainer.place])).tolist()
    if any(place != places[0] for place in places):
        epochs = ", ".join(f"{epoch}" + (f" and {step} steps" if step else "") for epoch, step in places)
        raise UserError(
            f"output={output}: the processes would go on after epochs [{epochs}]; put the run folder on a disk that "
            "all machines share"
        )
    # What was restored may not be what the network took.
    held = {f"model/{name}": tensor for name, tensor in trainer.network.state_dict().items()}
    distributed.check_same(
        {**trainer.tensors(), **held},
        f"start all machines with the same code and weights, and with the run folder output={output} on a shared disk",
    )


def share_statistics(network, ema):
    """Give all processes the first one's running statistics, and its averages of them; ema: engine.ema.Ema or None.

    BatchNorm collects them in each process from its own images, but an evaluation has one network. They are tensors
    that no gradient changes; the others of these are the same everywhere.
    """
    collected = [name for name, tensor in network.state_dict().items() if tensor.stop_gradient]
    for holder in (network, *((ema,) if ema else ())):
        state = holder.state_dict()
        distributed.broadcast({name: state[name] for name in collected})
