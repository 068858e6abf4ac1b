"""`specbench verify`: prove on a pair of models that speculative decoding is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.errors import DONE, REFUSED
from specbench.cli.output import Output
from specbench.cli.preflight import prepared, refusals
from specbench.experiment.config import POCKET_TARGET, Config, float_range, read_config

if TYPE_CHECKING:
    from rich.table import Table

    from specbench.measure.exactness import Check, Report

NUM_DRAWS = 500


def verify(
    target: Annotated[str, typer.Argument(help="Target model.")] = POCKET_TARGET,
    draft: Annotated[
        list[str] | None, typer.Argument(help="Draft models. Default: pocket/small.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Prompts, repeatable, as in sweep.")
    ] = None,
    temperature: Annotated[
        str, typer.Option(help="Temperatures: ids are compared at 0, laws above.")
    ] = "0,1",
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens; 0 is all.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass in (0, 1]; 1 is all.")] = None,
    dtype: Annotated[
        str, typer.Option(help="float32 judges most strictly; auto, bfloat16 or float16.")
    ] = "float32",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the models.")] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses prompts and draws.")] = None,
    draws: Annotated[
        int, typer.Option(min=100, help="Draws at each prefix; more see smaller faults.")
    ] = NUM_DRAWS,
    limit: Annotated[int | None, typer.Option(help="Prompts per task.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output in tokens.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help='Prompt prefix instead of the family\'s own; "" for none.')
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> int:
    """Prove that TARGET with each DRAFT decodes exactly. Exit 0: proven; 3: not.

    At temperature 0 token ids are compared with the target alone. Above, texts of equal law
    differ, so draws are tested against the target's own law. Decoders that are wrong on purpose
    must fail the same tests, or the pair counts as not proven.
    """
    flags: dict[str, Any] = {
        "target": target,
        "draft": tuple(draft) if draft else ("pocket/small",),
        "task": tuple(task) if task else None,
        "gamma": (1,),  # the proof chooses its own; whatever the limit, one fits
        "temperature": float_range("--temperature", temperature),
        "top_k": top_k, "top_p": top_p, "dtype": dtype, "device": device, "threads": threads,
        "seed": seed, "limit": limit, "max_new_tokens": max_new_tokens, "prefix": prefix,
    }  # fmt: skip
    output = Output(json=json, quiet=quiet)
    report = _prove(read_config(None, flags), draws, output)
    output.results(report.as_dict(), _table(report), *_sentences(report))
    return REFUSED if report.failures else DONE


def _prove(config: Config, num_draws: int, output: Output) -> Report:
    from specbench.experiment.prove import prove
    from specbench.measure.exactness import FULL

    ready = prepared(config, output)
    effort = replace(FULL, num_draws=num_draws, num_prompts=config.limit)
    with refusals(), output.busy("proof") as say:
        return prove(ready, effort, say)


def _table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("pair", "compared", "found", "status", box=None, header_style="bold")
    for check in report.checks:
        style = "green" if check.status == "exact" else "bold red"
        table.add_row(*_cells(check), Text(check.status, style=style))
    return table


def _cells(check: Check) -> tuple[str, str, str]:
    from specbench.measure.exactness import GreedyCheck, name

    if isinstance(check, GreedyCheck):
        compared = f"ids of {check.num_outputs} outputs, {check.num_tokens} tokens"
        gaps = [difference.gap_text for difference in check.differences]
        return name(check), compared, ", ".join(gaps) or "all equal"
    compared = f"law at {len(check.prefixes)} prefixes, {check.num_draws} draws each"
    return name(check), compared, f"p = {check.p_value:.2g}"


def _sentences(report: Report) -> list[str]:
    from specbench.measure.exactness import name

    return [*(f"{name(check)}: {check.sentence}" for check in report.checks), report.verdict]
