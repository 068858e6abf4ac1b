"""What a command says, and where: results to stdout, everything else to stderr.

Owns --json and --quiet, progress bars and notes. A bar is drawn only on a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 10_000


@dataclass(frozen=True)
class Output:
    """How much a command says. json: results as one JSON document; quiet: errors only."""

    json: bool = False
    quiet: bool = False

    def note(self, text: str) -> None:
        """A line for people who watch."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def results(self, document: Any, *renderables: Any) -> None:
        """The same results as JSON for programs or as tables for people."""
        if self.json:
            print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        elif not self.quiet:
            for renderable in renderables:
                # A path or a prefix with brackets is no markup, and a long one is not folded.
                is_line = isinstance(renderable, str)
                console().print(renderable, markup=False, crop=False, soft_wrap=is_line)

    @contextmanager
    def busy(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner while something without countable steps goes on; yields what to say."""
        with self._progress(_description()) as progress:
            task = progress.add_task(what, total=None)
            yield lambda text: progress.update(task, description=f"{what}: {text}")

    @contextmanager
    def watch(self) -> Iterator[Callable[[int, int, str], None]]:
        """A bar with the remaining time; yields a function of (done, total, what comes next)."""
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with self._progress(*columns, _description()) as progress:
            task = progress.add_task("", total=None)
            yield lambda done, total, text: progress.update(
                task, completed=done, total=total, description=text
            )

    def _progress(self, *columns: Any) -> Any:
        from rich.progress import Progress, SpinnerColumn

        terminal = console(stderr=True)
        hidden = self.quiet or not terminal.is_terminal
        return Progress(SpinnerColumn(), *columns, console=terminal, transient=True, disable=hidden)


def _description() -> Any:
    from rich.progress import TextColumn

    return TextColumn("{task.description}", markup=False)


def console(stderr: bool = False) -> Console:
    """A rich console; NO_COLOR and the terminal's width are respected by rich itself."""
    from rich.console import Console

    if stderr:
        return Console(stderr=True)
    # A pipe has no width; rows of a table must not be folded for it.
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
