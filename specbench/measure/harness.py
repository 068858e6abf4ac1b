"""One timed generation, one overlap trace, one step time: what a run is made of.

Owns the edges of a measurement and the order in which things take turns. Knows nothing of the
run folder and of tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, sqrt
from typing import TypeVar

import torch

from specbench.decoding import (
    Decoded,
    Rules,
    capacity_for,
    decode,
    law,
    torch_seed,
    uniforms,
    widths_for,
)
from specbench.measure.disturbance import Disturbance
from specbench.measure.exactness.greedy import examine
from specbench.measure.exactness.reference import forced_logits
from specbench.measure.gpu_meter import GpuMeter
from specbench.measure.peer_decoding import decode_by_peer
from specbench.measure.timing import Clock, CudaStopwatch, Stopwatch, Times
from specbench.models import BROKEN, LeanT5, TransformersModel, explain
from specbench.models.peer import PeerError, Task
from specbench.models.protocol import LanguageModel, State
from specbench.prompts import EncodedPrompt
from specbench.records import (
    FAILED,
    OK,
    Cell,
    Generation,
    Limits,
    OverlapTrace,
    StepTimes,
    TokenDifference,
)
from specbench.sampling import overlap

T = TypeVar("T")
GOLDEN_SECTION = (sqrt(5.0) - 1.0) / 2.0
LEAD, KEPT = 3, 3
"""Calls of a step in a row: a draft of one layer, behind a call of a target of fifteen, needs 1.07,
0.72, 0.57, 0.53, 0.48 ms, and 0.38 in the end."""


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items in order, beginning with the one whose turn it is.

    Beginnings lie far apart from one turn to the next, and each item begins once in as many turns
    as there are items: over six prompts none of forty arms is always late in the order, where a
    drift of the machine within a prompt would meet it.
    """
    start = turn * _stride(len(items)) % len(items) if items else 0
    return [*items[start:], *items[:start]]


def _stride(count: int) -> int:
    """The step nearest to the golden section of `count` that meets every number below it."""
    steps = (step for step in range(1, count + 1) if gcd(step, count) == 1)
    return min(steps, key=lambda step: abs(step - GOLDEN_SECTION * count))


@dataclass(frozen=True)
class Step:
    """A kind of decoder call to be timed alone: a model in its role and K tokens per row."""

    model: str
    role: str
    num_tokens: int


