"""The Typer application and the one place where errors become a line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specbench import __version__
from specbench.cli import doctor, results, sweep, theory, verify
from specbench.cli.errors import (
    DONE,
    EXIT_CODES,
    INTERRUPTED,
    READER_LEFT,
    WRONG_USAGE,
    CommandError,
)
from specbench.cli.pipes import ReaderLeft, watched
from specbench.experiment.config import UsageError

app = typer.Typer(
    name="specbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs a third of the time
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure what speculative decoding gives on your models, your prompts and your machine.",
    epilog=EXIT_CODES,
)
app.command("sweep")(sweep.sweep)
app.command("verify")(verify.verify)
app.command("compare-theory")(results.compare_theory)
app.command("recommend")(results.recommend)
app.command("peers")(results.peers)
app.command("tables")(results.tables)
app.command("plot")(results.plot)
app.command("theory")(theory.theory)
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        print(f"specbench {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit with its code; a user's mistake is one line, no traceback."""
    _make_streams_safe()
    try:
        with watched():
            code = _run()
    except ReaderLeft:
        code = READER_LEFT
    sys.exit(code)


def _make_streams_safe() -> None:
    """A closed stream swallows what is printed; one that lacks a letter shows its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> int:
    try:
        # Without a command the help is what is asked for, laid out and not as an error's one line.
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False) or DONE
        sys.stdout.flush()
        # Newer typers turn Ctrl-C into a code of their own accord, without a word.
        return _say("stopped", code) if code == INTERRUPTED else code
    except typer.TyperException as error:
        return _say(_with_value(error, sys.argv[1:]), error.exit_code)
    except UsageError as error:
        return _say(str(error), WRONG_USAGE)
    except CommandError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:  # a file where a folder has to be, a full disk
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}cannot be written or read ({error.strerror or error})", WRONG_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _say("stopped", INTERRUPTED)


def _with_value(error: typer.TyperException, args: Sequence[str]) -> str:
    """The message, and the value that it is about where it names an option alone."""
    message, options = error.format_message(), getattr(getattr(error, "param", None), "opts", ())
    for index, arg in enumerate(args):
        option, has_value, value = arg.partition("=")
        if option in options:
            value = value if has_value else "".join(args[index + 1 : index + 2])
            return message if value in message else f"{message} (found {value!r})"
    return message


def _say(message: str, code: int) -> int:
    lines = [line for line in message.splitlines() if line.strip()]
    if lines:
        print(f"specbench: {' '.join(lines)}", file=sys.stderr)
    return code
