"""What the figures of a run show, read from what was drawn."""

from dataclasses import replace

import pytest
from synthetic import Machine, Plan, merged

from specbench.measure.collection import collect
from specbench.measure.decomposition import decompose_collected
from specbench.measure.metrics import summarize_collected
from specbench.report import provenance
from specbench.report.rows import own_drafted
from specbench.report.speed_figures import draw_decode_speedup, draw_total_speedup
from specbench.report.waterfall import draw_waterfalls


def evaluated(*plans):
    collected = collect(*merged(plans), seed=0)
    return summarize_collected(collected), decompose_collected(collected)


def texts(axes):
    return [found.get_text() for found in axes.texts]


@pytest.fixture(scope="module")
def noisy():
    lengths = [10 + 4 * i for i in range(6)]
    machine = Machine(rest_s=0.001, target_prefill_s=0.02, noise=0.02)
    return evaluated(Plan(num_prompts=6, lengths=lengths, machine=machine))


def test_an_interval_that_leaves_the_panel_ends_in_an_arrow(noisy):
    summaries = own_drafted(noisy[0])
    wide = replace(summaries[0], speedup=replace(summaries[0].speedup, high=90.0))
    for drawn, num_arrows in ((wide, 1), (summaries[0], 0)):
        (axes,) = draw_total_speedup([drawn]).axes
        assert axes.get_ylim()[1] < 90.0
        arrows = [point for found in axes.collections[1:] for point in found.get_offsets()]
        assert len(arrows) == num_arrows
        assert all(point[1] == axes.get_ylim()[1] for point in arrows)


def test_one_gamma_has_one_tick_at_a_whole_number(noisy):
    drafted = own_drafted(noisy[0])
    for figure in (draw_total_speedup(drafted), draw_decode_speedup(drafted, [])):
        (axes,) = figure.axes
        low, high = axes.get_xlim()
        assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [3.0]


def test_every_factor_of_the_gap_has_its_interval(noisy):
    (found,) = noisy[1]
    (axes,) = draw_waterfalls(noisy[1]).axes
    assert len(texts(axes)) == len(found.all_steps) + 3
    assert [text for text in texts(axes) if "[" not in text] == []
    low, high = found.measured_total.low, found.measured_total.high
    assert (low, high) in [tuple(line.get_xdata()) for line in axes.lines]


def test_the_foot_says_how_many_prompts_there_are(noisy):
    about = {"wmt-ende": {"num_prompts": 6}, "cnn-dm": {"num_prompts": 50}}
    said = provenance.caption({"prompts": about}, noisy[0])
    assert "prompts: 6 of wmt-ende, 50 of cnn-dm" in said
