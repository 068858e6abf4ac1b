"""Which numbers are not sure enough yet, and whether timing again can make them so.

Owns the question and its thresholds. An interval has two parts: the machine's noise, which more
repeats average away, and prompts that differ, which only more prompts do. Repeating where the
second part is the larger one would spend time for nothing.
"""

from __future__ import annotations

import numpy as np

from specbench.measure.collection import Collected, shared_prompts
from specbench.measure.flags import repeats_scatter
from specbench.measure.metrics import summarize_collected
from specbench.measure.repeats import over_sessions
from specbench.measure.summary import CellSummary
from specbench.measure.tally import Tally
from specbench.records import Cell
from specbench.statistics import NORMAL_QUANTILE, Estimate

# Noise below this share of the half width is not what makes an interval wide.
NOISE_SHARE = 0.3


def unsure(collected: Collected, target_width: float | None) -> list[Cell]:
    """The cells that are worth timing again: unstable, or too wide for reasons of timing.

    target_width: half width of the speedup's interval / speedup that is wanted; 0.03 means
    plus or minus 3 %. None asks for stable repeats only.
    """
    return [
        one.cell
        for one in summarize_collected(collected)
        if _is_unsure(collected, one, target_width)
    ]


def half_width(found: Estimate | None) -> float | None:
    """Half width of an interval / its value; None where there is no interval."""
    if found is None or found.low is None or found.high is None:
        return None
    return (found.high - found.low) / (2.0 * found.value)


def _is_unsure(collected: Collected, summary: CellSummary, target_width: float | None) -> bool:
    found = collected.tallies.get(summary.cell.key)
    baseline = collected.baseline(summary.cell)
    if found is None or baseline is None or summary.num_failed:
        return False
    width = half_width(summary.speedup)
    is_wide = target_width is not None and width is not None and width > target_width
    if not np.isfinite(found.repeat_error).any():
        # Timed once: nobody knows yet whether noise or the prompts are the reason.
        return is_wide or "unstable" in summary.flags
    noisy = width is not None and noise_width(found, baseline) >= NOISE_SHARE * width
    return repeats_scatter(found) or (is_wide and noisy)


def noise_width(found: Tally, baseline: Tally) -> float:
    """Half width / value that the noise of timing alone gives to the speedup's interval.

    Of a ratio of totals: the relative standard error of each prompt's ratio counts by the
    prompt's share of the seconds.
    """
    both = shared_prompts(found, baseline).total
    settled = over_sessions(both.first_s)
    variance = float(np.nansum((settled / settled.sum() * both.error) ** 2))
    return NORMAL_QUANTILE * float(np.sqrt(variance))
