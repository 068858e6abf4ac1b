"""What may be said of a measured ratio: faster, slower, or that it cannot be told.

Owns every verdict on a speedup. An interval from prompts covers what differs between prompts, and
not what an instrument adds to all of them alike: a neighbour's work, a clock that rises. What that
comes to is seen in the null arm, the baseline timed a second time, whose true ratio is 1. A verdict
that asks more of the instrument than the null arm allows is withheld.
"""

from __future__ import annotations

from collections.abc import Iterable

from specbench.measure.summary import CellSummary
from specbench.records import Group
from specbench.statistics import Estimate

FASTER = "faster"
NOT_SHOWN = "not shown to be faster"
LOSES = "speculation loses"
WITHHELD = "withheld"


def verdict(speedup: Estimate, null: Estimate | None) -> str:
    """FASTER, LOSES, NOT_SHOWN, or WITHHELD with the reason behind a colon.

    speedup: baseline / arm. null: baseline / null arm of the same group, None where none was
    measured.
    """
    if not speedup.excludes(1.0):
        return NOT_SHOWN
    doubt = doubt_of(speedup, null)
    if doubt is not None:
        return f"{WITHHELD}: {doubt}"
    return FASTER if speedup.value > 1.0 else LOSES


def doubt_of(ratio: Estimate, null: Estimate | None) -> str | None:
    """Why the null arm forbids to say that `ratio` differs from 1; None where it does not.

    It does where its own interval excludes 1, and where that reaches as far from 1 as `ratio`.
    """
    if null is None or null.low is None or null.high is None:
        return None
    if null.excludes(1.0):
        return f"the null arm is off, {null.value:.2f} [{null.low:.2f}, {null.high:.2f}]"
    reach = max(null.high, 1.0 / null.low)
    if max(ratio.value, 1.0 / ratio.value) > reach:
        return None
    if reach > 2.0:
        return f"the null arm is off by up to a factor of {reach:.1f}"
    percent = 100.0 * (reach - 1.0)
    return f"the null arm is ±{percent:.{1 if percent < 10 else 0}f} %"


def null_of(
    summaries: Iterable[CellSummary], group: Group, decode_only: bool = False
) -> Estimate | None:
    """The null arm's speedup in a group, end to end or after prefill; None where there is none."""
    for one in summaries:
        arm = one.cell.arm
        if one.cell.group == group and arm.replica and not arm.is_peer:
            return one.decode_speedup if decode_only else one.speedup
    return None
