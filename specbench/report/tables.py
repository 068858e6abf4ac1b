"""The tables of a run as files: CSV for programs, Markdown and LaTeX for people.

Owns files and their formats. Every file is made whole from the summaries and replaces the old
one in one step, so that a reader never meets half a table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from specbench.experiment.store import write_atomically
from specbench.measure.decomposition import Decomposition
from specbench.measure.peers import PeerComparison
from specbench.measure.summary import CellSummary
from specbench.report import provenance
from specbench.report.batches import BATCHES, batch_rows
from specbench.report.best import TABLE_2, table2_rows
from specbench.report.grid import GRID, grid_rows
from specbench.report.layout import Layout
from specbench.report.peers import PEERS, peer_rows
from specbench.report.predicted import GAP, TABLE_4, gap_rows, table4_rows
from specbench.report.provenance import Info
from specbench.report.published import COMPARISON, PAPER, comparison_rows, paper_rows
from specbench.report.rows import Row, Value


def write_tables(
    folder: Path,
    info: Info,
    summaries: Sequence[CellSummary],
    decompositions: Sequence[Decomposition],
    peers: Sequence[PeerComparison] = (),
) -> list[Path]:
    """Write every table of a run into `folder`; returns the paths.

    info: what run.json holds. peers: where another engine was measured beside ours. CSV rows
    carry hardware, prompts' hash, commit and command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = provenance.facts(info, summaries)
    measured: dict[str, tuple[Layout, list[Row]]] = {
        "table2": (TABLE_2, table2_rows(provenance.natural(info, summaries))),
        "table4": (TABLE_4, table4_rows(summaries, decompositions)),
        "grid": (GRID, grid_rows(summaries)),
        "gap": (GAP, gap_rows(decompositions)),
        "comparison": (COMPARISON, comparison_rows(summaries)),
    }
    if by_batch := batch_rows(provenance.natural(info, summaries)):
        measured["batch"] = (BATCHES, by_batch)
    if peers:
        measured["peers"] = (PEERS, peer_rows(peers))
    paths = []
    for name, (form, rows) in measured.items():
        note = provenance.left_out(info) if name == "table2" else None
        extra = (note,) if note else ()
        shown = Layout(form.title, form.columns, (*form.notes, *extra)).shown(rows)
        traced = [{**row, **provenance.columns(info, str(row["task"]))} for row in rows]
        paths.append(_write(folder / f"{name}.csv", as_csv(traced)))
        paths.append(_write(folder / f"{name}.md", as_markdown(shown, rows, facts)))
        if name in {"table2", "table4"}:
            paths.append(_write(folder / f"{name}.tex", as_latex(shown, rows)))
    paper = paper_rows()
    paths.append(_write(folder / "paper.csv", as_csv(paper)))
    paths.append(_write(folder / "paper.md", as_markdown(PAPER, paper, {})))
    return paths


def as_csv(rows: Sequence[Row]) -> str:
    """The rows with a header; a missing value is empty, numbers keep every digit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(found) for name, found in row.items()} for row in rows)
    return text.getvalue()


def as_markdown(form: Layout, rows: Sequence[Row], facts: dict[str, str]) -> str:
    """Title, provenance, table and notes."""
    lines = [f"# {form.title}", ""]
    lines += [f"- {name}: {_escaped(text)}" for name, text in facts.items()]
    lines += [""] if facts else []
    lines += [_line([column.title for column in form.columns])]
    lines += [_line(["---:" if column.number else ":---" for column in form.columns])]
    lines += [_line([_escaped(text) for text in texts]) for texts in form.texts(rows)]
    for note in form.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def as_latex(form: Layout, rows: Sequence[Row]) -> str:
    """A tabular for booktabs."""
    spec = "".join("r" if column.number else "l" for column in form.columns)
    body = [[column.title for column in form.columns], *form.texts(rows)]
    lines = [" & ".join(_latex(text) for text in texts) + r" \\" for texts in body]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _write(path: Path, text: str) -> Path:
    write_atomically(path, text)
    return path


def _plain(found: Value) -> Value:
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else found


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "γ": r"$\gamma$", "α": r"$\alpha$", "✗": r"$\times$"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
