"""The GPU's clock around a generation: read from the driver, kept in the record, flagged."""

import ctypes
from dataclasses import replace

import pytest
import torch
from device import Device, kinds, prepared
from synthetic import Plan, counts, generation, group

from specbench.measure import environment
from specbench.measure.gpu_meter import GpuMeter
from specbench.measure.metrics import summarize


class Nvml:
    """The driver's library as far as it is called; a code other than 0 is an error."""

    def __init__(self, code: int = 0, clock: int = 1755, reasons: int = 0x4) -> None:
        self.code, self.clock, self.reasons = code, clock, reasons

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):  # noqa: N802
        assert uuid == b"GPU-1"
        device._obj.value = 77
        return self.code

    def nvmlDeviceGetClockInfo(self, device, kind, clock):  # noqa: N802
        assert (device.value, kind) == (77, 1)
        ctypes.cast(clock, ctypes.POINTER(ctypes.c_uint))[0] = self.clock
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device, reasons):  # noqa: N802
        assert device.value == 77
        ctypes.cast(reasons, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.reasons
        return 3 if self.reasons < 0 else 0  # NVML_ERROR_NOT_SUPPORTED


def test_a_meter_reads_clock_and_reasons() -> None:
    assert GpuMeter("GPU-1", Nvml()).read() == (1755, 0x4)
    assert GpuMeter("GPU-1", Nvml(reasons=-1)).read() == (1755, None)


def test_a_driver_that_does_not_answer_is_an_error_and_a_cpu_has_no_meter() -> None:
    with pytest.raises(OSError, match="GPU-1"):
        GpuMeter("GPU-1", Nvml(code=6))
    assert environment.gpu_meter(torch.device("cpu")) is None


def test_a_generation_keeps_what_its_gpu_did() -> None:
    ready = prepared(Device(), kinds(), [0])
    baseline, item = ready.groups[0][0], ready.prompts["x"][0]
    found = replace(ready.bench, gpu=GpuMeter("GPU-1", Nvml())).generate(baseline, [item], 0)
    assert (found.gpu_clock_mhz, found.gpu_slowdown) == (1755, 0x4)
    found = ready.bench.generate(baseline, [item], 0)
    assert (found.gpu_clock_mhz, found.gpu_slowdown) == (None, None)


@pytest.mark.parametrize(
    ("bits", "flagged"), [(0x4, True), (0x40, True), (0x1, False), (0x2, False), (None, False)]
)
def test_a_gpu_whose_clock_was_held_down_is_flagged(bits: int | None, flagged: bool) -> None:
    cell = Plan(group(), gammas=(3,)).cells()[0]
    rounds = [counts(0, 0, 0, 1)] * 5
    records = [generation(cell, f"p{i}", 0, rounds, gpu_slowdown=bits) for i in range(3)]
    assert ("GPU held down" in summarize([cell], records, seed=0)[0].flags) is flagged
