"""A peer's generation in our words: its rounds counted by our rule, its phases on our clock.

Owns the counting of another engine's rounds. Knows nothing of how that engine is driven
(`models.peer`) and of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from specbench.decoding import Decoded, Phase, Phases
from specbench.measure.timing import CudaStopwatch, Stopwatch, Times
from specbench.models.peer import PeerRound, Task, ready
from specbench.records import Round


def decode_by_peer(
    task: Task, prompts: Sequence[Sequence[int]], stopwatch: Stopwatch | CudaStopwatch
) -> tuple[Decoded, Times]:
    """What transformers makes of the prompts, and its seconds; the edges are those of our arms.

    Raises PeerError where it cannot.
    """
    rows = [list(prompt) for prompt in prompts]
    with ready(task, _Told(stopwatch)) as generate:
        stopwatch.start()
        rounds = generate(rows)
        times = stopwatch.stop()
    return counted(rounds, task.target.eos_token), times


def counted(rounds: Sequence[PeerRound], eos_token: int | None) -> Decoded:
    """The rounds by the counting rule of `records`.

    An accepted draft is one that was kept: a token drawn behind a rejection is never the
    rejected one, because the residual has no mass there.
    """
    tokens = [
        [token for block in blocks for token in block]
        for blocks in zip(*(item.kept for item in rounds), strict=True)
    ]
    ends = ["eos" if row[-1] == eos_token else "length" for row in tokens]
    return Decoded(tokens, ends, [_round(item) for item in rounds])


def _round(item: PeerRound) -> Round:
    pairs = list(zip(item.drafts, item.kept, strict=True))
    return Round(
        num_drafted=tuple(len(drafts) for drafts, _ in pairs),
        num_accepted=tuple(_num_shared(drafts, kept) for drafts, kept in pairs),
        num_tested=tuple(min(len(kept), len(drafts)) for drafts, kept in pairs),
        num_committed=tuple(len(kept) for _, kept in pairs),
    )


def _num_shared(drafts: Sequence[int], kept: Sequence[int]) -> int:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(drafts, kept, strict=False))
    return sum(1 for _ in same)


class _Told:
    """Passes on to a stopwatch what a peer says."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self.end_round = phases.end_round

    def begin(self, phase: str) -> None:
        self._phases.enter(Phase(phase))
