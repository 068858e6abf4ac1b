from dataclasses import replace

import pytest
from synthetic import Machine, Plan, merged

from specbench import theory
from specbench.measure.metrics import summarize
from specbench.measure.recommendation import recommend, what_if
from specbench.records import Generation

CHEAP = Machine(verify_s=lambda n: 0.020, draft_s=0.001, noise=0.02)
LINEAR = Machine(verify_s=lambda n: 0.020 * n, draft_s=0.001)


def two_drafts(machine=CHEAP, gammas=(1, 3, 5), **options):
    """A run with the drafts "small" at alpha .8 and "poor" at alpha .2 beside one baseline."""
    shared = {"gammas": gammas, "machine": machine, **options}
    return merged([Plan(**shared), Plan(**shared, draft="poor", alphas=0.2)])


def test_the_fastest_arm_is_named_with_a_runner_up():
    cells, records = two_drafts()
    (found,) = recommend(cells, records, seed=0)
    assert found.best.cell.arm.label == "small gamma=5"
    assert found.runner_up.cell.arm.label == "small gamma=3"
    assert found.is_sure
    assert found.is_real
    first, second = found.best.speedup.value, found.runner_up.speedup.value
    assert found.advantage.value == pytest.approx(first / second)


def test_not_speculating_wins_where_verification_is_not_free():
    cells, records = two_drafts(LINEAR)
    (found,) = recommend(cells, records, seed=0)
    assert found.best.cell.arm.is_baseline
    assert found.speedup.value == 1.0
    assert found.is_sure
    assert all(advice.best.speedup.value < 1.0 for advice in found.drafts)


def test_a_difference_within_the_noise_is_not_real():
    noisy = replace(CHEAP, noise=0.3)
    (found,) = recommend(*two_drafts(noisy, gammas=(4, 5), num_prompts=6), seed=0)
    assert not found.is_real


def test_advice_for_each_draft_names_what_would_have_to_change():
    cells, records = two_drafts(replace(CHEAP, draft_s=0.012))
    (found,) = recommend(cells, records, seed=0)
    small, poor = found.drafts
    assert (small.draft, poor.draft) == ("small", "poor")
    gamma = poor.best.cell.arm.gamma
    assert poor.break_even_alpha == pytest.approx(theory.break_even_alpha(gamma, 0.6))
    assert poor.predicted.gamma == 0
    assert small.predicted.gamma == theory.optimal_gamma(0.8, 0.6)
    assert not small.beyond_measured


def test_no_alpha_pays_when_a_draft_costs_as_much_as_the_target():
    (found,) = recommend(*two_drafts(replace(CHEAP, draft_s=0.021)), seed=0)
    assert found.best.cell.arm.is_baseline
    assert all(advice.break_even_alpha is None for advice in found.drafts)


def test_the_formula_may_point_beyond_the_measured_gammas():
    (found,) = recommend(*two_drafts(gammas=(1, 2)), seed=0)
    small = found.drafts[0]
    assert small.beyond_measured
    best = theory.optimal_gamma(0.8, 0.05, 32)
    assert small.predicted.gamma == best > 2
    (found,) = recommend(*two_drafts(gammas=(1, best)), seed=0)
    assert not found.drafts[0].beyond_measured


def test_arms_whose_gamma_was_not_fixed_are_never_chosen():
    cells, records = two_drafts(gammas=(5,))
    # The same rounds under the name of gamma 7: each drafted 5.
    cells = [
        cell if cell.arm.draft != "small" else replace(cell, arm=replace(cell.arm, gamma=7))
        for cell in cells
    ]
    old = next(one.cell for one in records if "draft=small" in getattr(one, "cell", ""))
    new = next(cell.key for cell in cells if cell.arm.draft == "small")
    records = [
        replace(one, cell=new) if isinstance(one, Generation) and one.cell == old else one
        for one in records
    ]
    (found,) = recommend(cells, records, seed=0)
    assert found.best.cell.arm.draft != "small"


def test_what_if_replaces_one_number_and_keeps_the_other():
    summaries = summarize(*two_drafts(), seed=0)
    small, poor = what_if(summaries, alpha=0.8)
    assert (small.gamma, small.walltime_improvement) == (poor.gamma, poor.walltime_improvement)
    small, poor = what_if(summaries, c=0.5)
    assert (small.alpha, small.c) == (pytest.approx(0.8), 0.5)
    assert poor.gamma == 0
    assert poor.walltime_improvement == 1.0
    with pytest.raises(ValueError, match="alpha"):
        what_if(summaries, alpha=1.5)
