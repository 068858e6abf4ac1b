"""What `sweep` does once it knows what is asked: session after session, then the tables.

Owns which process does what. The first one measures session 0, has each further session measured
by a process of its own, and shows what the run folder then holds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.errors import DONE, FAILED_CELLS, INTERRUPTED, REFUSED, CommandError
from specbench.cli.output import Output
from specbench.cli.preflight import prepared, refusals
from specbench.experiment.config import Config

if TYPE_CHECKING:
    from specbench.experiment.prepare import Prepared
    from specbench.experiment.run import Sweep
    from specbench.experiment.store import Store


def measure(config: Config, out: Path | None, resume: bool, session: int, output: Output) -> int:
    """Measure a run, or one session of it for the process that began it; returns the exit code."""
    from specbench.experiment.folders import choose_folder
    from specbench.experiment.store import Store

    store = Store(choose_folder(out, resume))
    try:
        num_failed = _measure_here(config, store, session, output)
        if session:
            return FAILED_CELLS if num_failed else DONE
        broken = _measure_elsewhere(config, store, output)
        shown = _show(store, output)
    except KeyboardInterrupt:
        raise CommandError(_stopped(store), INTERRUPTED) from None
    return broken or shown


def _stopped(store: Store) -> str:
    if not store.has_begun:
        return "stopped before anything was measured"
    where = f"--resume --out {store.folder}"
    return f"stopped; what was measured is kept, and the same command with {where} goes on"


def _measure_here(config: Config, store: Store, session: int, output: Output) -> int:
    """One session in this process; returns the number of failed cells."""
    from specbench.experiment.run import Sweep
    from specbench.experiment.store import Mismatch

    ready = _gated(prepared(config, output), store, output)
    try:
        earlier = store.open(ready.info, [cell for cells in ready.groups for cell in cells])
    except Mismatch as error:
        raise CommandError(str(error), REFUSED) from None
    if not session:
        for note in (*ready.notes, f"run folder {store.folder}"):
            output.note(note)
    with output.watch() as progress:
        sweep = Sweep(ready, store, progress, earlier, session)
        num_failed = sweep.run()
        left = _refine(sweep, ready)
    for note in sweep.notes:
        output.note(note)
    if left:
        share = f" of session {session + 1}" if config.sessions > 1 else ""
        output.note(f"{left} cells are still unsure at the end of the budget{share}")
    return num_failed


def _refine(sweep: Sweep, ready: Prepared) -> int:
    """Spend this session's share of --max-minutes; returns the number of cells still unsure."""
    from specbench.experiment.refine import refine

    config = ready.config
    if config.max_minutes is None:
        return 0
    budget_s = 60.0 * config.max_minutes / config.sessions
    return len(refine(sweep, ready.groups, config.target_width, budget_s, config.seed))


def _measure_elsewhere(config: Config, store: Store, output: Output) -> int:
    """The other sessions, one process after the other; returns the exit code of one that broke."""
    from specbench.experiment.sessions import run_session

    for session in range(1, config.sessions):
        output.note(f"session {session + 1} of {config.sessions}")
        code = run_session(config, store.folder, session, output.quiet)
        if code not in (DONE, FAILED_CELLS):
            which = f"session {session + 1} of {config.sessions} ended with exit code {code}"
            print(f"specbench: {which}; what was measured is kept", file=sys.stderr)
            return code
    return DONE


def _show(store: Store, output: Output) -> int:
    """Write and print what the run folder holds."""
    from specbench.cli.results import evaluate
    from specbench.report import console as show

    with output.busy("tables and figures"):
        found = evaluate(store.folder, output)
        paths = [*found.write_tables(), *found.write_figures()]
    summaries = found.natural(output)
    num_failed = sum(one.num_failed > 0 for one in found.summaries)
    output.results(
        {
            "run": str(store.folder),
            "table2": show.table2_rows(summaries),
            "batch": show.batch_rows(summaries),
            "table4": show.table4_rows(found.summaries, found.decompositions),
            "num_failed_cells": num_failed,
            "files": [str(path) for path in paths],
        },
        show.table2(summaries),
    )
    output.note(f"tables and figures in {store.folder}; specbench compare-theory explains them")
    if num_failed:
        output.note(f"{num_failed} cells failed; their rows say why")
    return FAILED_CELLS if num_failed else DONE


def _gated(ready: Prepared, store: Store, output: Output) -> Prepared:
    from specbench.experiment.prove import gated

    with refusals(), output.busy("preflight") as say:
        return gated(ready, store, say)
