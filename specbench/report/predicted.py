"""Table 4 and the gap: what the formula predicts beside what was measured, and why they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specbench.measure.decomposition import Decomposition
from specbench.measure.summary import CellSummary
from specbench.report.layout import DISAGREES, TEMPERATURE, Layout, interval, marked, value, word
from specbench.report.rows import Row, estimate_of, flag_text, group_of, own_drafted
from specbench.statistics import Estimate


def table4_rows(
    summaries: Sequence[CellSummary], decompositions: Sequence[Decomposition]
) -> list[Row]:
    """Predicted beside measured, one row per cell with a draft.

    parts_improvement: with acceptance by position and the cost of verification.
    refined_improvement: after every step but the unexplained one (see `gap_rows`).
    tokens_agree, speed_agrees: whether Eq. 1 and Thm 3.8 lie in the measured interval.
    """
    explained = {found.cell: found for found in decompositions}
    return [
        {
            **group_of(one.cell.group),
            "draft": one.cell.arm.draft,
            "gamma": one.cell.arm.gamma,
            **estimate_of("alpha_overlap", one.alpha_overlap),
            **estimate_of("acceptance_rate", one.acceptance_rate),
            **estimate_of("cost_coefficient", one.cost_coefficient),
            "expected_tokens": one.expected_tokens,
            **estimate_of("block_efficiency", one.block_efficiency),
            "tokens_agree": _agrees(one.expected_tokens, one.block_efficiency),
            "walltime_improvement": one.walltime_improvement,
            **_from_parts(explained.get(one.cell)),
            **estimate_of("decode_speedup", one.decode_speedup),
            "speed_agrees": _agrees(one.walltime_improvement, one.decode_speedup),
            **estimate_of("speedup", one.speedup),
            "flags": flag_text(one),
        }
        for one in own_drafted(summaries)
    ]


def gap_rows(decompositions: Iterable[Decomposition]) -> list[Row]:
    """From the formula to the measured speedup, one row per cell and step."""
    rows: list[Row] = []
    for found in decompositions:
        cell: Row = {
            **group_of(found.cell.group),
            "draft": found.cell.arm.draft,
            "gamma": found.cell.arm.gamma,
        }
        paper: Row = {"step": "paper's formula", "speedup_after": found.predicted.value}
        rows.append({**cell, **paper, **estimate_of("factor", None), "because": "Thm 3.8"})
        rows += [
            {
                **cell,
                "step": step.name,
                "speedup_after": step.after,
                **estimate_of("factor", step.factor),
                "because": step.because,
            }
            for step in found.all_steps
        ]
    return rows


def _from_parts(found: Decomposition | None) -> Row:
    return {
        **estimate_of("parts_improvement", found.alone if found else None),
        **estimate_of("refined_improvement", found.refined if found else None),
    }


def _agrees(predicted: float | None, measured: Estimate | None) -> bool | None:
    if predicted is None or measured is None or measured.low is None:
        return None
    if measured.low == measured.high:
        return None  # prompts that happen to be equal are no interval
    return not measured.excludes(predicted)


TABLE_4 = Layout(
    "Table 4: predicted and measured",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        value("batch"),
        value("gamma", "γ"),
        interval("alpha_overlap", "α"),
        interval("acceptance_rate", "accepted/tested"),
        value("cost_coefficient", "c", 3),
        marked("expected_tokens", "E[N] predicted", "tokens_agree"),
        interval("block_efficiency", "tokens/round"),
        marked("walltime_improvement", "S predicted", "speed_agrees"),
        value("parts_improvement", "S from parts"),
        value("refined_improvement", "S refined"),
        interval("decode_speedup", "S measured (decode)"),
        interval("speedup", "S measured (end to end)"),
        word("flags"),
    ),
    (
        f"{DISAGREES}: the prediction lies outside the measured 95 % interval.",
        (
            "E[N]: Eq. 1 at α and γ; tokens/round: committed tokens / target calls after prefill. "
            "S predicted: Thm 3.8 at α, γ and c; it knows nothing of the encoder, so it is held "
            "against decode only. c: one draft call / one target call of one token, both alone, "
            "this pair, dtype and device."
        ),
        (
            "S from parts: the same with acceptance by position and the target's call of γ + 1 "
            "tokens, both still measured outside the timed loop or without a clock. S refined: "
            "after every step of the gap table but the unexplained one; it is an account of the "
            "loop's own clocks, not a forecast."
        ),
    ),
)

GAP = Layout(
    "From the formula to the measured speedup",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        value("batch"),
        value("gamma", "γ"),
        word("step"),
        interval("factor", "factor", 3),
        value("speedup_after", "S after"),
        word("because"),
    ),
    (
        (
            "Each step replaces one idealisation of the formula by what was measured; the formula "
            "times all factors is the measured end-to-end speedup, exactly."
        ),
    ),
)
