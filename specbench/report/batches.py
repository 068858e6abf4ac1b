"""Speedup against batch: how the best gamma of each draft fares as prompts are decoded together.

Owns the point at which it falls under 1, in numbers and in words. A row holds the arm at each
batch against the baseline at that same batch; what a larger batch does to the baseline itself is
in the grid. Larger batches use up the arithmetic that verifying a few tokens takes for nothing
at batch 1, so a speedup is expected to fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.measure.recommendation import best_of, is_candidate
from specbench.measure.summary import CellSummary
from specbench.measure.verdict import FASTER, LOSES, null_of, verdict
from specbench.records import Group
from specbench.report.layout import TEMPERATURE, Layout, word
from specbench.report.rows import Row, group_of, joined, own_drafted
from specbench.statistics import Estimate


@dataclass(frozen=True)
class AgainstBatch:
    """One draft of a task and temperature at two batch sizes or more.

    group: that of the cells at batch 1. best: the best gamma at each batch, as in Table 2,
    smallest batch first; its decode_speedup was measured. nulls: that of the null arm at each.
    """

    group: Group
    draft: str
    best: tuple[CellSummary, ...]
    nulls: tuple[Estimate | None, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes, ascending."""
        return tuple(one.cell.group.batch for one in self.best)

    @property
    def first_under(self) -> int | None:
        """The smallest batch at which the decode-only speedup is under 1; None where none is."""
        under = (one.cell.group.batch for one in self.best if _decode(one).value < 1.0)
        return next(under, None)

    @property
    def last_above(self) -> int | None:
        """The batch before `first_under`, or the largest where none is; None before the first."""
        above = [b for b in self.batches if self.first_under is None or b < self.first_under]
        return max(above, default=None)

    @property
    def sentence(self) -> str:
        """Where it falls under 1, in a few words, and whether that may be chance."""
        under, above = self.first_under, self.last_above
        said, decisive = "stays above 1", [*self.batches]
        if under is not None:
            said = (
                f"falls under 1 between {above} and {under}" if above else "under 1 from the start"
            )
            decisive = [under]
        sure = all(self._verdict_at(batch) in {FASTER, LOSES} for batch in decisive)
        return said if sure else f"{said}, which may be chance"

    def _verdict_at(self, batch: int) -> str:
        index = self.batches.index(batch)
        return verdict(_decode(self.best[index]), self.nulls[index])


def against_batch(summaries: Sequence[CellSummary]) -> list[AgainstBatch]:
    """One for each draft of a task and temperature that was measured at more than one batch."""
    series: dict[tuple[Group, str], dict[Group, list[CellSummary]]] = {}
    for one in own_drafted(summaries):
        if is_candidate(one) and one.decode_speedup is not None:
            group = one.cell.group
            found = series.setdefault((replace(group, batch=1), one.cell.arm.draft or ""), {})
            found.setdefault(group, []).append(one)
    return [
        _against_batch(summaries, group, draft, found)
        for (group, draft), found in series.items()
        if len(found) > 1
    ]


def _against_batch(
    summaries: Sequence[CellSummary],
    group: Group,
    draft: str,
    found: dict[Group, list[CellSummary]],
) -> AgainstBatch:
    groups = sorted(found, key=lambda one: one.batch)
    return AgainstBatch(
        group,
        draft,
        tuple(best_of(found[one]) for one in groups),
        tuple(null_of(summaries, one, decode_only=True) for one in groups),
    )


def batch_rows(summaries: Sequence[CellSummary]) -> list[Row]:
    """One row per task, temperature and draft; lists have an entry for each batch."""
    rows: list[Row] = []
    for one in against_batch(summaries):
        group = group_of(one.group)
        del group["batch"]
        rows.append(
            {
                **group,
                "draft": one.draft,
                "batches": joined(one.batches),
                "best_gammas": joined(best.cell.arm.gamma for best in one.best),
                "decode_speedups": joined(_decode(best).value for best in one.best),
                "walltime_improvements": joined(best.walltime_improvement for best in one.best),
                "last_above": one.last_above,
                "first_under": one.first_under,
                "against_batch": one.sentence,
            }
        )
    return rows


def _decode(one: CellSummary) -> Estimate:
    assert one.decode_speedup is not None  # `against_batch`
    return one.decode_speedup


BATCHES = Layout(
    "Speedup against batch",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        word("batches", "batch"),
        word("best_gammas", "γ"),
        word("decode_speedups", "decode only"),
        word("walltime_improvements", "S predicted"),
        word("against_batch", "against batch"),
    ),
    (
        (
            "Each entry of a list belongs to one batch. decode only: of the best γ, against the "
            "baseline at the same batch. S predicted: Thm 3.8 at that γ, with c measured at that "
            "batch; it takes verification for free, which it is less with every prompt more."
        ),
    ),
)
