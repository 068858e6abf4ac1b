"""Kernels recorded once and launched together: CUDA graphs, and what stands in for them.

Owns how a pass is recorded. Knows nothing of what the pass computes.

Physics: a decoder step of a small model is some hundred kernels of a few microseconds each, and
the host needs longer to launch one than the device to run it. A graph is one launch for all of
them. It reads and writes the same addresses each time, so whoever records a pass owns its
buffers, and takes the result away before the next replay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

Pass = Callable[[], Tensor]
"""Reads fixed buffers; returns a tensor that the next call of the same pass may overwrite."""

_WARM_UPS = 2  # libraries choose and load their kernels at the first call, which no graph may hold


class Recorder(Protocol):
    """Turns passes over one set of buffers into quicker ones; one recorder for each set."""

    def __call__(self, function: Pass) -> Pass:
        """A pass that does what `function` does. It may run `function` while recording it."""
        ...


class AsIs:
    """Records nothing: every call is the function itself. For tests, and to compare with."""

    def __call__(self, function: Pass) -> Pass:
        """The function."""
        return function


class CudaRecorder:
    """Records each pass as a CUDA graph on `device`.

    The graphs of one recorder share the memory of their intermediate results: they are replayed
    one after the other on one stream, and none reads what another has left there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, function: Pass) -> Pass:
        """A pass that replays the kernels of `function`; its result is always the same tensor."""
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = self._graphs[0].pool() if self._graphs else None
            with torch.cuda.graph(graph, pool=pool):
                result = function()
        self._graphs.append(graph)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def recorders_for(device: torch.device) -> Callable[[], Recorder] | None:
    """What makes recorders for passes on `device`; None where recording gains nothing."""
    return partial(CudaRecorder, device) if device.type == "cuda" else None
