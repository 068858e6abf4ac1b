"""Table 2: the best gamma of every draft, not speculating included.

A draft that loses is a result like any other. When speculation is said to win, `measure.verdict`
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.measure.recommendation import best_of, is_candidate
from specbench.measure.summary import CellSummary
from specbench.measure.verdict import null_of, verdict
from specbench.records import Group
from specbench.report.layout import TEMPERATURE, Column, Layout, interval, interval_of, value, word
from specbench.report.rows import Row, estimate_of, flag_text, group_of, own_drafted
from specbench.statistics import Estimate


def table2_rows(summaries: Sequence[CellSummary]) -> list[Row]:
    """The best gamma of every draft, 0 included: one row per group and draft.

    Best is the largest end-to-end speedup; cells that failed or whose gamma was not fixed do
    not compete. alpha_overlap is the draft's, whatever gamma wins. null_speedup: of the
    baseline timed a second time, which shows what the instrument makes of no difference.
    """
    rows: list[Row] = []
    for group, draft in _pairs(summaries):
        own = [one for one in summaries if one.cell.group == group and not one.cell.arm.is_peer]
        rows.append(_table2_row(group, draft, own))
    return rows


def _table2_row(group: Group, draft: str, own: Sequence[CellSummary]) -> Row:
    drafted = [one for one in own if one.cell.arm.draft == draft]
    candidates = [one for one in drafted if is_candidate(one)]
    null = null_of(own, group)
    one = best_of(candidates) if candidates else drafted[0]
    speedup = one.speedup if candidates else None
    loses = speedup is not None and speedup.value <= 1.0
    gamma = one.cell.arm.gamma if speedup else None
    return {
        **group_of(group),
        "draft": draft,
        "best_gamma": 0 if loses else gamma,
        **estimate_of("alpha_overlap", one.alpha_overlap),
        **estimate_of("speedup", Estimate(1.0) if loses else speedup),
        **estimate_of("decode_speedup", Estimate(1.0) if loses else one.decode_speedup),
        "best_speculative_gamma": gamma,
        **estimate_of("speculative_speedup", speedup),
        "verdict": _missing(drafted) if speedup is None else verdict(speedup, null),
        **estimate_of("null_speedup", null),
        "flags": flag_text(one),
    }


def _missing(drafted: Sequence[CellSummary]) -> str:
    """Why no gamma of a draft is in the running."""
    error = next((one.error for one in drafted if one.error), None)
    if error:
        return f"failed: {error}"
    flags = dict.fromkeys(flag for one in drafted for flag in one.flags)
    return f"no valid row: {', '.join(flags)}" if flags else "not measured"


def _pairs(summaries: Sequence[CellSummary]) -> list[tuple[Group, str]]:
    pairs = ((one.cell.group, one.cell.arm.draft or "") for one in own_drafted(summaries))
    return list(dict.fromkeys(pairs))


def _verdict_text(row: Row) -> str:
    if row["best_gamma"] != 0:
        return str(row["verdict"])
    # The row shows what wins, decoding without a draft; what lost belongs beside it.
    speed = interval_of(row, "speculative_speedup")
    return f"{row['verdict']}: γ = {row['best_speculative_gamma']} gives {speed}"


TABLE_2 = Layout(
    "Table 2: the best gamma of each draft",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        value("batch"),
        value("best_gamma", "γ"),
        interval("alpha_overlap", "α"),
        interval("speedup", "speedup"),
        interval("decode_speedup", "decode only"),
        Column("verdict", _verdict_text, number=False),
        interval("null_speedup", "null"),
        word("flags"),
    ),
    (
        (
            "γ: drafted tokens per round; 0 is decoding without a draft and wins where speculation "
            "loses. α: mean of Σ min(p, q) over the target's own tokens (Cor. 3.6), not a count of "
            "accepted tokens. Drafts are drawn under the same sampling as the target."
        ),
        (
            "speedup: baseline seconds per committed token / this arm's, end to end, same prompts; "
            "decode only: without encoder and prefill. In brackets 95 % intervals (paired "
            "bootstrap over prompts). The best of several noisy arms looks a little better "
            "than it is."
        ),
        (
            "null: the baseline timed a second time as if it were an arm; 1 is right. A verdict "
            "is withheld where the interval of the null arm excludes 1, or reaches as far from 1 "
            "as the speedup: differences below that cannot be told in this group."
        ),
    ),
)
