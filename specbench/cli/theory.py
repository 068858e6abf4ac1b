"""`specbench theory`: the paper's closed forms, Table 1 and Figures 2 to 4."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.output import Output


def theory(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("runs/theory"),
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Print Table 1 and the paper's measured rows in the light of its formula; draw Figures 2-4."""
    from specbench.report import console as show
    from specbench.report import write_theory_figures

    output = Output(json, quiet)
    with output.busy("figures"):
        files = [str(path) for path in write_theory_figures(out)]
    output.results(
        {"table1": show.table1_rows(), "paper": show.paper_rows(), "files": files},
        show.table1(),
        show.paper(),
        *files,
    )
