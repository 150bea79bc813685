"""Commands whose reader leaves early, as `| head` does: no fault, and no traceback."""

import os
import sys
from collections.abc import Callable

EXIT_PIPE = 141
"""What a shell reports for a command that the signal of a broken pipe ended."""


def until_unread(run: Callable[[], int]) -> int:
    """Exit code of `run`, or EXIT_PIPE when nobody reads its output any more."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    return code
