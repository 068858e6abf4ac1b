"""What else the machine did while one generation was timed: load, and time that was stolen.

Owns two cheap readings. Knows nothing of what counts as too much.
"""

from __future__ import annotations

import os
from functools import cache

from specbench.measure import host


class Disturbance:
    """What else the machine did during one generation: made before it, read after it.

    Costs two reads of the kernel's counters, about ten microseconds each.
    """

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def read(self) -> tuple[float | None, float | None]:
        """(load average of the last minute, share of CPU time that the hypervisor took).

        The share is None off Linux and for less than one clock tick (10 ms on most kernels).
        """
        after = _cpu_ticks()
        if self._before is None or after is None or after[1] <= self._before[1]:
            return host.load_average(), None
        stolen, total = after[0] - self._before[0], after[1] - self._before[1]
        # Counters of virtual machines have been seen to step back.
        return host.load_average(), min(max(stolen / total, 0.0), 1.0)


def _cpu_ticks() -> tuple[int, int] | None:
    """(stolen, total) clock ticks of all cores since the machine started; None off Linux."""
    try:
        line = os.pread(_kernel_counters(), 200, 0).split(b"\n", 1)[0]
        # user nice system idle iowait irq softirq steal; guests are in user and nice already.
        ticks = [int(field) for field in line.split()[1:9]]
    except (OSError, ValueError):
        return None
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else None


@cache
def _kernel_counters() -> int:
    """An open descriptor of the counters, since opening the file costs more than reading it."""
    return os.open("/proc/stat", os.O_RDONLY)
