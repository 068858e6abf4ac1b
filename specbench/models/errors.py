"""The errors that this room raises for a model that cannot be used, and those that it meets."""

from __future__ import annotations


class ModelError(Exception):
    """A model, tokenizer, device or dtype was refused; the message is one line for the user.

    It names what was asked for and what is allowed, and is never about a bug of specbench.
    """


BROKEN = (RuntimeError, IndexError, MemoryError)
"""What torch and numpy raise where a model's own call cannot go on: memory, device, shapes."""


def explain(error: Exception) -> str:
    """An error in one line; one that is not this program's own is named by its type."""
    text = " ".join(str(error).split())[:300]
    is_own = type(error).__module__.startswith("specbench.")
    return text if is_own else f"{type(error).__name__}: {text}"


class UnknownName(ModelError):
    """A device or dtype by a name that no machine knows."""
