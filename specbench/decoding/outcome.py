"""What a round tells the host: its facts, what they come to, and why there may be no answer.

Owns the one transfer of a round and the errors of decoding. Knows nothing of models, of how
tokens are chosen, or of when a generation ends (`loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import NamedTuple

import torch

from specbench.sampling import accept_largest


class DecodingError(RuntimeError):
    """Decoding stopped because something can not be right; no token was made up instead."""


class NonFiniteLogits(DecodingError):
    """A model returned NaN, +inf, or nothing but -inf. role: "target" or "draft"; position:
    the index of the output token that the logits were for, from 0; row: of the batch."""

    def __init__(self, role: str, position: int, row: int) -> None:
        super().__init__(f"non-finite logits (position {position}, {role})")
        self.role, self.position, self.row = role, position, row


class ImpossibleDraft(DecodingError):
    """A drafted token has probability zero in the distribution it was drawn from."""


@dataclass
class Batch:
    """The committed tokens of each row behind its first token, and which rows are finished.

    A finished row still takes part in each call, but nothing it says is looked at.
    """

    rows: list[list[int]]
    done: list[bool]


@dataclass(frozen=True)
class Outcome:
    """What a round came to, on the host. blocks[b]: accepted drafts of row b and the token of
    the target's own, empty for a finished row; fell_back[b]: its residual rounded to zero."""

    blocks: list[list[int]]
    fell_back: list[bool]


def told(*facts: torch.Tensor) -> list[list[float]]:
    """Facts, each (B, n) or (B,), side by side on the host, row by row.

    From a device one array and one transfer: ids and flags become float32 beside their evidence;
    it holds every integer up to 2^24. What is on the host is read as it is, in half the time.
    """
    if _is_on_host(facts[0]):
        columns = [fact.tolist() if fact.dim() == 2 else _single(fact) for fact in facts]
        return [list(chain.from_iterable(row)) for row in zip(*columns, strict=True)]
    parts = [fact if fact.dim() == 2 else fact.unsqueeze(1) for fact in facts]
    joined: list[list[float]] = torch.cat(parts, dim=1).tolist()
    return joined


def _is_on_host(fact: torch.Tensor) -> bool:
    return fact.device.type == "cpu"


def _single(fact: torch.Tensor) -> list[list[float]]:
    return [[value] for value in fact.tolist()]


class Facts(NamedTuple):
    """What a speculative round told of a row: its drafts, the evidence of draft and target, and
    what was said: the four numbers of a verdict or, where rules are greedy, the target's ids."""

    drafts: list[int]
    draft_evidence: list[float]
    target_evidence: list[float]
    said: list[int]

    @staticmethod
    def of(numbers: list[float], width: int) -> Facts:
        """Of a row with room for `width` drafts."""
        drafts, behind = numbers[:width], numbers[3 * width + 1 :]
        return Facts(
            [int(number) for number in drafts],
            numbers[width : 2 * width],
            numbers[2 * width : 3 * width + 1],
            [int(number) for number in behind],
        )


def outcome_of(
    facts: Sequence[Facts], batch: Batch, num_drafted: Sequence[int], greedy: bool
) -> Outcome:
    """What the facts of a round come to, up to the first rejection of each row.

    greedy: what was said is the target's ids. Raises NonFiniteLogits and ImpossibleDraft.
    """
    blocks: list[list[int]] = []
    fell_back: list[bool] = []
    for row, (found, count) in enumerate(zip(facts, num_drafted, strict=True)):
        if batch.done[row]:
            blocks.append([])
            fell_back.append(False)
            continue
        if greedy:
            accepted = accept_largest(found.said, found.drafts[:count])
            token, fallback, impossible = found.said[accepted], 0, 0
        else:
            accepted, token, fallback, impossible = found.said
        # What the models say behind the first rejection follows tokens that were never kept.
        tested = min(accepted + 1, count)
        require_finite("draft", found.draft_evidence[:tested], batch, row)
        require_finite("target", found.target_evidence[: accepted + 1], batch, row)
        if impossible:
            raise ImpossibleDraft(
                f"a draft of row {row} behind output position {len(batch.rows[row])} has "
                "probability 0 in the distribution it was drawn from"
            )
        blocks.append([*found.drafts[:accepted], token])
        fell_back.append(bool(fallback))
    return Outcome(blocks, fell_back)


def require_finite(role: str, values: Sequence[float], batch: Batch, row: int) -> None:
    """Raise NonFiniteLogits at the first of the values, by output position, that is not finite."""
    for index, value in enumerate(values):
        if not isfinite(value):
            raise NonFiniteLogits(role, len(batch.rows[row]) + index, row)
