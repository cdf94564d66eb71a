"""Which weights file a path means."""

import os
from pathlib import Path

from errors import UserError

SUFFIX = ".pdparams"
ADVICE = "name a weights file, or the run folder of a training; README.md, 'Weights', tells where they come from"


class WeightsError(UserError):
    """Weights that are missing, damaged, hostile or made for another network."""


def resolve_weights(path) -> Path:
    """The file meant by a path: a file with or without `.pdparams`, or a run folder's best, else last, weights.

    Relative paths start at the working directory. Raises WeightsError.
    """
    if not str(path):
        raise WeightsError(f"no weights given: {ADVICE}")
    given = Path(os.path.expanduser(path)).absolute()
    file = next((item for item in (given, Path(f"{given}{SUFFIX}")) if item.is_file()), None)
    if not given.is_dir():
        if file is None:
            if os.path.lexists(given):
                what = "is no regular file" if given.exists() else "is a link that leads nowhere"
                raise WeightsError(f"weights {given}: this {what}; {ADVICE}")
            also = "" if given.suffix else f" (nor {given.name}{SUFFIX} beside it)"
            run = given.with_suffix("")
            near = f"; the run folder {run} is there, name that" if (run / "best.pdparams").is_file() else ""
            raise WeightsError(f"weights not found: {given}{also}{near}; {ADVICE}")
        return file
    inner = next((given / name for name in ("best.pdparams", "last.pdparams") if (given / name).is_file()), None)
    if inner and file and not str(path).endswith(("/", os.sep)):
        raise WeightsError(f"weights {given}: both {file} and {inner} are meant by this; write one of them in full")
    if not (inner or file):
        raise WeightsError(f"no best.pdparams or last.pdparams in {given}; {ADVICE}")
    return inner or file
