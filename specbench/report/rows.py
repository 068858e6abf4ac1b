"""What every table's rows are made of: names of columns, one meaning each.

Owns how a cell, an estimate and a missing value become entries of a flat row; the names are those
of `measure.summary`. A missing value is None: empty in CSV, null in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable

from specbench.measure.summary import CellSummary
from specbench.records import Cell, Group
from specbench.statistics import Estimate

Value = str | int | float | bool | None
Row = dict[str, Value]


def own_drafted(summaries: Iterable[CellSummary]) -> list[CellSummary]:
    """The cells of our own engine that have a draft."""
    arms = ((one, one.cell.arm) for one in summaries)
    return [one for one, arm in arms if arm.draft is not None and not arm.is_peer]


def group_of(group: Group) -> Row:
    """What makes a group, by column."""
    return {
        "task": group.task,
        "target": group.target,
        "temperature": group.sampling.temperature,
        "top_k": group.sampling.top_k,
        "top_p": group.sampling.top_p,
        "batch": group.batch,
        "dtype": group.dtype,
        "device": group.device,
        "min_new_tokens": group.limits.min_new_tokens,
        "max_new_tokens": group.limits.max_new_tokens,
        "seed": group.seed,
    }


def cell_of(cell: Cell) -> Row:
    """What makes a cell, by column."""
    return {
        **group_of(cell.group),
        "draft": cell.arm.draft,
        "gamma": cell.arm.gamma,
        "replica": cell.arm.replica,
        "engine": cell.arm.engine,
    }


def estimate_of(name: str, found: Estimate | None) -> dict[str, Value]:
    """A value and its interval in three columns; all missing where there is none."""
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def flag_text(one: CellSummary) -> str:
    """The flags in one entry."""
    return "; ".join(one.flags)


def joined(values: Iterable[float | None]) -> str:
    """Several numbers in one entry."""
    return " ".join("-" if value is None else f"{value:.4g}" for value in values)
