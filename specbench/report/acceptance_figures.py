"""Acceptance: accepted lengths beside the capped geometric law, and alpha by draft."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench import theory
from specbench.measure.summary import CellSummary
from specbench.records import Group
from specbench.report import style
from specbench.report.series import (
    drafts_of,
    group_title,
    groups_of,
    handles_of,
    interval_points,
    names_of,
    task_title,
)

_LAW = "capped geometric law at the measured α"


def draw_accepted_lengths(drafted: Sequence[CellSummary]) -> Figure | None:
    """Share of full rounds by accepted drafts, beside the capped geometric law of alpha.

    For every group and draft the widest measured gamma, where the law has most to say.
    """
    widest: dict[tuple[Group, str | None], CellSummary] = {}
    for one in drafted:
        key = (one.cell.group, one.cell.arm.draft)
        if sum(one.accepted_histogram) and (
            key not in widest or one.cell.arm.gamma > widest[key].cell.arm.gamma
        ):
            widest[key] = one
    groups, drafts = groups_of(widest.values()), drafts_of(widest.values())
    if not groups:
        return None
    names = names_of(drafts)
    figure, grid = style.panels(len(groups), len(drafts), width=2.4, height=1.9)
    for group, row in zip(groups, grid, strict=True):
        for draft, axes in zip(drafts, row, strict=True):
            if (group, draft) in widest:
                _histogram(axes, widest[group, draft], drafts.index(draft), names[draft])
            else:
                style.hide(axes)
        row[0].set_ylabel("share of full rounds")
    handles = [
        Line2D([], [], color=style.GREY, marker="s", linestyle="", markersize=8, label="measured"),
        Line2D([], [], color="black", marker="_", linestyle="", markersize=9, label=_LAW),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _histogram(axes: Axes, one: CellSummary, index: int, name: str) -> None:
    lengths = range(len(one.accepted_histogram))
    total = sum(one.accepted_histogram)
    shares = [count / total for count in one.accepted_histogram]
    alpha = ""
    axes.bar(lengths, shares, color=style.color(index), alpha=0.6, edgecolor=style.color(index))
    if one.alpha_overlap is not None:
        law = theory.capped_geometric(one.alpha_overlap.value, one.cell.arm.gamma)
        axes.plot(lengths, law, "_", color="black", markersize=9, markeredgewidth=1.8)
        alpha = f"α = {one.alpha_overlap.value:.2f}, "
    of = f"{name}\n{alpha}{total} rounds"
    axes.set_title(f"{group_title(one.cell.group)}\n{of}", fontsize=8)
    axes.set_xlabel(f"accepted drafts of γ = {one.cell.arm.gamma}")
    style.whole_numbers(axes)


def draw_alpha(drafted: Sequence[CellSummary]) -> Figure | None:
    """alpha_overlap by draft, cheapest first, one line per temperature and one panel per task."""
    # The same drafts at a larger batch cost something else and accept alike.
    smallest = min((one.cell.group.batch for one in drafted), default=1)
    known = [
        one for one in drafted if one.alpha_overlap is not None and one.cell.group.batch == smallest
    ]
    tasks = list(dict.fromkeys(one.cell.group.task for one in known))
    if not tasks:
        return None
    order = sorted(drafts_of(known), key=lambda draft: _cost(known, draft))
    temperatures = sorted({one.cell.group.sampling.temperature for one in known})
    figure, grid = style.panels(1, len(tasks))
    for task, axes in zip(tasks, grid[0], strict=True):
        for index, temperature in enumerate(temperatures):
            first: dict[str | None, CellSummary] = {}
            for one in known:
                group = one.cell.group
                if (group.task, group.sampling.temperature) == (task, temperature):
                    first.setdefault(one.cell.arm.draft, one)
            shift = 0.06 * (index - (len(temperatures) - 1) / 2)
            points = [(order.index(d) + shift, one.alpha_overlap) for d, one in first.items() if d]
            interval_points(axes, sorted(points, key=lambda point: point[0]), index)
        ticks = [_tick(name, _cost(known, draft)) for draft, name in names_of(order).items()]
        axes.set_xticks(range(len(order)), ticks)
        axes.set_title(task_title(task))
        axes.margins(x=0.12)
    grid[0][0].set_ylabel("α (mean of Σ min(p, q))")
    handles = handles_of([f"T = {temperature:g}" for temperature in temperatures])
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _cost(known: Sequence[CellSummary], draft: str | None) -> float:
    costs = [
        one.cost_coefficient.value
        for one in known
        if one.cell.arm.draft == draft and one.cost_coefficient is not None
    ]
    return sum(costs) / len(costs) if costs else 0.0


def _tick(name: str, cost: float) -> str:
    return f"{name}\nc = {cost:.2f}" if cost else name
