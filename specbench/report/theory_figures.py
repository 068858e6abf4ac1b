"""Figures 2, 3 and 4 of the paper, drawn from the closed forms; nothing here was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench import theory
from specbench.report import style

SOURCE = "Computed from Leviathan et al. 2023; nothing here was measured."
ALPHAS = tuple(0.5 + 0.4 * step / 200 for step in range(201))


def write_theory_figures(folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw Figures 2, 3 and 4 into `folder`; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, draw in {"figure2": figure2, "figure3": figure3, "figure4": figure4}.items():
        with style.settings():
            figure = draw()
            style.foot(figure, SOURCE)
            paths += style.save(figure, folder / name, formats)
    return paths


def figure2() -> Figure:
    """Expected tokens per round against alpha (Eq. 1)."""
    figure, axes = _one_panel("expected tokens per target call, E[N]")
    for index, gamma in enumerate((1, 3, 5, 7)):
        _curve(axes, index, f"γ = {gamma}", partial(theory.expected_tokens, gamma=gamma))
    _curve(axes, 4, "γ = ∞", theory.oracle_expected_tokens)
    axes.axhline(1.0, color=style.GREY, linewidth=1.0, linestyle=":", label="no draft")
    axes.legend(loc="upper left")
    return figure


def figure3() -> Figure:
    """The gamma that maximises Thm 3.8, against alpha."""
    figure, axes = _one_panel("optimal γ (drafted tokens per round)")
    for index, c in enumerate((0.01, 0.02, 0.05, 0.1)):
        best = [theory.optimal_gamma(alpha, c) for alpha in ALPHAS]
        axes.step(
            ALPHAS,
            best,
            where="mid",
            color=style.color(index),
            linestyle=style.LINES[index],
            label=f"c = {c:g}",
        )
    axes.legend(loc="upper left")
    return figure


def figure4() -> Figure:
    """Speed (Thm 3.8) and arithmetic operations (Thm 3.11) at c = c_hat = 0, against alpha."""
    figure, axes = _one_panel("factor relative to no draft")
    for index, gamma in enumerate((1, 3, 5, 7, 10)):
        _curve(
            axes, index, f"γ = {gamma}", partial(theory.walltime_improvement, gamma=gamma, c=0.0)
        )
        growth = [theory.operations_factor(alpha, gamma, 0.0) for alpha in ALPHAS]
        axes.plot(ALPHAS, growth, color=style.color(index), linestyle=":")
    axes.plot([], [], color=style.GREY, linestyle="-", label="speed (solid, marked)")
    axes.plot([], [], color=style.GREY, linestyle=":", label="operations (dotted)")
    axes.legend(loc="upper left", ncols=2)
    return figure


def _one_panel(label: str) -> tuple[Figure, Axes]:
    figure, axes = style.panels(1, 1, width=6.0, height=3.6)
    axes[0][0].set_xlabel("acceptance probability α")
    axes[0][0].set_ylabel(label)
    axes[0][0].set_xlim(ALPHAS[0], ALPHAS[-1])
    return figure, axes[0][0]


def _curve(axes: Axes, index: int, label: str, value: Callable[[float], float]) -> None:
    axes.plot(
        ALPHAS,
        [value(alpha) for alpha in ALPHAS],
        color=style.color(index),
        marker=style.marker(index),
        # Staggered, so that markers of neighbouring lines do not hide each other.
        markevery=(4 * index, 40),
        label=label,
    )
