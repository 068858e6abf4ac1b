"""The sweep: groups one after the other, prompts inside them, arms in rotated order.

Owns the order of measurements, resuming and what a failed cell does to the rest. Knows nothing
of tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from specbench.experiment.prepare import Prepared
from specbench.experiment.store import Store, record_key
from specbench.measure.harness import Step, rotated
from specbench.models import BROKEN, explain
from specbench.prompts import EncodedPrompt
from specbench.records import (
    FAILED,
    OK,
    OWN_ENGINE,
    Cell,
    Generation,
    Limits,
    OverlapTrace,
    Record,
    StepTimes,
)

Progress = Callable[[int, int, str], None]
Batch = Sequence[EncodedPrompt]
WARM_UP_TOKENS = 16


class Sweep:
    """A prepared sweep on its way into a run folder.

    earlier: what a stopped sweep left; only what is missing is measured, and a prompt that the
    stop cut through is timed again in every arm, for ratios are of one process. progress: told
    (generations done, all generations, what comes next). session: which of the run's processes
    this is; each times everything itself. notes: what could not be measured beside generations.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        progress: Progress,
        earlier: Iterable[Record] = (),
        session: int = 0,
    ) -> None:
        self._prepared, self._store, self._progress = prepared, store, progress
        self._bench, self._config, self._session = prepared.bench, prepared.config, session
        self._done: dict[tuple[Any, ...], Record] = {}
        self._failed: set[str] = set()
        self._warm: set[str] = set()
        self._count = 0
        self.notes: list[str] = []
        for record in earlier:
            # A cell that failed is tried again.
            if not (isinstance(record, Generation) and record.status == FAILED):
                self._done[record_key(record)] = record

    def run(self) -> int:
        """Measure every cell that is not done yet; returns the number of failed cells."""
        for cells in self._prepared.groups:
            batches = self._batches(cells[0])
            repeats = range(self._config.repeats)
            if any(self._is_missing(cells, items, one) for items in batches for one in repeats):
                self._warm_up(cells, batches)
            self._generate_all(cells, batches)
            self._examine_peers(cells, batches)
            self._trace_overlaps(cells, batches)
            self._time_steps(cells, batches)
        return len(self._failed)

    def again(self, cells: list[Cell], left_s: Callable[[], float]) -> None:
        """Time cells of one group once more, arms in turns; ends between two prompts where
        `left_s()`, the seconds left of a budget, is not above zero."""
        batches = self._batches(cells[0])
        self._warm_up(cells, batches)
        repeat = 1 + max(one.repeat for one in self.records if isinstance(one, Generation))
        for turn, items in enumerate(batches):
            left = left_s()
            if left <= 0:
                return
            for cell in rotated(cells, turn + repeat):
                if cell.key not in self._failed:
                    self._say(cell, f"repeat {repeat + 1}, {left / 60:.1f} min left at most")
                    self._measure(cell, items, repeat)

    @property
    def records(self) -> list[Record]:
        """What this session has so far, and what all sessions share."""
        return [
            record
            for record in self._done.values()
            if getattr(record, "session", self._session) == self._session
        ]

    def has_failed(self, cell: Cell) -> bool:
        """Whether a generation of the cell failed in this session."""
        return cell.key in self._failed

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
        """Run each arm on the batch of the longest prompt, the same code path, once a process.

        A few rounds of full width are enough: what is cold is cold in the first ones. What is
        recorded for a size of prompts is asked for once for all batches, before.
        """
        self._bench.prepare(cells, batches)
        longest = max(batches, key=lambda items: max(len(item.token_ids) for item in items))
        for cell in cells:
            if cell.key in self._warm:
                continue
            self._warm.add(cell.key)
            for turn in range(self._config.warmup):
                self._say(cell, "warm-up")
                self._measure(cell, longest, -1 - turn, _warm_limits(cell))

    def _generate_all(self, cells: list[Cell], batches: list[Batch]) -> None:
        for turn, items in enumerate(batches):
            for repeat in range(self._config.repeats):
                # Arms take turns at being first, so that a drift of the machine within a prompt
                # does not favour one of them.
                cut = self._is_missing(cells, items, repeat)
                for cell in rotated(cells, turn + repeat):
                    if cut and cell.key not in self._failed:
                        self._say(cell, "")
                        self._measure(cell, items, repeat)
                    self._count += 1

    def _measure(self, cell: Cell, items: Batch, repeat: int, limits: Limits | None = None) -> None:
        generation = self._bench.generate(cell, items, repeat, limits)
        self._keep(replace(generation, session=self._session))
        if generation.status == FAILED:
            # The rest of the cell would fail for the same reason; the other cells go on.
            self._failed.add(cell.key)

    def _examine_peers(self, cells: list[Cell], batches: list[Batch]) -> None:
        """Where a peer's greedy ids differ from ours, how far apart the two tokens were."""
        if cells[0].group.sampling.temperature > 0:
            return  # equal laws give different texts
        for cell in (one for one in cells if one.arm.is_peer):
            for items in batches:
                own = self._find(replace(cell, arm=replace(cell.arm, engine=OWN_ENGINE)), items, 0)
                other = self._find(cell, items, 0)
                if own is None or other is None:
                    continue
                for item, ours, theirs in zip(items, own.tokens, other.tokens, strict=True):
                    found = self._bench.compare(cell, item, ours, theirs)
                    if found is not None and record_key(found) not in self._done:
                        self._keep(found)

    def _trace_overlaps(self, cells: list[Cell], batches: list[Batch]) -> None:
        """Each draft's overlap along the baseline's outputs: what the paper's alpha is made of."""
        baseline, drafts = cells[0], self._drafts(cells)
        for items in batches:
            generation = self._find(baseline, items, 0)
            if generation is None:
                continue
            for item, tokens in zip(items, generation.tokens, strict=True):
                missing = [
                    draft
                    for draft in drafts
                    if record_key(OverlapTrace(baseline.key, draft, item.id, ())) not in self._done
                ]
                if not missing:
                    continue
                self._say(baseline, "alpha")
                for trace in self._traces(baseline, missing, item, tokens):
                    # A draft without finite logits has no overlap; its failed cells say why.
                    if all(isfinite(value) for value in trace.overlaps):
                        self._keep(trace)

    def _traces(
        self, baseline: Cell, drafts: list[str], item: EncodedPrompt, tokens: Sequence[int]
    ) -> list[OverlapTrace]:
        """The traces of those drafts that can read a whole output at once."""
        try:
            return self._bench.trace_overlaps(baseline, drafts, item, tokens)
        except BROKEN as error:
            if len(drafts) == 1:
                self._note(f"alpha_overlap of {drafts[0]}", error)
                return []
        alone = (self._traces(baseline, [draft], item, tokens) for draft in drafts)
        return [trace for traces in alone for trace in traces]

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
        steps, median = _steps(cells, self._drafts(cells)), items[len(items) // 2]
        expected = (
            StepTimes(
                baseline.key, step.model, step.role, step.num_tokens, num_cached, (), self._session
            )
            for step in steps
        )
        if all(record_key(times) in self._done for times in expected):
            return
        turns = self._config.turns
        try:
            timed = self._bench.time_steps(baseline, steps, median, num_cached, turns)
        except BROKEN as error:
            self._note(f"step times of {baseline.group.task}", error)
            return
        for times in timed:
            self._keep(replace(times, session=self._session))

    def _drafts(self, cells: list[Cell]) -> list[str]:
        """The drafts of a group that work: those with an arm that has not failed."""
        working = (cell for cell in cells if cell.arm.draft and cell.key not in self._failed)
        return list(dict.fromkeys(cell.arm.draft for cell in working if cell.arm.draft))

    def _note(self, what: str, error: Exception) -> None:
        note = f"{what}: not measured ({explain(error)})"
        if note not in self.notes:
            self.notes.append(note)

    def _is_missing(self, cells: list[Cell], items: Batch, repeat: int) -> bool:
        """Whether some arm has yet to time the batch."""
        return not all(
            self._find(cell, items, repeat) for cell in cells if cell.key not in self._failed
        )

    def _find(self, cell: Cell, items: Batch, repeat: int) -> Generation | None:
        ids = tuple(item.id for item in items)
        key = record_key(Generation(cell.key, ids, repeat, OK, session=self._session))
        found = self._done.get(key)
        return found if isinstance(found, Generation) else None

    def _keep(self, record: Record) -> None:
        self._store.append(record)
        if not (isinstance(record, Generation) and record.status == FAILED):
            self._done[record_key(record)] = record

    def _say(self, cell: Cell, what: str) -> None:
        group = cell.group
        text = f"{group.task} T={group.sampling.temperature:g} {cell.arm.label} {what}".strip()
        self._progress(self._count, self.num_generations, text)


def _steps(cells: list[Cell], drafts: list[str]) -> list[Step]:
    """One-token calls of the target and each draft, and the target's calls of gamma + 1."""
    target = cells[0].group.target
    widths = sorted({1, *(cell.arm.gamma + 1 for cell in cells)})
    return [
        *(Step(target, "target", width) for width in widths),
        *(Step(draft, "draft", 1) for draft in drafts),
    ]


def _warm_limits(cell: Cell) -> Limits:
    tokens = max(WARM_UP_TOKENS, 3 * (cell.arm.gamma + 1))
    return Limits(min(tokens, cell.group.limits.max_new_tokens))


def _length(item: EncodedPrompt) -> int:
    return len(item.token_ids)
