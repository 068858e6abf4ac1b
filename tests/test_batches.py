"""Speedup against batch: against which baseline, and where it is said to fall under 1."""

from dataclasses import replace

import pytest
from synthetic import Machine, Plan, group, merged

from specbench.measure.metrics import summarize
from specbench.records import Arm, Cell
from specbench.report.batch_figure import draw_against_batch
from specbench.report.batches import against_batch, batch_rows
from specbench.statistics import Estimate


def summaries_at(verify_by_batch, noise=0.02, draft="small"):
    """A run of one draft; the target's call of several tokens costs more by batch."""
    plans = [
        Plan(
            group(batch=batch),
            draft,
            gammas=(1, 3),
            num_prompts=8,
            # The baseline slows down with the batch as well, and far more than the arm gains.
            machine=Machine(
                verify_s=lambda n, b=batch, cost=cost: 0.02 * b * (1 + cost * (n - 1)),
                draft_s=0.001 * batch,
                noise=noise,
            ),
        )
        for batch, cost in verify_by_batch.items()
    ]
    return summarize(*merged(plans), seed=0)


@pytest.mark.parametrize(
    ("costs", "sentence", "between"),
    [
        ({1: 0.0, 4: 0.1, 16: 2.0}, "falls under 1 between 4 and 16", (4, 16)),
        ({1: 0.0, 4: 0.0}, "stays above 1", (4, None)),
        ({1: 2.0, 4: 3.0}, "under 1 from the start", (None, 1)),
    ],
)
def test_it_says_where_the_speedup_falls_under_1(costs, sentence, between):
    summaries = summaries_at(costs)
    (row,) = batch_rows(summaries)
    assert row["against_batch"] == sentence
    assert (row["last_above"], row["first_under"]) == between
    assert row["batches"] == " ".join(map(str, costs))
    figure = draw_against_batch(summaries)
    assert figure.axes[0].get_title() == f"pocket-ende, T = 0\nsmall: {sentence}"
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [*map(str, costs)]


def test_a_fall_that_the_intervals_leave_open_may_be_chance():
    (row,) = batch_rows(summaries_at({1: 0.0, 4: 0.7}, noise=0.6))
    assert row["against_batch"].endswith(", which may be chance")


def test_a_fall_within_the_null_arm_may_be_chance():
    summaries = summaries_at({1: 0.0, 4: 2.0})
    base = next(one for one in summaries if one.cell.group.batch == 4)
    null = replace(
        base,
        cell=Cell(base.cell.group, Arm(replica=1)),
        decode_speedup=Estimate(1.0, 0.01, 1.1),
    )
    (row,) = batch_rows([*summaries, null])
    assert row["against_batch"] == "falls under 1 between 1 and 4, which may be chance"


def test_every_batch_is_held_against_the_baseline_at_that_batch():
    # Nothing but the batch differs, which makes every call of it 16 times as long.
    (found,) = against_batch(summaries_at({1: 0.1, 16: 0.1}, noise=0.0))
    first, last = (one.decode_speedup.value for one in found.best)
    assert first == pytest.approx(last, rel=0.15)
    assert first > 1.3


def test_one_batch_size_needs_no_figure_and_no_table():
    summaries = summaries_at({4: 0.0})
    assert batch_rows(summaries) == []
    assert draw_against_batch(summaries) is None
