import csv
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from synthetic import Machine, Plan, generation, group, merged, play

from specbench import paper
from specbench.measure.collection import collect
from specbench.measure.decomposition import decompose_collected
from specbench.measure.metrics import summarize, summarize_collected
from specbench.measure.peers import compare_peers
from specbench.measure.recommendation import recommend_collected, what_if
from specbench.measure.verdict import LOSES
from specbench.records import FAILED, Arm, Cell, Generation
from specbench.report import (
    console,
    predicted,
    provenance,
    write_figures,
    write_tables,
    write_theory_figures,
)
from specbench.report.best import table2_rows
from specbench.report.published import comparison_rows
from specbench.statistics import Estimate

INFO = {
    "command": "specbench sweep --gamma 1..3",
    "config": {"repeats": 1},
    "host": {
        "cpu": {"name": "Example CPU", "num_usable": 2},
        "device": {"type": "cpu"},
        "threads": {"model": 2},
        "source": {"commit": "0123456789abcdef", "dirty": False},
    },
    "prompts": {
        "pocket-ende": {"sha256": "feedbeef" * 8, "num_prompts": 12, "num_truncated": 1},
        "pocket-summary": {"sha256": "cafe" * 16, "num_prompts": 12, "synthetic": True},
    },
}
FACTS = (
    "Example CPU, cores: 2, threads: 2", "float32", "batch: 1", "0 to 64", "feedbeef", "seed: 0",
    "0123456789ab", "specbench sweep --gamma 1..3", "1 cut",
)  # fmt: skip


def whole_run():
    machine = Machine(draft_s=0.003, rest_s=0.001, target_prefill_s=0.02, noise=0.02)
    slow = Machine(draft_s=0.030, noise=0.02)
    lengths = [10 + 4 * i for i in range(12)]
    shared = {"gammas": (1, 2, 3), "num_prompts": 12, "lengths": lengths}
    plans = [
        Plan(group(task, temperature), "pocket/small", machine=machine, **shared)
        for task in ("pocket-ende", "pocket-summary")
        for temperature in (0.0, 1.0)
    ]
    plans += [Plan(plan.group, "pocket/large", machine=slow, **shared) for plan in plans]
    cells, records = merged(plans)
    broken = Cell(cells[0].group, Arm("pocket/broken", 2))
    failed = Generation(broken.key, ("p0",), 0, FAILED, error="non-finite logits (position 3)")
    return [*cells, broken], [*records, failed]


@pytest.fixture(scope="module")
def run():
    collected = collect(*whole_run(), seed=0)
    return collected, summarize_collected(collected), decompose_collected(collected)


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables")
    write_tables(path, INFO, *run[1:])
    return path


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shown(renderable, width=240):
    terminal = Console(width=width, file=None, record=True, quiet=True)
    terminal.quiet = False
    with terminal.capture() as captured:
        terminal.print(renderable, crop=False)
    return captured.get()


def test_every_table_is_written_whole_and_nothing_is_left_behind(folder):
    names = {path.name for path in folder.iterdir()}
    tables = ("table2", "table4", "grid", "gap", "comparison", "paper")
    assert {f"{name}.{kind}" for name in tables for kind in ("csv", "md")} <= names
    assert not [name for name in names if "part" in name]


def test_a_reader_of_any_table_finds_where_it_comes_from(folder):
    for name in ("table2", "table4", "grid", "gap", "comparison"):
        text = (folder / f"{name}.md").read_text(encoding="utf-8")
        assert [fact for fact in FACTS if fact not in text] == []
        for row in read(folder / f"{name}.csv"):
            assert row["hardware"] == "Example CPU, cores: 2, threads: 2"
            assert row["command"] == "specbench sweep --gamma 1..3"
            assert len(row["prompts_sha256"]) == 64


def test_the_grid_equals_what_the_raw_lines_give_again(folder):
    again = {one.cell.key: one for one in summarize(*whole_run(), seed=0)}
    rows = read(folder / "grid.csv")
    assert len(rows) == len(again)
    for row, one in zip(rows, again.values(), strict=True):
        assert row["num_committed"] == str(one.num_committed)
        for name in ("speedup", "alpha_overlap", "block_efficiency"):
            found = getattr(one, name)
            assert row[name] == ("" if found is None else repr(found.value))
            assert row[f"{name}_low"] == ("" if found is None else repr(found.low))


