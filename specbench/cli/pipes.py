"""Standard streams whose reader may leave before the end, as `specbench ... | head` makes it.

Owns what happens then: the command ends without a word and with the exit code that a shell shows
for a program that SIGPIPE ended. The signal itself stays ignored, as Python has it, because it
would also end a sweep whose download lost its connection.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO


class ReaderLeft(Exception):
    """Nobody reads on. No OSError, for libraries that print turn those into exits of their own."""


class _Watched:
    """A text stream that raises ReaderLeft where it would raise BrokenPipeError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._reader():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._reader():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # What is still buffered goes nowhere, or the interpreter complains as it ends.
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            raise ReaderLeft from None


@contextmanager
def watched() -> Iterator[None]:
    """Printing to a pipe without a reader raises ReaderLeft, at the latest at the end."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Watched, streams)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = streams
