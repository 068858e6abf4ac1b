"""Repeats and sessions: which timings of two arms are compared.

Owns how repeated timings of identical work become one number per prompt: the median over the
repeats of a session, which a single stall cannot move, then the mean over sessions. Two arms are
compared on the repeats that both have, taken within a moment of each other: what is settled is
the ratio of the two within each repeat. A machine has slow minutes and slow seconds; whatever
meets both arms of a repeat cancels there, and does not when each arm is settled by itself. (Ten
runs of a target against itself, 5 to 9 repeats: intervals 2.0 to 3.4 % wide instead of 3.9 to
5.9 %.)

A session is one process. Addresses, page colours and clocks are drawn anew in each, once for all
its prompts; no resampling of prompts within one session can see that, so intervals have a term
for it (`statistics.with_sessions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specbench.records import Generation
from specbench.statistics import ratio

Slot = tuple[int, int]


class Slots:
    """Where each generation of n prompts belongs: prompts down, repeats of sessions across.

    slots: (session, repeat) of each column, C of them. sessions: the first of each pair, (C,).
    """

    def __init__(self, repeats: Sequence[Sequence[Generation]]) -> None:
        """repeats: the generations of each prompt."""
        flat = [
            (row, (one.session, one.repeat)) for row, group in enumerate(repeats) for one in group
        ]
        self.slots: tuple[Slot, ...] = tuple(sorted({slot for _, slot in flat}))
        self.sessions = np.array([session for session, _ in self.slots], dtype=np.int64)
        place = {slot: column for column, slot in enumerate(self.slots)}
        self._at = [row for row, _ in flat], [place[slot] for _, slot in flat]
        self._shape = len(repeats), len(self.slots)

    def table(self, values: ArrayLike) -> np.ndarray:
        """One value per generation, in order, as (n, C); NaN where there is none."""
        table = np.full(self._shape, np.nan)
        table[self._at] = values
        return table

    def settle(self, values: ArrayLike) -> np.ndarray:
        """One value per generation, in order, as one per prompt, (n,)."""
        return over_sessions(by_session(self.table(values), self.sessions))


@dataclass(frozen=True)
class Paired:
    """Seconds of two arms on the same n prompts, from the repeats that timed both.

    first_s, second_s: by session, (sessions, n): the second's median over repeats, and that times
    the median ratio of the first; NaN in both where a session did not time a prompt in both.
    error: relative standard error that repeating leaves in each ratio, (n,); NaN for one repeat.
    """

    first_s: np.ndarray
    second_s: np.ndarray
    error: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Whether some session timed the prompt in both, (n,)."""
        known: np.ndarray = np.isfinite(self.second_s).any(axis=0)
        return known

    def of(self, only: np.ndarray) -> Paired:
        """The same for some of the prompts."""
        return Paired(self.first_s[:, only], self.second_s[:, only], self.error[only])


def paired(first: tuple[Slots, np.ndarray], second: tuple[Slots, np.ndarray]) -> Paired:
    """Two arms side by side, each given by its slots and seconds in them, (n, C).

    Row i of both is the same prompt. Seconds of 0 or less are no seconds: what nobody timed.
    """
    common = [slot for slot in first[0].slots if slot in second[0].slots]
    ours, theirs = (
        seconds[:, [slots.slots.index(slot) for slot in common]]
        for slots, seconds in (first, second)
    )
    sessions = np.array([session for session, _ in common], dtype=np.int64)
    ratios = ratio(np.where(ours > 0.0, ours, np.nan), np.where(theirs > 0.0, theirs, np.nan))
    theirs = np.where(np.isnan(ratios), np.nan, theirs)
    second_s = by_session(theirs, sessions)
    # Of logarithms: the middle of two ratios is then the same whichever arm comes first.
    first_s = second_s * np.exp(by_session(np.log(ratios), sessions))
    return Paired(first_s, second_s, repeat_error(ratios, sessions))


def by_session(seconds: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """The median over the columns of each session, (S, n), from (n, C); NaN where none is known."""
    medians = [_medians(seconds[:, sessions == session]) for session in np.unique(sessions)]
    return np.array(medians).reshape(len(medians), len(seconds))


def over_sessions(seconds: np.ndarray) -> np.ndarray:
    """The mean over the sessions where it is known, (n,), from (S, n); NaN where none is."""
    known = np.isfinite(seconds)
    sums, counts = np.where(known, seconds, 0.0).sum(axis=0), known.sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def repeat_error(seconds: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """Relative standard error that repeating leaves in each prompt's seconds, (n,), from (n, C).

    Standard deviation of repeats within a session / their root number, relative to the seconds
    (the same of a ratio of seconds); NaN where no session has two repeats.
    """
    variances = []
    for session in np.unique(sessions):
        table = seconds[:, sessions == session]
        known = np.isfinite(table)
        counts = known.sum(axis=1)
        middle = np.where(known, table, 0.0).sum(axis=1) / np.maximum(counts, 1)
        squares = np.where(known, (table - middle[:, None]) ** 2, 0.0).sum(axis=1)
        variances.append(np.where(counts > 1, squares / np.maximum(counts - 1, 1), np.nan))
    variance = over_sessions(np.array(variances).reshape(len(variances), len(seconds)))
    counts = np.maximum(np.isfinite(seconds).sum(axis=1), 1)
    errors = np.sqrt(variance / counts) / over_sessions(by_session(seconds, sessions))
    return np.asarray(errors)


def _medians(table: np.ndarray) -> np.ndarray:
    """The median of each row's known values; numpy's own warns where there are none."""
    last = np.maximum(np.isfinite(table).sum(axis=1) - 1, 0)
    ordered, rows = np.sort(table, axis=1), np.arange(len(table))  # NaN comes last
    return np.asarray((ordered[rows, last // 2] + ordered[rows, (last + 1) // 2]) / 2.0)
