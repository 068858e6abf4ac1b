"""Intervals and tests of fit: exact cases, invariances, and coverage by simulation."""

import math
from collections import Counter

import numpy as np
import pytest
from checks import assert_same_distribution, fit

from specbench.statistics import (
    Estimate,
    Resampler,
    detectable_variation,
    estimate,
    p_value,
    pearson,
    rate,
    ratio,
    with_sessions,
)

MANY = 10**9  # units for which percentiles are not widened


def of_totals(num, den, seed=0, interval=estimate, num_units=None):
    num, den = np.asarray(num, float), np.asarray(den, float)
    replicates = ratio(*Resampler(seed, 500).totals(num, den))
    return interval(replicates, num_units or len(num))


def test_ratio_is_of_totals_and_not_the_mean_of_ratios() -> None:  # faults H3, E6
    assert of_totals([9, 1], [3, 1]).value == 2.5
    assert of_totals([2, 2, 0, 0], [2, 2, 2, 0]).value == pytest.approx(4 / 6)


def test_every_column_sees_the_same_resamples() -> None:
    resampler, values = Resampler(0, 50), np.arange(1.0, 9.0)
    first, twice = resampler.totals(values, 2 * values)
    assert first.shape == (51,)
    assert first[0] == values.sum()
    assert np.array_equal(twice, 2 * first)
    (again,) = resampler.totals(values)
    assert again == pytest.approx(first)
    (ones,) = resampler.totals(np.ones(8))
    assert set(ones) == {8.0}


def test_an_empty_denominator_is_missing() -> None:
    found = ratio(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.0, 2.0]))
    assert np.isnan(found[:2]).all()
    assert found[2] == 1.5
    assert of_totals([0, 0], [0, 0]) is None
    assert of_totals([0, 0], [0, 0], interval=rate) is None


def test_equal_units_leave_nothing_uncertain() -> None:
    assert of_totals([4, 2, 8], [2, 1, 4]) == Estimate(2.0, 2.0, 2.0)
    assert of_totals([0, 0, 0], [2, 1, 4]) == Estimate(0.0, 0.0, 0.0)
    # A resample of nothing but empty denominators says nothing.
    assert of_totals([1, 0, 0], [2, 0, 0]) == Estimate(0.5, 0.5, 0.5)


@pytest.mark.parametrize("interval", [estimate, rate])
def test_one_unit_has_no_interval(interval) -> None:
    found = of_totals([3], [4], interval=interval)
    assert found == Estimate(0.75)
    assert not found.excludes(2.0)


def test_resamples_that_miss_the_value_bound_nothing() -> None:
    # A ratio of ratios of two prompts may lie beyond those of either.
    resamples = np.array([0.5, 0.5, 2.0, 2.0])
    for interval in (estimate, rate):
        assert interval(np.array([3.0, *resamples]), 2) == Estimate(3.0)
        assert interval(np.array([1.0, *resamples]), 2) != Estimate(1.0)


def test_an_interval_excludes_what_lies_outside() -> None:
    found = Estimate(1.2, 1.1, 1.3)
    assert [found.excludes(value) for value in (1.0, 1.1, 1.2, 1.3, 1.4)] == [
        True, False, False, False, True,
    ]  # fmt: skip


def test_percentiles_are_widened_by_hand() -> None:
    # Replicates 1..3 evenly: percentiles 1.05 and 2.95. t at one degree is 12.706, so that two
    # units widen by sqrt(2) 12.706 / 1.96 = 9.168.
    replicates = np.concatenate([[2.0], np.linspace(1.0, 3.0, 2001)])
    factor = math.sqrt(2) * 12.706205 / 1.959964
    found = estimate(replicates, 2)
    assert found.low == pytest.approx(2.0 * (1.05 / 2.0) ** factor)
    assert found.high == pytest.approx(2.0 * (2.95 / 2.0) ** factor)
    found = rate(replicates / 4, 2)
    assert (found.low, found.high) == (0.0, 1.0)
    t = 2.228139  # ten degrees
    found = rate(replicates / 4, 11)
    half = math.sqrt(1.1) * t / 1.959964 * 0.95 / 4
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-6)
    plain = estimate(replicates, MANY)
    assert (plain.low, plain.high) == pytest.approx((1.05, 2.95), rel=1e-6)


