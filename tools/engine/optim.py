"""AdamW with the official split of parameters into decayed and undecayed ones."""

import paddle


def decay_split(model):
    """Structured names of trainable parameters as (decayed, undecayed).

    Undecayed: one-dimensional tensors (biases, LayerNorm) and the class token. Frozen tensors are in neither list.
    """
    decayed, undecayed = [], []
    for name, parameter in model.named_parameters():
        if parameter.stop_gradient:
            continue
        plain = parameter.ndim <= 1 or name.endswith(".bias") or name.rpartition(".")[2] == "cls_token"
        (undecayed if plain else decayed).append(name)
    return decayed, undecayed


def build_optimizer(model, *, lr, weight_decay, beta1=0.9, beta2=0.999, eps=1e-8, clip_grad=None):
    """AdamW over the trainable parameters of `model`. clip_grad: global norm, None = no clipping."""
    parameters = {name: p for name, p in model.named_parameters() if not p.stop_gradient}
    decayed, _ = decay_split(model)
    # AdamW asks by Paddle's own name of the tensor (linear_0.w_0), not by the structured one.
    decayed_names = {parameters[name].name for name in decayed}
    return paddle.optimizer.AdamW(
        learning_rate=lr,
        beta1=beta1,
        beta2=beta2,
        epsilon=eps,
        parameters=list(parameters.values()),
        weight_decay=weight_decay,
        apply_decay_param_fun=decayed_names.__contains__,
        grad_clip=None if clip_grad is None else paddle.nn.ClipGradByGlobalNorm(clip_grad),
    )
