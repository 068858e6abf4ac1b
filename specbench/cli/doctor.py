"""`specbench doctor`: whether this machine and installation are fit for measuring."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli.errors import DONE, REFUSED
from specbench.cli.output import Output


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> int:
    """Check Python, torch, device, threads, memory, load, models and data; exit 3 on a fault."""
    from dataclasses import asdict

    from rich.table import Table
    from rich.text import Text

    from specbench.measure.diagnosis import diagnose

    output = Output(json, quiet)
    with output.busy("checks"):
        checks = diagnose()
    table = Table("check", "status", "found", "advice", box=None, header_style="bold")
    style = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for check in checks:
        table.add_row(
            check.name, Text(check.status, style=style[check.status]), check.detail, check.advice
        )
    output.results([asdict(check) for check in checks], table)
    return REFUSED if any(check.status == "fail" for check in checks) else DONE
