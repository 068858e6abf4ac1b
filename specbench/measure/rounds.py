"""The rounds of a cell as arrays: one entry per round and row, one entry per round.

Owns the walk over the records, done once and in plain Python; everything later is arithmetic on
arrays, so that thousands of generations become tables in about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.records import Generation


@dataclass(frozen=True)
class RowRounds:
    """Counts of each row in each round; rows that had finished before are left out.

    generation, row, round: indices. drafted, accepted, tested, committed: counts. before: tokens
    the row had committed before this round. last: whether it is the row's last round.
    All are integer (or boolean) arrays of one length.
    """

    generation: np.ndarray
    row: np.ndarray
    round: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    tested: np.ndarray
    committed: np.ndarray
    before: np.ndarray
    last: np.ndarray

    def total(self, values: np.ndarray, num_generations: int) -> np.ndarray:
        """The sum of `values` over each generation, (num_generations,)."""
        return np.bincount(self.generation, weights=values, minlength=num_generations)

    def committed_per_output(self) -> dict[tuple[int, int], int]:
        """Tokens committed in rounds by (generation, row)."""
        keys = zip(self.generation[self.last], self.row[self.last], strict=True)
        ends = (self.before + self.committed)[self.last]
        return {(int(one), int(row)): int(end) for (one, row), end in zip(keys, ends, strict=True)}


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of each round; NaN where nobody held a clock.

    generation: index. width: the most that any row drafted. draft_s, verify_s, rest_s: (rounds,).
    """

    generation: np.ndarray
    width: np.ndarray
    draft_s: np.ndarray
    verify_s: np.ndarray
    rest_s: np.ndarray


def row_rounds(generations: Sequence[Generation]) -> RowRounds:
    """The counts of every row and round, ordered by generation, row and round."""
    lines = [
        (index, row, number, *counts)
        for index, generation in enumerate(generations)
        for number, item in enumerate(generation.rounds)
        for row, counts in enumerate(
            zip(
                item.num_drafted,
                item.num_accepted,
                item.num_tested,
                item.num_committed,
                strict=False,  # unequal lengths are for `validation` to report
            )
        )
        if any(counts)
    ]
    table = np.array(lines, dtype=np.int64).reshape(-1, 7)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    starts = np.ones(len(table), dtype=bool)
    starts[1:] = (np.diff(table[:, 0]) != 0) | (np.diff(table[:, 1]) != 0)
    done = np.cumsum(table[:, 6]) - table[:, 6]
    before = done - np.repeat(done[starts], np.diff([*np.flatnonzero(starts), len(table)]))
    generation, row, number, drafted, accepted, tested, committed = table.T
    return RowRounds(
        generation, row, number, drafted, accepted, tested, committed, before, np.roll(starts, -1)
    )


def round_seconds(generations: Sequence[Generation]) -> RoundSeconds:
    """The seconds of every round, ordered by generation and round."""
    lines = [
        (
            index,
            max(item.num_drafted, default=0),
            0.0 if item.draft_s is None else item.draft_s,
            item.verify_s,
            item.rest_s,
        )
        for index, generation in enumerate(generations)
        for item in generation.rounds
    ]
    table = np.array(lines, dtype=np.float64).reshape(-1, 5)
    whole = table[:, :2].astype(np.int64)
    return RoundSeconds(whole[:, 0], whole[:, 1], table[:, 2], table[:, 3], table[:, 4])
