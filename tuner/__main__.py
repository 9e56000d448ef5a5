"""The ``tuner`` command and ``python -m tuner``: the entry point, from which everything is imported late."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130
"""128 plus SIGINT, as shells count."""


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback, while its modules are still loading too."""
    try:
        from tuner.cli import main as run  # noqa: PLC0415 - loading click takes long enough to be interrupted

        run()
    except (KeyboardInterrupt, Exception) as error:
        if not _interrupted(error):
            raise
        # os.write: the streams of an interrupted interpreter may be in any state.
        os.write(2, b"interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def _interrupted(error: BaseException | None) -> bool:
    """Tell whether an error is Ctrl-C, or was made of one.

    Python wraps what interrupts the making of a class in a RuntimeError, and libraries wrap what
    interrupts an import in an ImportError.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
