"""The words of this room: a prompt, a set of them, a prompt as token ids, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class PromptError(ValueError):
    """The prompts cannot be had as asked; the message is one line that says why."""


class UnknownTask(PromptError):
    """A task by a name that is none."""


@dataclass(frozen=True)
class Prompt:
    """One input: `text` is all that the model reads, prefix included."""

    id: str
    text: str
    reference: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The chosen prompts of a task, in the order they are measured.

    sha256: of the prefix, the ids and the texts, in order. num_available: items before the limit.
    synthetic: whether the texts repeat each other or themselves so much that no result on them
    says anything about real prompts.
    """

    task: str
    prompts: tuple[Prompt, ...]
    sha256: str
    prefix: str
    num_available: int
    synthetic: bool = False


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as a model reads it. truncated: whether tokens were cut, which is only on demand."""

    id: str
    token_ids: tuple[int, ...]
    truncated: bool = False


class Encoder(Protocol):
    """Anything that turns a text into token ids, end-of-sequence included where there is one."""

    def encode(self, text: str) -> list[int]:
        """The token ids of the text."""
        ...
