"""What else the machine did while one generation was timed: other work, and time stolen from it.

Owns a few cheap readings. Knows nothing of what counts as too much.
"""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

from specbench.measure import host


class Reading(NamedTuple):
    """load_average: of the last minute. steal_fraction, others_fraction: shares of the time of all
    cores that the hypervisor took, and that other processes did. None where unknown: off Linux,
    and shares for less than one clock tick (10 ms on most kernels)."""

    load_average: float | None
    steal_fraction: float | None
    others_fraction: float | None


class Ticks(NamedTuple):
    """Clock ticks since the machine started, of all cores; own: of this process."""

    stolen: int
    busy: int
    total: int
    own: float


class Disturbance:
    """What else the machine did during one generation: made before it, read after it.

    Costs two reads of the kernel's counters, about ten microseconds each.
    """

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def read(self) -> Reading:
        """What happened since this was made."""
        before, after = self._before, _cpu_ticks()
        if before is None or after is None or after.total <= before.total:
            return Reading(host.load_average(), None, None)
        total = after.total - before.total
        others = (after.busy - before.busy) - (after.own - before.own)
        stolen = after.stolen - before.stolen
        # Counters of virtual machines have been seen to step back.
        shares = (min(max(ticks / total, 0.0), 1.0) for ticks in (stolen, others))
        return Reading(host.load_average(), *shares)


def _cpu_ticks() -> Ticks | None:
    """The counters as they stand; None off Linux."""
    try:
        line = os.pread(_kernel_counters(), 200, 0).split(b"\n", 1)[0]
        # user nice system idle iowait irq softirq steal; guests are in user and nice already.
        ticks = [int(field) for field in line.split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) != 8:
        return None
    own = os.times()
    return Ticks(
        stolen=ticks[7],
        busy=sum(ticks[:3]),
        total=sum(ticks),
        own=(own.user + own.system) * _ticks_per_second(),
    )


@cache
def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


@cache
def _kernel_counters() -> int:
    """An open descriptor of the counters, since opening the file costs more than reading it."""
    return os.open("/proc/stat", os.O_RDONLY)