def test_interval_depends_on_the_seed_alone_and_scales_with_the_values() -> None:
    num, den = speedups(np.random.default_rng(0), 12)
    found = of_totals(num, den, seed=7)
    assert found == of_totals(num, den, seed=7)
    assert found != of_totals(num, den, seed=8)
    scaled = of_totals(num * 8, den, seed=7)
    assert (scaled.low, scaled.high) == pytest.approx((8 * found.low, 8 * found.high))
    assert found.low < found.value < found.high


def speedups(random, *shape, noise=0.1):
    """Seconds of a baseline and of an arm twice as fast, per prompt."""
    work = random.lognormal(0.0, 0.6, shape)
    first, second = np.exp(random.normal(-(noise**2) / 2, noise, (2, *shape)))
    return work * first, work / 2.0 * second


def acceptances(random, *shape):
    """Drafts accepted and tested, per prompt; alpha .8, which differs between prompts by .11."""
    tested = 1 + random.lognormal(3.7, 0.6, shape).astype(int)
    return random.binomial(tested, random.beta(9.6, 2.4, shape)), tested


def num_covered(draw, interval, truth, num_prompts, num_units=None):
    """How many of 1000 simulated 95 % intervals hold the truth."""
    hits, random = 0, np.random.default_rng(num_prompts)
    for seed in range(10):
        num, den = draw(random, num_prompts, 100)
        totals = np.array(Resampler(seed, 500).totals(num, den))
        for replicates in ratio(totals[:100], totals[100:]):
            found = interval(replicates, num_units or num_prompts)
            hits += found.low <= truth <= found.high
    return hits


@pytest.mark.parametrize("num_prompts", [10, 40])
@pytest.mark.parametrize(
    ("draw", "interval", "truth"), [(speedups, estimate, 2.0), (acceptances, rate, 0.8)]
)
def test_intervals_cover_the_truth(draw, interval, truth, num_prompts) -> None:
    # At a true coverage of .93 fewer than 905 of 1000 hit with odds 2e-3, at .95 more than 970
    # with odds 1e-3. The mutant, plain percentiles of 10 prompts, covers .88.
    assert 905 <= num_covered(draw, interval, truth, num_prompts) <= 970
    if num_prompts == 10:
        assert num_covered(draw, interval, truth, num_prompts, num_units=MANY) < 905


def test_unpaired_resampling_would_be_far_too_wide() -> None:
    base, arm = speedups(np.random.default_rng(0), 40)
    paired = of_totals(base, arm)
    shuffled = of_totals(base, np.random.default_rng(1).permutation(arm))
    assert paired.high - paired.low < (shuffled.high - shuffled.low) / 3


def sessions(random, num_sessions, num_prompts, spread, noise=0.05):
    """Seconds of two arms by session and prompt; true ratio 2, by `spread` off in a session."""
    work = random.lognormal(0.0, 0.6, num_prompts)
    shape = (2, num_sessions, num_prompts)
    first, second = work * np.exp(random.normal(-(noise**2) / 2, noise, shape))
    own = np.exp(random.normal(-(0.15**2) / 2, 0.15, num_prompts))
    tilt = np.exp(random.normal(-(spread**2) / 2, spread, (num_sessions, 1)))
    return first, second * own * tilt / 2.0


def both_intervals(first, second, seed=0):
    """Without and with what sessions add."""
    alone = of_totals(first.mean(axis=0), second.mean(axis=0), seed)
    return alone, with_sessions(alone, first, second)