def test_missing_is_empty_in_csv_and_null_in_json(folder, run):
    baseline = read(folder / "grid.csv")[0]
    assert (baseline["draft"], baseline["acceptance_rate"]) == ("", "")
    rows = console.grid_rows(run[1])
    text = json.dumps(rows, allow_nan=False)
    assert json.loads(text)[0]["acceptance_rate"] is None
    assert "nan" not in (folder / "grid.csv").read_text(encoding="utf-8").lower()


def test_table_2_says_when_not_speculating_wins(run):
    rows = {(row["task"], row["temperature"], row["draft"]): row for row in table2_rows(run[1])}
    lost = rows["pocket-ende", 0.0, "pocket/large"]
    assert (lost["best_gamma"], lost["speedup"], lost["verdict"]) == (0, 1.0, LOSES)
    assert lost["speculative_speedup"] < 1.0
    won = rows["pocket-ende", 0.0, "pocket/small"]
    assert (won["best_gamma"], won["verdict"]) == (3, "faster")
    assert won["speedup_low"] > 1.0
    broken = rows["pocket-ende", 0.0, "pocket/broken"]
    assert broken["best_gamma"] is None
    assert broken["verdict"] == "failed: non-finite logits (position 3)"
    assert "speculation loses: γ = 1 gives 0.7" in shown(console.table2(run[1]))


def test_a_gamma_that_was_not_fixed_is_no_row_of_table_2():
    cells = Plan(gammas=(3,)).cells()
    rounds = play(np.random.default_rng(0), 2, 0.8, 40, 64)
    records = [
        generation(cells[0], "p", 0, play(None, 0, 0.0, 40, 64), total_s=1.0),
        generation(cells[1], "p", 0, rounds, total_s=0.5),
    ]
    summaries = summarize(cells, records, seed=0)
    assert "gamma not fixed" in summaries[1].flags
    assert table2_rows(summaries)[0]["best_gamma"] is None


def test_another_engine_stands_beside_ours_and_is_never_chosen(tmp_path):
    cells = Plan(gammas=(3,)).cells()
    peer = replace(cells[1], arm=replace(cells[1].arm, engine="transformers"))
    baseline, rounds = play(None, 0, 0.0, 40, 64), play(np.random.default_rng(0), 3, 0.8, 40, 64)
    seconds = {cells[0]: 1.0, cells[1]: 0.8, peer: 0.4}
    records = [
        generation(cell, "p", 0, baseline if cell == cells[0] else rounds, total_s=total)
        for cell, total in seconds.items()
    ]
    collected = collect([*cells, peer], records, seed=0)
    summaries = summarize_collected(collected)
    assert [row["speedup"] for row in table2_rows(summaries)] == [pytest.approx(1.25)]
    write_tables(tmp_path, INFO, summaries, [], compare_peers(collected, summaries))
    (row,) = read(tmp_path / "peers.csv")
    assert row["engine"] == "transformers"
    assert float(row["speed_ratio"]) == pytest.approx(0.5)
    assert len(read(tmp_path / "table4.csv")) == 1
    assert len(read(tmp_path / "grid.csv")) == 3


def test_synthetic_prompts_never_enter_table_2(folder):
    assert {row["task"] for row in read(folder / "table2.csv")} == {"pocket-ende"}
    assert "pocket-summary" in (folder / "table2.md").read_text(encoding="utf-8")
    assert "pocket-summary" in {row["task"] for row in read(folder / "grid.csv")}


def test_an_interval_of_no_width_contradicts_nothing():
    assert predicted._agrees(1.6, Estimate(1.7, 1.7, 1.7)) is None
    assert predicted._agrees(1.6, Estimate(1.7, 1.65, 1.8)) is False


def test_table_4_marks_predictions_outside_the_interval(folder, run):
    rows = read(folder / "table4.csv")
    marked = [row for row in rows if row["speed_agrees"] == "false"]
    for row in rows:
        if row["walltime_improvement"] and row["decode_speedup_low"]:
            predicted = float(row["walltime_improvement"])
            inside = float(row["decode_speedup_low"]) <= predicted
            inside &= predicted <= float(row["decode_speedup_high"])
            assert row["speed_agrees"] == str(inside).lower()
    text = (folder / "table4.md").read_text(encoding="utf-8")
    assert marked
    assert len(re.findall(r"\d ✗ \|", text)) >= len(marked)


def test_the_gap_table_multiplies_to_the_measured_speedup(folder):
    rows = read(folder / "gap.csv")
    cell = [row for row in rows if (row["draft"], row["gamma"]) == ("pocket/small", "3")]
    value = None
    for row in cell:
        if row["step"] == "paper's formula":
            value = float(row["speedup_after"])
        else:
            value *= float(row["factor"])
            assert value == pytest.approx(float(row["speedup_after"]))


