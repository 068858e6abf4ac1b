"""No verdict asks more of the instrument than its null arm allows."""

from dataclasses import replace

import pytest
from synthetic import Machine, Plan

from specbench.measure.metrics import summarize
from specbench.measure.recommendation import recommend
from specbench.measure.verdict import FASTER, LOSES, NOT_SHOWN, WITHHELD, doubt_of, verdict
from specbench.records import Arm, Cell, Generation
from specbench.report import console
from specbench.report.advice import RECOMMENDATIONS, recommendation_rows
from specbench.report.best import table2_rows
from specbench.statistics import Estimate

QUIET = Estimate(1.0, 0.98, 1.02)


@pytest.mark.parametrize(
    ("speedup", "null", "said"),
    [
        (Estimate(1.5, 1.4, 1.6), QUIET, FASTER),
        (Estimate(0.7, 0.6, 0.8), QUIET, LOSES),
        (Estimate(1.5, 0.9, 1.9), QUIET, NOT_SHOWN),
        (Estimate(1.5), QUIET, NOT_SHOWN),
        (Estimate(1.5, 1.4, 1.6), None, FASTER),
        (Estimate(1.5, 1.4, 1.6), Estimate(1.0), FASTER),
        # As wide as what is claimed, to either side; 1 / 0.625 is 1.6.
        (Estimate(1.5, 1.4, 1.6), Estimate(1.1, 0.9, 1.7), f"{WITHHELD}: the null arm is ±70 %"),
        (Estimate(1.5, 1.4, 1.6), Estimate(0.9, 0.625, 1.1), f"{WITHHELD}: the null arm is ±60 %"),
        (
            Estimate(1.5, 1.4, 1.6),
            Estimate(1.1, 0.05, 1.7),
            f"{WITHHELD}: the null arm is off by up to a factor of 20.0",
        ),
        (Estimate(0.99, 0.985, 0.995), QUIET, f"{WITHHELD}: the null arm is ±2.0 %"),
        # Off by itself, however little.
        (
            Estimate(1.5, 1.4, 1.6),
            Estimate(1.05, 1.01, 1.09),
            f"{WITHHELD}: the null arm is off, 1.05 [1.01, 1.09]",
        ),
    ],
)
def test_what_may_be_said(speedup, null, said):
    assert verdict(speedup, null) == said


def test_a_difference_beyond_the_null_arm_is_not_doubted():
    assert doubt_of(Estimate(1.03, 1.025, 1.035), QUIET) is None
    assert doubt_of(Estimate(1.01, 1.005, 1.015), QUIET) is not None


def with_null(noise):
    """A run whose arm gains about 20 %, with a null arm that scatters by `noise`."""
    machine = Machine(draft_s=0.009, noise=0.01)
    cells, records = Plan(gammas=(2,), num_prompts=10, machine=machine).build()
    null = Cell(cells[0].group, Arm(replica=1))
    own = [one for one in records if isinstance(one, Generation) and one.cell == cells[0].key]
    scales = [1.0 + noise * (-1) ** turn for turn in range(len(own))]
    again = [
        replace(one, cell=null.key, total_s=one.total_s * scale)
        for one, scale in zip(own, scales, strict=True)
    ]
    return [*cells, null], [*records, *again]


def test_a_noisy_null_arm_withholds_the_verdict_of_tables_and_advice():
    for noise, sure in ((0.0, True), (0.6, False)):
        run = with_null(noise)
        (row,) = table2_rows(summarize(*run, seed=0))
        (advice,) = recommend(*run, seed=0)
        assert row["speedup_low"] > 1.0
        assert (row["verdict"] == FASTER) is sure
        assert row["verdict"] == advice.verdict
        assert (advice.is_sure, advice.is_real) == (sure, sure)
        text = " ".join(RECOMMENDATIONS.texts(recommendation_rows([advice]))[0])
        assert text.startswith("pocket-ende 0 1 small γ = 2") is sure
        assert (WITHHELD in text) is not sure


def test_a_run_without_a_draft_says_so() -> None:
    cells, records = Plan(gammas=()).build()
    null = Cell(cells[0].group, Arm(replica=1))
    own = [one for one in records if isinstance(one, Generation)]
    records = [*records, *(replace(one, cell=null.key) for one in own)]
    shown = str(console.table2(summarize([cells[0], null], records, seed=0))).splitlines()
    assert shown[0] == "No draft was timed."
    assert shown[1].endswith("baseline / itself 1.00 [1.00, 1.00]")
