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

from specbench.decoding.outcome import Batch, Facts, Outcome, outcome_of, require_finite, told
from specbench.decoding.phases import Phase, Phases
from specbench.decoding.streams import RoundNumbers
from specbench.models.placement import placed
from specbench.models.protocol import LanguageModel, State
from specbench.records import Limits, Sampling
from specbench.sampling import (
    SMALLEST_TEMPERATURE,
    Verdict,
    accept,
    draw,
    evidence,
    largest,
    standardize,
)

AcceptRule = Callable[
    [
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        torch.Tensor,
        torch.Tensor,
    ],
    Verdict,
]


_FIRST = -1  # stands for a row's first token; no token has this id


@dataclass
class Player:
    """A model in its role with the state of the batch."""

    role: str
    model: LanguageModel
    state: State


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


def target_step(
    target: Player, batch: Batch, rules: Rules, numbers: RoundNumbers, phases: Phases
) -> Outcome:
    """One autoregressive round: each row's next token from the target alone."""
    phases.enter(Phase.VERIFY)
    logits = target.model.extend(target.state, _last_tokens(target, batch.rows, 1))
    phases.enter(Phase.REST)
    choice = _choose(logits, [len(row) for row in batch.rows], rules, numbers.last)
    facts = told(choice.tokens, choice.evidence(rules))
    for row, (_, value) in enumerate(facts):
        if not batch.done[row]:
            require_finite(target.role, [value], batch, row)
    blocks = [[] if over else [int(fact[0])] for fact, over in zip(facts, batch.done, strict=True)]
    return Outcome(blocks, [False] * len(facts))


def speculative_round(
    target: Player,
    draft: Player,
    batch: Batch,
    num_drafted: list[int],
    rules: Rules,
    numbers: RoundNumbers,
    phases: Phases,
) -> Outcome:
    """One speculative round: row b drafts num_drafted[b] tokens, the target tests them all in
    one call.

    Rows that draft fewer than the widest one are padded with drafts that are never looked at.
    """
    rows, width = batch.rows, max(num_drafted)
    given = _missed(draft, rows)
    drafted = _draft(draft, given, rows, numbers.to_draw[:width], rules, phases)
    phases.enter(Phase.VERIFY)
    # What an empty row begins with is each model's own.
    last = _newest(given) if all(rows) else _last_tokens(target, rows, 1)
    block = torch.cat((last, drafted.tokens), dim=1)
    logits = target.model.extend(target.state, block)
    phases.enter(Phase.REST)
    positions = [len(row) for row in rows]
    said: tuple[torch.Tensor, ...]
    if rules.greedy:
        ids, sound = largest(_allowed(logits, positions, rules))
        said = (ids,)
    else:
        probs = law(logits, positions, rules)
        even = min(num_drafted) == width
        said = rules.accept(
            probs,
            drafted.basis,
            drafted.tokens,
            None if even else placed(num_drafted, block.device),
            numbers.to_accept.narrow(1, 0, width),
            numbers.last.squeeze(-1),
        )
        sound = evidence(probs)
    facts = told(drafted.tokens, drafted.evidence(rules), sound, *said)
    return outcome_of([Facts.of(row, width) for row in facts], batch, num_drafted, rules.greedy)


class _Choice(NamedTuple):
    """Tokens (B, K) int64 and what they were chosen from: their laws (B, K, V), or, where rules
    are greedy, their logits (B, K)."""

    tokens: torch.Tensor
    basis: torch.Tensor

    def evidence(self, rules: Rules) -> torch.Tensor:
        """Finite where the logits defined a law, (B, K)."""
        return self.basis if rules.greedy else evidence(self.basis)


def _choose(
    logits: torch.Tensor, positions: list[int], rules: Rules, uniform: torch.Tensor
) -> _Choice:
    """Draw from what `law` says of the logits (B, K, V). uniform: (B, K) float64."""
    if rules.greedy:
        return _Choice(*largest(_allowed(logits, positions, rules)))
    probs = law(logits, positions, rules)
    return _Choice(draw(probs, uniform), probs)


def _missed(draft: Player, rows: list[list[int]]) -> torch.Tensor:
    """The tokens that the draft has to be given first, (B, K); it is rolled back to fit them.

    After a fully accepted round it has not seen its own last token: it is one token further
    behind than otherwise. All rows are fed the same number of tokens, the widest gap.
    """
    lengths = draft.state.lengths
    behind = max(len(row) + 1 - length for row, length in zip(rows, lengths, strict=True))
    draft.model.rollback(draft.state, [len(row) + 1 - behind for row in rows])
    return _last_tokens(draft, rows, behind)


def _draft(
    draft: Player,
    given: torch.Tensor,
    rows: list[list[int]],
    uniforms: Sequence[torch.Tensor],
    rules: Rules,
    phases: Phases,
) -> _Choice:
    """The drafts of a round behind the `given` tokens, one for each of the uniforms (B, 1)."""
    choices, tokens = [], given
    for slot, uniform in enumerate(uniforms):
        phases.enter(Phase.DRAFT)
        logits = _newest(draft.model.extend(draft.state, tokens))
        phases.enter(Phase.REST)
        positions = [len(row) + slot for row in rows]
        choices.append(_choose(logits, positions, rules, uniform))
        tokens = choices[-1].tokens
    return _Choice(*(torch.cat(parts, dim=1) for parts in zip(*choices, strict=True)))


def _newest(columns: torch.Tensor) -> torch.Tensor:
    """The last column of (B, K, ...), (B, 1, ...); a view costs as much as a small product."""
    return columns if columns.shape[1] == 1 else columns[:, -1:]


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
