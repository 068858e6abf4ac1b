"""The whole grid with every number there is, another engine's arms among ours."""

from __future__ import annotations

from collections.abc import Iterable

from specbench.measure.summary import CellSummary
from specbench.records import OWN_ENGINE
from specbench.report.layout import MISSING, TEMPERATURE, Column, Layout, interval, value, word
from specbench.report.rows import Row, Value, cell_of, estimate_of, flag_text, joined


def grid_rows(summaries: Iterable[CellSummary]) -> list[Row]:
    """One row per cell with every number there is, the baseline and null arm included."""
    return [_grid_row(summary) for summary in summaries]


def _grid_row(one: CellSummary) -> Row:
    widths = ((width, count) for width, count in sorted(one.drafted_histogram.items()))
    return {
        **cell_of(one.cell),
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
        **estimate_of("alpha_overlap", one.alpha_overlap),
        **estimate_of("acceptance_rate", one.acceptance_rate),
        "accepted_fraction": one.accepted_fraction,
        **estimate_of("block_efficiency", one.block_efficiency),
        "block_efficiency_macro": one.block_efficiency_macro,
        "effective_gamma": max(one.drafted_histogram, default=None),
        "acceptance_by_position": joined(one.acceptance_by_position),
        "accepted_histogram": joined(one.accepted_histogram),
        "drafted_histogram": " ".join(f"{width}:{count}" for width, count in widths),
        **estimate_of("cost_coefficient", one.cost_coefficient),
        **estimate_of("verify_ratio", one.verify_ratio),
        **estimate_of("speedup", one.speedup),
        **estimate_of("decode_speedup", one.decode_speedup),
        **estimate_of("speedup_geomean", one.speedup_geomean),
        **estimate_of("speedup_without_short", one.speedup_without_short),
        "expected_tokens": one.expected_tokens,
        "walltime_improvement": one.walltime_improvement,
        "tokens_per_s": one.tokens_per_s,
        "decode_tokens_per_s": one.decode_tokens_per_s,
        "ttft_s": one.ttft_s,
        "tpot_s": one.tpot_s,
        "flags": flag_text(one),
        "error": one.error,
    }


def _kind(row: Row) -> str:
    peer = "" if row["engine"] == OWN_ENGINE else str(row["engine"])
    return f"{peer} null".strip() if row["replica"] else peer


def _milliseconds(seconds: Value) -> str:
    return f"{seconds * 1e3:.1f}" if isinstance(seconds, float) else MISSING


GRID = Layout(
    "The whole grid",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        value("batch"),
        value("gamma", "γ"),
        Column("arm", _kind, number=False),
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
