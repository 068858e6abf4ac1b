"""What the figures of a run show, read from what was drawn."""

import warnings
from dataclasses import replace

import pytest
from synthetic import Machine, Plan, merged

from specbench.measure.collection import collect
from specbench.measure.decomposition import decompose_collected
from specbench.measure.metrics import summarize_collected
from specbench.records import Cell
from specbench.report import provenance, style
from specbench.report.rows import own_drafted
from specbench.report.series import names_of, task_title
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


def test_a_far_interval_does_not_flatten_the_gap(noisy):
    (found,) = noisy[1]
    far = replace(found, measured_total=replace(found.measured_total, high=5000.0))
    (axes,) = draw_waterfalls([far]).axes
    assert axes.get_xlim()[1] < 20.0
    assert any("5000" in text for text in texts(axes))


def test_drafts_and_tasks_have_names_that_tell_them_apart(noisy, tmp_path):
    assert names_of(["a/same", "b/same/"]) == {"a/same": "a/same", "b/same/": "b/same"}
    assert names_of(["pocket/small", "x/large"]) == {"pocket/small": "small", "x/large": "large"}
    assert task_title("file:/a/long/way/prompts.jsonl#summary") == "prompts.jsonl#summary"
    summaries = own_drafted(noisy[0])
    odd = [renamed(one, draft="d$_$\u6a21", task="file:x/$_$.jsonl") for one in summaries]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        style.save(draw_total_speedup(odd), tmp_path / "odd")
    (axes,) = draw_decode_speedup(odd, []).axes
    assert axes.get_title() == "\\$_\\$.jsonl, T = 0\nd\\$_\\$\u6a21"


def renamed(summary, draft, task):
    group = replace(summary.cell.group, task=task)
    return replace(summary, cell=Cell(group, replace(summary.cell.arm, draft=draft)))


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
