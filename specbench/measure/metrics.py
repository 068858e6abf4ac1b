"""From records to numbers: one summary per cell, each ratio with its interval.

Owns how totals become ratios. Ratios are of totals over the prompts that ended well in both
arms, so long outputs weigh as much as they cost; their intervals come from one paired bootstrap
over prompts (`statistics`). Knows nothing of where records lie or how a summary is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from specbench import theory
from specbench.measure.collection import (
    Collected,
    Shared,
    baseline_of,
    collect,
    shared_prompts,
)
from specbench.measure.flags import flags_of, num_short
from specbench.measure.repeats import Paired, over_sessions
from specbench.measure.steps import NotMeasured
from specbench.measure.summary import SHORT_OUTPUT_TOKENS, CellSummary
from specbench.measure.tally import Tally
from specbench.records import Cell, Record
from specbench.statistics import Estimate, Resampler, estimate, rate, ratio, with_sessions


def summarize(cells: Sequence[Cell], records: Iterable[Record], seed: int) -> list[CellSummary]:
    """One summary per cell, in the order given; a cell without records is flagged.

    seed: of the bootstrap. Raises InvalidRecord for records that contradict themselves.
    """
    return summarize_collected(collect(cells, records, seed))


def summarize_collected(collected: Collected) -> list[CellSummary]:
    """As `summarize`, for records that are already sorted by cell."""
    return [_summarize(collected, cell) for cell in collected.cells]


def _summarize(collected: Collected, cell: Cell) -> CellSummary:
    found = collected.tallies.get(cell.key)
    summary = CellSummary(cell=cell, num_prompts=0)
    if found is not None:
        numbers = {
            **_failures(found),
            **_counts(found),
            **_rates(found, collected.resampler),
            **_seconds(found),
            **_speedups(collected, found),
            **_costs(collected, cell),
            "alpha_overlap": alpha_overlap(collected, cell),
        }
        summary = _with_predictions(replace(summary, **numbers))
    return replace(summary, flags=flags_of(summary, found))


def _failures(found: Tally) -> dict[str, Any]:
    prompts = {prompt for one in found.failed for prompt in one.prompt_ids}
    # A failed cell may not have come as far as a prompt, yet it is not a success.
    return {
        "num_failed": max(len(prompts), min(1, len(found.failed))),
        "error": found.failed[0].error if found.failed else None,
    }


def _counts(found: Tally) -> dict[str, Any]:
    rows, gamma = found.rows, found.cell.arm.gamma
    # A round cut short by EOS says only "at least this many": it has no place in a histogram.
    whole = (rows.drafted == gamma) & ((rows.tested > rows.accepted) | (rows.tested == gamma))
    widths, rounds = np.unique(rows.drafted, return_counts=True)
    return {
        "num_prompts": sum(len(prompt) for prompt in found.prompts),
        "num_sessions": len(np.unique(found.slots.sessions)),
        "num_committed": int(found.num_committed.sum()),
        "min_committed": int(found.lengths.min()) if len(found.lengths) else None,
        "max_committed": int(found.lengths.max()) if len(found.lengths) else None,
        "num_short": num_short(found.lengths),
        "num_rounds": int(found.num_target_calls.sum()),
        "num_drafted": int(found.num_drafted.sum()),
        "num_tested": int(found.num_tested.sum()),
        "num_accepted": int(found.num_accepted.sum()),
        "accepted_histogram": tuple(
            int(count) for count in np.bincount(rows.accepted[whole], minlength=gamma + 1)
        ),
        "drafted_histogram": {
            int(width): int(count) for width, count in zip(widths, rounds, strict=True)
        },
    }


def _rates(found: Tally, resampler: Resampler) -> dict[str, Any]:
    num_prompts = len(found.prompts)
    committed, calls, drafted, tested, accepted = resampler.totals(
        found.num_committed,
        found.num_target_calls,
        found.num_drafted,
        found.num_tested,
        found.num_accepted,
    )
    by_position = ratio(found.accepted_at.sum(axis=0), found.tested_at.sum(axis=0))
    per_prompt = ratio(found.num_committed, found.num_target_calls)
    return {
        "acceptance_rate": rate(ratio(accepted, tested), num_prompts),
        "accepted_fraction": _number(ratio(accepted[0], drafted[0])),
        "block_efficiency": _possible(
            estimate(ratio(committed, calls), num_prompts), found.cell.arm.gamma
        ),
        "block_efficiency_macro": _number(np.mean(per_prompt)) if num_prompts else None,
        "acceptance_by_position": tuple(_number(value) for value in by_position),
    }


def _seconds(found: Tally) -> dict[str, Any]:
    committed = found.num_committed.sum()
    return {
        "tokens_per_s": _number(ratio(committed, found.total_s.sum())),
        "decode_tokens_per_s": _number(ratio(committed, found.decode_s.sum())),
        "ttft_s": _known_median(found.ttft_s),
        "tpot_s": _known_median(found.tpot_s),
    }


def _speedups(collected: Collected, found: Tally) -> dict[str, Any]:
    baseline = collected.baseline(found.cell)
    if baseline is None:
        return {}
    both, resampler = shared_prompts(found, baseline), collected.resampler
    shortest = np.minimum(found.shortest[both.first], baseline.shortest[both.second])
    long = shortest >= SHORT_OUTPUT_TOKENS
    return {
        "speedup": speedup(resampler, both),
        "decode_speedup": speedup(resampler, both, decode_only=True),
        "speedup_geomean": _geometric_mean(resampler, both),
        "speedup_without_short": None if long.all() else speedup(resampler, both.of(long)),
    }


def speedup(resampler: Resampler, both: Shared, decode_only: bool = False) -> Estimate | None:
    """Seconds per committed token of the second arm / of the first; None where nothing is shared.

    Ratio of totals over the prompts that both arms timed; where they were timed in several
    repeats, a prompt's ratio is settled within these (`repeats.Paired`). Its interval is from a
    paired bootstrap over prompts and, with two or more sessions, from what those add.
    """
    seconds = both.decode if decode_only else both.total
    replicates = speedup_replicates(resampler, both, seconds)
    found = estimate(replicates, seconds.first_s.shape[1])
    return with_sessions(found, seconds.first_s, seconds.second_s)


def speedup_replicates(resampler: Resampler, both: Shared, seconds: Paired) -> np.ndarray:
    """As `speedup`, by any of the clocks of `both` and without what sessions add,
    (1 + resamples,)."""
    first_s, second_s, first_tokens, second_tokens = resampler.totals(
        over_sessions(seconds.first_s),
        over_sessions(seconds.second_s),
        both.first_tokens,
        both.second_tokens,
    )
    return ratio(second_s * first_tokens, first_s * second_tokens)


def _geometric_mean(resampler: Resampler, both: Shared) -> Estimate | None:
    """The geometric mean of the prompts' own end-to-end ratios."""
    first_s, second_s = over_sessions(both.total.first_s), over_sessions(both.total.second_s)
    logs = np.log(ratio(second_s * both.first_tokens, first_s * both.second_tokens))
    sums = resampler.totals(logs, np.ones(len(logs)))
    found = estimate(np.exp(ratio(*sums)), len(logs))
    return with_sessions(found, both.total.first_s, both.total.second_s)


