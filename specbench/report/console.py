"""The same rows for the terminal, as rich tables; `*_rows` are their plain form for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from specbench.measure.decomposition import Decomposition, interval
from specbench.measure.peers import PeerComparison
from specbench.measure.recommendation import Predicted, Recommendation
from specbench.measure.summary import CellSummary
from specbench.report import layout
from specbench.report.advice import (
    DRAFTS,
    RECOMMENDATIONS,
    WHAT_IF,
    draft_rows,
    recommendation_rows,
    what_if_rows,
)
from specbench.report.batches import BATCHES, batch_rows
from specbench.report.best import TABLE_2, table2_rows
from specbench.report.grid import grid_rows
from specbench.report.layout import Layout
from specbench.report.peers import PEERS, peer_rows
from specbench.report.predicted import TABLE_4, gap_rows, table4_rows
from specbench.report.published import PAPER, TABLE_1, paper_rows, table1_rows
from specbench.report.rows import Row

__all__ = [
    "batch_rows",
    "gap",
    "gap_rows",
    "grid_rows",
    "paper",
    "paper_rows",
    "peer_rows",
    "peers",
    "recommendation_rows",
    "recommendations",
    "table1",
    "table1_rows",
    "table2",
    "table2_rows",
    "table4",
    "table4_rows",
    "what_if",
    "what_if_rows",
]


WORD_WIDTH = 9  # of a column of words, at least


def table2(summaries: Sequence[CellSummary]) -> RenderableType:
    """The best gamma of every draft, and where a larger batch takes its gain away.

    Without a draft, gamma 0 alone, what the null arms came to.
    """
    if not summaries:
        return Text("No table: every prompt that was measured is synthetic.")
    if not table2_rows(summaries):
        return Text("\n".join(["No draft was timed.", *_nulls(summaries)]))
    shown, by_batch = _table(TABLE_2, table2_rows(summaries)), batch_rows(summaries)
    return Group(shown, _table(BATCHES, by_batch)) if by_batch else shown


def _nulls(summaries: Sequence[CellSummary]) -> list[str]:
    """One line for each null arm."""
    return [
        f"{one.cell.group.task} at T={one.cell.group.sampling.temperature:g}, batch "
        f"{one.cell.group.batch}: baseline / itself {interval(one.speedup)}"
        for one in summaries
        if one.cell.arm.replica and one.speedup is not None
    ]


def table4(
    summaries: Sequence[CellSummary], decompositions: Sequence[Decomposition]
) -> RenderableType:
    """Predicted beside measured, disagreements marked."""
    return _table(TABLE_4, table4_rows(summaries, decompositions))


def gap(decompositions: Sequence[Decomposition]) -> RenderableType:
    """The factors of every cell in one line each, and the largest step of the best in words."""
    rows = [_factors(found) for found in decompositions]
    if not rows:
        return Text("No gap to explain: step times or overlaps are missing.")
    columns = [layout.word("task"), layout.word("draft"), layout.Column("T", layout.sampling)]
    columns += [layout.value("batch"), layout.value("gamma", "γ"), layout.value("formula")]
    columns += [layout.value(step.name, step.name, 3) for step in decompositions[0].steps[:-1]]
    columns += [layout.value(name, name, 3) for name in ("refined", "unexplained", "decode")]
    columns += [layout.value(name, name, 3) for name in ("encoder and prefill", "end to end")]
    form = Layout("From the formula to the measured speedup, factor by factor", tuple(columns))
    sentences = [Text(f"{_name(found)}: {found.sentence}") for found in _best(decompositions)]
    return Group(_table(form, rows), *sentences)


def peers(comparisons: Sequence[PeerComparison]) -> RenderableType:
    """Another engine beside ours."""
    if not comparisons:
        return Text("No other engine was measured in this run; sweep --arm transformers does it.")
    return _table(PEERS, peer_rows(comparisons))


def recommendations(advice: Sequence[Recommendation]) -> RenderableType:
    """What to deploy, and what each draft would need."""
    return Group(
        _table(RECOMMENDATIONS, recommendation_rows(advice)),
        _table(DRAFTS, draft_rows(advice)),
    )


def what_if(supposed: Sequence[Predicted]) -> RenderableType:
    """The formula's answer to a supposition, marked as not measured."""
    return _table(WHAT_IF, what_if_rows(supposed))


def table1() -> RenderableType:
    """Table 1 of the paper, printed and computed."""
    return _table(TABLE_1, table1_rows())


def paper() -> RenderableType:
    """The paper's measured rows through its own formula."""
    return _table(PAPER, paper_rows())


def _table(form: Layout, rows: Sequence[Row]) -> Whole:
    shown = form.shown(rows)
    table = Table(title=form.title, caption="\n".join(form.notes) or None, caption_justify="left")
    texts = shown.texts(rows)
    for index, column in enumerate(shown.columns):
        # A number that is cut is another number; words may go on below.
        least = max(map(len, column.title.split()), default=0)
        least = max([least, *(len(row[index]) for row in texts)]) if column.number else WORD_WIDTH
        table.add_column(
            "\n".join(wrap(column.title, least)) if column.number else column.title,
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
            min_width=least,
        )
    for row in texts:
        # Text, not markup: an interval's brackets are no style.
        table.add_row(*(Text(text) for text in row))
    return Whole(table)


@dataclass(frozen=True)
class Whole:
    """A table that is never narrower than its columns' least widths; a terminal that is wraps
    its lines."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table in the width that there is, or that it needs."""
        least = sum((column.min_width or 0) + 3 for column in self.table.columns) + 1
        yield from console.render(self.table, options.update(width=max(options.max_width, least)))


def _factors(found: Decomposition) -> Row:
    group = found.cell.group
    return {
        "task": group.task,
        "draft": found.cell.arm.draft,
        "temperature": group.sampling.temperature,
        "top_k": group.sampling.top_k,
        "top_p": group.sampling.top_p,
        "batch": group.batch,
        "gamma": found.cell.arm.gamma,
        "formula": found.predicted.value,
        **{step.name: step.factor.value for step in found.all_steps},
        "refined": found.refined.value,
        "decode": found.measured.value,
        "end to end": found.measured_total.value,
    }


def _best(decompositions: Sequence[Decomposition]) -> list[Decomposition]:
    """Of every group and draft the cell that is fastest end to end."""
    best: dict[object, Decomposition] = {}
    for found in decompositions:
        key = (found.cell.group, found.cell.arm.draft)
        if key not in best or found.measured_total.value > best[key].measured_total.value:
            best[key] = found
    return list(best.values())


def _name(found: Decomposition) -> str:
    group, arm = found.cell.group, found.cell.arm
    batch = f", batch {group.batch}" if group.batch > 1 else ""
    return f"{group.task}, T={group.sampling.temperature:g}{batch}, {arm.label}"