def test_sessions_that_differ_are_covered() -> None:  # faults G16
    # With the term .96 is covered, without .73: of 300, fewer than 272 or more than 246 hit with
    # odds 1e-4 each.
    random, hits = np.random.default_rng(0), np.zeros(2, int)
    for run in range(300):
        found = both_intervals(*sessions(random, 3, 20, spread=0.1), seed=run % 5)
        hits += [one.low <= 2.0 <= one.high for one in found]
    assert hits[1] >= 272
    assert hits[0] <= 246


def test_sessions_add_by_hand() -> None:
    # Log ratios of 0 and .2 without noise: their mean has a variance of .02 / 2, t is 12.706.
    first = np.tile([1.0, 2.0, 3.0], (2, 1))
    second = first * np.exp([[0.0], [-0.2]])
    found = with_sessions(Estimate(1.0, math.exp(-0.3), math.exp(0.4)), first, second)
    reach = 12.706205 * 0.1
    assert math.log(found.low) == pytest.approx(-math.hypot(0.3, reach))
    assert math.log(found.high) == pytest.approx(math.hypot(0.4, reach))
    turned = with_sessions(Estimate(1.0, math.exp(-0.4), math.exp(0.3)), second, first)
    assert turned.low == pytest.approx(1.0 / found.high)


def test_sessions_that_agree_and_a_single_session_change_nothing() -> None:
    first, second = sessions(np.random.default_rng(0), 1, 20, spread=0.0)
    for times in (1, 3):
        alone, found = both_intervals(np.tile(first, (times, 1)), np.tile(second, (times, 1)))
        assert found == alone
    assert with_sessions(None, first, second) is None
    assert with_sessions(Estimate(2.0), first, second) == Estimate(2.0)


def test_prompts_that_a_session_lacks_say_nothing_of_sessions() -> None:
    first, second = sessions(np.random.default_rng(1), 3, 20, spread=0.1)
    kept = both_intervals(first[:, 1:], second[:, 1:])[0]
    wanted = with_sessions(kept, first[:, 1:], second[:, 1:])
    first[2, 0] = np.nan
    assert with_sessions(kept, first, second) == wanted


def test_chi_square_by_hand() -> None:
    # (60-50)^2/50 + (40-50)^2/50 = 4 with one degree of freedom.
    half = np.array([0.5, 0.5])
    assert pearson(np.array([60, 40]), half) == pytest.approx(4.0)
    assert p_value(4.0, 1) == pytest.approx(math.erfc(math.sqrt(2)))
    assert pearson(np.array([50, 50]), half) == 0.0
    assert p_value(0.0, 1) == 1.0


def test_rounding_between_the_laws_is_no_fault() -> None:
    assert p_value(40.0, 10, rounding=20.0) > 100 * p_value(40.0, 10, rounding=0.0)
    assert p_value(1e6, 10, rounding=1e-6) == 0.0
    assert p_value(math.inf, 10) == 0.0
    assert p_value(0.0, 0) == 1.0


def test_more_draws_detect_smaller_variations() -> None:
    found = [detectable_variation(num, 5, 0.0, 1e-4, 0.99) for num in (10, 1000, 4000)]
    assert found[0] == 1.0
    assert found[1] == pytest.approx(2.0 * found[2])  # noncentrality 4 n d^2
    assert detectable_variation(1000, 0, 0.0, 1e-4, 0.99) == 1.0


def chi_square(counts, law):
    return fit(np.array(counts, float), np.array(law))


def test_small_cells_are_pooled() -> None:
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Resampler(0).totals(np.ones(2), np.ones(3)), "dimension"),
        (lambda: estimate(np.ones((2, 3)), 3), "allowed"),
        (lambda: rate(np.ones(0), 3), "allowed"),
        (lambda: with_sessions(None, np.ones((2, 3)), np.ones((2, 4))), "allowed"),
        (lambda: with_sessions(None, np.ones(3), np.ones(3)), "allowed"),
        (lambda: pearson(np.ones(2), np.ones(3) / 3), "allowed"),
    ],
)
def test_arguments_of_another_shape_are_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