def alpha_overlap(collected: Collected, cell: Cell) -> Estimate | None:
    """Mean of sum min(p, q) over all tokens, its interval clustered by prompt (Cor. 3.6)."""
    overlaps = collected.overlaps_of(cell)
    if overlaps is None:
        return None
    sums, counts = collected.resampler.totals(overlaps.sums, overlaps.counts)
    return rate(ratio(sums, counts), len(overlaps.prompt_ids))


def _costs(collected: Collected, cell: Cell) -> dict[str, Any]:
    """c and the verification ratio, where this very pair was timed; None where it was not."""
    draft, baseline, steps = cell.arm.draft, baseline_of(cell), collected.steps
    if draft is None:
        return {}
    found: dict[str, Any] = {}
    with suppress(NotMeasured):
        replicates = steps.cost_coefficient(baseline, draft)
        found["cost_coefficient"] = estimate(replicates, steps.num_calls(baseline))
    with suppress(NotMeasured):
        replicates = steps.verify_ratio(baseline, cell.arm.gamma)
        found["verify_ratio"] = estimate(replicates, steps.num_calls(baseline))
    return found


def _with_predictions(summary: CellSummary) -> CellSummary:
    """The summary with Eq. 1 and Thm 3.8 at its own alpha_overlap and cost_coefficient."""
    gamma = summary.cell.arm.gamma
    if gamma == 0:
        return replace(summary, expected_tokens=1.0, walltime_improvement=1.0)
    alpha, cost = summary.alpha_overlap, summary.cost_coefficient
    if alpha is None:
        return summary
    expected = theory.expected_tokens(alpha.value, gamma)
    walltime = None if cost is None else theory.walltime_improvement(alpha.value, gamma, cost.value)
    return replace(summary, expected_tokens=expected, walltime_improvement=walltime)


def _possible(found: Estimate | None, gamma: int) -> Estimate | None:
    """Tokens per round lie between 1 and gamma + 1; their interval is not shown beyond."""
    if found is None or found.low is None or found.high is None:
        return found
    return Estimate(found.value, max(found.low, 1.0), min(found.high, gamma + 1.0))


def _number(value: float | np.floating[Any] | np.ndarray) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _known_median(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
