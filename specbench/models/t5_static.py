"""Fixed buffers for a T5's decoder, and its passes over them, recorded once for many prompts.

Owns the sizes of buffers, who has them, and which passes are recorded. Knows nothing of how
tokens are chosen nor of how a pass is recorded (`graphs`).

A recorded pass works on fixed addresses and shapes: lengths are numbers on the device, attention
runs over the whole capacity, and a bias of -inf hides what a row does not hold. Sizes are rounded
up, so that few sets serve all prompts; which size a prompt gets depends on nothing that happened
before, and so does what a step costs. A set belongs to one state for as long as that state lives
and serves the next one afterwards; two states alive have two sets.

A pass is recorded when its width is first asked for: 1 to gamma + 1 tokens, those of the last,
cut rounds among them. Nothing is padded to a width that happens to be there, because the cost of
exactly K tokens is what is measured. `Pool.prepare` asks before a clock runs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.models.graphs import Pass, Recorder
from specbench.models.placement import placed
from specbench.models.t5_attention import DecoderBias
from specbench.models.t5_forward import T5Memory, decode_static
from specbench.models.t5_weights import T5Weights

_STEP = 64  # of capacities; also the least prompt length
_WIDEST = 32  # tokens; wider passes come once per output, if at all, and are not worth recording


class Shape(NamedTuple):
    """Sizes of a set of buffers: B rows, tokens of a row's cache, tokens of a row's prompt."""

    batch: int
    capacity: int
    source: int


def shape_for(batch: int, longest: int, capacity: int) -> Shape:
    """The set for B prompts of at most `longest` tokens: capacities in steps, prompts doubling."""
    source = max(_STEP, 1 << (longest - 1).bit_length())
    return Shape(batch, math.ceil(capacity / _STEP) * _STEP, source)


class Buffers:
    """One set of buffers, and the passes that were recorded over it, by width."""

    def __init__(self, weights: T5Weights, shape: Shape, recorder: Recorder) -> None:
        w, merged = weights, shape.batch * weights.num_heads
        num_layers = len(w.decoder.layers)
        new = w.norm_floor.new_zeros
        self.shape = shape
        self._weights, self._recorder = weights, recorder
        cache = new((num_layers, shape.capacity, merged, 3, w.d_kv), dtype=w.dtype)
        self._keys = new((num_layers, merged, w.d_kv, shape.source), dtype=w.dtype)
        self._values = new((num_layers, merged, shape.source, w.d_kv), dtype=w.dtype)
        self._padding = new((merged, 1, shape.source), dtype=w.dtype)
        self.memory = T5Memory(cache, self._keys.unbind(0), self._values.unbind(0), self._padding)
        self._lengths = new((shape.batch,), dtype=torch.long)
        self._bias = DecoderBias(w.decoder.relative_bias, shape.capacity, 1, w.max_distance)
        self._recorded: dict[int, tuple[Tensor, Pass]] = {}

    def fill(self, keys: Tensor, values: Tensor, padding: Tensor | None) -> None:
        """Take in encoded prompts as `encode` returns them; whatever was here before is gone."""
        length = keys.shape[-1]
        # zeros: what is hidden still meets a weight of 0, and 0 times an old nan would be nan
        self.memory.cache.zero_()
        self._keys.zero_()[..., :length].copy_(keys)
        self._values.zero_()[:, :, :length].copy_(values)
        self._padding.fill_(-math.inf)[..., :length].copy_(
            torch.zeros_like(self._padding[..., :length]) if padding is None else padding
        )

    def logits(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Logits (K * B, V) float32, the caller's own, of new tokens (K, B) behind `lengths`."""
        self._lengths.copy_(placed(lengths, self._lengths.device))
        given, run = self._pass(tokens.shape[0])
        given.copy_(tokens)
        return run().to(torch.float32, copy=True)  # the next replay overwrites its result

    def record(self, widths: Iterable[int]) -> None:
        """Record the passes of these widths that are not yet; no state may have the buffers."""
        self._lengths.zero_()
        for width in widths:
            self._pass(width)

    def _pass(self, width: int) -> tuple[Tensor, Pass]:
        """The tokens (K, B) that a pass of `width` reads, and the pass.

        Recording runs it, which writes where the lengths say that the new tokens go.
        """
        if width in self._recorded:
            return self._recorded[width]
        tokens = self._lengths.new_zeros((width, self.shape.batch))

        def run() -> Tensor:
            bias = self._bias.gathered(self._lengths, width)
            return decode_static(self._weights, self.memory, tokens, self._lengths, bias)

        if width > _WIDEST:
            return tokens, run
        self._recorded[width] = tokens, self._recorder(run)
        return self._recorded[width]


@dataclass(frozen=True, eq=False)
class Lease:
    """Buffers while one state has them; they go back when this object is gone.

    capacity: the most tokens of a row, as asked for; the buffers may hold more.
    """

    buffers: Buffers
    capacity: int


class Pool:
    """The sets of buffers of one model that no state has.

    Sets of one batch size only are kept: sizes are measured one after the other, and the
    largest would otherwise fill a device. new_recorder: called for each new set.
    """

    def __init__(self, weights: T5Weights, new_recorder: Callable[[], Recorder]) -> None:
        self._weights, self._new_recorder = weights, new_recorder
        self._free: dict[Shape, list[Buffers]] = {}

    def lease(self, shape: Shape, capacity: int) -> Lease:
        """A set of this shape, the one that came back last or a new one."""
        if shape not in self._free:
            same = {old: sets for old, sets in self._free.items() if old.batch == shape.batch}
            self._free = {**same, shape: []}
        free = self._free[shape]
        buffers = free.pop() if free else Buffers(self._weights, shape, self._new_recorder())
        lease = Lease(buffers, capacity)
        weakref.finalize(lease, free.append, buffers).atexit = False
        return lease

    def prepare(self, shape: Shape, widths: Sequence[int], num_states: int) -> None:
        """Record passes of these widths on as many sets as states of this shape will live at
        once; the sets that come back last are taken first, so that these will be."""
        leases = [self.lease(shape, shape.capacity) for _ in range(num_states)]
        for lease in leases:
            lease.buffers.record(widths)
