"""What panels and lines stand for: groups, drafts, their names and their intervals.

Owns how a series of measured points is named and drawn, the same in every figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.measure.summary import CellSummary
from specbench.records import Group
from specbench.report import style
from specbench.statistics import Estimate


def groups_of(summaries: Iterable[CellSummary]) -> list[Group]:
    """The groups, in order of first mention."""
    return list(dict.fromkeys(one.cell.group for one in summaries))


def drafts_of(summaries: Iterable[CellSummary]) -> list[str]:
    """The drafts, in order of first mention."""
    return list(dict.fromkeys(one.cell.arm.draft or "" for one in summaries))


def group_title(group: Group) -> str:
    """A group in a few words."""
    text = f"{task_title(group.task)}, T = {group.sampling.temperature:g}"
    return text if group.batch == 1 else f"{text}, batch {group.batch}"


def task_title(task: str) -> str:
    """A task, of a file its name alone."""
    return style.plain(task.rsplit("/", 1)[-1] if task.startswith("file:") else task)


def names_of(paths: Iterable[str | None]) -> dict[str | None, str]:
    """Models by the last parts of their names or paths, as many as tell them apart."""
    parts = {path: (path or "").rstrip("/").split("/") for path in paths}
    for count in range(1, max(map(len, parts.values()), default=1) + 1):
        names = {path: "/".join(found[-count:]) for path, found in parts.items()}
        if len({*names.values()}) == len(names):
            break
    return {path: style.plain(name) for path, name in names.items()}


def handles_of(names: Sequence[str]) -> list[Line2D]:
    """Legend entries of a series each."""
    labels = names_of(names)
    return [
        Line2D([], [], color=style.color(i), marker=style.marker(i), label=labels[name])
        for i, name in enumerate(names)
    ]


def interval_points(
    axes: Axes, points: Sequence[tuple[float, Estimate | None]], index: int
) -> None:
    """Points with their intervals, joined by a line; points without a value are left out."""
    known = [(x, found) for x, found in points if found is not None]
    if not known:
        return
    below = [found.value - (found.value if found.low is None else found.low) for _, found in known]
    above = [
        (found.value if found.high is None else found.high) - found.value for _, found in known
    ]
    axes.errorbar(
        [x for x, _ in known],
        [found.value for _, found in known],
        yerr=[[max(gap, 0.0) for gap in below], [max(gap, 0.0) for gap in above]],
        color=style.color(index),
        marker=style.marker(index),
        linewidth=1.0,
        capsize=2.5,
        elinewidth=0.9,
    )
