"""The sweep: groups one after the other, prompts inside them, arms in rotated order.

Owns the order of measurements, resuming and what a failed cell does to the rest. Knows nothing
of tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specbench.experiment.prepare import Prepared
from specbench.experiment.store import Store, record_key
from specbench.measure.harness import Step, rotated
from specbench.prompts import EncodedPrompt
from specbench.records import FAILED, OK, Cell, Generation, OverlapTrace, Record, StepTimes

Progress = Callable[[int, int, str], None]
Batch = Sequence[EncodedPrompt]


class Sweep:
    """A prepared sweep on its way into a run folder.

    earlier: what a stopped sweep left; only what is missing is measured. progress: told
    (generations done, all generations, what comes next).
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        progress: Progress,
        earlier: Iterable[Record] = (),
    ) -> None:
        self._prepared, self._store, self._progress = prepared, store, progress
        self._bench, self._config = prepared.bench, prepared.config
        self._done: dict[tuple[Any, ...], Record] = {}
        self._failed: set[str] = set()
        self._count = 0
        for record in earlier:
            # A cell that failed is tried again.
            if not (isinstance(record, Generation) and record.status == FAILED):
                self._done[record_key(record)] = record

    def run(self) -> int:
        """Measure every cell that is not done yet; returns the number of failed cells."""
        for cells in self._prepared.groups:
            batches = self._batches(cells[0])
            self._warm_up(cells, batches)
            self._generate_all(cells, batches)
            self._trace_overlaps(cells, batches)
            self._time_steps(cells, batches)
        return len(self._failed)

    @property
    def num_generations(self) -> int:
        """Timed generations of the whole grid, those already done included."""
        return sum(
            len(cells) * len(self._batches(cells[0])) * self._config.repeats
            for cells in self._prepared.groups
        )

    def _batches(self, cell: Cell) -> list[Batch]:
        """The task's prompts in batches; a last one that is not full is left out."""
        items, size = self._prepared.prompts[cell.group.task], cell.group.batch
        return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]

    def _warm_up(self, cells: list[Cell], batches: list[Batch]) -> None:
        """Run each arm with work left on the batch of the longest prompt, the same code path."""
        longest = max(batches, key=lambda items: max(len(item.token_ids) for item in items))
        for cell in cells:
            if all(self._find(cell, items, 0) for items in batches):
                continue
            for turn in range(self._config.warmup):
                self._say(cell, "warm-up")
                self._measure(cell, longest, -1 - turn)

    def _generate_all(self, cells: list[Cell], batches: list[Batch]) -> None:
        for turn, items in enumerate(batches):
            for repeat in range(self._config.repeats):
                # Arms take turns at being first, so that a drift of the machine within a prompt
                # does not favour one of them.
                for cell in rotated(cells, turn + repeat):
                    if cell.key not in self._failed and not self._find(cell, items, repeat):
                        self._say(cell, "")
                        self._measure(cell, items, repeat)
                    self._count += 1

    def _measure(self, cell: Cell, items: Batch, repeat: int) -> None:
        generation = self._bench.generate(cell, items, repeat)
        self._keep(generation)
        if generation.status == FAILED:
            # The rest of the cell would fail for the same reason; the other cells go on.
            self._failed.add(cell.key)

    def _trace_overlaps(self, cells: list[Cell], batches: list[Batch]) -> None:
        """The draft's overlap along each of the baseline's outputs, a paper's alpha a draft."""
        baseline = cells[0]
        drafts = list(dict.fromkeys(cell.arm.draft for cell in cells if cell.arm.draft))
        for items in batches:
            generation = self._find(baseline, items, 0)
            if generation is None:
                continue
            for item, tokens in zip(items, generation.tokens, strict=True):
                for draft in drafts:
                    self._say(baseline, f"alpha of {draft}")
                    trace = OverlapTrace(baseline.key, draft, item.id, ())
                    if record_key(trace) not in self._done:
                        self._keep(self._bench.trace_overlap(baseline, draft, item, tokens))

    def _time_steps(self, cells: list[Cell], batches: list[Batch]) -> None:
        """Single calls of target and drafts behind the median length that the run decoded."""
        baseline = cells[0]
        outputs = [self._find(baseline, items, 0) for items in batches]
        lengths = [len(row) for output in outputs if output for row in output.tokens]
        if not lengths:
            return
        self._say(baseline, "step times")
        num_cached = int(statistics.median(lengths)) // 2
        items = sorted((item for items in batches for item in items), key=_length)
        steps = _steps(cells)
        missing = [
            step
            for step in steps
            if record_key(
                StepTimes(baseline.key, step.model, step.role, step.num_tokens, num_cached)
            )
            not in self._done
        ]
        if missing:
            median = items[len(items) // 2]
            for times in self._bench.time_steps(
                baseline, steps, median, num_cached, self._config.turns
            ):
                self._keep(times)

    def _find(self, cell: Cell, items: Batch, repeat: int) -> Generation | None:
        ids = tuple(item.id for item in items)
        found = self._done.get(record_key(Generation(cell.key, ids, repeat, OK)))
        return found if isinstance(found, Generation) else None

    def _keep(self, record: Record) -> None:
        self._store.append(record)
        if not (isinstance(record, Generation) and record.status == FAILED):
            self._done[record_key(record)] = record

    def _say(self, cell: Cell, what: str) -> None:
        group = cell.group
        text = f"{group.task} T={group.sampling.temperature:g} {cell.arm.label} {what}".strip()
        self._progress(self._count, self.num_generations, text)


def _steps(cells: list[Cell]) -> list[Step]:
    """One-token calls of the target and each draft, and the target's calls of gamma + 1."""
    target = cells[0].group.target
    arms = [cell.arm for cell in cells]
    widths = sorted({1, *(arm.gamma + 1 for arm in arms)})
    drafts = dict.fromkeys(arm.draft for arm in arms if arm.draft)
    return [
        *(Step(target, "target", width) for width in widths),
        *(Step(draft, "draft", 1) for draft in drafts),
    ]


def _length(item: EncodedPrompt) -> int:
    return len(item.token_ids)
