"""The closed forms against hand-worked numbers, exact identities and enumeration."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.theory import (
    break_even_alpha,
    capped_geometric,
    expected_tokens,
    expected_tokens_by_position,
    guaranteed_improvement,
    operations_factor,
    optimal_gamma,
    oracle_expected_tokens,
    refined_walltime_improvement,
    walltime_improvement,
)

ALPHAS = st.floats(0.0, 1.0)
GAMMAS = st.integers(0, 12)
COSTS = st.floats(0.0, 2.0)


@given(alpha=ALPHAS, gamma=GAMMAS)
def test_expected_tokens_is_equation_1_in_exact_arithmetic(alpha: float, gamma: int) -> None:
    a = Fraction(alpha)
    exact = gamma + 1 if a == 1 else (1 - a ** (gamma + 1)) / (1 - a)
    assert expected_tokens(alpha, gamma) == pytest.approx(float(exact), rel=1e-14)


def test_alpha_of_one_and_just_below_it_need_no_division() -> None:
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(1.0 - 1e-12, 5) == pytest.approx(6.0 - 15e-12, abs=1e-14)
    assert walltime_improvement(1.0, 5, 0.1) == 6.0 / 1.5
    assert operations_factor(1.0, 5, 0.0) == 1.0
    assert oracle_expected_tokens(1.0) == math.inf


@given(alpha=ALPHAS, c=COSTS)
def test_gamma_of_zero_is_decoding_without_a_draft(alpha: float, c: float) -> None:
    assert expected_tokens(alpha, 0) == 1.0
    assert walltime_improvement(alpha, 0, c) == 1.0
    assert operations_factor(alpha, 0, c) == 1.0
    assert capped_geometric(alpha, 0) == (1.0,)


def test_alpha_of_zero_commits_one_token_a_round() -> None:
    assert expected_tokens(0.0, 7) == oracle_expected_tokens(0.0) == 1.0
    assert capped_geometric(0.0, 2) == (1.0, 0.0, 0.0)


def test_expected_tokens_by_position_equals_enumeration_of_all_outcomes() -> None:
    alphas = (0.8, 0.5, 0.9, 0.0625)
    expected = 0.0
    for outcome in itertools.product((True, False), repeat=len(alphas)):
        weight = math.prod(a if kept else 1 - a for a, kept in zip(alphas, outcome, strict=True))
        run = next((i for i, kept in enumerate(outcome) if not kept), len(outcome))
        expected += weight * (run + 1)
    assert expected_tokens_by_position(alphas) == pytest.approx(expected, rel=1e-14)
    assert expected_tokens_by_position(()) == 1.0


def test_prompts_that_differ_give_more_tokens_than_their_mean_alpha() -> None:
    apart = (expected_tokens(0.9, 5) + expected_tokens(0.5, 5)) / 2
    assert apart == pytest.approx(3.33, abs=0.005)
    assert expected_tokens(0.7, 5) == pytest.approx(2.94, abs=0.005)


@given(alpha=ALPHAS, gamma=GAMMAS)
def test_capped_geometric_is_a_law_whose_mean_is_equation_1(alpha: float, gamma: int) -> None:
    law = capped_geometric(alpha, gamma)
    assert len(law) == gamma + 1
    assert sum(law) == pytest.approx(1.0, abs=1e-12)
    mean = sum(k * probability for k, probability in enumerate(law))
    assert mean + 1.0 == pytest.approx(expected_tokens(alpha, gamma), rel=1e-12)


@given(alpha=ALPHAS, gamma=GAMMAS, c=COSTS)
def test_no_gamma_and_no_cost_beats_the_oracle(alpha: float, gamma: int, c: float) -> None:
    assert walltime_improvement(alpha, gamma, c) <= oracle_expected_tokens(alpha) * (1 + 1e-12)


def test_accepted_over_drafted_is_not_alpha() -> None:  # faults E1
    rates = [(expected_tokens(0.8, gamma) - 1) / gamma for gamma in (2, 4, 8)]
    assert rates == pytest.approx([0.72, 0.59, 0.42], abs=0.005)
    assert expected_tokens(0.8, 4) == pytest.approx(3.36, abs=0.005)
    assert expected_tokens(rates[1], 4) == pytest.approx(2.27, abs=0.005)


def test_conditional_rates_of_the_worked_set_give_its_tokens_per_round() -> None:  # faults E7
    assert expected_tokens_by_position((0.75, 2 / 3, 0.5)) == pytest.approx(2.5)


def test_a_higher_alpha_can_be_slower() -> None:  # faults E13
    assert walltime_improvement(0.8, 4, 0.5) == pytest.approx(1.12, abs=0.005)
    assert walltime_improvement(0.62, 6, 0.02) == pytest.approx(2.27, abs=0.005)


def test_break_even_alpha() -> None:  # faults E14
    at_five = break_even_alpha(5, 0.6)
    assert at_five == pytest.approx(0.834, abs=0.0005)
    assert walltime_improvement(at_five, 5, 0.6) == pytest.approx(1.0, abs=1e-12)
    assert break_even_alpha(1, 0.6) == 0.6
    assert break_even_alpha(3, 0.0) == 0.0


@pytest.mark.parametrize(("gamma", "c"), [(1, 1.0), (5, 1.5), (0, 0.1)])
def test_no_alpha_pays(gamma: int, c: float) -> None:  # faults E14
    assert break_even_alpha(gamma, c) is None
    assert walltime_improvement(1.0, gamma, c) <= 1.0


@given(gamma=st.integers(1, 12), c=st.floats(0.0, 0.99))
def test_break_even_alpha_separates_gain_from_loss(gamma: int, c: float) -> None:
    alpha = break_even_alpha(gamma, c)
    assert walltime_improvement(min(1.0, alpha + 1e-6), gamma, c) > 1.0 - 1e-12
    assert walltime_improvement(max(0.0, alpha - 1e-6), gamma, c) < 1.0 + 1e-12


def test_best_gamma_may_be_not_to_speculate() -> None:  # faults E14
    assert optimal_gamma(0.5, 0.5) == 0
    assert optimal_gamma(0.6, 0.6) == 0
    assert optimal_gamma(0.9, 1.0) == 0
    assert optimal_gamma(0.0, 0.0) == 0


def test_free_drafts_take_the_largest_gamma() -> None:
    assert optimal_gamma(0.5, 0.0, max_gamma=100) == 100
    assert optimal_gamma(1.0, 0.3, max_gamma=9) == 9


@given(alpha=ALPHAS, c=st.floats(0.001, 1.0))
def test_the_guarantee_holds_for_the_best_gamma(alpha: float, c: float) -> None:
    best = walltime_improvement(alpha, optimal_gamma(alpha, c, max_gamma=16), c)
    assert best >= guaranteed_improvement(alpha, c) >= 1.0


def test_guaranteed_improvement() -> None:
    assert guaranteed_improvement(0.8, 0.2) == 1.8 / 1.2
    assert guaranteed_improvement(0.2, 0.8) == 1.0


def test_a_hundred_tokens_of_a_useless_draft_take_about_as_many_rounds() -> None:  # faults E17
    assert 77 / expected_tokens(0.01, 4) == pytest.approx(76.2, abs=0.05)


def test_prediction_of_the_worked_row() -> None:  # faults E18
    assert walltime_improvement(0.8, 4, 0.05) == pytest.approx(2.80, abs=0.005)


def test_measured_verification_explains_the_slowdown() -> None:  # faults G9
    expected = expected_tokens(0.8, 4)
    assert refined_walltime_improvement(expected, 4, 2 / 20) == pytest.approx(2.40, abs=0.005)
    refined = refined_walltime_improvement(expected, 4, 2 / 20, verify_ratio=32 / 20)
    assert refined == pytest.approx(1.68, abs=0.005)
    slower = refined_walltime_improvement(expected, 4, 2 / 20, 32 / 20, overhead_ratio=0.1)
    assert slower == pytest.approx(expected / 2.1)


@given(alpha=ALPHAS, gamma=st.integers(1, 12))
def test_verification_that_costs_every_token_never_pays(alpha: float, gamma: int) -> None:
    expected = expected_tokens(alpha, gamma)  # faults G10
    assert refined_walltime_improvement(expected, gamma, 1e-6, verify_ratio=gamma + 1.0) < 1.0


def test_a_step_in_the_cost_of_verification_favours_a_longer_draft() -> None:  # faults G11
    speeds = [
        refined_walltime_improvement(expected_tokens(0.8, g), g, 0.02, 1.8) for g in (1, 4, 7)
    ]
    assert speeds == pytest.approx([0.989, 1.788, 2.145], abs=0.0005)


@pytest.mark.parametrize("alpha", [-0.01, 1.01, math.nan, math.inf])
def test_alpha_outside_its_domain_is_named(alpha: float) -> None:
    for call in (
        lambda: expected_tokens(alpha, 2),
        lambda: expected_tokens(alpha, 0),
        lambda: expected_tokens_by_position((0.5, alpha)),
        lambda: capped_geometric(alpha, 2),
        lambda: oracle_expected_tokens(alpha),
        lambda: walltime_improvement(alpha, 2, 0.1),
        lambda: operations_factor(alpha, 2, 0.1),
        lambda: guaranteed_improvement(alpha, 0.1),
        lambda: optimal_gamma(alpha, 0.0),
    ):
        with pytest.raises(ValueError, match=rf"alpha {alpha}: allowed are numbers \[0, 1\]"):
            call()


def test_other_arguments_outside_their_domain_are_named() -> None:
    with pytest.raises(ValueError, match="gamma -1"):
        expected_tokens(0.5, -1)
    with pytest.raises(ValueError, match=r"c -0\.1: allowed are numbers >= 0, finite"):
        walltime_improvement(0.5, 2, -0.1)
    with pytest.raises(ValueError, match="c_hat nan"):
        operations_factor(0.5, 2, math.nan)
    with pytest.raises(ValueError, match="c inf"):
        optimal_gamma(0.5, math.inf)
    with pytest.raises(ValueError, match="max_gamma -1"):
        optimal_gamma(0.5, 0.1, max_gamma=-1)
    with pytest.raises(ValueError, match="c -1"):
        break_even_alpha(2, -1.0)
    with pytest.raises(ValueError, match="verify_ratio 0"):
        refined_walltime_improvement(2.0, 2, 0.1, verify_ratio=0.0)
    with pytest.raises(ValueError, match=r"expected 0\.5"):
        refined_walltime_improvement(0.5, 2, 0.1)
