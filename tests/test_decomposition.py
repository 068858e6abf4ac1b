from dataclasses import replace

import numpy as np
import pytest
from synthetic import Machine, Plan, counts, generation, group, timed

from specbench import theory
from specbench.measure.decomposition import ENCODER, UNEXPLAINED, decompose
from specbench.measure.metrics import summarize
from specbench.records import StepTimes


def only(plan, seed=0):
    found = decompose(*plan.build(), seed=seed)
    assert len(found) == len(plan.gammas)
    return found[-1]


def factors(found):
    return {step.name: step.factor.value for step in found.all_steps}


def ones_but(found, *names):
    """The factors named, after checking that no other step claims a part of the gap."""
    others = {name: value for name, value in factors(found).items() if name not in names}
    assert others == pytest.approx(dict.fromkeys(others, 1.0), abs=0.01)
    return [factors(found)[name] for name in names]


# Long outputs and many prompts: acceptance and cut rounds then contribute less than 1 %.
LONG = {"group": group(max_new_tokens=4000), "lengths": 4000, "num_prompts": 8}


def test_the_steps_multiply_to_the_measured_speedups_exactly():
    machine = Machine(
        verify_s=lambda n: 0.02 + 0.002 * n,
        in_loop_draft=1.3,
        in_loop_verify=1.1,
        base_rest_s=0.001,
        rest_s=0.004,
        target_prefill_s=0.1,
        draft_prefill_s=0.03,
        outside_s=0.05,
        noise=0.2,
    )
    lengths = [9 + 3 * i for i in range(18)]
    plan = Plan(gammas=(1, 3, 8), num_prompts=18, lengths=lengths, repeats=3, machine=machine)
    cells, records = plan.build()
    summaries = {one.cell: one for one in summarize(cells, records, seed=0)}
    for found in decompose(cells, records, seed=0):
        summary = summaries[found.cell]
        values = [step.factor.value for step in found.all_steps]
        product = found.predicted.value * np.prod(values)
        assert found.predicted.value == pytest.approx(summary.walltime_improvement, rel=1e-12)
        assert product == pytest.approx(summary.speedup.value, rel=1e-12)
        assert product / values[-1] == pytest.approx(summary.decode_speedup.value, rel=1e-12)
        assert found.refined.value * values[-2] == pytest.approx(found.measured.value, rel=1e-12)
        assert found.measured == summary.decode_speedup
        assert found.measured_total == summary.speedup


def test_an_ideal_machine_leaves_nothing_to_explain():
    assert ones_but(only(Plan(**LONG))) == []


def test_planted_verification_cost_is_given_back():
    # T1 = 20 ms, T5 = 32 ms, draft 2 ms, gamma 4, alpha .8: 2.40 with free verification, 1.68.
    machine = Machine(verify_s=lambda n: 0.020 + 0.003 * (n - 1))
    found = only(Plan(**LONG, gammas=(4,), machine=machine))
    assert ones_but(found, "verification") == pytest.approx([1.4 / 2.0])
    assert found.predicted.value == pytest.approx(2.40, abs=0.005)
    assert found.measured.value == pytest.approx(1.68, abs=0.02)
    assert "the target's call of 5 tokens costs 1.60 times its call of one" in found.sentence
    assert "falls from 2.4" in found.sentence


def test_planted_loop_costs_are_given_back():
    found = only(Plan(**LONG, machine=Machine(in_loop_draft=1.5, in_loop_verify=1.2)))
    draft, verify = ones_but(found, "draft in the loop", "verification in the loop")
    assert draft == pytest.approx(1.3 / 1.45)
    assert verify == pytest.approx(1.45 / 1.65)


def test_planted_overhead_counts_the_drawing_of_the_baseline_too():
    found = only(Plan(**LONG, machine=Machine(base_rest_s=0.002, rest_s=0.005)))
    assert ones_but(found, "drawing and rollback") == pytest.approx([(22 / 20) * (26 / 31)])
    assert "3.00 ms more per round" in found.sentence


def test_planted_time_outside_the_rounds_is_unexplained():
    found = only(Plan(**LONG, machine=Machine(outside_s=4.0)))
    (factor,) = ones_but(found, UNEXPLAINED)
    rounds_s = 4000 / theory.expected_tokens(0.8, 3) * 0.026
    assert factor == pytest.approx(rounds_s / (rounds_s + 4.0), rel=0.02)
    assert found.refined.value > found.measured.value


