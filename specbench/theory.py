"""The paper's closed forms, as plain functions of floats.

Owns one function per theorem of Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), in the
paper's letters, and the later form that charges for verification. Every value here is
*predicted*: a measured quantity never has one of these names.

alpha: probability that a draft is accepted, in [0, 1]. gamma: drafts per round, >= 0; 0 is
decoding without speculation. c: time of one draft step / one target step, >= 0; c_hat: the same
ratio of arithmetic operations. The physics the paper assumes: decoding is bound by reading the
weights, so that the target scores gamma + 1 tokens in the time of one. Where that fails,
`refined_walltime_improvement` takes the measured cost instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_tokens_by_position(alphas: Sequence[float]) -> float:
    """Expected tokens of one round when acceptance depends on the position.

    E = 1 + sum_{j <= gamma} prod_{i <= j} alphas[i], gamma = len(alphas). Leviathan et al. 2023,
    Eq. 1 without the assumption of independent, identically distributed acceptances.

    alphas: acceptance probability at each position given that all before were accepted.
    Raises ValueError for an alpha outside [0, 1].
    """
    expected = 1.0
    # From the last position inwards: 1 + a_1 (1 + a_2 (1 + ...)), positive terms only, so that
    # alpha = 1 is exact and nothing is divided by 1 - alpha.
    for alpha in reversed(alphas):
        _check("alpha", alpha, 0.0, 1.0)
        expected = 1.0 + alpha * expected
    return expected


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of one round, 1..gamma + 1: accepted drafts and one of the target's own.

    Leviathan et al. 2023, Eq. 1: E = (1 - alpha^(gamma+1)) / (1 - alpha), summed as
    1 + alpha + ... + alpha^gamma, which is gamma + 1 at alpha = 1.

    Raises ValueError for alpha outside [0, 1] or gamma < 0.
    """
    _check("alpha", alpha, 0.0, 1.0)
    _check("gamma", gamma, 0)
    return expected_tokens_by_position((alpha,) * gamma)


def capped_geometric(alpha: float, gamma: int) -> tuple[float, ...]:
    """Probabilities of accepting 0, 1, ..., gamma drafts in one round; gamma + 1 numbers.

    Leviathan et al. 2023, Sec. 3.1: alpha^k (1 - alpha) for k < gamma, alpha^gamma for gamma.

    Raises ValueError for alpha outside [0, 1] or gamma < 0.
    """
    _check("alpha", alpha, 0.0, 1.0)
    _check("gamma", gamma, 0)
    return (*(alpha**k * (1.0 - alpha) for k in range(gamma)), alpha**gamma)


def oracle_expected_tokens(alpha: float) -> float:
    """Expected tokens of one round if gamma were chosen by an oracle; inf at alpha = 1.

    Leviathan et al. 2023, Sec. 3.5: 1 / (1 - alpha), the bound for every gamma and every c >= 0.

    Raises ValueError for alpha outside [0, 1].
    """
    _check("alpha", alpha, 0.0, 1.0)
    return math.inf if alpha == 1.0 else 1.0 / (1.0 - alpha)


def walltime_improvement(alpha: float, gamma: int, c: float) -> float:
    """Predicted speed relative to decoding without a draft; 1 at gamma = 0.

    Leviathan et al. 2023, Thm 3.8: (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)). Assumes
    that verifying gamma + 1 tokens takes one target step, and long generations.

    Raises ValueError for alpha outside [0, 1], gamma < 0 or c < 0.
    """
    _check("c", c, 0.0)
    return refined_walltime_improvement(expected_tokens(alpha, gamma), gamma, draft_ratio=c)


def refined_walltime_improvement(
    expected: float,
    gamma: int,
    draft_ratio: float,
    verify_ratio: float = 1.0,
    overhead_ratio: float = 0.0,
) -> float:
    """Predicted speed relative to decoding without a draft, from what one round really costs.

    MagicDec (arXiv 2408.11049) and Sequoia (arXiv 2402.12374):
    expected / (gamma draft_ratio + verify_ratio + overhead_ratio); Thm 3.8 is the case of
    verify_ratio 1 and overhead_ratio 0.

    expected: tokens per round, >= 1. draft_ratio: one draft step, verify_ratio: the target on
    gamma + 1 tokens, overhead_ratio: drawing, testing and rolling back in one round; all in units
    of one target step of one token. verify_ratio is above 0, the others are at least 0.
    Raises ValueError outside these.
    """
    _check("expected", expected, 1.0)
    _check("gamma", gamma, 0)
    _check("draft_ratio", draft_ratio, 0.0)
    _check("verify_ratio", verify_ratio, math.ulp(0.0))
    _check("overhead_ratio", overhead_ratio, 0.0)
    return expected / (gamma * draft_ratio + verify_ratio + overhead_ratio)


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """Factor by which arithmetic operations per token grow; 1 at gamma = 0.

    Leviathan et al. 2023, Thm 3.11:
    (1 - alpha)(gamma c_hat + gamma + 1) / (1 - alpha^(gamma+1)).

    Raises ValueError for alpha outside [0, 1], gamma < 0 or c_hat < 0.
    """
    _check("c_hat", c_hat, 0.0)
    return (gamma * c_hat + gamma + 1.0) / expected_tokens(alpha, gamma)


def guaranteed_improvement(alpha: float, c: float) -> float:
    """The speed that the best gamma reaches at least; 1, not speculating, where alpha <= c.

    Leviathan et al. 2023, Cor. 3.9: if alpha > c, gamma = 1 gives (1 + alpha) / (1 + c).

    Raises ValueError for alpha outside [0, 1] or c < 0.
    """
    return max(1.0, walltime_improvement(alpha, 1, c))


def optimal_gamma(alpha: float, c: float, max_gamma: int = 128) -> int:
    """The gamma in 0..max_gamma with the largest predicted speed; 0 says: do not speculate.

    Leviathan et al. 2023, Sec. 3.5: Thm 3.8 maximised over the integers. The smallest gamma
    wins a tie. Free drafts (c = 0) always gain, so that max_gamma is returned if alpha > 0.

    Raises ValueError for alpha outside [0, 1], c < 0 or max_gamma < 0.
    """
    _check("alpha", alpha, 0.0, 1.0)
    _check("c", c, 0.0)
    _check("max_gamma", max_gamma, 0)
    if c == 0.0:
        # Not left to the search: the gain of a further draft soon rounds to zero.
        return max_gamma if alpha > 0.0 else 0
    return max(range(max_gamma + 1), key=lambda gamma: walltime_improvement(alpha, gamma, c))


def break_even_alpha(gamma: int, c: float) -> float | None:
    """The alpha above which this gamma is faster than not speculating; None if no alpha is.

    Leviathan et al. 2023, Thm 3.8 solved for speed 1: alpha + ... + alpha^gamma = gamma c, by
    bisection to the last bit. No alpha pays if c >= 1 or gamma = 0.

    Raises ValueError for gamma < 0 or c < 0.
    """
    _check("gamma", gamma, 0)
    _check("c", c, 0.0)
    if c >= 1.0 or gamma == 0:
        return None
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2.0) < high:
        if middle * expected_tokens(middle, gamma - 1) > gamma * c:
            high = middle
        else:
            low = middle
    return low


def _check(name: str, value: float, low: float, high: float = math.inf) -> None:
    # NaN compares false, and no closed form here has a use for an infinite argument.
    if not low <= value <= high or math.isinf(value):
        bounds = f"[{low:g}, {high:g}]" if high < math.inf else f">= {low:g}, finite"
        raise ValueError(f"{name} {value}: allowed are numbers {bounds}")
