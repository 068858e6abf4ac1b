"""One timed generation, one overlap trace, one step time: what a run is made of.

Owns the edges of a measurement and the order in which things take turns. Knows nothing of the
run folder and of tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from specbench.decoding import DecodingError, Rules, decode, law, uniforms
from specbench.measure.disturbance import Disturbance
from specbench.measure.timing import Clock, CudaStopwatch, Stopwatch
from specbench.models.protocol import LanguageModel, State
from specbench.prompts import EncodedPrompt
from specbench.records import FAILED, OK, Cell, Generation, OverlapTrace, StepTimes
from specbench.sampling import overlap

T = TypeVar("T")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items in order, beginning with the one whose turn it is."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


@dataclass(frozen=True)
class Step:
    """A kind of decoder call to be timed alone: a model in its role and K tokens per row."""

    model: str
    role: str
    num_tokens: int


@dataclass(frozen=True)
class Bench:
    """What every measurement of a run shares: the models by name, the clock and the device.

    synchronize: waits until the device has nothing left to do.
    """

    models: dict[str, LanguageModel]
    stopwatch: Stopwatch | CudaStopwatch
    synchronize: Callable[[], None]
    clock: Clock = field(default=time.perf_counter)

    def generate(self, cell: Cell, items: Sequence[EncodedPrompt], repeat: int) -> Generation:
        """One timed call of the cell's decoder on one batch.

        A model that cannot be followed gives a failed record that says why, never a token.
        """
        group, arm = cell.group, cell.arm
        ids = tuple(item.id for item in items)
        prompts = [item.token_ids for item in items]
        uniform = uniforms(group.seed, cell.key, ids, group.limits.max_new_tokens, arm.gamma)
        target = self.models[group.target]
        draft = None if arm.draft is None else self.models[arm.draft]
        disturbance = Disturbance()
        try:
            with torch.inference_mode():
                self.stopwatch.start()
                decoded = decode(
                    target, draft, arm.gamma, prompts, group.sampling, group.limits, uniform,
                    self.stopwatch,
                )  # fmt: skip
                times = self.stopwatch.stop()
        except (DecodingError, torch.OutOfMemoryError) as error:
            return Generation(cell.key, ids, repeat, FAILED, error=_one_line(error))
        load_average, steal_fraction = disturbance.read()
        return Generation(
            cell=cell.key,
            prompt_ids=ids,
            repeat=repeat,
            status=OK,
            num_prompt_tokens=tuple(len(prompt) for prompt in prompts),
            tokens=tuple(tuple(row) for row in decoded.tokens),
            stop_reasons=tuple(decoded.stop_reasons),
            rounds=times.put_into(decoded.rounds),
            total_s=times.total_s,
            target_prefill_s=times.target_prefill_s,
            draft_prefill_s=times.draft_prefill_s,
            ttft_s=times.ttft_s,
            load_average=load_average,
            steal_fraction=steal_fraction,
        )

    def trace_overlap(
        self, cell: Cell, draft: str, item: EncodedPrompt, tokens: Sequence[int]
    ) -> OverlapTrace:
        """sum_x min(p(x), q(x)) at each position of `tokens`, the target's own output.

        One call of each model over the whole output; cell: the baseline's. Leviathan et al.
        2023, Cor. 3.6.
        """
        with torch.inference_mode():
            target_probs = self._teacher_forced(cell.group.target, cell, item, tokens)
            draft_probs = self._teacher_forced(draft, cell, item, tokens)
            values = overlap(target_probs, draft_probs)[0].tolist()
        return OverlapTrace(cell.key, draft, item.id, tuple(values))

    def _teacher_forced(
        self, name: str, cell: Cell, item: EncodedPrompt, tokens: Sequence[int]
    ) -> torch.Tensor:
        model = self.models[name]
        state = model.start([item.token_ids], len(tokens))
        given = torch.tensor([[int(state.first_tokens[0]), *tokens[:-1]]], device=model.device)
        rules = Rules(cell.group.sampling, cell.group.limits, model.eos_token)
        return law(model.extend(state, given), [0], rules)

    def time_steps(
        self, cell: Cell, steps: Sequence[Step], item: EncodedPrompt, num_cached: int, turns: int
    ) -> list[StepTimes]:
        """Seconds of single calls behind `num_cached` cached tokens, one record for each step.

        The steps take turns, so that a slow moment of the machine falls on all of them alike;
        the first turn is warm-up and is not kept. cell: the baseline's.
        """
        batch = cell.group.batch
        seconds: list[list[float]] = [[] for _ in steps]
        with torch.inference_mode():
            states = [self._state_behind(step, batch, item, num_cached) for step in steps]
            for turn in range(turns + 1):
                for index in rotated(range(len(steps)), turn):
                    taken = self._time_step(steps[index], states[index], num_cached)
                    if turn:
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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