def test_planted_encoder_is_the_step_to_end_to_end():
    found = only(Plan(**LONG, machine=Machine(target_prefill_s=8.0, draft_prefill_s=1.0)))
    (factor,) = ones_but(found, ENCODER)
    rounds_s = 4000 / theory.expected_tokens(0.8, 3) * 0.026
    assert factor == pytest.approx((88.0 / 80.0) * rounds_s / (rounds_s + 9.0), rel=0.02)


def test_prompts_that_differ_are_seen_by_the_acceptance_step():
    # Equal outputs: easy prompts need few rounds, so tokens per round are a harmonic mean.
    plan = Plan(**{**LONG, "alphas": [0.9, 0.5] * 4}, gammas=(5,))
    found = only(plan)
    easy, hard = theory.expected_tokens(0.9, 5), theory.expected_tokens(0.5, 5)
    harmonic = 2 / (1 / easy + 1 / hard)
    (factor,) = ones_but(found, "acceptance by position")
    assert factor == pytest.approx(harmonic / theory.expected_tokens(0.7, 5), rel=0.02)
    assert harmonic < theory.expected_tokens(0.7, 5)


def test_short_outputs_are_seen_by_the_cut_rounds():
    plan = Plan(gammas=(6,), alphas=0.95, num_prompts=400, lengths=[3 + i % 7 for i in range(400)])
    found = only(plan)
    (factor,) = ones_but(found, "cut last rounds")
    assert factor < 0.75


def test_what_parts_alone_predict_stands_apart_from_the_account_of_the_loop():
    machine = Machine(verify_s=lambda n: 0.020 + 0.003 * (n - 1), in_loop_verify=1.2)
    found = only(Plan(**LONG, gammas=(4,), machine=machine))
    assert found.alone.value == pytest.approx(1.68, abs=0.02)
    assert found.refined.value == pytest.approx(found.measured.value)
    assert found.alone.value > found.measured.value * 1.1


def test_every_factor_lies_in_its_interval_and_noise_widens_it():
    calm = Machine(verify_s=lambda n: 0.02 + 0.002 * n, rest_s=0.002, noise=0.001)
    plans = [
        Plan(num_prompts=30, lengths=64, machine=machine)
        for machine in (calm, replace(calm, noise=0.1))
    ]
    quiet, noisy = (only(plan) for plan in plans)
    for found in (quiet, noisy):
        for step in found.all_steps:
            assert step.factor.low <= step.factor.value <= step.factor.high
    assert width(noisy, "draft in the loop") > 10 * width(quiet, "draft in the loop")
    # Verification alone was timed call by call; noise of generations does not reach it.
    assert width(noisy, "verification") < 1e-12


def width(found, name):
    (factor,) = (step.factor for step in found.all_steps if step.name == name)
    return factor.high - factor.low


def test_a_cell_without_step_times_or_overlaps_is_left_out():
    cells, records = Plan(num_prompts=2).build()
    without = [record for record in records if not isinstance(record, StepTimes)]
    assert decompose(cells, without, seed=0) == []
    assert len(decompose(cells, records, seed=0)) == 1


def test_noise_that_repeats_cancel_is_in_no_step():
    # Slow seconds meet both arms of a repeat; one repeat of the draft's arm was stalled.
    scales = ((2.0, 2.0), (4.0, 7.6), (12.0, 12.0), (3.0, 3.0), (10.0, 10.0))
    cells, records = Plan(**LONG).build()
    noisy = [
        timed(cell, one.prompt_ids[0], repeat, one.rounds, Machine(), both[index])
        for index, cell in enumerate(cells)
        for one in records
        if getattr(one, "repeat", None) == 0 and one.cell == cell.key
        for repeat, both in enumerate(scales)
    ]
    others = [one for one in records if not hasattr(one, "repeat")]
    (found,) = decompose(cells, [*others, *noisy], seed=0)
    ones_but(found)


def test_a_position_that_no_round_reached_does_not_break_the_chain():
    cells, records = Plan(num_prompts=1).build()
    kept = [record for record in records if getattr(record, "cell", "") != cells[1].key]
    base = next(one for one in records if getattr(one, "cell", "") == cells[0].key)
    rounds = [counts(3, 0, 1, 1)] * 64
    arm = generation(cells[1], base.prompt_ids[0], 0, rounds, total_s=2.0)
    assert decompose(cells, [*kept, arm], seed=0) == []  # no clock, no decomposition
