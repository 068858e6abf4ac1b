"""What an NVIDIA GPU is doing now, from the driver's own library (NVML), in microseconds.

Owns the calls of that library and what its reasons for a lower clock mean. Knows nothing of runs.
`host.gpu` asks nvidia-smi for what does not change; a process of its own around each generation
would take longer than the generation.
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM = 1  # NVML_CLOCK_SM

# Reasons that slow work down: power cap, hardware, thermal (software, hardware), power brake.
# Those left out are an idle GPU and clocks that somebody set.
SLOWDOWN = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class GpuMeter:
    """The clock of one GPU and why it is not higher."""

    def __init__(self, uuid: str, library: Any = None) -> None:
        """uuid: "GPU-...". library: NVML; None loads the driver's. Raises OSError without one."""
        self._nvml = library or ctypes.CDLL(_LIBRARY)
        self._device = ctypes.c_void_p()
        found = self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(
            uuid.encode(), ctypes.byref(self._device)
        )
        if found:
            raise OSError(f"NVML error {found} for {uuid}")

    def read(self) -> tuple[int | None, int | None]:
        """(clock of the multiprocessors in MHz, bits of the reasons for it); None if unknown."""
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        no_clock = self._nvml.nvmlDeviceGetClockInfo(self._device, _CLOCK_SM, ctypes.byref(clock))
        no_reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(
            self._device, ctypes.byref(reasons)
        )
        return (None if no_clock else clock.value), (None if no_reasons else reasons.value)
