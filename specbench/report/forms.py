"""Every table of the project: title, columns and what the words in it mean.

Owns the choice and order of columns; `rows`, `published` and `advice` fill them.
"""

from __future__ import annotations

from specbench.report.layout import (
    DISAGREES,
    MISSING,
    Column,
    Layout,
    interval,
    interval_of,
    marked,
    sampling,
    text_of,
    value,
    word,
)
from specbench.report.rows import Row, Value


def _verdict(row: Row) -> str:
    if row["best_gamma"] != 0:
        return str(row["verdict"])
    speed = interval_of(row, "speculative_speedup")
    return f"{row['verdict']}: γ = {row['best_speculative_gamma']} gives {speed}"


def _milliseconds(seconds: Value) -> str:
    return f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else MISSING


def _arm(draft: Value, gamma: Value) -> str:
    if gamma is None:
        return MISSING
    return f"{draft} γ = {gamma}" if draft else "no draft"


def _sure(row: Row) -> str:
    if row["gamma"] == 0:
        return "nothing beats the baseline"
    return "yes" if row["is_sure"] else "not shown"


def _break_even(row: Row) -> str:
    if row["break_even_alpha"] is None:
        return MISSING if row["cost_coefficient"] is None else "no α pays"
    return text_of(row["break_even_alpha"])


def _predicted_gamma(row: Row) -> str:
    beyond = " (beyond those measured)" if row["beyond_measured"] else ""
    return text_of(row["predicted_gamma"], 0) + beyond


_TEMPERATURE = Column("T", sampling)

TABLE_2 = Layout(
    "Table 2: the best gamma of each draft",
    (
        word("task"),
        word("draft"),
        _TEMPERATURE,
        value("batch"),
        value("best_gamma", "γ"),
        interval("alpha_overlap", "α"),
        interval("speedup", "speedup"),
        interval("decode_speedup", "decode only"),
        Column("verdict", _verdict, number=False),
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


TABLE_4 = Layout(
    "Table 4: predicted and measured",
    (
        word("task"),
        word("draft"),
        _TEMPERATURE,
        value("batch"),
        value("gamma", "γ"),
        interval("alpha_overlap", "α"),
        interval("acceptance_rate", "accepted/tested"),
        value("cost_coefficient", "c", 3),
        marked("expected_tokens", "E[N] predicted", "tokens_agree"),
        interval("block_efficiency", "tokens/round"),
        marked("walltime_improvement", "S predicted", "speed_agrees"),
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
            "this pair, dtype and device. S refined: the formula after every measured correction "
            "of the gap table."
        ),
    ),
)

GRID = Layout(
    "The whole grid",
    (
        word("task"),
        word("draft"),
        _TEMPERATURE,
        value("batch"),
        value("gamma", "γ"),
        value("replica", "null arm"),
        value("num_prompts", "prompts"),
        value("mean_committed", "tokens", 1),
        value("min_committed", "least"),
        value("max_committed", "most"),
        value("max_new_tokens", "limit"),
        interval("alpha_overlap", "α"),
        interval("acceptance_rate", "accepted/tested"),
        value("accepted_fraction", "accepted/drafted"),
        interval("block_efficiency", "tokens/round"),
        interval("speedup", "speedup"),
        interval("decode_speedup", "decode only"),
        value("speedup_geomean", "geometric mean"),
        value("tokens_per_s", "tokens/s", 1),
        Column("ttft ms", lambda row: _milliseconds(row["ttft_s"])),
        Column("tpot ms", lambda row: _milliseconds(row["tpot_s"])),
        word("flags"),
        word("error"),
    ),
    ("tokens, least, most: committed tokens per output. The CSV holds every column.",),
)


GAP = Layout(
    "From the formula to the measured speedup",
    (
        word("task"),
        word("draft"),
        _TEMPERATURE,
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

TABLE_1 = Layout(
    "Table 1 of the paper (c = ĉ = 0)",
    (
        value("alpha", "α", 1),
        value("gamma", "γ"),
        value("operations_published", "operations published"),
        value("operations", "operations computed"),
        value("speed_published", "speed published"),
        value("speed", "speed computed"),
    ),
)

PAPER = Layout(
    "The paper's Tables 2 and 4 through its own formula",
    (
        word("task"),
        word("draft"),
        Column("T", sampling),
        value("gamma", "γ"),
        value("alpha", "α"),
        value("c", "c"),
        value("expected_published", "EXP printed", 1),
        value("predicted", "Thm 3.8"),
        Column(
            "for inputs that round to those",
            lambda row: f"{row['predicted_low']:.2f} to {row['predicted_high']:.2f}",
        ),
        value("ceiling", "most for any c"),
        value("empirical_published", "EMP printed", 1),
        word("verdict"),
    ),
    (
        (
            "verdict: whether the printed measured speed (EMP) agrees with Thm 3.8 within the "
            "rounding of the printed α and c, disagrees, or lies above what any c >= 0 allows."
        ),
    ),
)

COMPARISON = Layout(
    "Beside the published values",
    (
        word("task"),
        word("target"),
        word("draft"),
        _TEMPERATURE,
        value("batch"),
        value("alpha_overlap", "α"),
        value("alpha_published", "α published"),
        value("cost_coefficient", "c", 3),
        value("c_published", "c published"),
        value("gamma", "γ published"),
        value("speedup", "speedup at that γ"),
        value("speed_published", "speedup published", 1),
        word("comparison"),
    ),
)

RECOMMENDATIONS = Layout(
    "What to deploy",
    (
        word("task"),
        _TEMPERATURE,
        value("batch"),
        Column("use", lambda row: _arm(row["draft"], row["gamma"]), number=False),
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
)

DRAFTS = Layout(
    "Each draft",
    (
        word("task"),
        _TEMPERATURE,
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
)

WHAT_IF = Layout(
    "What if: computed by Thm 3.8, NOT measured",
    (
        word("task"),
        _TEMPERATURE,
        value("batch"),
        word("draft"),
        value("alpha", "α"),
        value("c", "c", 3),
        value("gamma", "best γ"),
        value("walltime_improvement", "S predicted"),
    ),
)
