"""Where runs live: a new folder for a sweep, the latest one for a reader."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from specbench.experiment.config import UsageError
from specbench.experiment.store import INFO, Store

RUNS = Path("runs")


def choose_folder(out: Path | None, resume: bool) -> Path:
    """The folder a sweep writes into. Raises UsageError where it would overwrite a run.

    out: as the user gave it; None makes runs/DATE-TIME, or takes the latest run to resume.
    """
    if out is None:
        return latest_run() if resume else RUNS / f"{datetime.now():%Y%m%d-%H%M%S}"  # noqa: DTZ005
    if not str(out).strip() or out == Path():
        raise UsageError(f"--out {str(out)!r}: allowed is a folder that may hold a run alone")
    holds_run = (out / INFO).exists()
    standing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not standing.is_dir():
        raise UsageError(f"--out {out}: {standing} is a file; allowed is a folder")
    if not os.access(standing, os.W_OK):
        raise UsageError(f"--out {out}: {standing} cannot be written to")
    if holds_run and not resume:
        raise UsageError(
            f"--out {out}: holds a run already; allowed are another folder, or --resume to go on"
        )
    Store(out).refuse_strange_lines()
    if resume and not holds_run:
        raise UsageError(f"--resume: {out} holds no {INFO}; allowed is the folder of a sweep")
    return out


def latest_run() -> Path:
    """The run folder below runs/ that was begun last. Raises UsageError where there is none."""
    found = sorted(RUNS.glob(f"*/{INFO}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(
            f"RUN: none given and none found in {RUNS}/; allowed is the folder of a sweep "
            "(`specbench sweep` makes one)"
        )
    return found[-1].parent
