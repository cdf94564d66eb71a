"""From a configuration to the teacher of a distillation, which is a trained network with settings of its own."""

from dataclasses import replace

import wiring
from engine.arguments import known_settings
from engine.config import project_path
from engine.distillation import Distillation
from engine.loss import LabelLoss
from errors import UserError
from models.macs import count_parameters
from weights.files import resolve_weights
from weights.paddle_file import read_weights


def distillation(config, class_names):
    """(engine.distillation.Distillation by train.teacher, lines for the log); (None, []) where there is no teacher.

    class_names: of the training, list of str in label order, or None. The teacher's network, size and normalisation
    come from its run or record. Raises UserError where these are missing and where it was trained on other classes or
    another image size.
    """
    recipe, data = config.train, config.data
    if not recipe.teacher:
        return None, []
    given = f"train.teacher={recipe.teacher}"
    weights = resolve_weights(project_path(recipe.teacher))
    if weights.parent.resolve() == project_path(config.output).resolve():
        raise UserError(f"{given}: lies in the run folder of this training itself; choose another output")
    theirs = _teacher_config(config, weights, given)
    trained = wiring.trained_classes(theirs, weights)
    if trained and class_names and trained.names != class_names:
        old, new = next((a, b) for a, b in zip(trained.names, class_names) if a != b)
        raise UserError(f"{given}: its class {old!r} is {new!r} in data.train_dir={data.train_dir}; give a teacher of "
                        "the same class folders")
    network, _ = wiring.load_network(theirs, weights)
    loss = Distillation(
        network, LabelLoss(recipe.smoothing), kind=recipe.distill, alpha=recipe.distill_alpha,
        temperature=recipe.distill_temperature, source=recipe.teacher,
        own=(data.mean, data.std), theirs=(theirs.data.mean, theirs.data.std),
    )  # fmt: skip
    return loss, [f"teacher: {theirs.model.name}, {count_parameters(network)[0]:,} parameters, from {weights}",
                  loss.describe()]


def _teacher_config(config, weights, given):
    """`config` with network and normalisation of the teacher's run or record."""
    known = known_settings(weights)
    if not known:
        read_weights(weights)
        raise UserError(f"{given}: {weights} has neither a record nor a run's config.yaml beside it; name a run folder "
                        "or weights that tools/convert.py wrote")
    for key, what in (("img_size", "pixels"), ("num_classes", "classes")):
        here, there = getattr(config.model, key), known[f"model.{key}"]
        if here != there:
            raise UserError(f"{given}: was trained on {there} {what}, but here model.{key}={here}; give a teacher with "
                            f"{here} {what}")
    model = {name[len("model."):]: value for name, value in known.items() if name.startswith("model.")}
    normalisation = {name: known[f"data.{name}"] for name in ("mean", "std")}
    # Its dropout rates have no effect; CNNs refuse any drop path.
    return replace(config, model=replace(config.model, **model, drop_rate=0.0, attn_drop_rate=0.0, drop_path=0.0),
                   data=replace(config.data, **normalisation))
