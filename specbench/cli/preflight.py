"""What `sweep` and `verify` do first: load, check, and turn a refusal into one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specbench.cli.errors import REFUSED, WRONG_USAGE, CommandError
from specbench.cli.output import Output
from specbench.experiment.config import Config

if TYPE_CHECKING:
    from specbench.experiment.prepare import Prepared


def prepared(config: Config, output: Output) -> Prepared:
    """Everything a run needs, loaded and checked. Raises CommandError."""
    from specbench.experiment.prepare import prepare

    with refusals(), output.busy("preflight") as say:
        return prepare(config, say)


@contextmanager
def refusals() -> Iterator[None]:
    """Whatever is refused before measuring becomes one line and its exit code."""
    from specbench.experiment.prepare import Refused
    from specbench.models import ModelError, UnknownName
    from specbench.prompts import PromptError, UnknownTask

    try:
        yield
    except (UnknownName, UnknownTask) as error:
        raise CommandError(str(error), WRONG_USAGE) from None
    except (ModelError, PromptError, Refused) as error:
        raise CommandError(str(error), REFUSED) from None
