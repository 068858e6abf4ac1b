"""The gap as a waterfall: from the formula to the measured speedup of each group's best cell.

A total carries its interval as a bar, a step as text, for a bar of a step would hide its length.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.measure.decomposition import Decomposition, GapStep, interval
from specbench.records import Group
from specbench.report import style
from specbench.report.series import group_title, names_of
from specbench.statistics import Estimate

_LOSS, _GAIN, _TOTAL = "#D55E00", "#0072B2", "#9a9a9a"


def draw_waterfalls(decompositions: Sequence[Decomposition]) -> Figure | None:
    """One panel per group, of its cell with the largest end-to-end speedup; None without any."""
    best: dict[Group, Decomposition] = {}
    for found in decompositions:
        before = best.get(found.cell.group)
        if before is None or found.measured_total.value > before.measured_total.value:
            best[found.cell.group] = found
    if not best:
        return None
    columns = min(2, len(best))
    figure, grid = style.panels(-(-len(best) // columns), columns, width=4.6, height=2.9)
    flat = [axes for row in grid for axes in row]
    names = names_of(dict.fromkeys(found.cell.arm.draft for found in best.values()))
    for axes, found in zip(flat, best.values(), strict=False):
        _draw(axes, found)
        group, arm = found.cell.group, found.cell.arm
        axes.set_title(f"{group_title(group)}: {names[arm.draft]}, γ = {arm.gamma}")
    for axes in flat[len(best) :]:
        style.hide(axes)
    return figure


def _draw(axes: Axes, found: Decomposition) -> None:
    names = ["Thm 3.8 at α and c"]
    # An interval from a handful of prompts may reach far; the numbers beside it say how far.
    values = [found.predicted, found.measured, found.measured_total]
    most = 2.5 * max(1.0, *(one.value for one in values), *(step.after for step in found.steps))
    _total(axes, 0, found.predicted, most, hatch="//")
    before = found.predicted.value
    for step in found.steps:
        _step(axes, len(names), before, step)
        before = step.after
        names.append(step.name)
    _total(axes, len(names), found.measured, most)
    names.append("measured, decode only")
    _step(axes, len(names), before, found.encoder)
    names.append(found.encoder.name)
    _total(axes, len(names), found.measured_total, most)
    names.append("measured, end to end")
    axes.set_yticks(range(len(names)), names)
    # From above to below; not `invert_yaxis`, which panels of a row would turn back and forth.
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.axvline(1.0, color="black", linewidth=0.9)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.32)  # room for what stands beside the bars
    axes.set_xlabel("speedup")


def _total(axes: Axes, row: int, found: Estimate, most: float, hatch: str | None = None) -> None:
    axes.barh(row, found.value, color=_TOTAL, hatch=hatch, edgecolor="white" if hatch else _TOTAL)
    if found.low is not None and found.high is not None:
        bounds = [found.low, min(found.high, most)]
        axes.plot(bounds, [row, row], color="black", linewidth=0.9, marker="|", markersize=5)
        if found.high > most:
            axes.plot(most, row, color="black", marker=">", markersize=4)
    _label(axes, row, min(max(found.value, found.high or 0.0), most), interval(found))


def _step(axes: Axes, row: int, before: float, step: GapStep) -> None:
    color = _GAIN if step.after >= before else _LOSS
    axes.barh(row, step.after - before, left=before, color=color)
    _label(axes, row, max(before, step.after), f"× {interval(step.factor)}")


def _label(axes: Axes, row: int, x: float, text: str) -> None:
    ground = {"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0}
    axes.annotate(
        text,
        (x, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        bbox=ground,
    )
