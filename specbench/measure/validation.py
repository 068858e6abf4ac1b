"""Records that contradict themselves are refused before any number is made of them.

Owns the relations between the counts of a round that hold for every decoder (see the counting
rule in `records`), and what seconds and overlaps may be. A tool that averages impossible counts
reports impossible ratios, such as more tokens per target call than gamma + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specbench.measure.rounds import RowRounds
from specbench.records import Cell, Generation, OverlapTrace, Record, StepTimes

# float32 models may sum a distribution to 1.0000001.
LARGEST_OVERLAP = 1.0 + 1e-3


class InvalidRecord(ValueError):
    """A stored record cannot have happened, or belongs to no cell; the message names it."""

    def __init__(self, record: Record, what: str) -> None:
        super().__init__(f"{_name(record)}{what}")
        self.record = record


def _name(record: Record) -> str:
    if isinstance(record, Generation):
        prompts = ",".join(record.prompt_ids)
        return f"generation of prompt {prompts}, repeat {record.repeat}, cell {record.cell}"
    if isinstance(record, StepTimes):
        return f"step times of {record.model}, cell {record.cell}"
    kind = "overlaps" if isinstance(record, OverlapTrace) else "difference"
    return f"{kind} of prompt {record.prompt_id}, cell {record.cell}"


def check_alone(record: Record) -> None:
    """Raises InvalidRecord for seconds below zero and for an overlap that is no probability."""
    for name, seconds in _seconds(record):
        if seconds is not None and seconds < 0.0:
            raise InvalidRecord(record, f": {name} is {seconds:g} seconds; allowed is 0 or more")
    if isinstance(record, OverlapTrace):
        for value in record.overlaps:
            if not 0.0 <= value <= LARGEST_OVERLAP:
                raise InvalidRecord(record, f": overlap {value:g}; allowed are numbers in [0, 1]")


def _seconds(record: Record) -> Iterator[tuple[str, float | None]]:
    if isinstance(record, StepTimes):
        yield from (("a call", seconds) for seconds in record.seconds)
    if isinstance(record, Generation):
        for name in ("total_s", "target_prefill_s", "draft_prefill_s", "ttft_s", "decode_s"):
            yield name, getattr(record, name)
        for number, item in enumerate(record.rounds):
            yield f"round {number}, draft_s", item.draft_s
            yield f"round {number}, verify_s", item.verify_s
            yield f"round {number}, rest_s", item.rest_s


def check(cell: Cell, generations: Sequence[Generation], rows: RowRounds) -> None:
    """Raises InvalidRecord for the first generation or round that cannot have happened.

    generations: those of `cell` that ended well. rows: their rounds, row by row.
    """
    for generation in generations:
        _check_shape(generation, cell.group.batch)
    for relation, broken in _relations(cell.arm.gamma, rows).items():
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            generation = generations[rows.generation[first]]
            raise InvalidRecord(generation, f", round {rows.round[first]}: {relation}")
    _check_totals(generations, rows)


def _check_shape(generation: Generation, batch: int) -> None:
    num_rows = len(generation.prompt_ids)
    if not 0 < num_rows <= batch or len(generation.tokens) != num_rows:
        raise InvalidRecord(
            generation,
            f": {len(generation.tokens)} outputs for {num_rows} prompts at batch {batch}",
        )
    for number, item in enumerate(generation.rounds):
        if not (
            len(item.num_drafted)
            == len(item.num_accepted)
            == len(item.num_tested)
            == len(item.num_committed)
            == num_rows
        ):
            raise InvalidRecord(
                generation, f", round {number}: a count does not have {num_rows} rows"
            )


def _relations(gamma: int, rows: RowRounds) -> dict[str, np.ndarray]:
    """Each relation in words, with the rounds that break it."""
    drafted, tested, accepted, committed = rows.drafted, rows.tested, rows.accepted, rows.committed
    rejected = tested > accepted
    return {
        "a count is negative": np.minimum.reduce([drafted, tested, accepted, committed]) < 0,
        "more tested than drafted": tested > drafted,
        "more accepted than tested": accepted > tested,
        "more than one rejection": tested - accepted > 1,
        "a rejection commits the accepted drafts and one more": rejected
        & (committed != accepted + 1),
        "committed is not accepted or accepted + 1": (committed < accepted)
        | (committed > accepted + 1),
        "nothing committed by a row that drafted": (drafted > 0) & (committed == 0),
        "drafts neither tested nor behind EOS": ~rejected
        & (tested < drafted)
        & (committed != accepted),
        f"more than gamma + 1 = {gamma + 1} tokens committed": committed > gamma + 1,
    }


def _check_totals(generations: Sequence[Generation], rows: RowRounds) -> None:
    committed = rows.committed_per_output()
    for index, generation in enumerate(generations):
        for row, tokens in enumerate(generation.tokens):
            in_rounds = committed.get((index, row), 0)
            if len(tokens) != in_rounds:
                raise InvalidRecord(
                    generation,
                    f", row {row}: {len(tokens)} tokens but the rounds committed {in_rounds}",
                )
