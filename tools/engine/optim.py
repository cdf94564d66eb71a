"""AdamW with the official split of parameters into decayed and undecayed ones, and SGD as the official fine-tuning."""

import difflib
from fnmatch import fnmatchcase

import paddle
from errors import UserError

# What each optimiser keeps for a parameter, and whether it has the parameter's shape (else it has one element).
_SLOTS = {
    paddle.optimizer.AdamW: {"moment1_0": True, "moment2_0": True, "beta1_pow_acc_0": False, "beta2_pow_acc_0": False},
    paddle.optimizer.Momentum: {"velocity_0": True},
}


def freeze(model, patterns):
    """Exclude the parameters whose structured names match a pattern (fnmatch, case matters) from training.

    Returns the names of all frozen parameters, those that the network freezes itself included. Raises UserError for a
    pattern that matches no parameter and when none is left to train; then nothing is frozen.
    """
    parameters = dict(model.named_parameters())
    chosen = set()
    for pattern in patterns:
        matches = [name for name in parameters if fnmatchcase(name, pattern)]
        if not matches:
            raise UserError(
                f"train.freeze: {pattern!r} matches no parameter of the network; nearest: "
                f"{', '.join(_nearest(pattern, parameters))}"
            )
        chosen.update(matches)
    frozen = [name for name, p in parameters.items() if p.stop_gradient or name in chosen]
    if len(frozen) == len(parameters):
        raise UserError(f"train.freeze={list(patterns)}: no parameter is left to train; leave some out, such as head.*")
    for name in chosen:
        parameters[name].stop_gradient = True
    return frozen


def _nearest(pattern, names):
    parts = [name.split(".") for name in names]
    groups = [".".join([*part[:depth], "*"]) for part in parts for depth in range(1, len(part))]
    known = list(dict.fromkeys([*names, *groups]))
    tops = [part[0] + (".*" if len(part) > 1 else "") for part in parts]
    return difflib.get_close_matches(pattern, known, n=3) or list(dict.fromkeys(tops))


def decay_split(model, decayed="matrices"):
    """Structured names of trainable parameters as (decayed, undecayed).

    decayed: "matrices" leaves out one-dimensional tensors (biases, LayerNorm, BatchNorm), the class token, as the
    official pre-training does, and position tables that are trained, as is done for ViT; "all" leaves out none, as the
    official fine-tuning does. Frozen tensors are in neither list.
    """
    with_decay, without = [], []
    for name, parameter in model.named_parameters():
        if parameter.stop_gradient:
            continue
        plain = parameter.ndim <= 1 or name.endswith(".bias") or name.rpartition(".")[2] in ("cls_token", "pos_embed")
        (without if plain and decayed == "matrices" else with_decay).append(name)
    return with_decay, without


def build_optimizer(
    model,
    *,
    lr,
    weight_decay,
    optimizer="adamw",
    decayed="matrices",
    momentum=0.9,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    clip_grad=None,
):
    """The optimiser of the trainable parameters of `model`; it serves one network, until the next one is built.

    optimizer: "adamw", whose decay is decoupled, p -= rate * wd * p; "sgd", whose decay joins the gradient,
    v = momentum * v + g + wd * p, p -= rate * v, without Nesterov. Both decay what decay_split(model, decayed) says.
    clip_grad: bound of the gradient's global norm, None = no clipping. Clipping comes before the decay, so the bound
    holds for the loss's own gradient.
    """
    parameters = {name: p for name, p in model.named_parameters() if not p.stop_gradient}
    chosen, _ = decay_split(model, decayed)
    coupled = float(weight_decay) if optimizer == "sgd" else 0.0
    for name, parameter in parameters.items():
        # Paddle's groups would clip each group by its own norm; a regulariser of the tensor leaves one group.
        parameter.regularizer = paddle.regularizer.L2Decay(coupled) if coupled and name in chosen else None
    common = {
        "learning_rate": lr,
        "parameters": list(parameters.values()),
        "grad_clip": None if clip_grad is None else paddle.nn.ClipGradByGlobalNorm(clip_grad),
    }
    if optimizer == "sgd":
        return paddle.optimizer.Momentum(momentum=momentum, **common)
    # AdamW asks by Paddle's own name of the tensor (linear_0.w_0), not by the structured one.
    own_names = {parameters[name].name for name in chosen}
    return paddle.optimizer.AdamW(
        beta1=beta1,
        beta2=beta2,
        epsilon=eps,
        weight_decay=weight_decay,
        apply_decay_param_fun=own_names.__contains__,
        **common,
    )


def slot_shapes(optimizer, model):
    """What a checkpoint of `optimizer` must hold: (structured name, slot) -> shape, for each trainable parameter."""
    slots = _SLOTS[type(optimizer)]
    return {
        (name, slot): list(parameter.shape) if full else [1]
        for name, parameter in model.named_parameters()
        if not parameter.stop_gradient
        for slot, full in slots.items()
    }
