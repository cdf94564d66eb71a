"""The one exception that means "the user can mend this", and what the commands do with it."""

import os
import sys


class UserError(ValueError):
    """A mistake of the user's. Its text is one line that names the thing, the value and the remedy.

    Modules of `data` and `engine` raise it (or a subclass); only `run_command` catches it.
    """


def run_command(main, argv=None):
    """Call `main(argv)` and return the exit code of the contract.

    0: done (`main` may return its own code). 2: a `UserError`, printed as one line on stderr, or output that cannot be
    written, as on a full disk. 1 without a traceback: Ctrl-C, or a reader of the output that went away. Everything else
    is a defect and keeps its traceback (exit code 1 from the interpreter).
    """
    if hasattr(sys.stdout, "reconfigure"):
        # File names and class names may hold what the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main(argv) or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 1
    except BrokenPipeError:
        # `predict.py folder | head`
        _give_up_stdout()
        return 1
    except OSError as error:
        if not _stdout_fails():
            raise
        print(f"error: standard output: {error.strerror}; write it elsewhere", file=sys.stderr, flush=True)
        _give_up_stdout()
        return 2


def _stdout_fails():
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
        return False
    except OSError:
        return True


def _give_up_stdout():
    # The interpreter would fail again when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
