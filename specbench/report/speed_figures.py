"""Speed against gamma: end to end for all drafts together, decode only beside predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.measure.decomposition import Decomposition
from specbench.measure.summary import CellSummary
from specbench.records import Cell, Group
from specbench.report import style
from specbench.report.series import (
    drafts_of,
    group_title,
    groups_of,
    handles_of,
    interval_points,
    names_of,
)
from specbench.statistics import Estimate

_FORMULA: dict[str, Any] = {
    "label": "predicted, Thm 3.8",
    "color": style.GREY,
    "linestyle": "--",
    "marker": "o",
    "markerfacecolor": "white",
    "markersize": 3.5,
    "linewidth": 1.0,
}
_PARTS: dict[str, Any] = {
    "label": "predicted from parts, with T(γ + 1)",
    "color": "black",
    "linestyle": ":",
    "marker": ".",
    "markersize": 4,
    "linewidth": 1.6,
}
NO_DRAFT: dict[str, Any] = {"label": "no draft", "color": "black", "linewidth": 0.9}


def draw_total_speedup(drafted: Sequence[CellSummary]) -> Figure | None:
    """End-to-end speedup against gamma: one panel per group, one line per draft."""
    known = [one for one in drafted if one.speedup is not None]
    groups, drafts = groups_of(known), drafts_of(known)
    if not groups:
        return None
    columns = min(len(groups), 2)
    figure, grid = style.panels(-(-len(groups) // columns), columns)
    flat = [axes for row in grid for axes in row]
    for group, axes in zip(groups, flat, strict=False):
        for index, draft in enumerate(drafts):
            # A little apart, so that intervals at one gamma do not hide each other.
            shift = 0.08 * (index - (len(drafts) - 1) / 2)
            own = _own(known, group, draft)
            interval_points(axes, [(one.cell.arm.gamma + shift, one.speedup) for one in own], index)
        _finish(axes, group_title(group))
    for axes in flat[len(groups) :]:
        style.hide(axes)
    name_speed_axis(grid, "speedup, end to end", [one.speedup for one in known])
    handles = [*handles_of(drafts), Line2D([], [], **NO_DRAFT)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)))
    return figure


def draw_decode_speedup(
    drafted: Sequence[CellSummary], decompositions: Sequence[Decomposition]
) -> Figure | None:
    """Decode-only speedup against gamma beside the formula and what parts measured alone predict.

    One panel per group and draft. The fully refined value is left out: it lies on the measured
    one by construction.
    """
    parts = {found.cell: found.alone.value for found in decompositions}
    known = [one for one in drafted if one.decode_speedup is not None]
    groups, drafts = groups_of(known), drafts_of(known)
    if not groups:
        return None
    names = names_of(drafts)
    figure, grid = style.panels(len(groups), len(drafts), width=2.4, height=2.0)
    for group, row in zip(groups, grid, strict=True):
        for index, (draft, axes) in enumerate(zip(drafts, row, strict=True)):
            own = _own(known, group, draft)
            _line(axes, own, parts.get, _PARTS)
            predicted = {one.cell: one.walltime_improvement for one in own}
            _line(axes, own, predicted.get, _FORMULA)
            interval_points(axes, [(one.cell.arm.gamma, one.decode_speedup) for one in own], index)
            _finish(axes, f"{group_title(group)}\n{names[draft]}")
    name_speed_axis(grid, "speedup, decode only", [one.decode_speedup for one in known])
    measured = Line2D([], [], color=style.GREY, marker="s", label="measured")
    lines = [Line2D([], [], **look) for look in (_FORMULA, _PARTS, NO_DRAFT)]
    figure.legend(handles=[measured, *lines], loc="outside upper center", ncols=2)
    return figure


def _line(
    axes: Axes,
    own: Sequence[CellSummary],
    value: Callable[[Cell], float | None],
    look: dict[str, Any],
) -> None:
    points = [(one.cell.arm.gamma, value(one.cell)) for one in own]
    known = [(gamma, found) for gamma, found in points if found is not None]
    axes.plot([gamma for gamma, _ in known], [found for _, found in known], **look)


def _finish(axes: Axes, title: str) -> None:
    axes.axhline(1.0, zorder=1, **NO_DRAFT)
    axes.set_title(title)
    axes.set_xlabel("γ (drafted tokens per round)")
    style.whole_numbers(axes)


def name_speed_axis(
    grid: Sequence[Sequence[Axes]], label: str, measured: Sequence[Estimate | None]
) -> None:
    """Name the y axes, and let intervals from a handful of prompts leave the panel rather than
    flatten everything else; an arrow says which."""
    most = max([1.0, *(found.value for found in measured if found is not None)])
    for row in grid:
        row[0].set_ylabel(label)
        bottom, top = row[0].get_ylim()
        row[0].set_ylim(max(bottom, 0.0), min(top, 2.5 * most))
        for axes in row:
            style.mark_cut(axes)


def _own(known: Sequence[CellSummary], group: Group, draft: str) -> list[CellSummary]:
    own = [one for one in known if one.cell.group == group and one.cell.arm.draft == draft]
    return sorted(own, key=lambda one: one.cell.arm.gamma)
