"""The one exception that means "the user can mend this", and what the commands do with it."""

import sys


class UserError(ValueError):
    """A mistake of the user's. Its text is one line that names the thing, the value and the remedy.

    Modules of `data` and `engine` raise it (or a subclass); only `run_command` catches it.
    """


def run_command(main, argv=None):
    """Call `main(argv)` and return the exit code of the contract.

    0: done (`main` may return its own code). 2: a `UserError`, printed as one line on stderr.
    Everything else is a defect and keeps its traceback (exit code 1 from the interpreter).
    """
    if hasattr(sys.stdout, "reconfigure"):
        # File names and class names may hold what the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return main(argv) or 0
    except UserError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        return 2
