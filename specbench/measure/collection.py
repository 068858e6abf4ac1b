"""All records of a run, sorted to where they belong: one walk, shared by every question asked.

Owns which baseline belongs to which arm, and which prompts two arms have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.measure.repeats import Paired, paired
from specbench.measure.steps import StepCosts
from specbench.measure.tally import Prompt, Tally, tally
from specbench.measure.validation import InvalidRecord, check_alone
from specbench.records import (
    Arm,
    Cell,
    Generation,
    OverlapTrace,
    Record,
    StepTimes,
    TokenDifference,
)
from specbench.statistics import Resampler


@dataclass(frozen=True)
class Overlaps:
    """Totals of sum min(p, q) along the target's own outputs, with one draft, by prompt.

    prompt_ids: n of them. sums: of the overlaps. counts: of the tokens. (n,) each.
    """

    prompt_ids: tuple[str, ...]
    sums: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Collected:
    """A run's records by cell. tallies, differences: by `Cell.key`; overlaps: by baseline key
    and draft."""

    cells: tuple[Cell, ...]
    tallies: dict[str, Tally]
    overlaps: dict[tuple[str, str], Overlaps]
    steps: StepCosts
    resampler: Resampler
    differences: dict[str, tuple[TokenDifference, ...]]

    def baseline(self, cell: Cell) -> Tally | None:
        """The tally of the baseline of the cell's group, None where it was not measured."""
        return self.tallies.get(baseline_of(cell).key)

    def overlaps_of(self, cell: Cell) -> Overlaps | None:
        """The overlaps of the cell's draft in the cell's group, None where there are none."""
        return self.overlaps.get((baseline_of(cell).key, cell.arm.draft or ""))


def baseline_of(cell: Cell) -> Cell:
    """The cell of the same group that decodes with the target alone."""
    return Cell(cell.group, Arm())


def collect(
    cells: Sequence[Cell], records: Iterable[Record], seed: int, resamples: int = 2000
) -> Collected:
    """The run's records by cell.

    Raises InvalidRecord for a record that belongs to no cell or contradicts itself.
    """
    generations: dict[str, list[Generation]] = {cell.key: [] for cell in cells}
    traces: dict[tuple[str, str], dict[str, OverlapTrace]] = {}
    steps: list[StepTimes] = []
    differences: dict[str, dict[str, TokenDifference]] = {}
    for record in records:
        if record.cell not in generations:
            raise InvalidRecord(record, ": the run has no such cell")
        check_alone(record)
        if isinstance(record, Generation):
            generations[record.cell].append(record)
        elif isinstance(record, OverlapTrace):
            traces.setdefault((record.cell, record.draft), {})[record.prompt_id] = record
        elif isinstance(record, StepTimes):
            steps.append(record)
        else:
            differences.setdefault(record.cell, {})[record.prompt_id] = record
    return Collected(
        cells=tuple(cells),
        tallies={
            cell.key: tally(cell, generations[cell.key]) for cell in cells if generations[cell.key]
        },
        overlaps={key: _overlaps(list(found.values())) for key, found in traces.items()},
        steps=StepCosts(steps, seed, resamples),
        resampler=Resampler(seed, resamples),
        differences={key: tuple(found.values()) for key, found in differences.items()},
    )


def _overlaps(traces: Sequence[OverlapTrace]) -> Overlaps:
    return Overlaps(
        tuple(trace.prompt_id for trace in traces),
        # float32 models may sum a distribution to 1.0000001, which is no alpha.
        np.array([sum(min(value, 1.0) for value in trace.overlaps) for trace in traces]),
        np.array([float(len(trace.overlaps)) for trace in traces]),
    )


@dataclass(frozen=True)
class Shared:
    """The prompts that ended well in two arms and were timed side by side.

    prompts: their ids. first, second: their indices in each tally, (n,). *_tokens: what each
    arm committed, (n,). total, decode, rounds: the seconds of both arms, end to end, after prefill
    and on the clocks of the rounds, over the repeats that both have.
    """

    prompts: tuple[Prompt, ...]
    first: np.ndarray
    second: np.ndarray
    first_tokens: np.ndarray
    second_tokens: np.ndarray
    total: Paired
    decode: Paired
    rounds: Paired

    def of(self, only: np.ndarray) -> Shared:
        """The same for some of the prompts."""
        return Shared(
            prompts=tuple(self.prompts[index] for index in np.arange(len(self.prompts))[only]),
            first=self.first[only],
            second=self.second[only],
            first_tokens=self.first_tokens[only],
            second_tokens=self.second_tokens[only],
            total=self.total.of(only),
            decode=self.decode.of(only),
            rounds=self.rounds.of(only),
        )


def shared_prompts(first: Tally, second: Tally) -> Shared:
    """What two arms can be compared on. A prompt that failed in either takes no part."""
    place = {prompt: index for index, prompt in enumerate(second.prompts)}
    pairs = [
        (index, place[prompt]) for index, prompt in enumerate(first.prompts) if prompt in place
    ]
    rows, others = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    total, decode, rounds = (
        paired((first.slots, ours[rows]), (second.slots, theirs[others]))
        for ours, theirs in (
            (first.slot_total_s, second.slot_total_s),
            (first.slot_decode_s, second.slot_decode_s),
            (first.slot_round_s, second.slot_round_s),
        )
    )
    timed = total.known
    rows, others = rows[timed], others[timed]
    return Shared(
        prompts=tuple(first.prompts[row] for row in rows),
        first=rows,
        second=others,
        first_tokens=first.num_committed[rows],
        second_tokens=second.num_committed[others],
        total=total.of(timed),
        decode=decode.of(timed),
        rounds=rounds.of(timed),
    )
