"""From prompts to outputs: rounds until every row has met EOS or its limit.

Owns the counting rule (see `records`): how a block is cut at EOS and at the limit, and what was
tested. One loop and one rule for every arm; the baseline is the arm without a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.decoding.outcome import Batch, Outcome
from specbench.decoding.phases import SILENT, Phase, Phases
from specbench.decoding.rounds import (
    AcceptRule,
    Player,
    Rules,
    speculative_round,
    target_step,
)
from specbench.decoding.streams import RoundNumbers, by_round
from specbench.models.protocol import LanguageModel
from specbench.records import Limits, Round, Sampling
from specbench.sampling import accept


@dataclass(frozen=True)
class Decoded:
    """Committed tokens and stop reason ("eos" or "length") of each row, and all rounds."""

    tokens: list[list[int]]
    stop_reasons: list[str]
    rounds: list[Round]


@torch.inference_mode()
def decode(
    target: LanguageModel,
    draft: LanguageModel | None,
    gamma: int,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    limits: Limits,
    uniform: torch.Tensor,
    phases: Phases = SILENT,
    rule: AcceptRule = accept,
) -> Decoded:
    """Decode B prompts; with gamma = 0 the target alone, else speculatively with the draft.

    The output law is the target's own under `sampling` (Leviathan et al. 2023, App. A.1),
    whatever the draft. prompts: B lists of token ids. uniform: (B, R, 2 * gamma + 1) float64,
    R >= limits.max_new_tokens, from `streams.uniforms`. The last rounds draft fewer tokens
    than gamma when fewer may still be committed. rule: how drafts are tested; any other than
    `sampling.accept` gives another law, which is how a check shows that it would notice.

    Raises ValueError for arguments that do not fit together, NonFiniteLogits and
    ImpossibleDraft (both DecodingError) when a model cannot be followed.
    """
    _check(draft, gamma, prompts, limits, uniform)
    capacity = capacity_for(gamma, limits)
    # Here, because later the device has work to do and the copy would wait for it.
    numbers = by_round(uniform.to(target.device))
    phases.enter(Phase.TARGET_PREFILL)
    players = [Player("target", target, target.start(prompts, capacity))]
    if draft is not None:
        phases.enter(Phase.DRAFT_PREFILL)
        players.append(Player("draft", draft, draft.start(prompts, capacity)))
    phases.enter(Phase.REST)
    rules = Rules(sampling, limits, target.eos_token, rule)
    batch = Batch([[] for _ in prompts], [False for _ in prompts])
    rounds: list[Round] = []
    while not all(batch.done):
        widths = _widths(gamma, batch, limits)
        outcome = _play(players, batch, widths, rules, numbers[len(rounds)], phases)
        rounds.append(_commit(batch, widths, outcome, rules))
        for player in players:
            _forget(player, batch.rows)
        phases.end_round()
    ends = ["eos" if row[-1] == rules.eos_token else "length" for row in batch.rows]
    return Decoded(batch.rows, ends, rounds)


def capacity_for(gamma: int, limits: Limits) -> int:
    """The most tokens that a row of `decode` has in a cache at once.

    Rows that are finished, or closer to the limit than the widest row, still take part in each
    call; their padding needs room in the cache for a moment.
    """
    return limits.max_new_tokens + gamma + 1


def widths_for(gamma: int) -> range:
    """The numbers of tokens per row that the calls of `decode` may have, of either model.

    The target takes 1 to gamma + 1, fewer than that in the last rounds. The draft takes 1, or 2
    behind a round whose drafts were all accepted.
    """
    return range(1, max(gamma, 1) + 2)


def _check(
    draft: LanguageModel | None,
    gamma: int,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    uniform: torch.Tensor,
) -> None:
    if (draft is None) != (gamma == 0):
        raise ValueError(f"gamma {gamma}: allowed is 0 without a draft and 1 or more with one")
    if limits.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens {limits.max_new_tokens}: allowed are integers >= 1")
    rounds, width = limits.max_new_tokens, 2 * gamma + 1
    if uniform.shape[0] != len(prompts) or uniform.shape[1] < rounds or uniform.shape[2] != width:
        raise ValueError(
            f"uniform {tuple(uniform.shape)}: expected ({len(prompts)}, >= {rounds}, {width})"
        )


def _widths(gamma: int, batch: Batch, limits: Limits) -> list[int]:
    """How many tokens each row drafts: one token of the round is always the target's own."""
    return [
        0 if over else min(gamma, limits.max_new_tokens - len(row) - 1)
        for row, over in zip(batch.rows, batch.done, strict=True)
    ]


def _play(
    players: list[Player],
    batch: Batch,
    widths: list[int],
    rules: Rules,
    numbers: RoundNumbers,
    phases: Phases,
) -> Outcome:
    if max(widths) == 0:
        return target_step(players[0], batch, rules, numbers, phases)
    target, draft = players
    return speculative_round(target, draft, batch, widths, rules, numbers, phases)


def _commit(batch: Batch, widths: list[int], outcome: Outcome, rules: Rules) -> Round:
    """Append each row's block up to EOS, mark rows that are done, and count."""
    accepted, tested, committed = [], [], []
    for index, (row, block) in enumerate(zip(batch.rows, outcome.blocks, strict=True)):
        kept = _until(block, rules.eos_token)
        row.extend(kept)
        accepted.append(min(max(len(block) - 1, 0), len(kept)))
        tested.append(min(len(kept), widths[index]))
        committed.append(len(kept))
        full = len(row) >= rules.limits.max_new_tokens
        batch.done[index] = full or row[-1] == rules.eos_token
    return Round(
        num_drafted=tuple(widths),
        num_accepted=tuple(accepted),
        num_tested=tuple(tested),
        num_committed=tuple(committed),
        num_residual_fallbacks=sum(outcome.fell_back),
    )


def _until(block: list[int], eos_token: int | None) -> list[int]:
    if eos_token in block:
        return block[: block.index(eos_token) + 1]
    return block


def _forget(player: Player, rows: list[list[int]]) -> None:
    """Roll back to what is known to be right: everything but the last committed token."""
    lengths = player.state.lengths
    kept = [min(length, len(row)) for length, row in zip(lengths, rows, strict=True)]
    player.model.rollback(player.state, kept)
