"""Seconds: a clock that listens to a decoder, for CPUs and for devices that work behind it.

Owns how a second is measured. A CPU is timed with a monotonic clock at every change of phase. A
GPU works behind the host, so waiting for it at every change would be what is measured: events
are put into its queue instead and read once everything is over. Knows nothing of arms, cells
and tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from specbench.decoding import Phase, Phases
from specbench.records import Round

Clock = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Seconds of one generation. rounds: per round, seconds by phase; ttft_s: until the first
    round's tokens were on the host."""

    total_s: float
    ttft_s: float
    target_prefill_s: float
    draft_prefill_s: float
    rounds: list[dict[Phase, float]]

    def put_into(self, rounds: list[Round]) -> tuple[Round, ...]:
        """The same rounds with their seconds filled in."""
        return tuple(
            replace(
                counts,
                draft_s=seconds.get(Phase.DRAFT, 0.0),
                verify_s=seconds.get(Phase.VERIFY, 0.0),
                rest_s=seconds.get(Phase.REST, 0.0),
            )
            for counts, seconds in zip(rounds, self.rounds, strict=True)
        )


class Stopwatch(Phases):
    """Listens to one generation; `start` before decoding, `stop` behind it.

    clock: seconds, monotonic. synchronize: waits until the device has nothing left to do. The
    marks lie on the host's time line; at the edges of the measurement the device is idle.
    """

    def __init__(
        self,
        clock: Clock = time.perf_counter,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock, self._synchronize = clock, synchronize
        self._marks: list[tuple[Phase | None, float]] = []

    def start(self) -> None:
        """Wait for the device and begin."""
        self._marks.clear()
        self._synchronize()
        self._started = self._clock()

    def enter(self, phase: Phase) -> None:
        """The decoder begins `phase`."""
        self._marks.append((phase, self._clock()))

    def end_round(self) -> None:
        """A round is over; None stands for its end."""
        self._marks.append((None, self._clock()))

    def stop(self) -> Times:
        """Wait for the device and read everything off."""
        self._synchronize()
        ended = self._clock()
        return _times(self._marks, self._started, ended)


class CudaStopwatch(Phases):
    """The same for a CUDA device: phases from events in its queue, the total from the host.

    device: whose queue; None is torch's current one.
    """

    def __init__(
        self, clock: Clock = time.perf_counter, device: torch.device | None = None
    ) -> None:
        self._clock, self._device = clock, device
        self._marks: list[tuple[Phase | None, torch.cuda.Event]] = []

    def start(self) -> None:
        """Wait for the device and begin."""
        self._marks.clear()
        torch.cuda.synchronize(self._device)
        self._first = self._event()
        self._started = self._clock()

    def enter(self, phase: Phase) -> None:
        """The decoder begins `phase`."""
        self._marks.append((phase, self._event()))

    def end_round(self) -> None:
        """A round is over; None stands for its end."""
        self._marks.append((None, self._event()))

    def stop(self) -> Times:
        """Wait for the device and read everything off."""
        torch.cuda.synchronize(self._device)
        ended = self._clock()
        marks = [
            (phase, self._started + self._first.elapsed_time(event) / 1000.0)
            for phase, event in self._marks
        ]
        return _times(marks, self._started, ended)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def stopwatch_for(
    device: torch.device, synchronize: Callable[[], None]
) -> Stopwatch | CudaStopwatch:
    """The stopwatch that suits a device."""
    return (
        CudaStopwatch(device=device)
        if device.type == "cuda"
        else Stopwatch(synchronize=synchronize)
    )


def _times(marks: list[tuple[Phase | None, float]], started: float, ended: float) -> Times:
    prefill = {Phase.TARGET_PREFILL: 0.0, Phase.DRAFT_PREFILL: 0.0}
    rounds: list[dict[Phase, float]] = []
    current: dict[Phase, float] = {}
    first_round_end = ended
    # What lies between the end of a round and the next mark belongs to the next round's rest.
    phase, since = Phase.REST, started
    for mark, at in marks:
        seconds = at - since
        if phase in prefill:
            prefill[phase] += seconds
        else:
            current[phase] = current.get(phase, 0.0) + seconds
        if mark is None:
            if not rounds:
                first_round_end = at
            rounds.append(current)
            current = {}
        phase, since = mark or Phase.REST, at
    return Times(
        total_s=ended - started,
        ttft_s=first_round_end - started,
        target_prefill_s=prefill[Phase.TARGET_PREFILL],
        draft_prefill_s=prefill[Phase.DRAFT_PREFILL],
        rounds=rounds,
    )
