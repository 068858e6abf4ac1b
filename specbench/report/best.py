"""Table 2: the best gamma of every draft, not speculating included.

Owns when speculation is said to win. A draft that loses is a result like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.measure.recommendation import best_of, is_candidate
from specbench.measure.summary import CellSummary, Estimate
from specbench.records import Group
from specbench.report.layout import TEMPERATURE, Column, Layout, interval, interval_of, value, word
from specbench.report.rows import Row, Value, estimate_of, flag_text, group_of, own_drafted

FASTER = "faster"
NOT_SHOWN = "not shown to be faster"
LOSES = "speculation loses"


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
    null = next((one.speedup for one in own if one.cell.arm.replica), None)
    row: Row = {**group_of(group), "draft": draft}
    if not candidates:
        reason = next((one.error for one in drafted if one.error), None)
        verdict = f"failed: {reason}" if reason else "not measured"
        return {
            **row,
            **_table2_numbers(None, drafted[0], None),
            "verdict": verdict,
            **estimate_of("null_speedup", null),
            "flags": flag_text(drafted[0]),
        }
    best = best_of(candidates)
    assert best.speedup is not None  # `is_candidate`
    loses = best.speedup.value <= 1.0
    return {
        **row,
        **_table2_numbers(0 if loses else best.cell.arm.gamma, best, best.speedup),
        "verdict": _verdict(best.speedup),
        **estimate_of("null_speedup", null),
        "flags": flag_text(best),
    }


def _table2_numbers(
    best_gamma: int | None, one: CellSummary, speedup: Estimate | None
) -> dict[str, Value]:
    chosen = Estimate(1.0) if best_gamma == 0 else speedup
    return {
        "best_gamma": best_gamma,
        **estimate_of("alpha_overlap", one.alpha_overlap),
        **estimate_of("speedup", chosen),
        **estimate_of("decode_speedup", chosen if best_gamma == 0 else one.decode_speedup),
        "best_speculative_gamma": None if speedup is None else one.cell.arm.gamma,
        **estimate_of("speculative_speedup", speedup),
    }


def _verdict(speedup: Estimate) -> str:
    if speedup.value <= 1.0:
        return LOSES
    return FASTER if speedup.low is not None and speedup.low > 1.0 else NOT_SHOWN


def _pairs(summaries: Sequence[CellSummary]) -> list[tuple[Group, str]]:
    pairs = ((one.cell.group, one.cell.arm.draft or "") for one in own_drafted(summaries))
    return list(dict.fromkeys(pairs))


def _verdict_text(row: Row) -> str:
    if row["best_gamma"] != 0:
        return str(row["verdict"])
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
        "null: the baseline timed a second time as if it were an arm; 1 is right.",
    ),
)
