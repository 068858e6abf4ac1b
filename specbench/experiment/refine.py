"""More repeats where the grid left a number unsure, until it is sure or the budget is spent.

Owns which arms are timed again together and when that ends. What is unsure is for
`measure.settling` to say; a cell that stays so keeps its flag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from specbench.experiment.run import Sweep
from specbench.measure.collection import collect
from specbench.measure.settling import unsure
from specbench.records import Cell


def refine(
    sweep: Sweep,
    groups: Sequence[Sequence[Cell]],
    target_width: float | None,
    budget_s: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> list[Cell]:
    """Time unsure cells again for at most `budget_s` seconds; returns those that still are.

    A prompt that was begun is finished in every arm. Only this session's own timings are looked
    at: what sessions differ by is not for repeats within one to cure.
    """
    ends = clock() + budget_s
    while True:
        cells = [cell for group in groups for cell in group]
        collected = collect(cells, sweep.records, seed)
        left = [cell for cell in unsure(collected, target_width) if not sweep.has_failed(cell)]
        if not left or clock() >= ends:
            return left
        for group in groups:
            again = together(group, left)
            if again:
                sweep.again(again, left_s=lambda: ends - clock())


def together(group: Sequence[Cell], unsure_cells: Sequence[Cell]) -> list[Cell]:
    """The arms of a group to time again, in order; none where none is unsure.

    Arms are compared on common repeats alone, so the baseline comes along, and the null arm,
    which says what the instrument did meanwhile. An unsure baseline concerns every arm.
    """
    chosen = [cell for cell in group if cell in unsure_cells]
    if any(cell.arm.is_baseline for cell in chosen):
        return list(group)
    return [cell for cell in group if chosen and (cell in chosen or _is_reference(cell))]


def _is_reference(cell: Cell) -> bool:
    return cell.arm.draft is None and not cell.arm.is_peer
