"""Summaries as flat rows: what CSV, JSON and every table on paper or screen are made of.

Owns the names of columns, one meaning each (see `measure.summary`), and what goes into which
table. A missing value is None: empty in CSV, null in JSON. Knows nothing of layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specbench.measure.decomposition import Decomposition
from specbench.measure.recommendation import best_of, is_candidate
from specbench.measure.summary import CellSummary, Estimate
from specbench.records import Cell, Group

Value = str | int | float | bool | None
Row = dict[str, Value]

FASTER = "faster"
NOT_SHOWN = "not shown to be faster"
LOSES = "speculation loses"


def grid_rows(summaries: Iterable[CellSummary]) -> list[Row]:
    """One row per cell with every number there is, the baseline and null arm included."""
    return [_grid_row(summary) for summary in summaries]


def _grid_row(one: CellSummary) -> Row:
    widths = ((width, count) for width, count in sorted(one.drafted_histogram.items()))
    return {
        **_cell(one.cell),
        "num_prompts": one.num_prompts,
        "num_failed": one.num_failed,
        "num_short": one.num_short,
        "num_committed": one.num_committed,
        "mean_committed": one.mean_committed,
        "min_committed": one.min_committed,
        "max_committed": one.max_committed,
        "num_rounds": one.num_rounds,
        "num_drafted": one.num_drafted,
        "num_tested": one.num_tested,
        "num_accepted": one.num_accepted,
        **_estimate("alpha_overlap", one.alpha_overlap),
        **_estimate("acceptance_rate", one.acceptance_rate),
        "accepted_fraction": one.accepted_fraction,
        **_estimate("block_efficiency", one.block_efficiency),
        "block_efficiency_macro": one.block_efficiency_macro,
        "effective_gamma": max(one.drafted_histogram, default=None),
        "acceptance_by_position": _joined(one.acceptance_by_position),
        "accepted_histogram": _joined(one.accepted_histogram),
        "drafted_histogram": " ".join(f"{width}:{count}" for width, count in widths),
        **_estimate("cost_coefficient", one.cost_coefficient),
        **_estimate("verify_ratio", one.verify_ratio),
        **_estimate("speedup", one.speedup),
        **_estimate("decode_speedup", one.decode_speedup),
        **_estimate("speedup_geomean", one.speedup_geomean),
        **_estimate("speedup_without_short", one.speedup_without_short),
        "expected_tokens": one.expected_tokens,
        "walltime_improvement": one.walltime_improvement,
        "tokens_per_s": one.tokens_per_s,
        "decode_tokens_per_s": one.decode_tokens_per_s,
        "ttft_s": one.ttft_s,
        "tpot_s": one.tpot_s,
        "flags": _flags(one),
        "error": one.error,
    }


def table2_rows(summaries: Sequence[CellSummary]) -> list[Row]:
    """The best gamma of every draft, 0 included: one row per group and draft.

    Best is the largest end-to-end speedup; cells that failed or whose gamma was not fixed do
    not compete. alpha_overlap is the draft's, whatever gamma wins. null_speedup: of the
    baseline timed a second time, which shows what the instrument makes of no difference.
    """
    rows: list[Row] = []
    for group, draft in _pairs(summaries):
        own = [one for one in summaries if one.cell.group == group]
        rows.append(_table2_row(group, draft, own))
    return rows


def _table2_row(group: Group, draft: str, own: Sequence[CellSummary]) -> Row:
    drafted = [one for one in own if one.cell.arm.draft == draft]
    candidates = [one for one in drafted if is_candidate(one)]
    null = next((one.speedup for one in own if one.cell.arm.replica), None)
    row: Row = {**_group(group), "draft": draft}
    if not candidates:
        reason = next((one.error for one in drafted if one.error), None)
        verdict = f"failed: {reason}" if reason else "not measured"
        return {
            **row,
            **_table2_numbers(None, drafted[0], None),
            "verdict": verdict,
            **_estimate("null_speedup", null),
            "flags": _flags(drafted[0]),
        }
    best = best_of(candidates)
    assert best.speedup is not None  # `is_candidate`
    loses = best.speedup.value <= 1.0
    return {
        **row,
        **_table2_numbers(0 if loses else best.cell.arm.gamma, best, best.speedup),
        "verdict": _verdict(best.speedup),
        **_estimate("null_speedup", null),
        "flags": _flags(best),
    }


def _table2_numbers(
    best_gamma: int | None, one: CellSummary, speedup: Estimate | None
) -> dict[str, Value]:
    chosen = Estimate(1.0) if best_gamma == 0 else speedup
    return {
        "best_gamma": best_gamma,
        **_estimate("alpha_overlap", one.alpha_overlap),
        **_estimate("speedup", chosen),
        **_estimate("decode_speedup", chosen if best_gamma == 0 else one.decode_speedup),
        "best_speculative_gamma": None if speedup is None else one.cell.arm.gamma,
        **_estimate("speculative_speedup", speedup),
    }


def _verdict(speedup: Estimate) -> str:
    if speedup.value <= 1.0:
        return LOSES
    return FASTER if speedup.low is not None and speedup.low > 1.0 else NOT_SHOWN


def table4_rows(
    summaries: Sequence[CellSummary], decompositions: Sequence[Decomposition]
) -> list[Row]:
    """Predicted beside measured, one row per cell with a draft.

    refined_improvement: predicted after every measured correction (see `gap_rows`).
    tokens_agree, speed_agrees: whether Eq. 1 and Thm 3.8 lie in the measured interval.
    """
    refined = {found.cell: found.refined for found in decompositions}
    return [
        {
            **_group(one.cell.group),
            "draft": one.cell.arm.draft,
            "gamma": one.cell.arm.gamma,
            **_estimate("alpha_overlap", one.alpha_overlap),
            **_estimate("acceptance_rate", one.acceptance_rate),
            **_estimate("cost_coefficient", one.cost_coefficient),
            "expected_tokens": one.expected_tokens,
            **_estimate("block_efficiency", one.block_efficiency),
            "tokens_agree": _agrees(one.expected_tokens, one.block_efficiency),
            "walltime_improvement": one.walltime_improvement,
            **_estimate("refined_improvement", refined.get(one.cell)),
            **_estimate("decode_speedup", one.decode_speedup),
            "speed_agrees": _agrees(one.walltime_improvement, one.decode_speedup),
            **_estimate("speedup", one.speedup),
            "flags": _flags(one),
        }
        for one in summaries
        if one.cell.arm.draft is not None
    ]


def gap_rows(decompositions: Iterable[Decomposition]) -> list[Row]:
    """From the formula to the measured speedup, one row per cell and step."""
    rows: list[Row] = []
    for found in decompositions:
        cell: Row = {
            **_group(found.cell.group),
            "draft": found.cell.arm.draft,
            "gamma": found.cell.arm.gamma,
        }
        paper: Row = {"step": "paper's formula", "speedup_after": found.predicted.value}
        rows.append({**cell, **paper, **_estimate("factor", None), "because": "Thm 3.8"})
        rows += [
            {
                **cell,
                "step": step.name,
                "speedup_after": step.after,
                **_estimate("factor", step.factor),
                "because": step.because,
            }
            for step in found.all_steps
        ]
    return rows


def _pairs(summaries: Iterable[CellSummary]) -> list[tuple[Group, str]]:
    pairs = (
        (one.cell.group, one.cell.arm.draft) for one in summaries if one.cell.arm.draft is not None
    )
    return list(dict.fromkeys(pairs))


def _group(group: Group) -> Row:
    return {
        "task": group.task,
        "target": group.target,
        "temperature": group.sampling.temperature,
        "top_k": group.sampling.top_k,
        "top_p": group.sampling.top_p,
        "batch": group.batch,
        "dtype": group.dtype,
        "device": group.device,
        "max_new_tokens": group.limits.max_new_tokens,
        "seed": group.seed,
    }


def _cell(cell: Cell) -> Row:
    return {
        **_group(cell.group),
        "draft": cell.arm.draft,
        "gamma": cell.arm.gamma,
        "replica": cell.arm.replica,
    }


def _estimate(name: str, found: Estimate | None) -> dict[str, Value]:
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _agrees(predicted: float | None, measured: Estimate | None) -> bool | None:
    if predicted is None or measured is None or measured.low is None:
        return None
    return not measured.excludes(predicted)


def _flags(one: CellSummary) -> str:
    return "; ".join(one.flags)


def _joined(values: Iterable[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.4g}" for value in values)
