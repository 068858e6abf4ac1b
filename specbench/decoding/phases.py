"""Where a decoder says what it is doing, so that somebody else may hold a clock.

Owns the names of the phases. Knows nothing of seconds: `measure.timing` listens.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Phase(Enum):
    """What the decoder is busy with from one `enter` to the next."""

    TARGET_PREFILL = "target_prefill"
    DRAFT_PREFILL = "draft_prefill"
    DRAFT = "draft"
    VERIFY = "verify"
    REST = "rest"


class Phases(Protocol):
    """A listener. `enter` ends the phase before; `end_round` comes when a round's tokens are
    on the host."""

    def enter(self, phase: Phase) -> None:
        """The decoder begins `phase`."""
        ...

    def end_round(self) -> None:
        """The tokens of a round are on the host."""
        ...


class _Silent:
    def enter(self, phase: Phase) -> None:
        pass

    def end_round(self) -> None:
        pass


SILENT: Phases = _Silent()