def test_the_papers_rows_go_through_its_own_formula(folder):
    rows = read(folder / "paper.csv")
    assert len(rows) == len(paper.TABLES_2_AND_4)
    above = [row for row in rows if row["verdict"] == paper.EXCEEDS_CEILING]
    assert [(row["task"], row["draft"], row["temperature"]) for row in above] == [
        ("CNN/DM", "T5-small", "0.0"),
        ("CNN/DM", "T5-small", "1.0"),
        ("CNN/DM", "T5-base", "1.0"),
    ]


def test_only_like_is_compared_with_the_published_values():
    names = ("google-t5/t5-small", "google/t5-v1_1-base@main", "my/bert-small", "./t5-large")
    plans = [Plan(group("wmt-ende", target="google-t5/t5-3b"), name) for name in names]
    plans += [Plan(group("pocket-ende", target="pocket/target"), "pocket/small")]
    plans += [Plan(group("wmt-ende", target="pocket/target"), "t5-small")]
    cells = [cell for plan in plans for cell in plan.cells()]
    rows = comparison_rows(summarize(list(dict.fromkeys(cells)), [], seed=0))
    found = {row["draft"]: (row["alpha_published"], row["comparison"]) for row in rows}
    assert found["google-t5/t5-small"][0] == 0.75
    assert "target (google-t5/t5-3b, not T5-XXL v1.1)" in found["google-t5/t5-small"][1]
    assert found["google/t5-v1_1-base@main"][0] == 0.80
    assert found["./t5-large"][0] == 0.82
    for draft in ("my/bert-small", "pocket/small", "t5-small"):
        assert found[draft][0] is None
        assert found[draft][1].startswith("cannot be compared")


def test_the_terminal_shows_what_the_files_hold(run):
    collected, summaries, decompositions = run
    assert "S predicted" in shown(console.table4(summaries, decompositions))
    gap = shown(console.gap(decompositions))
    assert "Largest step: " in gap
    assert "No gap to explain" in shown(console.gap([]))
    advice = recommend_collected(collected, summaries)
    assert "pocket/small γ = 3" in shown(console.recommendations(advice))
    assert console.recommendation_rows(advice)[0]["gamma"] == 3
    supposed = what_if(summaries, c=0.02)
    assert "NOT measured" in shown(console.what_if(supposed))
    assert all(row["measured"] is False for row in console.what_if_rows(supposed))
    assert "1.53" in shown(console.table1())
    assert "exceeds c=0 ceiling" in shown(console.paper())


def test_a_narrow_terminal_cuts_no_number(run):
    _, summaries, decompositions = run
    wide = shown(console.table4(summaries, decompositions), width=10_000)
    narrow = shown(console.table4(summaries, decompositions), width=60)
    numbers = re.findall(r"\d\.\d+ \[\d\.\d+, \d\.\d+\]", wide)
    assert numbers
    assert re.findall(r"\d\.\d+ \[\d\.\d+, \d\.\d+\]", narrow) == numbers
    assert "…" not in wide + narrow


def test_synthetic_prompts_alone_make_no_table():
    assert "synthetic" in shown(console.table2([]))
    assert provenance.left_out(INFO) == (
        "Left out, because their prompts are synthetic: pocket-summary."
    )


def test_an_empty_run_makes_tables_without_rows(tmp_path):
    paths = write_tables(tmp_path, {}, [], [])
    assert len(paths) == len({path.name for path in paths})
    assert "not recorded" in (tmp_path / "table2.md").read_text(encoding="utf-8")
    assert write_figures(tmp_path, {}, [], []) == []


def test_figures_are_drawn_for_what_there_is(run, tmp_path):
    few = [one for one in run[1] if one.cell.group == run[1][0].cell.group]
    own = [one for one in run[2] if one.cell.group == run[1][0].cell.group]
    paths = write_figures(tmp_path, INFO, few, own)
    assert {path.name for path in paths} == {
        "speedup_decode.png", "speedup_total.png", "accepted_lengths.png", "alpha.png", "gap.png",
    }  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_theory_figures_need_no_run(tmp_path):
    paths = write_theory_figures(tmp_path)
    assert [path.name for path in paths] == ["figure2.png", "figure3.png", "figure4.png"]


def test_showing_never_imports_torch_and_draws_only_when_asked():
    code = (
        "import sys, specbench.report.console, specbench.measure.metrics\n"
        "print([name for name in ('torch', 'matplotlib', 'pandas') if name in sys.modules])\n"
        "import specbench.report.figures, specbench.report.theory_figures\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"
