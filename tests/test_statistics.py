"""Intervals and tests of fit: exact cases, invariances, and coverage by simulation."""

import math
from collections import Counter

import numpy as np
import pytest
from checks import assert_same_distribution

from specbench.statistics import (
    chi_square,
    geometric_mean_ratio,
    mean_interval,
    paired_ratio,
    robust_time,
    wilson,
)


def coverage(simulate, truth, num_runs=300):
    """Share of simulated 95 % intervals that hold the truth."""
    intervals = [simulate(np.random.default_rng(run), run) for run in range(num_runs)]
    return sum(found.low <= truth <= found.high for found in intervals) / num_runs


def test_ratio_is_of_totals_and_not_the_mean_of_ratios() -> None:  # faults H3, E6
    assert paired_ratio([9, 1], [3, 1], seed=0).value == 2.5
    assert paired_ratio([2, 2, 0, 0], [2, 2, 2, 0], seed=0).value == pytest.approx(4 / 6)


def test_equal_pairs_leave_nothing_uncertain() -> None:
    assert paired_ratio([4, 2, 8], [2, 1, 4], seed=0) == (2.0, 2.0, 2.0)
    assert paired_ratio([0, 0, 0], [2, 1, 4], seed=0) == (0.0, 0.0, 0.0)
    assert paired_ratio([4, 2, 8, 6], [2, 1, 4, 3], seed=0, sessions="aabb") == (2.0, 2.0, 2.0)


def test_one_pair_has_no_interval() -> None:
    assert paired_ratio([3], [2], seed=0) == (1.5, None, None)
    assert geometric_mean_ratio([3], [2]) == (pytest.approx(1.5), None, None)
    assert mean_interval([3]) == (3.0, None, None)


def test_interval_depends_on_the_seed_alone_and_scales_with_the_values() -> None:
    num, den = speedups(np.random.default_rng(0), 12)
    found = paired_ratio(num, den, seed=7)
    assert found == paired_ratio(num, den, seed=7)
    assert found != paired_ratio(num, den, seed=8)
    assert paired_ratio(num * 8, den, seed=7) == tuple(8 * bound for bound in found)
    assert found.low < found.value < found.high


def test_interval_of_a_rate_stays_a_rate() -> None:
    found = paired_ratio([5, 5, 5, 4], [5, 5, 5, 5], seed=0)
    assert 0.8 <= found.low < found.high <= 1.0


def test_pairs_with_an_empty_denominator_are_carried_along() -> None:
    found = paired_ratio([1, 0, 0], [2, 0, 0], seed=0)
    assert found == (0.5, 0.5, 0.5)


