"""A whole run without models: planted seconds and acceptance, records as the harness makes them.

The truth is known, so that metrics and decomposition can be asked to give it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specbench.records import (
    OK,
    Arm,
    Cell,
    Generation,
    Group,
    Limits,
    OverlapTrace,
    Record,
    Round,
    Sampling,
    StepTimes,
)

EOS = 1


def group(task="pocket-ende", temperature=0.0, max_new_tokens=64, batch=1, target="big"):
    return Group(
        task=task,
        target=target,
        sampling=Sampling(temperature),
        limits=Limits(max_new_tokens),
        batch=batch,
        dtype="float32",
        device="cpu",
        seed=0,
    )


@dataclass(frozen=True)
class Machine:
    """Planted seconds. verify_s: the target alone by tokens per call. in_loop_*: factors by
    which a call costs more inside the loop than alone. outside_s: per generation, seen by no
    round. noise: standard deviation of log seconds of a whole generation."""

    verify_s: Callable[[int], float] = lambda num_tokens: 0.020
    draft_s: float = 0.002
    in_loop_draft: float = 1.0
    in_loop_verify: float = 1.0
    base_rest_s: float = 0.0
    rest_s: float = 0.0
    target_prefill_s: float = 0.0
    draft_prefill_s: float = 0.0
    outside_s: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What to build. alphas: acceptance of each prompt, or one for all. lengths: of the outputs,
    ended by EOS unless they reach the limit of the group; one for all, or one each."""

    group: Group = field(default_factory=group)
    draft: str = "small"
    gammas: Sequence[int] = (3,)
    num_prompts: int = 20
    alphas: float | Sequence[float] = 0.8
    lengths: int | Sequence[int] = 64
    repeats: int = 1
    machine: Machine = field(default_factory=Machine)
    seed: int = 0

    def cells(self) -> list[Cell]:
        arms = [Arm(), *(Arm(self.draft, gamma) for gamma in self.gammas)]
        return [Cell(self.group, arm) for arm in arms]

    def build(self) -> tuple[list[Cell], list[Record]]:
        cells = self.cells()
        return cells, [*self._generations(cells), *self._overlaps(cells[0]), *self._steps(cells)]

    def _generations(self, cells: list[Cell]) -> Iterator[Generation]:
        random = np.random.default_rng(self.seed)
        alphas = np.broadcast_to(self.alphas, self.num_prompts)
        lengths = np.broadcast_to(self.lengths, self.num_prompts)
        for prompt, (alpha, length) in enumerate(zip(alphas, lengths, strict=True)):
            for cell in cells:
                limit = self.group.limits.max_new_tokens
                rounds = play(random, cell.arm.gamma, float(alpha), int(length), limit)
                for repeat in range(self.repeats):
                    scale = float(np.exp(random.normal(0.0, self.machine.noise)))
                    yield timed(cell, f"p{prompt}", repeat, rounds, self.machine, scale)

    def _overlaps(self, baseline: Cell) -> Iterator[OverlapTrace]:
        alphas = np.broadcast_to(self.alphas, self.num_prompts)
        lengths = np.broadcast_to(self.lengths, self.num_prompts)
        for prompt, (alpha, length) in enumerate(zip(alphas, lengths, strict=True)):
            overlaps = (float(alpha),) * int(length)
            yield OverlapTrace(baseline.key, self.draft, f"p{prompt}", overlaps)

    def _steps(self, cells: list[Cell]) -> Iterator[StepTimes]:
        key, machine = cells[0].key, self.machine
        for width in sorted({1, *(cell.arm.gamma + 1 for cell in cells)}):
            seconds = (machine.verify_s(width),) * 5
            yield StepTimes(key, self.group.target, "target", width, 32, seconds)
        yield StepTimes(key, self.draft, "draft", 1, 32, (machine.draft_s,) * 5)


def merged(plans: Sequence[Plan]) -> tuple[list[Cell], list[Record]]:
    """One run of several plans; those of one group share the baseline of the first of them."""
    cells: dict[str, Cell] = {}
    records: list[Record] = []
    for plan in plans:
        own_cells, own = plan.build()
        known = own_cells[0].key in cells
        records += [one for one in own if not known or _is_of(plan.draft, own_cells[0], one)]
        cells |= {cell.key: cell for cell in own_cells}
    return list(cells.values()), records


def _is_of(draft: str, baseline: Cell, record: Record) -> bool:
    if isinstance(record, Generation):
        return record.cell != baseline.key
    return draft in (getattr(record, "draft", None), getattr(record, "model", None))


def play(
    random: np.random.Generator, gamma: int, alpha: float, length: int, limit: int
) -> list[Round]:
    """The rounds of one output under the counting rule, acceptance independent with `alpha`."""
    rounds, done = [], 0
    while done < length:
        width = min(gamma, limit - done - 1)
        run = 0
        while run < width and random.random() < alpha:
            run += 1
        kept = min(run + 1, length - done)
        rounds.append(counts(width, accepted=min(run, kept), tested=min(kept, width), kept=kept))
        done += kept
    return rounds


def counts(drafted: int, accepted: int, tested: int, kept: int) -> Round:
    return Round((drafted,), (accepted,), (tested,), (kept,))


def timed(
    cell: Cell,
    prompt: str,
    repeat: int,
    rounds: Sequence[Round],
    machine: Machine,
    scale: float = 1.0,
) -> Generation:
    """The rounds with a machine's seconds, every one of them multiplied by `scale`."""
    rounds = tuple(_with_seconds(item, cell, machine, scale) for item in rounds)
    in_rounds = sum(item.draft_s + item.verify_s + item.rest_s for item in rounds)
    speculative = cell.arm.draft is not None
    prefill = machine.target_prefill_s * scale
    draft_prefill = machine.draft_prefill_s * scale if speculative else 0.0
    outside = machine.outside_s * scale if speculative else 0.0
    first = rounds[0].draft_s + rounds[0].verify_s + rounds[0].rest_s if rounds else 0.0
    return generation(
        cell,
        prompt,
        repeat,
        rounds,
        total_s=prefill + draft_prefill + in_rounds + outside,
        target_prefill_s=prefill,
        draft_prefill_s=draft_prefill,
        ttft_s=prefill + draft_prefill + first,
    )


def _with_seconds(item: Round, cell: Cell, machine: Machine, scale: float) -> Round:
    width = max(item.num_drafted)
    speculative = cell.arm.draft is not None
    verify = machine.verify_s(width + 1) * (machine.in_loop_verify if speculative else 1.0)
    return replace(
        item,
        draft_s=width * machine.draft_s * machine.in_loop_draft * scale,
        verify_s=verify * scale,
        rest_s=(machine.rest_s if speculative else machine.base_rest_s) * scale,
    )


def generation(
    cell: Cell, prompt: str, repeat: int = 0, rounds: Sequence[Round] = (), **values
) -> Generation:
    """A generation of one prompt whose tokens are as many as its rounds committed."""
    committed = sum(item.num_committed[0] for item in rounds)
    tokens = (*range(10, 10 + committed - 1), EOS)[:committed]
    return Generation(
        **{
            "cell": cell.key,
            "prompt_ids": (prompt,),
            "repeat": repeat,
            "status": OK,
            "num_prompt_tokens": (12,),
            "tokens": (tokens,),
            "stop_reasons": ("eos",),
            "rounds": tuple(rounds),
            **values,
        }
    )
