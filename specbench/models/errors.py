"""The errors that this room raises for a model that cannot be used."""

from __future__ import annotations


class ModelError(Exception):
    """A model, tokenizer, device or dtype was refused; the message is one line for the user.

    It names what was asked for and what is allowed, and is never about a bug of specbench.
    """


class UnknownName(ModelError):
    """A device or dtype by a name that no machine knows."""