def test_a_smaller_confidence_is_narrower() -> None:
    num, den = np.arange(1.0, 13.0), np.full(12, 4.0)
    wide, narrow = paired_ratio(num, den, 0), paired_ratio(num, den, 0, confidence=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high


def speedups(random, num_pairs, drift=0.0):
    """Seconds of a baseline and of an arm twice as fast, per prompt; both share the drift."""
    work = random.lognormal(0.0, 0.6, num_pairs) * (1.0 + drift * np.arange(num_pairs) / num_pairs)
    noise = np.exp(random.normal(-0.005, 0.1, (2, num_pairs)))
    return work * noise[0], work / 2.0 * noise[1]


@pytest.mark.parametrize("num_pairs", [10, 40])
def test_paired_interval_covers_under_drift(num_pairs) -> None:  # faults G17
    # At a true coverage of 93 % fewer than 88 % of 300 runs happen with odds 1e-3.
    share = coverage(
        lambda random, run: paired_ratio(*speedups(random, num_pairs, 0.05), run, resamples=500),
        truth=2.0,
    )
    assert 0.88 <= share <= 0.99


def test_null_arm_contains_one() -> None:  # faults G14
    def plain_against_plain(random, run):
        base, arm = speedups(random, 40)
        return paired_ratio(base, 2.0 * arm, run, resamples=500)

    assert 0.88 <= coverage(plain_against_plain, truth=1.0) <= 0.99


def test_unpaired_resampling_would_be_far_too_wide() -> None:
    base, arm = speedups(np.random.default_rng(0), 40)
    paired = paired_ratio(base, arm, seed=0)
    shuffled = paired_ratio(base, np.random.default_rng(1).permutation(arm), seed=0)
    assert paired.high - paired.low < (shuffled.high - shuffled.low) / 3


def test_sessions_that_differ_widen_the_interval() -> None:  # faults G16
    def three_sessions(random, run, label=True):
        base, arm = speedups(random, 60)
        offset = np.exp(random.normal(0.0, 0.1, 3))
        labels = np.repeat(["mon", "tue", "wed"], 20)
        base = base * np.repeat(offset, 20)
        return paired_ratio(base, arm, run, resamples=500, sessions=labels if label else None)

    with_term = coverage(three_sessions, truth=2.0)
    without = coverage(lambda random, run: three_sessions(random, run, label=False), truth=2.0)
    assert with_term >= 0.80
    assert without <= 0.65


def test_sessions_that_agree_and_a_single_session_change_nothing() -> None:
    base, arm = speedups(np.random.default_rng(0), 20)
    alone = paired_ratio(base, arm, seed=0)
    assert paired_ratio(base, arm, seed=0, sessions=["one"] * 20) == alone
    twice = paired_ratio(np.tile(base, 2), np.tile(arm, 2), seed=0)
    labels = ["one"] * 20 + ["two"] * 20
    assert paired_ratio(np.tile(base, 2), np.tile(arm, 2), seed=0, sessions=labels) == twice


def test_geometric_mean_ratio_weighs_pairs_alike() -> None:
    found = geometric_mean_ratio([2, 8, 400], [1, 1, 100])
    assert found.value == pytest.approx(4.0)
    assert found.low * found.high == pytest.approx(16.0)
    half = math.log(2) / math.sqrt(3) * 4.302653  # t at 2 degrees; logs are log 2, log 8, log 4
    assert found.high == pytest.approx(4.0 * math.exp(half), rel=1e-6)


def test_mean_interval_by_hand() -> None:
    half = 12.706205 * math.sqrt(2) / math.sqrt(2)
    assert mean_interval([1, 3]) == (2.0, pytest.approx(2 - half), pytest.approx(2 + half))


def test_wilson_by_hand() -> None:
    found = wilson(0, 10)
    assert found == (0.0, 0.0, pytest.approx(3.841459 / (10 + 3.841459)))
    assert wilson(5, 10).low + wilson(5, 10).high == pytest.approx(1.0)


def test_chi_square_by_hand() -> None:
    # (60-50)^2/50 + (40-50)^2/50 = 4 with one degree of freedom.
    assert chi_square([60, 40], [0.5, 0.5]) == pytest.approx(math.erfc(math.sqrt(2)))
    assert chi_square([50, 50], [0.5, 0.5]) == 1.0


def test_chi_square_pools_small_cells() -> None:
    # 100 draws: the two cells of 2 % are pooled and, still below 5, joined by the third.
    pooled = chi_square([1, 4, 6, 89], [0.02, 0.02, 0.06, 0.90])
    assert pooled == pytest.approx(chi_square([11, 89], [0.10, 0.90]))
    assert chi_square([3], [1.0]) == 1.0
    assert chi_square([1, 2], [0.5, 0.5]) == 1.0


def test_an_impossible_outcome_refutes_the_law() -> None:
    assert chi_square([999, 1, 1000], [0.5, 0.0, 0.5]) == 0.0
    assert chi_square([1000, 0, 1000], [0.5, 0.0, 0.5]) == 1.0


def test_chi_square_raises_an_alarm_as_often_as_it_says() -> None:
    random, law = np.random.default_rng(0), [0.5, 0.3, 0.15, 0.04, 0.01]
    p_values = [chi_square(random.multinomial(500, law), law) for _ in range(1000)]
    # Binomial(1000, .05): outside 25..80 with odds 1e-4.
    assert 25 <= sum(p < 0.05 for p in p_values) <= 80


def test_assert_same_distribution_passes_the_law_and_fails_its_mutant() -> None:
    law = {"a": 0.5, "b": 0.3, "c": 0.2}
    wrong = [0.405, 0.337, 0.257]  # faults A12, total variation .095
    random = np.random.default_rng(0)
    assert_same_distribution(Counter(random.choice(list(law), 10_000, p=[0.5, 0.3, 0.2])), law)
    drawn = Counter(random.choice(list(law), 10_000, p=np.array(wrong) / sum(wrong)))
    with pytest.raises(AssertionError, match="under the law"):
        assert_same_distribution(drawn, law)
    with pytest.raises(AssertionError, match="p = 0"):
        assert_same_distribution({"a": 5, "b": 3, "never": 1}, law)


def test_spread_of_times_shows_the_outlier() -> None:  # faults G24
    found = robust_time([10.1, 10.0, 10.2, 10.1, 31.0])
    assert (found.median, found.num_outliers) == (10.1, 1)
    assert found.mean == pytest.approx(14.28)
    assert found.variation == pytest.approx(0.655, abs=0.001)
    assert robust_time([2.0]) == (2.0, 2.0, 0, None)
    assert robust_time([0.0, 0.0]).variation is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: paired_ratio([1, 2], [1], 0),
        lambda: paired_ratio([], [], 0),
        lambda: paired_ratio([1, -2], [1, 1], 0),
        lambda: paired_ratio([1, 2], [0, 0], 0),
        lambda: paired_ratio([1, 2], [1, math.nan], 0),
        lambda: paired_ratio([1, 2], [1, 1], 0, sessions=["one"]),
        lambda: geometric_mean_ratio([1, 0], [1, 1]),
        lambda: mean_interval([]),
        lambda: wilson(3, 2),
        lambda: wilson(0, 0),
        lambda: chi_square([1, 2], [0.5, 0.6]),
        lambda: chi_square([0, 0], [0.5, 0.5]),
        lambda: chi_square([1, 2, 3], [0.5, 0.5]),
        lambda: robust_time([]),
    ],
)
def test_arguments_outside_their_domain_are_refused(call) -> None:
    with pytest.raises(ValueError, match="allowed"):
        call()
