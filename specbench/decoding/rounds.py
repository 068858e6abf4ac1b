"""One round: draft, verify once, accept; or, without drafts, one step of the target.

Owns Algorithm 1 of Leviathan et al. 2023 for B rows of different lengths. Everything stays on
the device until one transfer at the end of the round, so that a GPU is never waited for in
between; what the host knows goes there without waiting either (`placed`). Knows nothing of when a
generation ends (`loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from specbench.decoding.phases import Phase, Phases
from specbench.models.placement import placed
from specbench.models.protocol import LanguageModel, State
from specbench.records import Limits, Sampling
from specbench.sampling import (
    SMALLEST_TEMPERATURE,
    Verdict,
    accept,
    accept_largest,
    draw,
    is_law,
    largest,
    standardize,
)

AcceptRule = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Verdict
]


_FIRST = -1  # stands for a row's first token; no token has this id


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
class Player:
    """A model in its role with the state of the batch."""

    role: str
    model: LanguageModel
    state: State


@dataclass
class Batch:
    """The committed tokens of each row behind its first token, and which rows are finished.

    A finished row still takes part in each call, but nothing it says is looked at.
    """

    rows: list[list[int]]
    done: list[bool]


@dataclass(frozen=True)
class Rules:
    """What holds for every round of a generation. accept: how drafts are tested."""

    sampling: Sampling
    limits: Limits
    eos_token: int | None
    accept: AcceptRule = accept

    @property
    def greedy(self) -> bool:
        """Whether laws are one-hot and tested by the rule itself, so that ids decide the same."""
        return self.sampling.temperature < SMALLEST_TEMPERATURE and self.accept is accept


@dataclass(frozen=True)
class Outcome:
    """What a round came to, on the host. blocks[b]: accepted drafts of row b and the token of
    the target's own, empty for a finished row; fell_back[b]: its residual rounded to zero."""

    blocks: list[list[int]]
    fell_back: list[bool]


def target_step(
    target: Player, batch: Batch, rules: Rules, uniform: torch.Tensor, phases: Phases
) -> Outcome:
    """One autoregressive round: each row's next token from the target alone.

    uniform: (B,) float64.
    """
    phases.enter(Phase.VERIFY)
    logits = target.model.extend(target.state, _last_tokens(target, batch.rows, 1))
    phases.enter(Phase.REST)
    choice = _choose(logits, [len(row) for row in batch.rows], rules, uniform.unsqueeze(-1))
    facts = torch.cat((choice.tokens, choice.sound), dim=1).tolist()
    for row, (_, finite) in enumerate(facts):
        if not finite and not batch.done[row]:
            raise NonFiniteLogits(target.role, len(batch.rows[row]), row)
    blocks = [[] if over else [fact[0]] for fact, over in zip(facts, batch.done, strict=True)]
    return Outcome(blocks, [False] * len(facts))


def speculative_round(
    target: Player,
    draft: Player,
    batch: Batch,
    num_drafted: list[int],
    rules: Rules,
    uniform: torch.Tensor,
    phases: Phases,
) -> Outcome:
    """One speculative round: row b drafts num_drafted[b] tokens, the target tests them all in
    one call.

    uniform: (B, 2 * gamma + 1) float64, laid out as `streams.uniforms` says. Rows that draft
    fewer than the widest one are padded with drafts that are never looked at.
    """
    rows, width, gamma = batch.rows, max(num_drafted), uniform.shape[1] // 2
    drafted = _draft(draft, rows, width, rules, uniform, phases)
    phases.enter(Phase.VERIFY)
    block = torch.cat((_last_tokens(target, rows, 1), drafted.tokens), dim=1)
    logits = target.model.extend(target.state, block)
    phases.enter(Phase.REST)
    positions, counts = [len(row) for row in rows], placed(num_drafted, block.device)
    if rules.greedy:
        tokens, sound = largest(_allowed(logits, positions, rules))
        verdict = accept_largest(tokens, drafted.tokens, counts)
    else:
        probs = law(logits, positions, rules)
        verdict = rules.accept(
            probs,
            drafted.probs,
            drafted.tokens,
            counts,
            uniform[:, gamma : gamma + width],
            uniform[:, -1],
        )
        sound = is_law(probs)
    facts = (verdict.num_accepted, verdict.next_token, verdict.fell_back, verdict.impossible)
    columns = (*(fact.unsqueeze(-1) for fact in facts), drafted.tokens, drafted.sound, sound)
    # One type, one array, one transfer: torch.cat turns booleans into 0 and 1.
    return _unpack(torch.cat(columns, dim=1).tolist(), batch, num_drafted, width)


