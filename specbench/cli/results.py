"""`compare-theory`, `recommend`, `peers`, `tables`, `plot`: all that is made from a run folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.output import Output
from specbench.experiment.config import UsageError

if TYPE_CHECKING:
    from specbench.experiment.store import Run
    from specbench.measure.collection import Collected
    from specbench.measure.decomposition import Decomposition
    from specbench.measure.peers import PeerComparison
    from specbench.measure.summary import CellSummary

RUN = Annotated[
    Path | None, typer.Argument(help="Run folder of a sweep. Default: the latest below runs/.")
]
JSON = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
NOTHING_DRAFTED = "this run has measured no gamma above 0 with its baseline yet"


@dataclass(frozen=True)
class Evaluated:
    """A run and everything that follows from its raw lines."""

    folder: Path
    run: Run
    collected: Collected
    summaries: list[CellSummary]
    decompositions: list[Decomposition]

    def natural(self, output: Output) -> list[CellSummary]:
        """The summaries without tasks whose prompts are synthetic; says which were left out."""
        from specbench.report.provenance import left_out, natural

        note = left_out(self.run.info)
        if note:
            output.note(note)
        return natural(self.run.info, self.summaries)

    def write_tables(self) -> list[Path]:
        """Write every table into the run folder."""
        from specbench.report import write_tables

        return write_tables(
            self.folder / "tables",
            self.run.info,
            self.summaries,
            self.decompositions,
            self.compare_peers(),
        )

    def compare_peers(self) -> list[PeerComparison]:
        """Another engine's arms beside ours; empty where none was measured."""
        from specbench.measure.peers import compare_peers

        return compare_peers(self.collected, self.summaries)

    def write_figures(self) -> list[Path]:
        """Write every figure into the run folder."""
        from specbench.report import write_figures

        return write_figures(
            self.folder / "figures", self.run.info, self.summaries, self.decompositions
        )


def evaluate(folder: Path | None, output: Output) -> Evaluated:
    """Read a run and compute its numbers; says so where its last line was left unfinished.

    Raises UsageError where there is none, where nothing was measured, and for a raw line that
    cannot be; the message names the line.
    """
    from specbench.experiment.folders import latest_run
    from specbench.experiment.store import RAW, Store
    from specbench.measure.collection import collect
    from specbench.measure.decomposition import decompose_collected
    from specbench.measure.metrics import summarize_collected
    from specbench.measure.validation import InvalidRecord

    folder = folder or latest_run()
    run = Store(folder).read()
    if run.torn is not None:
        output.note(f"{folder / RAW} line {run.torn} was left unfinished and is dropped")
    if not run.records:
        raise UsageError(
            f"RUN {folder}: {RAW} holds no measurement; allowed is a run that has begun to "
            "measure (`specbench sweep --resume` goes on with it)"
        )
    try:
        collected = collect(run.cells, run.records, seed=run.info["config"]["seed"])
    except InvalidRecord as error:
        line = run.line_of(error.record)
        raise UsageError(f"RUN {folder}: {RAW} line {line}: {error}") from None
    return Evaluated(
        folder, run, collected, summarize_collected(collected), decompose_collected(collected)
    )


def compare_theory(run: RUN = None, json: JSON = False, quiet: QUIET = False) -> None:
    """Predicted against measured: alpha, c, tokens per round, speedup, and what explains the gap.

    The paper's formula stands beside a refined prediction from measured step times; rows where
    prediction and measurement disagree beyond the interval are marked.
    """
    from specbench.report import console as show

    output = Output(json, quiet)
    found = evaluate(run, output)
    output.note(f"run folder {found.folder}")
    if not found.decompositions:
        output.note(f"nothing to compare: {NOTHING_DRAFTED}")
    output.results(
        {
            "run": str(found.folder),
            "table4": show.table4_rows(found.summaries, found.decompositions),
            "gap": show.gap_rows(found.decompositions),
        },
        show.table4(found.summaries, found.decompositions),
        show.gap(found.decompositions),
    )


def recommend(
    run: RUN = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="c=0.02 or alpha=0.8: the same from the formula, not measured."),
    ] = None,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Which draft and gamma to deploy for each task and temperature, "none" included."""
    from specbench.measure.recommendation import recommend_collected
    from specbench.measure.recommendation import what_if as suppose
    from specbench.report import console as show

    output = Output(json, quiet)
    found = evaluate(run, output)
    summaries = found.natural(output)
    advice = recommend_collected(found.collected, summaries)
    supposed = suppose(summaries, **_supposition(what_if)) if what_if else []
    output.note(f"run folder {found.folder}")
    output.results(
        {
            "run": str(found.folder),
            "recommendations": show.recommendation_rows(advice),
            "what_if": show.what_if_rows(supposed),
        },
        show.recommendations(advice),
        *([show.what_if(supposed)] if supposed else []),
    )


def peers(run: RUN = None, json: JSON = False, quiet: QUIET = False) -> None:
    """Another engine beside ours: speed, whether the ids agree, and what was really drafted.

    For runs of `sweep --arm transformers`. An arm that the engine cannot run says why.
    """
    from specbench.report import console as show

    output = Output(json, quiet)
    found = evaluate(run, output)
    comparisons = found.compare_peers()
    output.note(f"run folder {found.folder}")
    output.results(
        {"run": str(found.folder), "peers": show.peer_rows(comparisons)}, show.peers(comparisons)
    )


def tables(run: RUN = None, json: JSON = False, quiet: QUIET = False) -> None:
    """Make the tables of a run again from its raw lines (CSV and Markdown)."""
    from specbench.report import console as show

    output = Output(json, quiet)
    found = evaluate(run, output)
    paths = found.write_tables()
    output.results(
        {"run": str(found.folder), "files": [str(path) for path in paths]},
        show.table2(found.natural(output)),
        *(str(path) for path in paths),
    )


def plot(run: RUN = None, json: JSON = False, quiet: QUIET = False) -> None:
    """Draw the figures of a run again from its raw lines."""
    output = Output(json, quiet)
    found = evaluate(run, output)
    with output.busy("figures"):
        paths = found.write_figures()
    if not paths:
        output.note(f"nothing to draw: {NOTHING_DRAFTED}")
    files = [str(path) for path in paths]
    output.results({"run": str(found.folder), "files": files}, *files)


def _supposition(texts: list[str]) -> dict[str, float]:
    values = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        highest = {"alpha": 1.0, "c": sys.float_info.max}.get(name, -1.0)
        if name in values or not 0.0 <= value <= highest:
            raise UsageError(
                f"--what-if {text!r}: allowed are c=NUMBER (>= 0) and alpha=NUMBER (0 to 1), each "
                "once"
            )
        values[name] = value
    return values
