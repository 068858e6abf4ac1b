"""Exit codes, and how a command says that it was asked for something it cannot do."""

from __future__ import annotations

DONE, WRONG_USAGE, REFUSED, FAILED_CELLS, INTERRUPTED, READER_LEFT = 0, 2, 3, 4, 130, 141

EXIT_CODES = """Exit codes: 0 done; 2 wrong usage; 3 refused before measuring (a model, pair or
prompt set that cannot be used, or a check that failed); 4 finished with failed cells; 130 stopped
by Ctrl-C; 141 the reader of the output has left, as `| head` does."""


class CommandError(Exception):
    """One line for the user and the exit code that goes with it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
