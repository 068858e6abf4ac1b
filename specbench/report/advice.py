"""Recommendations as rows; measured and supposed values never share a column."""

from __future__ import annotations

from collections.abc import Iterable

from specbench.measure.recommendation import MAX_GAMMA, Predicted, Recommendation
from specbench.measure.verdict import WITHHELD
from specbench.report.layout import (
    MISSING,
    TEMPERATURE,
    Column,
    Layout,
    interval,
    text_of,
    value,
    word,
)
from specbench.report.rows import Row, Value, estimate_of


def recommendation_rows(advice: Iterable[Recommendation]) -> list[Row]:
    """One row per group: what to deploy, how sure, and what comes second."""
    return [
        {
            "task": one.group.task,
            "target": one.group.target,
            "temperature": one.group.sampling.temperature,
            "batch": one.group.batch,
            "draft": one.best.cell.arm.draft,
            "gamma": one.best.cell.arm.gamma,
            "speedup": one.speedup.value,
            "speedup_low": one.speedup.low,
            "speedup_high": one.speedup.high,
            "is_sure": one.is_sure,
            "verdict": one.verdict,
            **estimate_of("null_speedup", one.null),
            "runner_up_draft": one.runner_up.cell.arm.draft if one.runner_up else None,
            "runner_up_gamma": one.runner_up.cell.arm.gamma if one.runner_up else None,
            "advantage": one.advantage.value if one.advantage else None,
            "advantage_low": one.advantage.low if one.advantage else None,
            "advantage_high": one.advantage.high if one.advantage else None,
            "difference_is_real": one.is_real,
        }
        for one in advice
    ]


def draft_rows(advice: Iterable[Recommendation]) -> list[Row]:
    """One row per group and draft: its best measured gamma and what would have to change."""
    rows: list[Row] = []
    for one in advice:
        for draft in one.drafts:
            best, predicted = draft.best, draft.predicted
            rows.append(
                {
                    "task": one.group.task,
                    "temperature": one.group.sampling.temperature,
                    "batch": one.group.batch,
                    "draft": draft.draft,
                    "best_gamma": best.cell.arm.gamma,
                    "speedup": best.speedup.value if best.speedup else None,
                    "alpha_overlap": best.alpha_overlap.value if best.alpha_overlap else None,
                    "cost_coefficient": best.cost_coefficient.value
                    if best.cost_coefficient
                    else None,
                    "break_even_alpha": draft.break_even_alpha,
                    "predicted_gamma": predicted.gamma if predicted else None,
                    "predicted_improvement": predicted.walltime_improvement if predicted else None,
                    "beyond_measured": draft.beyond_measured,
                }
            )
    return rows


def what_if_rows(supposed: Iterable[Predicted]) -> list[Row]:
    """One row per group and draft; every row says that nothing of it was measured."""
    return [
        {
            "task": one.group.task,
            "temperature": one.group.sampling.temperature,
            "batch": one.group.batch,
            "draft": one.draft,
            "alpha": one.alpha,
            "c": one.c,
            "gamma": one.gamma,
            "walltime_improvement": one.walltime_improvement,
            "measured": False,
        }
        for one in supposed
    ]


def _arm(draft: Value, gamma: Value) -> str:
    if gamma is None:
        return MISSING
    return f"{draft} γ = {gamma}" if draft else "no draft"


def _sure(row: Row) -> str:
    if row["gamma"] == 0:
        return "nothing beats the baseline"
    if row["is_sure"]:
        return "yes"
    return str(row["verdict"]) if _is_withheld(row) else "not shown"


def _use(row: Row) -> str:
    arm = _arm(row["draft"], row["gamma"])
    return f"{WITHHELD}; fastest was {arm}" if _is_withheld(row) else arm


def _is_withheld(row: Row) -> bool:
    return str(row["verdict"]).startswith(WITHHELD)


def _break_even(row: Row) -> str:
    if row["break_even_alpha"] is None:
        return MISSING if row["cost_coefficient"] is None else "no α pays"
    return text_of(row["break_even_alpha"])


def _predicted_gamma(row: Row) -> str:
    beyond = " (beyond those measured)" if row["beyond_measured"] else ""
    more = " or more" if row["predicted_gamma"] == MAX_GAMMA else ""
    return text_of(row["predicted_gamma"]) + more + beyond


RECOMMENDATIONS = Layout(
    "What to deploy",
    (
        word("task"),
        TEMPERATURE,
        value("batch"),
        Column("use", _use, number=False),
        interval("speedup", "speedup"),
        Column("faster than 1?", _sure, number=False),
        Column(
            "runner-up", lambda row: _arm(row["runner_up_draft"], row["runner_up_gamma"]), False
        ),
        interval("advantage", "best / runner-up", 3),
        Column(
            "difference",
            lambda row: "real" if row["difference_is_real"] else "within the noise",
            number=False,
        ),
    ),
    (
        (
            "The null arm is the baseline timed a second time, whose true ratio is 1. Where its "
            "interval excludes 1, or reaches as far from 1 as a speedup, the difference cannot be "
            "told and the verdict is withheld; more prompts, --sessions or a quieter machine help."
        ),
    ),
)

DRAFTS = Layout(
    "Each draft",
    (
        word("task"),
        TEMPERATURE,
        value("batch"),
        word("draft"),
        value("best_gamma", "best γ measured"),
        value("speedup", "speedup"),
        value("alpha_overlap", "α"),
        value("cost_coefficient", "c", 3),
        Column("break-even α", _break_even),
        Column("γ by Thm 3.8", _predicted_gamma),
        value("predicted_improvement", "S by Thm 3.8, not measured"),
    ),
    (
        (
            "break-even α: above it the best γ measured is faster than not speculating, by Thm 3.8 "
            "at the measured c; verification that is not free asks for more."
        ),
    ),
)

WHAT_IF = Layout(
    "What if: computed by Thm 3.8, NOT measured",
    (
        word("task"),
        TEMPERATURE,
        value("batch"),
        word("draft"),
        value("alpha", "α"),
        value("c", "c", 3),
        value("gamma", "best γ"),
        value("walltime_improvement", "S predicted"),
    ),
)
