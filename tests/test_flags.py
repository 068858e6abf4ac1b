from dataclasses import replace

import numpy as np
import pytest
from synthetic import Machine, Plan, counts, generation, group, play

from specbench.measure.flags import position_cliff
from specbench.measure.metrics import summarize
from specbench.measure.tally import tally
from specbench.records import Generation, OverlapTrace


def cells_of(gamma, **options):
    return Plan(group(**options), gammas=(gamma,)).cells()


def flags_of(gamma, generations, **options):
    """The flags of an arm at `gamma`, from one list of rounds for each prompt."""
    cell = cells_of(gamma, **options)[1]
    records = [generation(cell, f"p{i}", 0, rounds) for i, rounds in enumerate(generations)]
    return summarize([cell], records, seed=0)[0].flags


def rounds_accepting(*accepted, gamma=4):
    return [counts(gamma, run, min(run + 1, gamma), run + 1) for run in accepted]


def test_a_cliff_in_acceptance_is_named_with_its_position():
    # Conditional rates .8, .8, .8, 0: of 125 rounds 100, 80 and 64 pass positions 1, 2 and 3.
    runs = [0] * 25 + [1] * 20 + [2] * 16 + [3] * 64
    cell = cells_of(4, max_new_tokens=10_000)[1]
    found = tally(cell, [generation(cell, "p", 0, rounds_accepting(*runs))])
    assert position_cliff(found) == 4
    flags = flags_of(4, [rounds_accepting(*runs)], max_new_tokens=10_000)
    assert "position cliff at 4" in flags


def test_acceptance_that_falls_slowly_or_is_hardly_tested_is_no_cliff():
    slowly = [0] * 40 + [1] * 30 + [2] * 20 + [3] * 10 + [4] * 5
    few = [0] * 2 + [1] * 2 + [2] * 2 + [3] * 5
    for runs in (slowly, few):
        flags = flags_of(4, [rounds_accepting(*runs)], max_new_tokens=10_000)
        assert not [flag for flag in flags if "cliff" in flag]


def test_gamma_is_fixed_although_the_limit_cuts_the_last_rounds():
    rounds = play(np.random.default_rng(0), 5, 0.7, 64, 64)
    assert min(item.num_drafted[0] for item in rounds) < 5
    assert "gamma not fixed" not in flags_of(5, [rounds])


@pytest.mark.parametrize("width", [4, 6])
def test_a_round_of_another_width_away_from_the_limit_is_flagged(width):
    rounds = [counts(5, 1, 2, 2), counts(width, 0, 1, 1), counts(5, 1, 2, 2)]
    assert "gamma not fixed" in flags_of(5, [rounds])


def test_repeats_that_scatter_are_unstable():
    cells, records = Plan(repeats=3, machine=Machine(noise=0.3)).build()
    assert "unstable" in summarize(cells, records, seed=0)[1].flags
    cells, records = Plan(repeats=3, machine=Machine(noise=0.02)).build()
    assert "unstable" not in summarize(cells, records, seed=0)[1].flags


@pytest.mark.parametrize(("spread", "flagged"), [(0.68, True), (0.2, False)])
def test_prompts_that_scatter_are_unstable(spread, flagged):
    cell = cells_of(3)[0]
    # Seconds per token 1 - s, 1, 1 + s have a standard deviation of s and a mean of 1.
    records = [
        generation(
            cell, f"p{i}", 0, [counts(0, 0, 0, 1)] * 11, total_s=10.0 * tpot + 1.0, ttft_s=1.0
        )
        for i, tpot in enumerate((1.0 - spread, 1.0, 1.0 + spread))
    ]
    assert ("unstable" in summarize([cell], records, seed=0)[0].flags) is flagged


@pytest.mark.parametrize(
    ("field", "flag"), [("others_fraction", "busy machine"), ("steal_fraction", "stolen time")]
)
def test_time_that_went_elsewhere_is_flagged(field, flag):
    cells, records = Plan().build()
    for share, flagged in ((0.5, True), (0.01, False), (None, False)):
        around = [
            replace(one, **{field: share}) if isinstance(one, Generation) else one
            for one in records
        ]
        assert (flag in summarize(cells, around, seed=0)[1].flags) is flagged


def test_repeats_with_other_tokens_or_other_acceptance_are_not_reproducible():
    cell = cells_of(4)[1]
    first = generation(cell, "p", 0, rounds_accepting(3, 1))
    same = replace(first, repeat=1)
    other_tokens = replace(same, tokens=((9,) * 6,))
    other_accepted = replace(generation(cell, "p", 1, rounds_accepting(1, 3)), tokens=first.tokens)
    assert "not reproducible" not in summarize([cell], [first, same], seed=0)[0].flags
    for second in (other_tokens, other_accepted):
        assert "not reproducible" in summarize([cell], [first, second], seed=0)[0].flags


def test_more_speed_than_a_free_draft_could_give_is_flagged():
    base, arm = cells_of(3)
    records = []
    for i in range(10):
        plain = [counts(0, 0, 0, 1)] * 40
        records.append(generation(base, f"p{i}", 0, plain, total_s=1.0 + 0.01 * i))
        records.append(generation(arm, f"p{i}", 0, rounds_accepting(*[3] * 10, gamma=3)))
        records.append(OverlapTrace(base.key, "small", f"p{i}", (0.5,) * 40))
    for total, flagged in ((0.4, True), (0.6, False)):  # E[N] at .5 and gamma 3 is 1.875
        timed = [replace(one, total_s=total) if is_arm(one, arm) else one for one in records]
        flags = summarize([base, arm], timed, seed=0)[1].flags
        assert ("exceeds c=0 ceiling" in flags) is flagged


def is_arm(record, arm):
    return getattr(record, "repeat", None) is not None and record.cell == arm.key


def test_short_outputs_are_kept_counted_and_compared_without():
    plan = Plan(num_prompts=6, lengths=[7, 30, 30, 30, 30, 30], machine=Machine(rest_s=0.001))
    found = summarize(*plan.build(), seed=0)[1]
    assert "short outputs (1)" in found.flags
    assert (found.num_prompts, found.num_short) == (6, 1)
    rest = replace(plan, num_prompts=5, lengths=30)
    assert found.speedup_without_short is not None
    assert found.speedup_without_short != found.speedup
    assert summarize(*rest.build(), seed=0)[1].speedup_without_short is None
