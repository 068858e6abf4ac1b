"""Speedup against batch: where decoding prompts together takes the gain of a draft away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.measure.summary import CellSummary
from specbench.records import Group
from specbench.report import style
from specbench.report.batches import AgainstBatch, against_batch
from specbench.report.series import group_title, handles_of, interval_points, names_of
from specbench.report.speed_figures import NO_DRAFT, name_speed_axis


def draw_against_batch(summaries: Sequence[CellSummary]) -> Figure | None:
    """Decode-only speedup of each draft's best gamma against batch, beside Thm 3.8.

    One panel per task and temperature; None where no draft was measured at two batch sizes.
    """
    series = against_batch(summaries)
    panels: dict[Group, list[AgainstBatch]] = {}
    for one in series:
        panels.setdefault(one.group, []).append(one)
    if not panels:
        return None
    drafts = list(dict.fromkeys(one.draft for one in series))
    columns = min(len(panels), 2)
    figure, grid = style.panels(-(-len(panels) // columns), columns)
    flat = [axes for row in grid for axes in row]
    for (group, own), axes in zip(panels.items(), flat, strict=False):
        for one in own:
            _draw(axes, one, drafts.index(one.draft), len(drafts))
        _finish(axes, group, own, names_of(drafts))
    for axes in flat[len(panels) :]:
        style.hide(axes)
    measured = [best.decode_speedup for one in series for best in one.best]
    name_speed_axis(grid, "speedup, decode only", measured)
    predicted = Line2D([], [], color=style.GREY, linewidth=0.7, label="predicted, Thm 3.8", ls="--")
    handles = [*handles_of(drafts), predicted, Line2D([], [], **NO_DRAFT)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))
    return figure


def _draw(axes: Axes, one: AgainstBatch, index: int, num_drafts: int) -> None:
    # A little apart, so that intervals at one batch do not hide each other.
    apart = 1.04 ** (index - (num_drafts - 1) / 2)
    points = [(best.cell.group.batch * apart, best) for best in one.best]
    known = [(x, best.walltime_improvement) for x, best in points if best.walltime_improvement]
    axes.plot(
        [x for x, _ in known],
        [value for _, value in known],
        color=style.color(index),
        linestyle="--",
        linewidth=0.7,
    )
    interval_points(axes, [(x, best.decode_speedup) for x, best in points], index)


def _finish(
    axes: Axes, group: Group, own: Sequence[AgainstBatch], names: Mapping[str | None, str]
) -> None:
    batches = sorted({batch for one in own for batch in one.batches})
    axes.axhline(1.0, zorder=1, **NO_DRAFT)
    said = [f"{names[one.draft]}: {one.sentence}" for one in own]
    axes.set_title("\n".join([group_title(group), *said]), fontsize=8)
    axes.set_xlabel("batch (prompts decoded together)")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.margins(x=0.1)
