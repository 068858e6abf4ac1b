"""`specbench sweep`: measure a grid of drafts, gammas and temperatures into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.errors import DONE
from specbench.cli.measuring import measure
from specbench.cli.output import Output
from specbench.cli.preflight import refusals
from specbench.experiment.config import Config, float_range, int_range, read_config

if TYPE_CHECKING:
    from specbench.experiment.prepare import Outline

MODEL = "pocket/NAME, a local folder, or a Hugging Face id with optional @revision"
TASK = "pocket-ende, pocket-summary, wmt-ende, cnn-dm or file:PATH.jsonl[#translation|#summary]"


def sweep(
    target: Annotated[
        str | None, typer.Option(help=f"Target model: {MODEL}. Default pocket/target.")
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(help="Draft model, repeatable. Default for a pocket target: all of them."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help=f"Prompts, repeatable: {TASK}. Default for a pocket target: both."),
    ] = None,
    gamma: Annotated[
        str | None, typer.Option(help="Drafted tokens per round: 1..8, 1..9:2 or 1,3,5.")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="Temperatures, 0 is argmax: 0,1 or 0.7.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens; 0 is all.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass in (0, 1]; 1 is all.")] = None,
    batch: Annotated[
        str | None, typer.Option(help="Prompts decoded together: 1 or 1,4,16.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Prompts per task.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output in tokens.")] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(help="Forbid EOS before so many tokens.")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Cut longer prompts (counted and shown). Default: never.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help='Prompt prefix instead of the family\'s own; "" for none.')
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the models.")] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses prompts and draws.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Times that identical work is timed.")] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Untimed generations of each arm before the first timed one.")
    ] = None,
    turns: Annotated[int | None, typer.Option(help="Calls behind each step time.")] = None,
    sessions: Annotated[
        int | None, typer.Option(help="Measure everything so often, each time in a new process.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Time unsure cells again, for at most so long in all.")
    ] = None,
    target_width: Annotated[
        float | None,
        typer.Option(help="With --max-minutes: 0.03 calls a speedup unsure beyond +-3 %."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Another engine to decode the same beside ours: transformers."),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="Prove each pair exact before timing it."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with these options; flags override it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with the run in --out.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and measure nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    session: Annotated[int, typer.Option(hidden=True, help="Which session this is.")] = 0,
) -> int:
    """Measure speedup and acceptance for every task, temperature, draft and gamma.

    With no option at all: the embedded pocket models on their own prompts, gamma 1..8,
    temperatures 0 and 1. The run folder holds run.json and raw.jsonl (the measurements),
    tables/ and figures/ (made from them).
    """
    flags: dict[str, Any] = {
        "target": target,
        "draft": tuple(draft) if draft else None,
        "task": tuple(task) if task else None,
        "arm": tuple(arm) if arm else None,
        "gamma": None if gamma is None else int_range("--gamma", gamma),
        "temperature": None if temperature is None else float_range("--temperature", temperature),
        "batch": None if batch is None else int_range("--batch", batch),
        "top_k": top_k, "top_p": top_p, "limit": limit, "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens, "max_prompt_tokens": max_prompt_tokens,
        "prefix": prefix, "dtype": dtype, "device": device, "threads": threads, "seed": seed,
        "repeats": repeats, "warmup": warmup, "turns": turns, "verify": verify,
        "sessions": sessions, "max_minutes": max_minutes, "target_width": target_width,
    }  # fmt: skip
    resolved = read_config(config, flags)
    output = Output(json=json, quiet=quiet)
    if dry_run:
        return _show_plan(resolved, output)
    return measure(resolved, out, resume, session, output)


def _show_plan(config: Config, output: Output) -> int:
    from specbench.experiment.prepare import outline

    with refusals():
        plan = outline(config)
    output.results(plan.as_dict(), *_plan_lines(plan))
    return DONE


def _plan_lines(plan: Outline) -> list[str]:
    config, minutes = plan.config, plan.estimated_minutes()
    sizes = {
        name: "size unknown until fetched" if count is None else f"{count / 1e6:.1f} M parameters"
        for name, count in plan.num_parameters.items()
    }
    lengths = {
        task: [len(item.token_ids) for item in items] for task, items in plan.prompts.items()
    }
    num_cells = sum(len(cells) for cells in plan.groups)
    grid = {"temperature": config.temperature, "gamma": config.gamma, "batch": config.batch}
    time = "unknown" if minutes is None else f"about {minutes:.1f} minutes"
    return [
        f"target   {config.target}, {sizes[config.target]}, {plan.dtype} on {plan.device}",
        *(f"draft    {name}, {sizes[name]}" for name in config.draft),
        *(
            f"task     {task}: {len(counts)} of {plan.sets[task].num_available} prompts, "
            f"{min(counts)} to {max(counts)} tokens, prefix {plan.sets[task].prefix!r}"
            for task, counts in lengths.items()
        ),
        "grid     " + ", ".join(f"{name} {_listed(values)}" for name, values in grid.items()),
        f"cells    {num_cells} in {len(plan.groups)} groups, each with a baseline and a null arm",
        f"time     {time} of generations, a guess from sizes; proof and step times come on top",
        *(f"note     {note}" for note in plan.notes),
    ]


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)
