"""What single calls cost, alone and outside any loop: the c of the paper, and verification.

Owns c (Leviathan et al. 2023, Def. 3.7) and T_p(gamma+1) / T_p(1). Both belong to one target,
draft, dtype, device and batch: they are looked up under the baseline cell they were measured
beside, and asking for a pair that was not measured there raises. No straight line is assumed
between lengths: a device may cost the same from 2 to 8 tokens and twice that at 9.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from specbench.records import Cell, StepTimes

Calls = dict[int, np.ndarray]


class NotMeasured(LookupError):
    """A cost of this pair, dtype and device was asked for that was never measured."""


class StepCosts:
    """Seconds of single calls, by baseline cell, role, model and tokens per call."""

    def __init__(self, steps: Iterable[StepTimes], seed: int, resamples: int) -> None:
        """seed, resamples: of the bootstrap over calls that gives each ratio its spread."""
        self._seed, self._resamples = seed, resamples
        self._calls: dict[tuple[str, str, str, int], Calls] = {}
        self._ratios: dict[tuple[str, tuple[str, str, int], tuple[str, str, int]], np.ndarray] = {}
        for step in steps:
            key = (step.cell, step.role, step.model, step.num_tokens)
            lengths = self._calls.setdefault(key, {})
            before = lengths.get(step.num_cached, np.empty(0))
            lengths[step.num_cached] = np.concatenate([before, step.seconds])

    def cost_coefficient(self, baseline: Cell, draft: str) -> np.ndarray:
        """c and its bootstrap replicates, (1 + resamples,): draft call / target call, one token.

        baseline: the cell they were measured beside; its group names the target. Raises
        NotMeasured when this pair was not measured there.
        """
        return self._ratio(baseline, ("draft", draft, 1), ("target", baseline.group.target, 1))

    def verify_ratio(self, baseline: Cell, gamma: int) -> np.ndarray:
        """T_p(gamma+1) / T_p(1) and its bootstrap replicates, (1 + resamples,).

        Raises NotMeasured when the target was not timed with gamma + 1 tokens there.
        """
        target = baseline.group.target
        return self._ratio(baseline, ("target", target, gamma + 1), ("target", target, 1))

    def num_calls(self, baseline: Cell) -> int:
        """Calls behind a ratio: those of the target, one token each. 0 where none were timed."""
        key = (baseline.key, "target", baseline.group.target, 1)
        return sum(len(seconds) for seconds in self._calls.get(key, {}).values())

    def _ratio(
        self, baseline: Cell, above: tuple[str, str, int], below: tuple[str, str, int]
    ) -> np.ndarray:
        key = (baseline.key, above, below)
        if key not in self._ratios:
            numerator, denominator = self._find(baseline, above), self._find(baseline, below)
            shared = sorted(set(numerator) & set(denominator))
            if not shared:
                raise NotMeasured(f"{above} and {below} beside {baseline.key}: no common length")
            # One generator per ratio: timing one more model leaves other intervals alone.
            name = f"{baseline.key} {above} {below}".encode()
            random = np.random.default_rng([self._seed, zlib.crc32(name)])
            seconds = self._mean_of_medians(random, numerator, shared)
            self._ratios[key] = seconds / self._mean_of_medians(random, denominator, shared)
        return self._ratios[key]

    def _find(self, baseline: Cell, which: tuple[str, str, int]) -> Calls:
        role, model, num_tokens = which
        try:
            return self._calls[baseline.key, role, model, num_tokens]
        except KeyError:
            raise NotMeasured(
                f"{role} {model} with {num_tokens} tokens per call was not timed beside "
                f"{baseline.key}; costs are never borrowed from another pair"
            ) from None

    def _mean_of_medians(
        self, random: np.random.Generator, calls: Calls, lengths: list[int]
    ) -> np.ndarray:
        """Median seconds at each length, averaged over lengths; first the value, then replicates.

        A median, because one call in a few hundred meets an interrupt.
        """
        total = np.zeros(1 + self._resamples)
        for length in lengths:
            seconds = calls[length]
            picks = random.integers(len(seconds), size=(self._resamples, len(seconds)))
            total[0] += np.median(seconds)
            total[1:] += np.median(seconds[picks], axis=1)
        return total / len(lengths)
