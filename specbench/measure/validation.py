"""Records that contradict themselves are refused before any number is made of them.

Owns the relations between the counts of a round that hold for every decoder (see the counting
rule in `records`). A tool that averages impossible counts reports impossible ratios, such as
more tokens per target call than gamma + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specbench.measure.rounds import RowRounds
from specbench.records import Cell, Generation


class InvalidRecord(ValueError):
    """A stored record breaks the counting rule; the message names the record."""


def name_of(generation: Generation) -> str:
    """A generation as a message names it."""
    prompts = ",".join(generation.prompt_ids)
    return f"generation of prompt {prompts}, repeat {generation.repeat}, cell {generation.cell}"


def check(cell: Cell, generations: Sequence[Generation], rows: RowRounds) -> None:
    """Raises InvalidRecord for the first generation or round that cannot have happened.

    generations: those of `cell` that ended well. rows: their rounds, row by row.
    """
    for generation in generations:
        _check_shape(generation, cell.group.batch)
    for relation, broken in _relations(cell.arm.gamma, rows).items():
        if broken.any():
            first = int(np.flatnonzero(broken)[0])
            where = name_of(generations[rows.generation[first]])
            raise InvalidRecord(f"{where}, round {rows.round[first]}: {relation}")
    _check_totals(generations, rows)


def _check_shape(generation: Generation, batch: int) -> None:
    num_rows = len(generation.prompt_ids)
    if not 0 < num_rows <= batch or len(generation.tokens) != num_rows:
        raise InvalidRecord(
            f"{name_of(generation)}: {len(generation.tokens)} outputs for {num_rows} prompts "
            f"at batch {batch}"
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
                f"{name_of(generation)}, round {number}: a count does not have {num_rows} rows"
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
                    f"{name_of(generation)}, row {row}: {len(tokens)} tokens but the rounds "
                    f"committed {in_rounds}"
                )
