"""The figures of a run, each with the machine it was measured on at its foot.

Owns which figures there are and their files. Every panel is one group (task, temperature, batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from specbench.measure.decomposition import Decomposition
from specbench.measure.summary import CellSummary
from specbench.report import provenance, style
from specbench.report.acceptance_figures import draw_accepted_lengths, draw_alpha
from specbench.report.batch_figure import draw_against_batch
from specbench.report.provenance import Info
from specbench.report.rows import own_drafted
from specbench.report.speed_figures import draw_decode_speedup, draw_total_speedup
from specbench.report.waterfall import draw_waterfalls


def write_figures(
    folder: Path,
    info: Info,
    summaries: Sequence[CellSummary],
    decompositions: Sequence[Decomposition],
    formats: Sequence[str] = ("png",),
) -> list[Path]:
    """Draw every figure for which there is data into `folder`; returns the paths.

    formats: "png" (200 dpi) and any other that matplotlib writes, such as "svg".
    """
    folder.mkdir(parents=True, exist_ok=True)
    drafted = own_drafted(summaries)
    drawings: dict[str, Callable[[], Figure | None]] = {
        "speedup_decode": lambda: draw_decode_speedup(drafted, decompositions),
        "speedup_total": lambda: draw_total_speedup(drafted),
        "batch": lambda: draw_against_batch(summaries),
        "accepted_lengths": lambda: draw_accepted_lengths(drafted),
        "alpha": lambda: draw_alpha(drafted),
        "gap": lambda: draw_waterfalls(decompositions),
    }
    paths: list[Path] = []
    for name, draw in drawings.items():
        with style.settings():
            figure = draw()
            if figure is not None:
                style.foot(figure, provenance.caption(info, summaries))
                paths += style.save(figure, folder / name, formats)
    return paths
