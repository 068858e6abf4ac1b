"""Which draft and gamma to deploy, not speculating included, and how sure that is.

Owns the decision: by end-to-end speedup, because that is what a user waits for. Measured and
predicted values are kept apart; what was not measured says so in its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specbench import theory
from specbench.measure.collection import Collected, collect, shared_prompts
from specbench.measure.metrics import speedup, summarize_collected
from specbench.measure.summary import CellSummary
from specbench.measure.verdict import FASTER, doubt_of, null_of, verdict
from specbench.records import Cell, Group, Record
from specbench.statistics import Estimate

MAX_GAMMA = 32


@dataclass(frozen=True)
class Predicted:
    """What Thm 3.8 says is best for one draft at an alpha and c; computed, not measured."""

    group: Group
    draft: str
    alpha: float
    c: float
    gamma: int
    walltime_improvement: float


@dataclass(frozen=True)
class DraftAdvice:
    """One draft: its best measured gamma, and what would have to hold for it to pay.

    best: the cell with the largest speedup among this draft's. break_even_alpha: above which
    best.gamma is faster than not speculating by Thm 3.8 at the measured c; None where no alpha
    is (c >= 1), or c was not measured. predicted: the formula's own choice of gamma, None
    where alpha or c is missing; beyond_measured: whether it lies beyond the measured gammas.
    """

    draft: str
    best: CellSummary
    break_even_alpha: float | None
    predicted: Predicted | None
    beyond_measured: bool


@dataclass(frozen=True)
class Recommendation:
    """What to deploy for one group. best.cell.arm.gamma = 0 means: do not speculate.

    speedup: end to end, of the best arm against the baseline. null: of the group's null arm,
    None where none was measured. advantage: seconds per token of the runner-up / those of the
    best, paired. The best of several noisy arms looks a little better than it is.
    """

    group: Group
    best: CellSummary
    speedup: Estimate
    null: Estimate | None
    runner_up: CellSummary | None
    advantage: Estimate | None
    drafts: tuple[DraftAdvice, ...]

    @property
    def verdict(self) -> str:
        """What may be said of the best arm against the baseline; see `measure.verdict`."""
        return verdict(self.speedup, self.null)

    @property
    def is_sure(self) -> bool:
        """Whether the best arm is shown to be faster; a baseline that wins needs no proof."""
        return self.best.cell.arm.is_baseline or self.verdict == FASTER

    @property
    def is_real(self) -> bool:
        """Whether the best arm is faster than the runner-up, beyond the interval of both and
        beyond what the null arm shows of no difference."""
        found = self.advantage
        return found is not None and found.excludes(1.0) and doubt_of(found, self.null) is None


def recommend(cells: Sequence[Cell], records: Iterable[Record], seed: int) -> list[Recommendation]:
    """One recommendation per group in which the baseline was measured."""
    collected = collect(cells, records, seed)
    return recommend_collected(collected, summarize_collected(collected))


def recommend_collected(
    collected: Collected, summaries: Sequence[CellSummary]
) -> list[Recommendation]:
    """As `recommend`, for records that are already sorted and summarised."""
    groups: dict[Group, list[CellSummary]] = {}
    for summary in summaries:
        if is_candidate(summary):
            groups.setdefault(summary.cell.group, []).append(summary)
    return [
        _recommend(collected, candidates, null_of(summaries, group))
        for group, candidates in groups.items()
        if any(one.cell.arm.is_baseline for one in candidates)
    ]


def is_candidate(summary: CellSummary) -> bool:
    """Whether a cell may be chosen: our own, timed, without failures, with the gamma it names."""
    return (
        summary.speedup is not None
        and not summary.num_failed
        and not summary.cell.arm.replica
        and not summary.cell.arm.is_peer
        and "gamma not fixed" not in summary.flags
    )


def best_of(candidates: Sequence[CellSummary]) -> CellSummary:
    """The cell with the largest end-to-end speedup; the smallest gamma wins a tie."""
    return min(candidates, key=lambda one: (-_speed(one), one.cell.arm.gamma))


def _speed(summary: CellSummary) -> float:
    return summary.speedup.value if summary.speedup else 0.0


def _recommend(
    collected: Collected, candidates: Sequence[CellSummary], null: Estimate | None
) -> Recommendation:
    best = best_of(candidates)
    assert best.speedup is not None  # `is_candidate`
    others = [one for one in candidates if one is not best]
    runner_up = best_of(others) if others else None
    return Recommendation(
        group=best.cell.group,
        best=best,
        speedup=best.speedup,
        null=null,
        runner_up=runner_up,
        advantage=_advantage(collected, best, runner_up),
        drafts=tuple(_advice(candidates, draft) for draft in _drafts(candidates)),
    )


def _advantage(
    collected: Collected, best: CellSummary, runner_up: CellSummary | None
) -> Estimate | None:
    if runner_up is None:
        return None
    first, second = (collected.tallies[one.cell.key] for one in (best, runner_up))
    return speedup(collected.resampler, shared_prompts(first, second))


def _drafts(candidates: Sequence[CellSummary]) -> list[str]:
    return list(dict.fromkeys(one.cell.arm.draft for one in candidates if one.cell.arm.draft))


def _advice(candidates: Sequence[CellSummary], draft: str) -> DraftAdvice:
    own = [one for one in candidates if one.cell.arm.draft == draft]
    best = best_of(own)
    cost = best.cost_coefficient
    predicted = _predict(best, None, None)
    return DraftAdvice(
        draft=draft,
        best=best,
        break_even_alpha=None
        if cost is None
        else theory.break_even_alpha(best.cell.arm.gamma, cost.value),
        predicted=predicted,
        beyond_measured=predicted is not None
        and predicted.gamma > max(one.cell.arm.gamma for one in own),
    )


def what_if(
    summaries: Sequence[CellSummary], alpha: float | None = None, c: float | None = None
) -> list[Predicted]:
    """The best gamma by Thm 3.8 for every draft of every group, with alpha or c replaced.

    alpha, c: None keeps the measured value. Drafts for which one is neither given nor measured
    are left out. Raises ValueError outside alpha in [0, 1] and c >= 0.
    """
    first: dict[tuple[Group, str], CellSummary] = {}
    for one in summaries:
        if one.cell.arm.draft is not None and not one.cell.arm.is_peer:
            first.setdefault((one.cell.group, one.cell.arm.draft), one)
    found = (_predict(one, alpha, c) for one in first.values())
    return [one for one in found if one is not None]


def _predict(summary: CellSummary, alpha: float | None, c: float | None) -> Predicted | None:
    if alpha is None:
        alpha = summary.alpha_overlap.value if summary.alpha_overlap else None
    if c is None:
        c = summary.cost_coefficient.value if summary.cost_coefficient else None
    if alpha is None or c is None or summary.cell.arm.draft is None:
        return None
    gamma = theory.optimal_gamma(alpha, c, MAX_GAMMA)
    speed = theory.walltime_improvement(alpha, gamma, c)
    return Predicted(summary.cell.group, summary.cell.arm.draft, alpha, c, gamma, speed)
