"""Outcomes to the cells of a chi-square test, and how many fall into each.

Owns which outcomes are counted together, on arrays. Knows nothing of models; the test itself is
`statistics`.

An outcome is the first one or two tokens behind a prefix. The likely tokens have cells of their
own; the rest share two, one where the draft's probability is the larger and one where it is not:
a wrong rule moves mass from the one to the other, and many small cells would hide that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

# Draws that a cell expects at least. Twice the usual 5, since alarms are wanted at 1e-4.
SMALLEST_EXPECTED = 10.0
IMPOSSIBLE = -1


class TokenLaw(NamedTuple):
    """The laws of a next token over V ids: p of the target, q of the draft, and which tokens
    are possible at all (where p = 0 only because a filter's edge lies there, rounding decides).
    """

    p: Floats
    q: Floats
    possible: NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """Which cell an outcome falls into: by its first token, and for some first tokens by the
    second one. An impossible token has cell -1. probs: (n,), the cells' probabilities."""

    first: Labels
    second: dict[int, Labels]
    probs: Floats

    def masses(self, first: Floats, second: Mapping[int, Floats]) -> Floats:
        """The cells' probabilities (n,) under other laws of the first and second token."""
        alone = first.copy()
        alone[list(self.second)] = 0.0
        total = _sums(self.first, alone, len(self.probs))
        for token, labels in self.second.items():
            total += _sums(labels, first[token] * second[token], len(self.probs))
        return total

    def count(self, outcomes: Sequence[Sequence[int]]) -> tuple[Labels, int]:
        """Outcomes in each cell, (n,), and the number of impossible ones."""
        cells = [
            self.second[row[0]][row[1]] if row[0] in self.second else self.first[row[0]]
            for row in outcomes
        ]
        num_impossible = cells.count(IMPOSSIBLE)
        found = np.array([cell for cell in cells if cell != IMPOSSIBLE], dtype=np.int64)
        return np.bincount(found, minlength=len(self.probs)), num_impossible


def build_cells(first: TokenLaw, second: Mapping[int, TokenLaw], num_draws: int) -> Cells:
    """Cells that each expect 10 of `num_draws` outcomes or more (or a single cell).

    first: law of the first token. second: laws behind some first tokens, none of them the end.
    """
    alone = first.p.copy()
    alone[list(second)] = 0.0
    raw = [_own_or_side(alone, first, num_draws)]
    masses = [_sums(raw[0], alone)]
    for token, law in second.items():
        labels = _own_or_side(first.p[token] * law.p, law, num_draws)
        masses.append(_sums(labels, first.p[token] * law.p))
        raw.append(np.where(labels == IMPOSSIBLE, labels, labels + sum(map(len, masses[:-1]))))
    final, probs = _merged(np.concatenate(masses), num_draws)
    merged = [np.where(part == IMPOSSIBLE, part, final[part]) for part in raw]
    return Cells(merged[0], dict(zip(second, merged[1:], strict=True)), probs)


def _own_or_side(masses: Floats, law: TokenLaw, num_draws: int) -> Labels:
    """A label for each token (V,): its own, or that of its side; -1 where it is impossible."""
    own = num_draws * masses >= SMALLEST_EXPECTED
    labels = np.where(law.q > law.p, 1, 0)
    labels[own] = 2 + np.arange(int(own.sum()))
    labels[~law.possible] = IMPOSSIBLE
    return labels.astype(np.int64)


def _sums(labels: Labels, masses: Floats, length: int = 0) -> Floats:
    known = labels != IMPOSSIBLE
    sums = np.bincount(labels[known], weights=masses[known], minlength=length)
    return sums.astype(np.float64, copy=False)  # integers where there are none


def _merged(masses: Floats, num_draws: int) -> tuple[Labels, Floats]:
    """Labels after joining the two smallest cells until all expect enough, and their masses."""
    groups = sorted(((float(mass), [label]) for label, mass in enumerate(masses)), key=_mass)
    while len(groups) > 1 and num_draws * _mass(groups[0]) < SMALLEST_EXPECTED:
        (small, some), (next_small, others), *rest = groups
        groups = sorted([(small + next_small, some + others), *rest], key=_mass)
    final = np.zeros(len(masses), dtype=np.int64)
    for label, (_, members) in enumerate(groups):
        final[members] = label
    probs = np.array([group[0] for group in groups], dtype=np.float64)
    return final, probs / probs.sum()


def _mass(group: tuple[float, list[int]]) -> float:
    return group[0]
