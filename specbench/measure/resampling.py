"""Intervals for any function of totals over prompts, by one paired bootstrap for the whole run.

Owns the resampling of prompts. Prompts, not tokens or rounds, are what was sampled: tokens of
one prompt are alike, so resampling them alone would make every interval too narrow. All arms of
a run see the same resamples of the same prompts, which keeps differences between arms paired.

Replicates are arrays (1 + resamples,): the value at the prompts as measured, then one value per
resample. Arithmetic on such arrays carries an interval through any formula.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from scipy.special import stdtrit

from specbench.measure.summary import Estimate

NORMAL_QUANTILE = 1.959963984540054  # of a two-sided 95 % interval


class Resampler:
    """A seeded paired bootstrap over prompts."""

    def __init__(self, seed: int, resamples: int = 2000) -> None:
        self.seed, self.resamples = seed, resamples
        self._weights: dict[int, np.ndarray] = {}

    def totals(self, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
        """The total of each column, as replicates; columns are (n,) over the same n prompts."""
        table = np.column_stack(columns)
        return tuple((self._weights_of(len(table)) @ table).T)

    def _weights_of(self, num_prompts: int) -> np.ndarray:
        """How often each prompt counts, (1 + resamples, num_prompts); the first row is ones."""
        if num_prompts not in self._weights:
            random = np.random.default_rng([self.seed, num_prompts])
            picks = random.integers(max(num_prompts, 1), size=(self.resamples, num_prompts))
            weights = np.zeros((1 + self.resamples, num_prompts))
            weights[0] = 1.0
            np.add.at(weights, (np.arange(1, len(weights))[:, None], picks), 1.0)
            self._weights[num_prompts] = weights
        return self._weights[num_prompts]


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, NaN where the denominator is empty."""
    missing = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    return np.asarray(np.divide(numerator, denominator, out=missing, where=denominator != 0))


def estimate(replicates: np.ndarray, num_prompts: int) -> Estimate | None:
    """A positive value with its 95 % interval, or None where the value is missing.

    Percentiles of the resamples, moved away from the value on the log scale, where ratios are
    symmetric and nothing falls below zero, by the factor by which a t interval of `num_prompts`
    observations is wider than the bootstrap's (as Hesterberg 2015, Sec. 5.3, widens
    percentiles): plain ones cover too seldom below some fifty prompts. One prompt gives no
    interval.
    """
    found = _percentiles(replicates, num_prompts)
    if found is None:
        return None
    value, low, high = found
    if low is None or high is None:
        return Estimate(value)
    power = _widening(num_prompts)
    if min(value, low) <= 0.0:
        return Estimate(value, low, high)
    return Estimate(value, value * (low / value) ** power, value * (high / value) ** power)


def rate(replicates: np.ndarray, num_prompts: int) -> Estimate | None:
    """As `estimate`, for a quantity in [0, 1]: widened as it is, and cut off at both ends."""
    found = _percentiles(replicates, num_prompts)
    if found is None:
        return None
    value, low, high = found
    if low is None or high is None:
        return Estimate(value)
    wider = _widening(num_prompts)
    return Estimate(
        value, max(value + wider * (low - value), 0.0), min(value + wider * (high - value), 1.0)
    )


def _percentiles(
    replicates: np.ndarray, num_prompts: int
) -> tuple[float, float | None, float | None] | None:
    value = float(replicates[0])
    if not np.isfinite(value):
        return None
    spread = replicates[1:][np.isfinite(replicates[1:])]
    if num_prompts < 2 or not len(spread):
        return value, None, None
    # np.percentile does the same at four times the price, and a run asks thousands of times.
    places = np.array([0.025, 0.975]) * (len(spread) - 1)
    low, high = np.interp(places, np.arange(len(spread)), np.sort(spread))
    return value, min(float(low), value), max(float(high), value)


def _widening(num_prompts: int) -> float:
    freedom = num_prompts - 1
    return sqrt(num_prompts / freedom) * float(stdtrit(freedom, 0.975)) / NORMAL_QUANTILE
