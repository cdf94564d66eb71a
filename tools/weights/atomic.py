"""Files that appear whole or not at all."""

import contextlib
import os
from pathlib import Path

from weights.files import WeightsError


@contextlib.contextmanager
def whole_file(path):
    """Give the name of a partial file beside `path`; at the end it is synced and takes `path`'s place.

    When anything fails, the partial file is removed and what was at `path` stays. Raises WeightsError where the folder
    cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise WeightsError(
            f"cannot write {path.absolute()}: {error.strerror or error}; free some space or choose another folder"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
