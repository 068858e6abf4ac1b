"""One round: draft, verify once, accept; or, without drafts, one step of the target.

Owns Algorithm 1 of Leviathan et al. 2023 for B rows of different lengths. Everything stays on
the device until one transfer at the end of the round, so that a GPU is never waited for in
between; what the host knows goes there without waiting either (`placed`). Knows nothing of when a
generation ends (`loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specbench.decoding.phases import Phase, Phases
from specbench.models.placement import placed
from specbench.models.protocol import LanguageModel, State
from specbench.records import Limits, Sampling
from specbench.sampling import Verdict, accept, draw, is_finite, standardize

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
    probs = law(logits, [len(row) for row in batch.rows], rules)
    token = draw(probs[:, -1], uniform)
    facts = torch.stack((token, is_finite(logits[:, -1]).long()), dim=1).tolist()
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
    drafts, draft_probs, finite_draft = _draft(draft, rows, width, rules, uniform, phases)
    phases.enter(Phase.VERIFY)
    block = torch.cat((_last_tokens(target, rows, 1), drafts), dim=1)
    logits = target.model.extend(target.state, block)
    phases.enter(Phase.REST)
    verdict = rules.accept(
        law(logits, [len(row) for row in rows], rules),
        draft_probs,
        drafts,
        placed(num_drafted, drafts.device),
        uniform[:, gamma : gamma + width],
        uniform[:, -1],
    )
    facts = (verdict.num_accepted, verdict.next_token, verdict.fell_back, verdict.impossible)
    packed = torch.cat(
        [
            torch.stack([fact.long() for fact in facts], dim=1),
            *(block.long() for block in (drafts, finite_draft, is_finite(logits))),
        ],
        dim=1,
    ).tolist()
    return _unpack(packed, batch, num_drafted, width)


def _draft(
    draft: Player,
    rows: list[list[int]],
    width: int,
    rules: Rules,
    uniform: torch.Tensor,
    phases: Phases,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Drafts (B, width), the distributions they were drawn from (B, width, V) and whether each
    was drawn from finite logits (B, width)."""
    # After a fully accepted round the draft has not seen its own last token: it is one token
    # further behind than otherwise. All rows are fed the same number of tokens, the widest gap.
    lengths = draft.state.lengths
    behind = max(len(row) + 1 - length for row, length in zip(rows, lengths, strict=True))
    draft.model.rollback(draft.state, [len(row) + 1 - behind for row in rows])
    tokens = _last_tokens(draft, rows, behind)
    drafts, probs, finite = [], [], []
    for slot in range(width):
        phases.enter(Phase.DRAFT)
        logits = draft.model.extend(draft.state, tokens)[:, -1:]
        phases.enter(Phase.REST)
        probs.append(law(logits, [len(row) + slot for row in rows], rules))
        tokens = draw(probs[-1], uniform[:, slot : slot + 1])
        drafts.append(tokens)
        finite.append(is_finite(logits))
    return torch.cat(drafts, dim=1), torch.cat(probs, dim=1), torch.cat(finite, dim=1)


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
    shortest, eos = rules.limits.min_new_tokens, rules.eos_token
    if eos is not None and min(positions) < shortest:
        column = torch.arange(logits.shape[1], device=logits.device)
        early = column + placed(positions, logits.device)[:, None] < shortest
        logits = logits.clone()
        logits[:, :, eos].masked_fill_(early, float("-inf"))
    return standardize(logits, rules.sampling)


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
