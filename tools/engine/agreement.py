"""Whether all processes begin a training alike, asked before its first step."""

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
