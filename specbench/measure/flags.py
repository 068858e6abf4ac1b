"""When a number must not be read without a warning: every flag and its rule in one place.

Owns the thresholds. A flag never changes a number; it says what to doubt.
"""

from __future__ import annotations

import numpy as np

from specbench import theory
from specbench.measure.summary import SHORT_OUTPUT_TOKENS, CellSummary
from specbench.measure.tally import Tally

UNSTABLE_REPEATS = 0.075
UNSTABLE_PROMPTS = 0.5
STOLEN_TIME = 0.02
OTHER_WORK = 0.05  # share of all cores
SLOWED_GPU = 0.05  # share of generations
CLIFF_TESTED = 30
CLIFF_RATIO = 0.5
CLIFF_SIGMAS = 4.0


def flags_of(summary: CellSummary, found: Tally | None) -> tuple[str, ...]:
    """The flags of a cell, in the order in which a reader should worry about them.

    summary: with every number filled in. found: what it was made from, None without records.
    """
    if found is None:
        return ("not measured",)
    cliff = position_cliff(found)
    rules = {
        "failed": summary.num_failed > 0,
        "gamma not fixed": not gamma_is_fixed(found),
        f"position cliff at {cliff}": cliff is not None,
        "not reproducible": not found.reproducible,
        "unstable": is_unstable(found),
        "stolen time": float(_mean(found.steal_fraction)) > STOLEN_TIME,
        "busy machine": float(_mean(found.others_fraction)) > OTHER_WORK,
        "GPU held down": float(_mean(found.gpu_slowed)) > SLOWED_GPU,
        "exceeds c=0 ceiling": exceeds_ceiling(summary),
        f"short outputs ({summary.num_short})": summary.num_short > 0,
    }
    return tuple(name for name, raised in rules.items() if raised)


def gamma_is_fixed(found: Tally) -> bool:
    """Whether every round drafted gamma tokens, except where the limit leaves room for fewer.

    One token of a round is always the target's own, so with r tokens left to the limit a row
    drafts at least min(gamma, r - 1). Anything else is an adaptive gamma under a fixed name. A
    peer's draft may also end at its own EOS; `models.peer_rounds` has seen to the rest.
    """
    if found.cell.arm.is_peer:
        return True
    gamma, rows = found.cell.arm.gamma, found.rows
    left = found.cell.group.limits.max_new_tokens - rows.before
    return bool(np.all((rows.drafted <= gamma) & (rows.drafted >= np.minimum(gamma, left - 1))))


def position_cliff(found: Tally) -> int | None:
    """The first position i > 1 whose acceptance falls off a cliff, as a cache fault makes it.

    A cliff: at least CLIFF_TESTED drafts tested there, acceptance below CLIFF_RATIO times that
    of the positions before it, and lower by CLIFF_SIGMAS standard errors of both.
    """
    tested, accepted = found.tested_at.sum(axis=0), found.accepted_at.sum(axis=0)
    for index in range(1, len(tested)):
        if tested[index] < CLIFF_TESTED:
            break
        before = accepted[:index].sum() / tested[:index].sum()
        here = accepted[index] / tested[index]
        error = np.sqrt(before * (1 - before) * (1 / tested[index] + 1 / tested[:index].sum()))
        if here < CLIFF_RATIO * before and before - here > CLIFF_SIGMAS * error:
            return index + 1
    return None


def is_unstable(found: Tally) -> bool:
    """Whether the seconds of a cell scatter too much to be quoted without their interval.

    Either repeats scatter, or seconds per output token have a standard deviation above
    UNSTABLE_PROMPTS of their mean over three prompts or more.
    """
    if repeats_scatter(found):
        return True
    tpot = found.tpot_s[np.isfinite(found.tpot_s)]
    return len(tpot) >= 3 and float(np.std(tpot, ddof=1)) > UNSTABLE_PROMPTS * float(np.mean(tpot))


def repeats_scatter(found: Tally) -> bool:
    """Whether repeats of identical work leave a standard error above UNSTABLE_REPEATS in the
    median prompt, as two that differ by 15 % do. More repeats may cure it."""
    error = found.repeat_error[np.isfinite(found.repeat_error)]
    return len(error) > 0 and float(np.median(error)) > UNSTABLE_REPEATS


def exceeds_ceiling(summary: CellSummary) -> bool:
    """Whether the whole interval of decode_speedup lies above what a free draft would give.

    With c = 0 the paper's S is E[N] (Thm 3.8): no c >= 0 explains more.
    """
    if summary.alpha_overlap is None or summary.decode_speedup is None:
        return False
    ceiling = theory.expected_tokens(summary.alpha_overlap.value, summary.cell.arm.gamma)
    return summary.decode_speedup.low is not None and summary.decode_speedup.low > ceiling


def num_short(lengths: np.ndarray) -> int:
    """Outputs too short for their seconds per token to mean much."""
    return int(np.count_nonzero(lengths < SHORT_OUTPUT_TOKENS))


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if len(known) else 0.0
