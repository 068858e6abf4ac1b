"""The gap as a waterfall: from the formula to the measured speedup of each group's best cell."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.measure.decomposition import Decomposition
from specbench.records import Group
from specbench.report import style

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
    for axes, found in zip(flat, best.values(), strict=False):
        _draw(axes, found)
    for axes in flat[len(best) :]:
        style.hide(axes)
    return figure


def _draw(axes: Axes, found: Decomposition) -> None:
    names = ["Thm 3.8 at α and c"]
    axes.barh(0, found.predicted.value, color=_TOTAL, hatch="//", edgecolor="white")
    _label(axes, 0, found.predicted.value, f"{found.predicted.value:.2f}")
    before = found.predicted.value
    for step in found.steps:
        _step(axes, len(names), before, step.after, step.factor.value)
        before = step.after
        names.append(step.name)
    axes.barh(len(names), before, color=_TOTAL)
    _label(axes, len(names), before, f"{before:.2f}")
    names.append("measured, decode only")
    after = found.encoder.after
    _step(axes, len(names), before, after, found.encoder.factor.value)
    names.append(found.encoder.name)
    axes.barh(len(names), after, color=_TOTAL)
    _label(axes, len(names), after, f"{after:.2f}")
    names.append("measured, end to end")
    axes.set_yticks(range(len(names)), names)
    # From above to below; not `invert_yaxis`, which panels of a row would turn back and forth.
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.axvline(1.0, color="black", linewidth=0.9)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.14)
    group, arm = found.cell.group, found.cell.arm
    batch = "" if group.batch == 1 else f", batch {group.batch}"
    draft = (arm.draft or "").rsplit("/", 1)[-1]
    axes.set_title(
        f"{group.task}, T = {group.sampling.temperature:g}{batch}: {draft}, γ = {arm.gamma}"
    )
    axes.set_xlabel("speedup")


def _step(axes: Axes, row: int, before: float, after: float, factor: float) -> None:
    color = _GAIN if after >= before else _LOSS
    axes.barh(row, after - before, left=before, color=color)
    _label(axes, row, max(before, after), f"× {factor:.3f}")


def _label(axes: Axes, row: int, x: float, text: str) -> None:
    axes.annotate(
        text, (x, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
    )