class _Choice(NamedTuple):
    """Tokens (B, K) int64, the laws they were drawn from (B, K, V), empty where rules are
    greedy, and whether the logits defined those laws (B, K) bool."""

    tokens: torch.Tensor
    probs: torch.Tensor
    sound: torch.Tensor


def _choose(
    logits: torch.Tensor, positions: list[int], rules: Rules, uniform: torch.Tensor
) -> _Choice:
    """Draw from what `law` says of the logits (B, K, V). uniform: (B, K) float64."""
    if rules.greedy:
        tokens, sound = largest(_allowed(logits, positions, rules))
        return _Choice(tokens, logits.new_empty(0), sound)
    probs = law(logits, positions, rules)
    return _Choice(draw(probs, uniform), probs, is_law(probs))


def _draft(
    draft: Player,
    rows: list[list[int]],
    width: int,
    rules: Rules,
    uniform: torch.Tensor,
    phases: Phases,
) -> _Choice:
    """The drafts of a round, K = width."""
    # After a fully accepted round the draft has not seen its own last token: it is one token
    # further behind than otherwise. All rows are fed the same number of tokens, the widest gap.
    lengths = draft.state.lengths
    behind = max(len(row) + 1 - length for row, length in zip(rows, lengths, strict=True))
    draft.model.rollback(draft.state, [len(row) + 1 - behind for row in rows])
    tokens = _last_tokens(draft, rows, behind)
    choices = []
    for slot in range(width):
        phases.enter(Phase.DRAFT)
        logits = draft.model.extend(draft.state, tokens)[:, -1:]
        phases.enter(Phase.REST)
        positions = [len(row) + slot for row in rows]
        choices.append(_choose(logits, positions, rules, uniform[:, slot : slot + 1]))
        tokens = choices[-1].tokens
    return _Choice(*(torch.cat(parts, dim=1) for parts in zip(*choices, strict=True)))


def _last_tokens(player: Player, rows: list[list[int]], count: int) -> torch.Tensor:
    """The last `count` tokens of each row's sequence, first token included, (B, count)."""
    device = player.model.device
    tails = [row[-count:] for row in rows]
    if all(len(tail) == count for tail in tails):
        return placed(tails, device)
    # The first tokens are on the device; asking for them would be to wait for it.
    tokens = placed([[_FIRST, *row][-count:] for row in rows], device)
    return torch.where(tokens == _FIRST, player.state.first_tokens[:, None], tokens)


def law(logits: torch.Tensor, positions: Sequence[int], rules: Rules) -> torch.Tensor:
    """The distributions that are sampled from, (B, K, V) float32, for target and draft alike.

    logits: (B, K, V); column k of row b is for output position positions[b] + k. EOS is
    forbidden where an output would end before `limits.min_new_tokens`.
    """
    return standardize(_allowed(logits, positions, rules), rules.sampling)


def _allowed(logits: torch.Tensor, positions: Sequence[int], rules: Rules) -> torch.Tensor:
    """The logits (B, K, V) with EOS at -inf before the shortest length; no copy without need."""
    shortest, eos = rules.limits.min_new_tokens, rules.eos_token
    if eos is None or min(positions) >= shortest:
        return logits
    logits = logits.clone()
    for row, position in enumerate(positions):
        logits[row, : max(shortest - position, 0), eos] = float("-inf")
    return logits


def _unpack(packed: list[list[int]], batch: Batch, num_drafted: list[int], width: int) -> Outcome:
    blocks: list[list[int]] = []
    fell_back: list[bool] = []
    for row, facts in enumerate(packed):
        if batch.done[row]:
            blocks.append([])
            fell_back.append(False)
            continue
        accepted, token, fallback, impossible, *columns = facts
        drafts, finite_draft = columns[:width], columns[width : 2 * width]
        finite_target = columns[2 * width :]
        # What the models say behind the first rejection follows tokens that were never kept.
        tested = min(accepted + 1, num_drafted[row])
        _require_finite("draft", finite_draft[:tested], batch, row)
        _require_finite("target", finite_target[: accepted + 1], batch, row)
        if impossible:
            raise ImpossibleDraft(
                f"a draft of row {row} behind output position {len(batch.rows[row])} has "
                "probability 0 in the distribution it was drawn from"
            )
        blocks.append([*drafts[:accepted], token])
        fell_back.append(bool(fallback))
    return Outcome(blocks, fell_back)


def _require_finite(role: str, finite: list[int], batch: Batch, row: int) -> None:
    if not all(finite):
        raise NonFiniteLogits(role, len(batch.rows[row]) + finite.index(0), row)
