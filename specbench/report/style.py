"""How figures look: legible in print, in grey, and to colour-blind readers.

Owns colours (Okabe and Ito 2008), markers, line styles, sizes and saving. A line is never told
from another by its colour alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
GREY = "#6e6e6e"
SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    # Ids of SVG elements would otherwise differ from run to run.
    "svg.hashsalt": "specbench",
}
PNG_DPI = 200


def color(index: int) -> str:
    """The colour of the index-th series."""
    return COLORS[index % len(COLORS)]


def marker(index: int) -> str:
    """The marker of the index-th series."""
    return MARKERS[index % len(MARKERS)]


def panels(
    num_rows: int, num_columns: int, width: float = 3.3, height: float = 2.6
) -> tuple[Figure, list[list[Axes]]]:
    """A figure and its axes, rows by columns; sizes in inches for each panel.

    Panels of a row share what is measured, so that they can be compared by eye.
    """
    size = (max(width * num_columns, 6.0), height * num_rows + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False, sharey="row")
    return figure, [list(row) for row in axes]


def whole_numbers(axes: Axes) -> None:
    """Ticks at integers only, along x; one of them where there is only one."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def mark_cut(axes: Axes) -> None:
    """An arrow where an interval leaves the panel above; called once its limits are set."""
    top = axes.get_ylim()[1]
    for drawn in axes.containers:
        if not isinstance(drawn, ErrorbarContainer):
            continue
        for bars in drawn.lines[2]:
            cut = [float(high[0]) for _, high in bars.get_segments() if high[1] > top]
            axes.scatter(
                cut, [top] * len(cut), s=18, marker="^", color=bars.get_color(), clip_on=False
            )


def plain(text: str) -> str:
    """A user's text, in which a dollar begins no formula."""
    return text.replace("$", r"\$")


def hide(axes: Axes) -> None:
    """Take a panel without data out of the figure."""
    axes.set_visible(False)


def foot(figure: Figure, text: str) -> None:
    """The line under everything: what was measured where."""
    columns = int(figure.get_figwidth() * 19)
    figure.supxlabel(fill(plain(text), columns), fontsize=6.5, color=GREY)


def save(figure: Figure, path: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write the figure in one step per file; returns the paths. path: without a suffix."""
    paths = []
    for kind in formats:
        final = path.with_suffix(f".{kind}")
        scratch = path.with_name(f"{path.name}.part.{kind}")
        # No date in the file: the same run gives the same bytes.
        metadata = {"Date": None} if kind == "svg" else {}
        with warnings.catch_warnings():
            # A letter that no font here has is a box in the figure; the tables spell it.
            warnings.filterwarnings("ignore", message="Glyph")
            figure.savefig(scratch, dpi=PNG_DPI, metadata=metadata)
        scratch.replace(final)
        paths.append(final)
    return paths


def settings() -> AbstractContextManager[None]:
    """The context in which every figure is drawn and saved."""
    return rc_context(SETTINGS)
