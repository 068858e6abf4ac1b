"""The rounds of a peer, overheard: blocks that its target is given, tokens that it streams.

Owns what a peer's round was: which drafts were tested and which tokens kept, in the same words
for plain and assisted generation. Refuses a draft length that is not what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from specbench.models.adapter import TransformersModel
from specbench.models.errors import ModelError
from specbench.records import Limits, Sampling

Rows = list[list[int]]


class PeerError(ModelError):
    """A peer cannot decode this as asked; the message says why."""


class Listener(Protocol):
    """Told what begins: target_prefill, draft_prefill, draft, verify or rest."""

    def begin(self, phase: str) -> None:
        """The peer begins `phase`."""
        ...

    def end_round(self) -> None:
        """The tokens of a round are on the host."""
        ...


@dataclass(frozen=True)
class Task:
    """What is to be decoded how. gamma: 0 without a draft. seed: of torch's own generator."""

    target: TransformersModel
    draft: TransformersModel | None
    gamma: int
    sampling: Sampling
    limits: Limits
    seed: int = 0


@dataclass(frozen=True)
class PeerRound:
    """One call of the target. drafts, kept: token ids by row, both empty for a finished row."""

    drafts: Rows
    kept: Rows


class Ear:
    """Makes rounds of what it hears: `see` a block, then `put` what was kept of it.

    `put` and `end` are what transformers asks of a streamer.
    """

    def __init__(self, task: Task, listener: Listener) -> None:
        self._task, self._listener = task, listener
        self.begin(0)

    def begin(self, num_rows: int) -> None:
        """Forget what was heard; the next prompts are `num_rows`."""
        self.rounds: list[PeerRound] = []
        self._rows: Rows = [[] for _ in range(num_rows)]
        self._drafts: Rows = [[] for _ in range(num_rows)]
        self._uncached = 0

    def see(self, block: torch.Tensor) -> None:
        """The target is given tokens (B, K): those it has not cached yet, then the drafts."""
        self._drafts = block[:, self._uncached :].tolist()

    def put(self, value: torch.Tensor) -> None:
        """Tokens are streamed: first those that the sequences begin with, then what is kept."""
        if not self._uncached:
            self._uncached = value.shape[-1]
            return
        self._listener.end_round()
        self._uncached = 1
        drafts, kept = [], []
        fresh = value.reshape(len(self._rows), -1).tolist()
        for row, drafted, tokens in zip(self._rows, self._drafts, fresh, strict=True):
            over = self._is_over(row)
            if not over:
                self._require_fixed(row, drafted)
            drafts.append([] if over else drafted)
            kept.append([] if over else tokens)
            row.extend(kept[-1])
        self.rounds.append(PeerRound(drafts, kept))

    def end(self) -> None:
        """Nothing will follow."""

    def _is_over(self, row: list[int]) -> bool:
        full = len(row) >= self._task.limits.max_new_tokens
        return full or (bool(row) and row[-1] == self._task.target.eos_token)

    def _require_fixed(self, row: list[int], drafted: list[int]) -> None:
        """Fewer than gamma drafts are right only at the limit, or where the draft said EOS."""
        wanted = min(self._task.gamma, self._task.limits.max_new_tokens - len(row) - 1)
        at_eos = bool(drafted) and drafted[-1] == self._task.target.eos_token
        if len(drafted) != wanted and not at_eos:
            raise PeerError(
                f"gamma not fixed: round {len(self.rounds)} drafted {len(drafted)} tokens where "
                f"{wanted} were asked for"
            )
