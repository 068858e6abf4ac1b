"""Speed against gamma: measured with its interval, predicted by the formula, and refined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.measure.decomposition import Decomposition
from specbench.measure.summary import CellSummary, Estimate
from specbench.records import Group
from specbench.report import style
from specbench.report.series import drafts_of, group_title, groups_of, handles_of, interval_points

Value = Callable[[CellSummary], Estimate | float | None]
# Hollow markers tell the formula's lines apart in grey; the refined line lies on the measured one.
_PREDICTED: dict[str, Any] = {
    "--": {"linestyle": "--", "linewidth": 0.9, "markersize": 3.5, "markerfacecolor": "white"},
    ":": {"linestyle": ":", "linewidth": 2.0, "zorder": 5},
}


def draw_decode_speedup(
    drafted: Sequence[CellSummary], decompositions: Sequence[Decomposition]
) -> Figure | None:
    """Decode-only speedup against gamma, with the formula and the refined prediction."""
    refined = {found.cell: found.refined.value for found in decompositions}
    return _against_gamma(
        drafted,
        "speedup, decode only",
        lambda one: one.decode_speedup,
        {
            "predicted, Thm 3.8": (lambda one: one.walltime_improvement, "--"),
            "refined prediction": (lambda one: refined.get(one.cell), ":"),
        },
    )


def draw_total_speedup(drafted: Sequence[CellSummary]) -> Figure | None:
    """End-to-end speedup against gamma."""
    return _against_gamma(drafted, "speedup, end to end", lambda one: one.speedup, {})


def _against_gamma(
    drafted: Sequence[CellSummary],
    label: str,
    measured: Value,
    predictions: dict[str, tuple[Value, str]],
) -> Figure | None:
    groups = groups_of(one for one in drafted if measured(one) is not None)
    if not groups:
        return None
    drafts = drafts_of(drafted)
    figure, grid = style.panels(*_shape(len(groups)))
    for group, axes in _place(groups, grid):
        for index, draft in enumerate(drafts):
            # A little apart, so that intervals at one gamma do not hide each other.
            shift = 0.08 * (index - (len(drafts) - 1) / 2)
            own = _own(drafted, group, draft)
            gammas = [one.cell.arm.gamma + shift for one in own]
            _measured(axes, gammas, [measured(one) for one in own], index)
            for value, line in predictions.values():
                _predicted(axes, gammas, [value(one) for one in own], index, line)
        axes.axhline(1.0, color="black", linewidth=0.9, zorder=1)
        axes.set_title(group_title(group))
        axes.set_xlabel("γ (drafted tokens per round)")
        style.whole_numbers(axes)
    for row in grid:
        row[0].set_ylabel(label)
    figure.legend(handles=_legend(drafts, predictions), loc="outside upper center", ncols=4)
    return figure


def _legend(drafts: Sequence[str], predictions: dict[str, tuple[Value, str]]) -> list[Line2D]:
    lines = [
        Line2D([], [], color=style.GREY, label=name, **_PREDICTED[line])
        for name, (_, line) in predictions.items()
    ]
    no_draft = Line2D([], [], color="black", linewidth=0.9, label="no draft")
    return [*handles_of(drafts), *lines, no_draft]


def _measured(
    axes: Axes, gammas: Sequence[float], values: Sequence[Estimate | float | None], index: int
) -> None:
    points = zip(gammas, values, strict=True)
    interval_points(axes, [(x, y) for x, y in points if isinstance(y, Estimate)], index)


def _predicted(
    axes: Axes,
    gammas: Sequence[float],
    values: Sequence[Estimate | float | None],
    index: int,
    line: str,
) -> None:
    points = zip(gammas, values, strict=True)
    known = [(gamma, found) for gamma, found in points if isinstance(found, float)]
    axes.plot(
        [gamma for gamma, _ in known],
        [found for _, found in known],
        color=style.color(index),
        marker="" if line == ":" else style.marker(index),
        **_PREDICTED[line],
    )


def _own(drafted: Sequence[CellSummary], group: Group, draft: str) -> list[CellSummary]:
    own = [one for one in drafted if one.cell.group == group and one.cell.arm.draft == draft]
    return sorted(own, key=lambda one: one.cell.arm.gamma)


def _shape(count: int) -> tuple[int, int]:
    columns = min(count, 2)
    return -(-count // columns), columns


def _place(groups: Sequence[Group], grid: list[list[Axes]]) -> list[tuple[Group, Axes]]:
    flat = [axes for row in grid for axes in row]
    for axes in flat[len(groups) :]:
        style.hide(axes)
    return list(zip(groups, flat, strict=False))
