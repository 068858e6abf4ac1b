"""Everything that can refuse a sweep before the first second is measured.

Owns preflight: names to models and prompts, pairs that fit, finite logits, and the description
of the run that is written before measuring. Knows nothing of the order of measurements.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specbench import __version__
from specbench.experiment.config import Config
from specbench.experiment.plan import plan
from specbench.measure import environment
from specbench.measure.harness import Bench
from specbench.measure.timing import stopwatch_for
from specbench.models import (
    check_pair,
    describe,
    family,
    load_model,
    load_tokenizer,
    probe,
    resolve_device,
    resolve_dtype,
)
from specbench.prompts import EncodedPrompt, PromptSet, encode, load_prompts
from specbench.records import Cell

Say = Callable[[str], None]


class Refused(RuntimeError):
    """The sweep cannot be measured as asked; the message says what is in the way."""


@dataclass(frozen=True)
class Prepared:
    """A sweep that may begin. prompts: by task, encoded; notes: what a reader should know."""

    config: Config
    groups: list[list[Cell]]
    bench: Bench
    prompts: dict[str, list[EncodedPrompt]]
    info: dict[str, Any]
    notes: list[str]


def prepare(config: Config, say: Say = lambda text: None) -> Prepared:
    """Load and check all that the sweep needs. Raises ModelError, PromptError or Refused."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    threads = environment.set_threads(config.threads)
    notes: list[str] = []
    say("tokenizers")
    tokenizer = load_tokenizer(config.target)
    for draft in config.draft:
        notes += check_pair(config.target, draft)
    say("prompts")
    sets = {
        task: load_prompts(
            task,
            limit=config.limit,
            seed=config.seed,
            family=family(config.target),
            prefix=config.prefix,
        )
        for task in config.task
    }
    prompts = {
        task: encode(prompt_set, tokenizer, config.max_prompt_tokens)
        for task, prompt_set in sets.items()
    }
    for task, items in prompts.items():
        if len(items) < max(config.batch):
            raise Refused(
                f"--batch {max(config.batch)}: task {task} has {len(items)} prompts; allowed "
                "are batches up to the number of prompts"
            )
    models = {}
    for name in (config.target, *config.draft):
        say(f"loading {name}")
        models[name] = load_model(name, device=device, dtype=dtype)
        probe(models[name])
    synchronize = environment.synchronizer(device)
    bench = Bench(models, stopwatch_for(device, synchronize), synchronize)
    info = {
        "specbench": __version__,
        "command": " ".join(["specbench", *sys.argv[1:]]),
        "config": config.as_dict(),
        "device": str(device),
        "dtype": dtype,
        "host": environment.capture(device, threads),
        "models": {name: describe(model) for name, model in models.items()},
        "prompts": {task: _describe(sets[task], prompts[task]) for task in sets},
        "notes": notes,
    }
    return Prepared(config, plan(config, dtype, str(device)), bench, prompts, info, notes)


def _describe(prompt_set: PromptSet, encoded: list[EncodedPrompt]) -> dict[str, Any]:
    lengths = [len(item.token_ids) for item in encoded]
    return {
        "sha256": prompt_set.sha256,
        "prefix": prompt_set.prefix,
        "num_prompts": len(encoded),
        "num_available": prompt_set.num_available,
        "num_truncated": sum(item.truncated for item in encoded),
        "min_tokens": min(lengths),
        "median_tokens": statistics.median(lengths),
        "max_tokens": max(lengths),
        "synthetic": prompt_set.synthetic,
    }
