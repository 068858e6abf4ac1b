"""The sweep on models that are tables: order, resuming, failures, and the run folder."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from fakes import TableModel, constant_table, random_table

from specbench.experiment.config import Config, UsageError
from specbench.experiment.folders import choose_folder, latest_run
from specbench.experiment.plan import plan
from specbench.experiment.prepare import Prepared
from specbench.experiment.prove import gated
from specbench.experiment.run import Sweep
from specbench.experiment.store import RAW, Mismatch, Store, record_key
from specbench.measure.harness import Bench
from specbench.measure.timing import Stopwatch
from specbench.prompts import EncodedPrompt
from specbench.records import FAILED, OK, Generation, OverlapTrace, StepTimes

HOST = {"cpu": {"model": "one"}, "threads": {"model": 1}}


def prepared(num_prompts=4, models=None, **options) -> Prepared:
    given = {"target": "t", "draft": ("d",), "task": ("x",), "gamma": (1, 3), "turns": 2}
    config = Config(**{**given, "max_new_tokens": 6, **options}).resolved()
    models = models or {"t": TableModel(random_table(1)), "d": TableModel(random_table(2))}
    prompts = [EncodedPrompt(f"p{i}", (2,) * (i + 1), False) for i in range(num_prompts)]
    info = {"host": HOST, "config": config.as_dict(), "prompts": {}, "models": {}}
    return Prepared(
        config=config,
        groups=plan(config, "float32", "cpu"),
        bench=Bench(models, Stopwatch(), lambda: None),
        prompts=dict.fromkeys(config.task, prompts),
        info=info,
        notes=[],
    )


def start(ready: Prepared, folder: Path, progress=lambda done, total, text: None) -> Sweep:
    store = Store(folder)
    earlier = store.open(ready.info, [cell for cells in ready.groups for cell in cells])
    return Sweep(ready, store, progress, earlier)


def timed(records) -> list[Generation]:
    return [r for r in records if isinstance(r, Generation) and r.repeat >= 0]


def test_every_cell_meets_every_prompt_once(tmp_path: Path) -> None:
    assert start(prepared(), tmp_path).run() == 0
    run = Store(tmp_path).read()
    generations = timed(run.records)
    assert len(run.cells) == 2 * 4
    assert {(g.cell, g.prompt_ids) for g in generations} == {
        (cell.key, (f"p{i}",)) for cell in run.cells for i in range(4)
    }
    assert len(generations) == 8 * 4
    for g in generations:
        assert g.status == OK
        assert sum(r.num_committed[0] for r in g.rounds) == len(g.tokens[0])
        assert g.total_s >= sum(r.draft_s + r.verify_s + r.rest_s for r in g.rounds) >= 0.0


def test_arms_take_turns_at_being_first(tmp_path: Path) -> None:
    start(prepared(temperature=(1.0,)), tmp_path).run()
    generations = timed(Store(tmp_path).read().records)
    first = [next(g for g in generations if g.prompt_ids == (f"p{i}",)).cell for i in range(4)]
    assert len({*first}) == 4


def test_warm_up_takes_the_longest_prompt_on_each_path(tmp_path: Path) -> None:
    start(prepared(temperature=(1.0,)), tmp_path).run()
    records = Store(tmp_path).read().records
    warm = [r for r in records if isinstance(r, Generation) and r.repeat < 0]
    assert [g.prompt_ids for g in warm] == [("p3",)] * 4
    assert len({g.cell for g in warm}) == 4


def test_the_target_is_followed_once_a_prompt_for_all_drafts(tmp_path: Path) -> None:
    models = {name: TableModel(random_table(i)) for i, name in enumerate("tde", 1)}
    ready = prepared(models=models, draft=("d", "e"), temperature=(1.0,))
    sweep = start(ready, tmp_path)
    followed = []
    forced = Bench._teacher_forced
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Bench,
            "_teacher_forced",
            lambda bench, name, *rest: followed.append(name) or forced(bench, name, *rest),
        )
        sweep.run()
    assert sorted(followed) == ["d"] * 4 + ["e"] * 4 + ["t"] * 4
    traces = [r for r in Store(tmp_path).read().records if isinstance(r, OverlapTrace)]
    assert {(trace.draft, trace.prompt_id) for trace in traces} == {
        (draft, f"p{i}") for draft in "de" for i in range(4)
    }


def test_overlaps_follow_the_baselines_tokens(tmp_path: Path) -> None:
    start(prepared(temperature=(1.0,)), tmp_path).run()
    run = Store(tmp_path).read()
    baseline = run.cells[0].key
    outputs = {g.prompt_ids[0]: g.tokens[0] for g in timed(run.records) if g.cell == baseline}
    traces = [r for r in run.records if isinstance(r, OverlapTrace)]
    assert {t.prompt_id for t in traces} == set(outputs)
    p, q = (random_table(seed).softmax(-1) for seed in (1, 2))
    for trace in traces:
        # The start token, index 5, stands for "nothing yet" as well.
        seen = (5, 5, *outputs[trace.prompt_id])
        expected = [float(torch.minimum(p[a, b], q[a, b]).sum()) for a, b in pairwise(seen[:-1])]
        assert trace.overlaps == pytest.approx(expected, abs=1e-6)


def test_step_times_cover_each_width_and_draft(tmp_path: Path) -> None:
    start(prepared(temperature=(1.0,)), tmp_path).run()
    steps = [r for r in Store(tmp_path).read().records if isinstance(r, StepTimes)]
    assert [(s.role, s.num_tokens) for s in steps] == [
        ("target", 1), ("target", 2), ("target", 4), ("draft", 1),
    ]  # fmt: skip
    assert all(len(s.seconds) == 2 for s in steps)


def without_seconds(records):
    """Everything of the records that a clock does not change, by key."""
    found = {}
    for record in records:
        value = getattr(record, "tokens", None) or getattr(record, "overlaps", None)
        found[record_key(record)] = value
    return found


@pytest.mark.parametrize("stop_after", [0, 1, 5, 17, 29, 40])
def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path, stop_after: int) -> None:
    start(prepared(), tmp_path / "whole").run()
    whole = Store(tmp_path / "whole").read().records

    class Killed(Exception):
        pass

    def kill(done, total, text):
        kill.calls += 1
        if kill.calls > stop_after:
            raise Killed

    kill.calls = 0
    with pytest.raises(Killed):
        start(prepared(), tmp_path / "part", kill).run()
    with (tmp_path / "part" / RAW).open("a") as file:
        file.write('{"kind":"generation","cell":"torn')
    kept = timed(Store(tmp_path / "part").read().records)
    start(prepared(), tmp_path / "part").run()
    after = Store(tmp_path / "part").read().records
    assert without_seconds(after) == without_seconds(whole)
    # A prompt that all arms of its group had met before the kill was not measured again, and one
    # that the kill cut through was, in every arm: its ratios are of one process.
    seconds = {record_key(g): g.total_s for g in kept}
    group = {cell.key: cell.group for cell in Store(tmp_path / "part").read().cells}
    met = Counter((group[g.cell], g.prompt_ids) for g in kept)
    for g in timed(after):
        in_all_arms = met[group[g.cell], g.prompt_ids] == 4
        assert (seconds.get(record_key(g)) == g.total_s) is in_all_arms


def test_a_finished_sweep_measures_nothing_more(tmp_path: Path) -> None:
    start(prepared(), tmp_path).run()
    before = (tmp_path / RAW).read_bytes()
    start(prepared(), tmp_path).run()
    assert (tmp_path / RAW).read_bytes() == before


def test_a_call_that_breaks_fails_its_generation() -> None:
    class Broken(TableModel):
        def extend(self, state, tokens):
            raise IndexError("index out of range in self")

    models = {"t": TableModel(random_table(1)), "d": Broken(random_table(2))}
    ready = prepared(models=models, gamma=(2,), temperature=(1.0,))
    items = next(iter(ready.prompts.values()))[:1]
    status = {}
    for cell in ready.groups[0]:
        generation = ready.bench.generate(cell, items, 0)
        status[cell.arm.gamma] = generation.status, generation.error
    assert status == {0: (OK, None), 2: (FAILED, "IndexError: index out of range in self")}


class Limited(TableModel):
    """A draft that takes at most `most` tokens a call, as one whose positions are used up."""

    def __init__(self, table, most: int) -> None:
        super().__init__(table)
        self.most = most

    def extend(self, state, tokens):
        if tokens.shape[1] > self.most:
            raise IndexError("index out of range in self")
        return super().extend(state, tokens)


def test_a_draft_that_breaks_leaves_the_rest_of_the_sweep(tmp_path: Path) -> None:
    models = {
        "t": TableModel(random_table(1)),
        "d": TableModel(random_table(2)),
        "broken": Limited(random_table(3), most=0),
        "narrow": Limited(random_table(4), most=2),
    }
    drafts = ("d", "broken", "narrow")
    sweep = start(prepared(models=models, draft=drafts, gamma=(2,), temperature=(1.0,)), tmp_path)
    assert sweep.run() == 1
    records = Store(tmp_path).read().records
    failed = {g.cell for g in records if isinstance(g, Generation) and g.status == FAILED}
    assert len(failed) == 1
    assert "draft=broken" in failed.pop()
    traces = [r for r in records if isinstance(r, OverlapTrace)]
    assert sum(r.draft == "d" for r in traces) == 4
    assert not any(r.draft == "broken" for r in traces)
    assert all(len(r.overlaps) <= 2 for r in traces if r.draft == "narrow")
    assert {r.model for r in records if isinstance(r, StepTimes)} == {"t", "d", "narrow"}
    why = "not measured (IndexError: index out of range in self)"
    assert sweep.notes == [f"alpha_overlap of narrow: {why}"]


def test_a_draft_that_breaks_in_the_proof_is_noted(tmp_path: Path) -> None:
    models = {"t": TableModel(random_table(1)), "d": Limited(random_table(2), most=0)}
    for temperature in (0.0, 1.0):
        ready = prepared(models=models, gamma=(2,), temperature=(temperature,))
        notes = gated(ready, Store(tmp_path / "run")).notes
        assert any("IndexError: index out of range in self" in note for note in notes)


def test_a_failed_cell_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    models = {
        "t": TableModel(random_table(1)),
        "d": TableModel(random_table(2)),
        "bad": TableModel(constant_table([math.nan] * 5)),
    }
    options = {"draft": ("d", "bad"), "gamma": (2,), "temperature": (1.0,)}
    assert start(prepared(models=models, **options), tmp_path).run() == 1
    run = Store(tmp_path).read()
    failed = [r for r in run.records if isinstance(r, Generation) and r.status == FAILED]
    assert failed
    assert all("draft=bad" in g.cell for g in failed)
    assert failed[0].error == "non-finite logits (position 0, draft)"
    assert failed[0].tokens == ()
    good = {g.cell for g in timed(run.records) if g.status == OK}
    assert len(good) == 3
    # A resume tries the failed cell again, beside arms of its own process.
    models["bad"] = TableModel(random_table(3))
    assert start(prepared(models=models, **options), tmp_path).run() == 0
    records = Store(tmp_path).read().records
    assert len({g.cell for g in timed(records) if g.status == OK}) == 4
    assert {r.draft for r in records if isinstance(r, OverlapTrace)} == {"d", "bad"}


def test_batches_keep_rows_apart(tmp_path: Path) -> None:
    start(prepared(batch=(1, 4), temperature=(0.0,)), tmp_path).run()
    run = Store(tmp_path).read()
    alone, together = {}, {}
    for cell in run.cells:
        for g in timed(run.records):
            if g.cell == cell.key:
                where = alone if cell.group.batch == 1 else together
                for prompt, tokens in zip(g.prompt_ids, g.tokens, strict=True):
                    where[cell.arm, prompt] = tokens
    assert alone == together


def test_repeats_time_identical_work(tmp_path: Path) -> None:
    start(prepared(repeats=2, temperature=(1.0,)), tmp_path).run()
    tokens: dict = {}
    for g in timed(Store(tmp_path).read().records):
        tokens.setdefault((g.cell, g.prompt_ids), []).append((g.tokens, len(g.rounds)))
    assert all(len(pair) == 2 and pair[0] == pair[1] for pair in tokens.values())


def test_progress_counts_every_generation(tmp_path: Path) -> None:
    seen = []
    start(prepared(), tmp_path, lambda done, total, text: seen.append((done, total))).run()
    assert {total for _, total in seen} == {32}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("room", "change", "named"),
    [
        ("config", {"seed": 5}, "config.seed was 0"),
        ("config", {"max_new_tokens": 9}, "config.max_new_tokens was 6"),
        ("host", {"cpu": {"model": "two"}}, "cpu.model was 'one'"),
        ("prompts", {"x": {"sha256": "b"}}, "prompts.x"),
        ("models", {"t": {"weights_sha256": "b"}}, "models.t"),
    ],
)
def test_unlike_runs_are_not_joined(tmp_path: Path, room, change, named) -> None:
    ready = prepared()
    start(ready, tmp_path)
    ready.info[room] = {**ready.info[room], **change}
    with pytest.raises(Mismatch, match=named):
        start(ready, tmp_path)


def test_a_refusal_names_the_field_of_a_model_and_how_many_more_differ(tmp_path: Path) -> None:
    ready = prepared()
    model = {"weights_sha256": "a", "width": 8, "layouts": {"8x8": "plain"}}
    ready.info["models"] = {"t": model}
    start(ready, tmp_path)
    ready.info["models"] = {"t": {**model, "layouts": {}}}
    start(ready, tmp_path)  # which layout won is for each process to find out
    ready.info["models"] = {"t": {**model, "weights_sha256": "b", "width": 9}}
    said = r"models\.t\.weights_sha256 was 'a' in .* and is 'b' now \(1 more differ\)"
    with pytest.raises(Mismatch, match=said):
        start(ready, tmp_path)


@pytest.mark.parametrize("room", ["host", "models"])
def test_a_resume_needs_something_to_compare_with(tmp_path: Path, room) -> None:
    ready = prepared()
    start(ready, tmp_path)
    info = json.loads((tmp_path / "run.json").read_text())
    info.pop(room)
    (tmp_path / "run.json").write_text(json.dumps(info))
    with pytest.raises(UsageError, match=f"has no '{room}' to compare with"):
        start(ready, tmp_path)


def test_run_folder_is_written_before_measuring(tmp_path: Path) -> None:
    def first(done, total, text):
        info = json.loads((tmp_path / "run.json").read_text())
        assert info["host"] == HOST
        assert len(info["cells"]) == 8
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(prepared(), tmp_path, first).run()


def test_folders_are_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="RUN: none given"):
        latest_run()
    with pytest.raises(UsageError, match="--resume"):
        choose_folder(Path("new"), resume=True)
    Store(Path("runs/a")).create({"host": HOST}, [])
    assert latest_run() == Path("runs/a")
    assert choose_folder(None, resume=True) == Path("runs/a")
    with pytest.raises(UsageError, match="holds a run already"):
        choose_folder(Path("runs/a"), resume=False)
    Path("file").touch()
    with pytest.raises(UsageError, match="is a file"):
        choose_folder(Path("file"), resume=False)
    # Lines without a description are somebody's, and "" is what an unset variable gives.
    lines = Path("mine") / RAW
    lines.parent.mkdir()
    lines.write_text("mine")
    for out, said in (("mine", "another folder"), ("", "a folder that may hold a run alone")):
        with pytest.raises(UsageError, match=said):
            choose_folder(Path(out), resume=False)
    with pytest.raises(UsageError, match="another folder"):
        Store(lines.parent).create({}, [])
    assert lines.read_text() == "mine"
    # A kill before the first line leaves nothing worth keeping.
    lines.write_text("")
    assert choose_folder(lines.parent, resume=False) == lines.parent


@pytest.mark.parametrize("line", ["{}", "not json", '{"kind":"generation","nonsense":1}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    start(prepared(), tmp_path)
    with (tmp_path / RAW).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=r"raw.jsonl line 1"):
        Store(tmp_path).read()


def test_reading_what_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run.json"):
        Store(tmp_path).read()
