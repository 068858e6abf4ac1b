"""Showing: tables, figures and terminal views, made from summaries and never measured here.

Owns presentation. Never imports torch, and nothing here needs the machine that was measured.
Drawing is imported when something is drawn, for it takes longer than reading a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.measure.decomposition import Decomposition
from specbench.measure.summary import CellSummary
from specbench.report.tables import write_tables

__all__ = ["write_figures", "write_tables", "write_theory_figures"]


def write_figures(
    folder: Path,
    info: dict[str, Any],
    summaries: Sequence[CellSummary],
    decompositions: Sequence[Decomposition],
) -> list[Path]:
    """Draw every figure of a run into `folder`; returns the paths."""
    from specbench.report.figures import write_figures as draw

    return draw(folder, info, summaries, decompositions)


def write_theory_figures(folder: Path) -> list[Path]:
    """Draw Figures 2, 3 and 4 of the paper from the closed forms; returns the paths."""
    from specbench.report.theory_figures import write_theory_figures as draw

    return draw(folder)
