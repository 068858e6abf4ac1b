"""Everything that can refuse a sweep before the first second is measured.

Owns preflight: names to models and prompts, pairs that fit, finite logits, and the description
of the run that is written before measuring. Knows nothing of the order of measurements.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from specbench import __version__
from specbench.experiment.config import LARGEST_DEFAULT_GAMMA, Config
from specbench.experiment.plan import plan
from specbench.measure import environment, host
from specbench.measure.harness import Bench
from specbench.measure.timing import stopwatch_for
from specbench.models import (
    LoadedModel,
    Tokenizer,
    TransformersModel,
    check_dtype,
    check_pair,
    describe,
    load_model,
    load_tokenizer,
    num_parameters,
    probe,
    resolve_device,
    resolve_dtype,
)
from specbench.prompts import EncodedPrompt, PromptSet, encode, load_prompts
from specbench.records import Cell

Say = Callable[[str], None]
# What a plan assumes where nothing has been measured: an output of this many tokens, weights
# read at this speed by a one-token call, and this much for each call besides.
TYPICAL_TOKENS, READ_BYTES_PER_S, CALL_S = 40, 2e10, 1e-3


class Refused(RuntimeError):
    """The sweep cannot be measured as asked; the message says what is in the way."""


@dataclass(frozen=True)
class Outline:
    """A sweep that no weight has been loaded for. prompts: by task, encoded; notes: what a
    reader should know; num_parameters: by model."""

    config: Config
    device: torch.device
    dtype: torch.dtype
    tokenizers: dict[str, Tokenizer]
    sets: dict[str, PromptSet]
    prompts: dict[str, list[EncodedPrompt]]
    groups: list[list[Cell]]
    num_parameters: dict[str, int | None]
    notes: list[str]

    def estimated_minutes(self) -> float | None:
        """A guess from sizes alone, as if every arm were as slow as the baseline, and as if a
        budget for unsure cells were used up.

        None where the target's weights are not here yet.
        """
        size = self.num_parameters[self.config.target]
        if size is None:
            return None
        weight_bytes = size * self.dtype.itemsize
        generation_s = min(self.config.max_new_tokens, TYPICAL_TOKENS) * (
            CALL_S + weight_bytes / READ_BYTES_PER_S
        )
        calls = 0
        for cells in self.groups:
            group = cells[0].group
            num_batches = len(self.prompts[group.task]) // group.batch
            calls += len(cells) * (num_batches * self.config.repeats + self.config.warmup)
        config = self.config
        return config.sessions * calls * generation_s / 60 + (config.max_minutes or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "target": self.config.target,
            "device": str(self.device),
            "dtype": dtype_name(self.dtype),
            "models": {name: {"num_parameters": n} for name, n in self.num_parameters.items()},
            "prompts": {
                task: describe_prompts(self.sets[task], self.prompts[task]) for task in self.sets
            },
            "num_cells": sum(len(cells) for cells in self.groups),
            "cells": [cell.key for cells in self.groups for cell in cells],
            "estimated_minutes": self.estimated_minutes(),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Prepared:
    """A sweep that may begin: models loaded and probed. info: what run.json will hold."""

    config: Config
    groups: list[list[Cell]]
    bench: Bench
    prompts: dict[str, list[EncodedPrompt]]
    info: dict[str, Any]
    notes: list[str]


def silent(text: str) -> None:
    """Nobody is told."""


def outline(config: Config, say: Say = silent) -> Outline:
    """All that can be known without weights. Raises ModelError, PromptError or Refused."""
    _check_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    say("tokenizers")
    tokenizers = {name: load_tokenizer(name) for name in (config.target, *config.draft)}
    for name in tokenizers:
        check_dtype(name, dtype)
    target = tokenizers[config.target]
    notes = [
        f"{draft}: {note}"
        for draft in config.draft
        for note in check_pair(target, tokenizers[draft])
    ]
    if not config.warmup:
        notes.append("no warm-up: what is cold at an arm's first prompt is in its seconds")
    say("prompts")
    sets, prompts = {}, {}
    for task in config.task:
        sets[task] = load_prompts(
            task,
            limit=config.limit,
            seed=config.seed,
            family=target.family,
            prefix=config.prefix,
        )
        prompts[task] = encode(sets[task], target, config.max_prompt_tokens)
        notes += _prompt_notes(config, sets[task], prompts[task])
        _check_room(config, task, prompts[task], tokenizers.values())
    return Outline(
        config,
        device,
        dtype,
        tokenizers,
        sets,
        prompts,
        plan(config, dtype_name(dtype), str(device)),
        {name: num_parameters(name) for name in tokenizers},
        notes,
    )


def prepare(config: Config, say: Say = silent) -> Prepared:
    """Load and check all that the sweep needs. Raises ModelError, PromptError or Refused."""
    outlined = outline(config, say)
    threads = environment.set_threads(config.threads)
    models = {name: _load(outlined, name, say) for name in outlined.tokenizers}
    for model in models.values():
        probe(model)
    peers = _as_peers(outlined, models, say) if config.arm else {}
    synchronize = environment.synchronizer(outlined.device)
    stopwatch = stopwatch_for(outlined.device, synchronize)
    gpu = environment.gpu_meter(outlined.device)
    bench = Bench(models, stopwatch, synchronize, peers=peers, gpu=gpu)
    info = {
        "specbench": __version__,
        "command": shlex.join(["specbench", *sys.argv[1:]]),
        "config": config.as_dict(),
        "device": str(outlined.device),
        "dtype": dtype_name(outlined.dtype),
        "host": environment.capture(outlined.device, threads),
        "models": {name: describe(model) for name, model in models.items()},
        "prompts": {
            task: describe_prompts(outlined.sets[task], outlined.prompts[task])
            for task in outlined.sets
        },
        "notes": outlined.notes,
    }
    return Prepared(config, outlined.groups, bench, outlined.prompts, info, outlined.notes)


def _check_threads(threads: int | None) -> None:
    cores = host.num_usable_cores()
    if threads is not None and threads > cores:
        raise Refused(
            f"--threads {threads}: allowed are integers up to {cores}, the cores that this process "
            "may run on; threads that wait for each other's core would be timed waiting"
        )


def _check_room(
    config: Config, task: str, prompts: list[EncodedPrompt], tokenizers: Iterable[Tokenizer]
) -> None:
    longest = max(len(item.token_ids) for item in prompts)
    # Rows of a batch, and the proof has batches too, wait for each other: padding follows theirs.
    padding = max(LARGEST_DEFAULT_GAMMA, *config.gamma) + 1
    for one in tokenizers:
        if one.lacks_room_for(longest, config.max_new_tokens + padding):
            raise Refused(
                f"--max-new-tokens {config.max_new_tokens}: {one.name} has {one.max_positions} "
                f"positions, and the longest prompt of task {task} has {longest} tokens; allowed "
                f"are outputs and prompts (--max-prompt-tokens) that fit, with {padding} to spare"
            )


def _load(outlined: Outline, name: str, say: Say, lean: bool = True) -> LoadedModel:
    say(f"loading {name}")
    return load_model(
        name,
        device=outlined.device,
        dtype=outlined.dtype,
        tokenizer=outlined.tokenizers[name],
        lean=lean,
    )


def _as_peers(
    outlined: Outline, models: dict[str, LoadedModel], say: Say
) -> dict[str, TransformersModel]:
    """The same weights as transformers runs them; loaded again only where ours are not its own."""
    peers = {}
    for name, model in models.items():
        peer = model if isinstance(model, TransformersModel) else _load(outlined, name, say, False)
        assert isinstance(peer, TransformersModel)
        peers[name] = peer
    return peers


def describe_prompts(prompt_set: PromptSet, encoded: list[EncodedPrompt]) -> dict[str, Any]:
    """What a reader must know of a task's prompts: where from, how many, how long, the hash."""
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


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _prompt_notes(config: Config, prompt_set: PromptSet, encoded: list[EncodedPrompt]) -> list[str]:
    task, notes = prompt_set.task, []
    if len(encoded) < max(config.batch):
        raise Refused(
            f"--batch {max(config.batch)}: task {task} has {len(encoded)} prompts; allowed are "
            "batches up to the number of prompts"
        )
    for size in config.batch:
        left = len(encoded) % size
        if left:
            notes.append(f"{task}: batch {size} leaves out {left} of {len(encoded)} prompts")
    if len(encoded) < config.limit:
        notes.append(f"{task}: {len(encoded)} prompts, fewer than --limit {config.limit}")
    truncated = sum(item.truncated for item in encoded)
    if truncated:
        notes.append(f"{task}: {truncated} of {len(encoded)} prompts were cut")
    if prompt_set.synthetic:
        notes.append(f"{task}: texts repeat each other or themselves; speeds will flatter")
    return notes
