"""A cell's generations as arrays with one entry per prompt: the form that ratios are made from.

Owns what repeats become: counts are those of the first repeat, for repeats time identical work;
seconds are settled per prompt by `repeats`. Warm-ups (repeat below 0) are in the raw lines and in
no number.
At a batch above 1 "a prompt" is one batch of prompts, decoded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.measure.gpu_meter import SLOWDOWN
from specbench.measure.repeats import Slots, repeat_error
from specbench.measure.rounds import RoundSeconds, RowRounds, round_seconds, row_rounds
from specbench.measure.validation import check
from specbench.records import OK, Cell, Generation
from specbench.statistics import ratio

Prompt = tuple[str, ...]


@dataclass(frozen=True)
class Tally:
    """Counts and robust seconds of the prompts of a cell that ended well, in order.

    prompts: their ids, n of them. failed: the generations that did not end well.
    Arrays are (n,), or (n, gamma) for *_at, whose column i - 1 is position i of a round.
    num_target_calls: calls of the target after prefill, counted once per unfinished row.
    total_s, decode_s, ttft_s, tpot_s: seconds per generation; NaN where unknown.
    slots, slot_total_s, slot_decode_s, slot_round_s: the same, and the seconds of all rounds, in
    every repeat of every session, (n, C).
    num_full_rounds: rounds that drafted gamma tokens; full_draft_share, full_verify_share,
    full_rest_share: their seconds / those of all rounds.
    repeat_error: relative standard error that repeating leaves in total_s; NaN for one repeat.
    lengths: committed tokens of each output; shortest: of each prompt's shortest output, (n,).
    rows: the rounds of the first repeats.
    reproducible: whether all repeats of all sessions gave the same tokens and accepted counts.
    """

    cell: Cell
    prompts: tuple[Prompt, ...]
    failed: tuple[Generation, ...]
    num_committed: np.ndarray
    num_target_calls: np.ndarray
    num_drafted: np.ndarray
    num_tested: np.ndarray
    num_accepted: np.ndarray
    tested_at: np.ndarray
    accepted_at: np.ndarray
    total_s: np.ndarray
    decode_s: np.ndarray
    slots: Slots
    slot_total_s: np.ndarray
    slot_decode_s: np.ndarray
    slot_round_s: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    num_full_rounds: np.ndarray
    full_draft_share: np.ndarray
    full_verify_share: np.ndarray
    full_rest_share: np.ndarray
    repeat_error: np.ndarray
    steal_fraction: np.ndarray
    others_fraction: np.ndarray
    gpu_slowed: np.ndarray
    lengths: np.ndarray
    shortest: np.ndarray
    rows: RowRounds
    reproducible: bool


def tally(cell: Cell, generations: Iterable[Generation]) -> Tally:
    """The tally of one cell. Raises InvalidRecord when a record contradicts itself."""
    # A warm-up counts only when it failed: then it is the reason why nothing followed.
    every = [one for one in generations if one.repeat >= 0 or one.status != OK]
    by_prompt: dict[Prompt, list[Generation]] = {}
    for one in every:
        by_prompt.setdefault(one.prompt_ids, []).append(one)
    ended = {
        prompt: sorted(repeats, key=lambda one: (one.session, one.repeat))
        for prompt, repeats in by_prompt.items()
        if all(one.status == OK for one in repeats)
    }
    repeats = list(ended.values())
    flat = [one for group in repeats for one in group]
    everything = row_rounds(flat)
    check(cell, flat, everything)
    firsts = [group[0] for group in repeats]
    rows = row_rounds(firsts) if len(flat) > len(firsts) else everything
    slots = Slots(repeats)
    return Tally(
        cell=cell,
        prompts=tuple(ended),
        failed=tuple(one for one in every if one.status != OK),
        lengths=np.array([len(row) for one in firsts for row in one.tokens], dtype=np.int64),
        shortest=np.array([min(map(len, one.tokens)) for one in firsts], dtype=np.int64),
        rows=rows,
        reproducible=all(_same_work(group) for group in repeats),
        **_counts(rows, len(firsts), cell.arm.gamma),
        slots=slots,
        **_seconds(flat, slots),
        **_round_seconds(round_seconds(flat), len(flat), slots, cell.arm.gamma),
    )


def _same_work(repeats: Sequence[Generation]) -> bool:
    first = repeats[0]
    accepted = [item.num_accepted for item in first.rounds]
    return all(
        one.tokens == first.tokens and [item.num_accepted for item in one.rounds] == accepted
        for one in repeats[1:]
    )


def _counts(rows: RowRounds, num_prompts: int, gamma: int) -> dict[str, np.ndarray]:
    positions = np.arange(1, gamma + 1)

    def reached(counts: np.ndarray) -> np.ndarray:
        """How often each position was reached, (num_prompts, gamma)."""
        table = np.zeros((num_prompts, gamma))
        np.add.at(table, rows.generation, counts[:, None] >= positions)
        return table

    return {
        "num_committed": rows.total(rows.committed, num_prompts),
        "num_target_calls": rows.total(np.ones_like(rows.committed), num_prompts),
        "num_drafted": rows.total(rows.drafted, num_prompts),
        "num_tested": rows.total(rows.tested, num_prompts),
        "num_accepted": rows.total(rows.accepted, num_prompts),
        "tested_at": reached(rows.tested),
        "accepted_at": reached(rows.accepted),
    }


def _seconds(flat: Sequence[Generation], slots: Slots) -> dict[str, np.ndarray]:
    series = {
        "total_s": [one.total_s for one in flat],
        "decode_s": [one.decode_s for one in flat],
        "ttft_s": [one.ttft_s for one in flat],
        "tpot_s": [_tpot_s(one) for one in flat],
        "steal_fraction": [one.steal_fraction for one in flat],
        "others_fraction": [one.others_fraction for one in flat],
        "gpu_slowed": [_is_slowed(one) for one in flat],
    }
    known = {name: np.array(values, dtype=np.float64) for name, values in series.items()}
    total_s = slots.table(known["total_s"])
    return {
        **{name: slots.settle(values) for name, values in known.items()},
        "slot_total_s": total_s,
        "slot_decode_s": slots.table(known["decode_s"]),
        "repeat_error": repeat_error(total_s, slots.sessions),
    }


def _is_slowed(generation: Generation) -> bool | None:
    """Whether the driver held the GPU's clock down; None where nothing was read."""
    bits = generation.gpu_slowdown
    return None if bits is None else bool(bits & SLOWDOWN)


def _tpot_s(generation: Generation) -> float | None:
    """Seconds per token after the first; None below 2 tokens per row or without a clock."""
    per_row = generation.num_committed / len(generation.prompt_ids)
    if generation.total_s is None or generation.ttft_s is None or per_row < 2:
        return None
    return (generation.total_s - generation.ttft_s) / (per_row - 1)


def _round_seconds(
    seconds: RoundSeconds, num_generations: int, slots: Slots, gamma: int
) -> dict[str, np.ndarray]:
    """Sums over the rounds of each generation, and what the full ones have of them."""
    full = seconds.width == gamma

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(seconds.generation, weights=values, minlength=num_generations)

    whole = summed(seconds.draft_s + seconds.verify_s + seconds.rest_s)

    def share(values: np.ndarray) -> np.ndarray:
        return slots.settle(ratio(summed(np.where(full, values, 0.0)), whole))

    return {
        "num_full_rounds": slots.settle(summed(full.astype(np.float64))),
        "full_draft_share": share(seconds.draft_s),
        "full_verify_share": share(seconds.verify_s),
        "full_rest_share": share(seconds.rest_s),
        "slot_round_s": slots.table(whole),
    }