@dataclass(frozen=True)
class Bench:
    """What every measurement of a run shares: the models by name, the clock and the device.

    synchronize: waits until the device has nothing left to do. peers: the same models as a peer
    runs them, where one was asked for. gpu: tells the clock of the device, where it is a GPU.
    """

    models: Mapping[str, LanguageModel]
    stopwatch: Stopwatch | CudaStopwatch
    synchronize: Callable[[], None]
    clock: Clock = field(default=time.perf_counter)
    peers: Mapping[str, TransformersModel] = field(default_factory=dict)
    gpu: GpuMeter | None = None

    def prepare(self, cells: Sequence[Cell], batches: Sequence[Sequence[EncodedPrompt]]) -> None:
        """Let models record every call that decoding these batches may make, so that no
        recording falls into a timed one. Only models on CUDA record."""
        for cell in (one for one in cells if not one.arm.is_peer):
            group, gamma = cell.group, cell.arm.gamma
            names = [group.target, *filter(None, [cell.arm.draft])]
            for name in dict.fromkeys(names):
                model = self.models[name]
                if not isinstance(model, LeanT5):
                    continue
                for items in batches:
                    longest = max(len(item.token_ids) for item in items)
                    room = capacity_for(gamma, group.limits)
                    count = names.count(name)  # a target may be its own draft
                    model.prepare(len(items), longest, room, widths_for(gamma), count)

    def generate(
        self,
        cell: Cell,
        items: Sequence[EncodedPrompt],
        repeat: int,
        limits: Limits | None = None,
    ) -> Generation:
        """One timed call of the cell's decoder on one batch.

        limits: others than the group's, for a warm-up that need not go to the end. A model that
        cannot be followed, or whose own call breaks, gives a failed record that says why, never a
        token.
        """
        ids = tuple(item.id for item in items)
        engine = self._by_peer if cell.arm.is_peer else self._by_ourselves
        disturbance = Disturbance()
        try:
            decoded, times = engine(cell, items, limits or cell.group.limits)
        except (PeerError, *BROKEN) as error:
            return Generation(cell.key, ids, repeat, FAILED, error=explain(error))
        around = disturbance.read()
        gpu_clock_mhz, gpu_slowdown = self.gpu.read() if self.gpu else (None, None)
        return Generation(
            cell=cell.key,
            prompt_ids=ids,
            repeat=repeat,
            status=OK,
            num_prompt_tokens=tuple(len(item.token_ids) for item in items),
            tokens=tuple(tuple(row) for row in decoded.tokens),
            stop_reasons=tuple(decoded.stop_reasons),
            rounds=times.put_into(decoded.rounds),
            total_s=times.total_s,
            target_prefill_s=times.target_prefill_s,
            draft_prefill_s=times.draft_prefill_s,
            ttft_s=times.ttft_s,
            load_average=around.load_average,
            steal_fraction=around.steal_fraction,
            others_fraction=around.others_fraction,
            gpu_clock_mhz=gpu_clock_mhz,
            gpu_slowdown=gpu_slowdown,
        )

    def _by_ourselves(
        self, cell: Cell, items: Sequence[EncodedPrompt], limits: Limits
    ) -> tuple[Decoded, Times]:
        group, arm = cell.group, cell.arm
        ids, prompts = [item.id for item in items], [item.token_ids for item in items]
        uniform = uniforms(group.seed, cell.key, ids, limits.max_new_tokens, arm.gamma)
        target = self.models[group.target]
        draft = None if arm.draft is None else self.models[arm.draft]
        with torch.inference_mode():
            self.stopwatch.start()
            decoded = decode(
                target, draft, arm.gamma, prompts, group.sampling, limits, uniform, self.stopwatch
            )
            return decoded, self.stopwatch.stop()

    def _by_peer(
        self, cell: Cell, items: Sequence[EncodedPrompt], limits: Limits
    ) -> tuple[Decoded, Times]:
        group, arm = cell.group, cell.arm
        task = Task(
            target=self.peers[group.target],
            draft=None if arm.draft is None else self.peers[arm.draft],
            gamma=arm.gamma,
            sampling=group.sampling,
            limits=limits,
            seed=torch_seed(group.seed, cell.key, [item.id for item in items]),
        )
        return decode_by_peer(task, [item.token_ids for item in items], self.stopwatch)

    def compare(
        self, cell: Cell, item: EncodedPrompt, tokens: Sequence[int], peer_tokens: Sequence[int]
    ) -> TokenDifference | None:
        """The first difference of a peer's greedy output from ours, None where there is none."""
        model = self.models[cell.group.target]
        with torch.inference_mode():
            found = examine(model, item, cell.arm.gamma, tokens, peer_tokens)
        if found is None:
            return None
        position, gap, kind = found.position, found.gap, found.kind
        pair = found.target_token, found.speculative_token
        return TokenDifference(cell.key, item.id, position, *pair, gap, kind)

    def trace_overlaps(
        self, cell: Cell, drafts: Sequence[str], item: EncodedPrompt, tokens: Sequence[int]
    ) -> list[OverlapTrace]:
        """sum_x min(p(x), q(x)) of each draft along `tokens`, the target's own output.

        One call of each model over the whole output; cell: the baseline's. Leviathan et al.
        2023, Cor. 3.6.
        """
        with torch.inference_mode():
            target_probs = self._teacher_forced(cell.group.target, cell, item, tokens)
            traces = []
            for draft in drafts:
                draft_probs = self._teacher_forced(draft, cell, item, tokens)
                values = overlap(target_probs, draft_probs)[0].tolist()
                traces.append(OverlapTrace(cell.key, draft, item.id, tuple(values)))
            return traces

    def _teacher_forced(
        self, name: str, cell: Cell, item: EncodedPrompt, tokens: Sequence[int]
    ) -> torch.Tensor:
        model = self.models[name]
        logits = forced_logits(model, item.token_ids, [tokens[:-1]])
        return law(logits, [0], Rules(cell.group.sampling, cell.group.limits, model.eos_token))

    def time_steps(
        self, cell: Cell, steps: Sequence[Step], item: EncodedPrompt, num_cached: int, turns: int
    ) -> list[StepTimes]:
        """Seconds of single calls behind `num_cached` cached tokens, one record for each step.

        The steps take turns, so that a slow moment of the machine falls on all of them alike. At
        its turn a step is called LEAD times before the calls that are kept: a model by itself
        finds its weights and its code where its own last calls left them, not where another
        model's did. What models do to each other in the loop is a step of the decomposition.
        turns: calls kept of each step. cell: the baseline's.
        """
        batch = cell.group.batch
        seconds: list[list[float]] = [[] for _ in steps]
        with torch.inference_mode():
            states = [self._state_behind(step, batch, item, num_cached) for step in steps]
            for first in range(0, turns, KEPT):
                for index in rotated(range(len(steps)), first // KEPT):
                    for _ in range(LEAD):
                        self._time_step(steps[index], states[index], num_cached)
                    for _ in range(min(KEPT, turns - first)):
                        taken = self._time_step(steps[index], states[index], num_cached)
                        seconds[index].append(taken)
        return [
            StepTimes(cell.key, step.model, step.role, step.num_tokens, num_cached, tuple(values))
            for step, values in zip(steps, seconds, strict=True)
        ]

    def _state_behind(self, step: Step, batch: int, item: EncodedPrompt, num_cached: int) -> State:
        model = self.models[step.model]
        state = model.start([item.token_ids] * batch, num_cached + step.num_tokens)
        if num_cached:
            model.extend(state, _repeat(state.first_tokens, num_cached))
        return state

    def _time_step(self, step: Step, state: State, num_cached: int) -> float:
        model = self.models[step.model]
        tokens = _repeat(state.first_tokens, step.num_tokens)
        self.synchronize()
        started = self.clock()
        model.extend(state, tokens)
        self.synchronize()
        taken = self.clock() - started
        model.rollback(state, [num_cached] * tokens.shape[0])
        return taken


def _repeat(first_tokens: torch.Tensor, count: int) -> torch.Tensor:
    return first_tokens[:, None].repeat(1, count)
