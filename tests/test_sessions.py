"""Further sessions: how they are begun, what they may not change, and what one that breaks does."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from fakes import TableModel, random_table
from test_experiment import prepared, start

from specbench.cli import main, measuring
from specbench.cli import sweep as door
from specbench.cli.errors import DONE, FAILED_CELLS, INTERRUPTED, REFUSED, CommandError
from specbench.experiment import sessions
from specbench.experiment.config import Config
from specbench.experiment.run import Sweep
from specbench.experiment.sessions import command
from specbench.experiment.store import Store
from specbench.measure.metrics import summarize
from specbench.records import Generation

CONFIG = Config(
    target="some/target",
    draft=("a", "b"),
    task=("file:x.jsonl", "y"),
    arm=("transformers",),
    gamma=(1, 3),
    temperature=(0.0, 0.7),
    prefix="",
    threads=1,
    verify=False,
    sessions=3,
    max_minutes=1.5,
    target_width=0.02,
).resolved()


def test_a_session_is_asked_for_exactly_what_the_run_was(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(door, "measure", lambda *given: seen.append(given) or DONE)
    words = command(CONFIG, Path("runs/one"), session=2, quiet=True)
    assert words[:4] == [sys.executable, "-m", "specbench", "sweep"]
    monkeypatch.setattr(sys, "argv", words[2:])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    ((config, out, resume, session, output),) = seen
    assert asdict(config) == asdict(CONFIG)
    assert (out, resume, session, output.quiet) == (Path("runs/one"), True, 2, True)


@pytest.fixture
def measured(monkeypatch, tmp_path: Path):
    """Measure without models; returns exit code and what was done, in order."""

    def run(codes: list[int], session: int = 0):
        done = []

        def here(config, store, number, output):
            done.append(("here", number))
            return 0

        def elsewhere(config, folder, number, quiet):
            done.append(("process", number))
            return codes[number - 1]

        def show(store, output):
            done.append("tables")
            return DONE

        monkeypatch.setattr(measuring, "_measure_here", here)
        monkeypatch.setattr(measuring, "_show", show)
        monkeypatch.setattr(sessions, "run_session", elsewhere)
        code = measuring.measure(CONFIG, tmp_path / "run", False, session, door.Output())
        return code, done

    return run


def test_each_further_session_has_a_process_of_its_own(measured) -> None:
    order = [("here", 0), ("process", 1), ("process", 2), "tables"]
    assert measured([DONE, DONE]) == (DONE, order)
    # Failed cells are rows, not a broken session.
    assert measured([FAILED_CELLS, DONE]) == (DONE, order)
    assert measured([], session=1) == (DONE, [("here", 1)])


def test_a_session_that_breaks_keeps_what_was_measured(measured, capsys) -> None:
    assert measured([REFUSED, DONE]) == (REFUSED, [("here", 0), ("process", 1), "tables"])
    line = "session 2 of 3 ended with exit code 3; what was measured is kept"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        (False, "stopped before anything was measured"),
        (True, "stopped; what was measured is kept, and the same command with --resume --out"),
    ],
)
def test_ctrl_c_says_what_is_left(monkeypatch, tmp_path: Path, begun, said) -> None:
    def here(config, store, number, output):
        if begun:
            store.create({}, [])
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "_measure_here", here)
    with pytest.raises(CommandError, match=said) as caught:
        measuring.measure(CONFIG, tmp_path / "run", False, 0, door.Output())
    assert caught.value.exit_code == INTERRUPTED


def session_of(folder: Path, session: int, target_seed: int = 1) -> None:
    models = {"t": TableModel(random_table(target_seed)), "d": TableModel(random_table(2))}
    ready = prepared(models=models, temperature=(1.0,), sessions=2)
    begun = start(ready, folder)
    earlier = Store(folder).read().records
    assert Sweep(ready, begun._store, lambda *_: None, earlier, session).run() == 0


def test_tokens_do_not_depend_on_the_session_even_when_drawn(tmp_path: Path) -> None:
    for session in (0, 1):
        session_of(tmp_path, session)
    run = Store(tmp_path).read()
    tokens: dict = {}
    for one in run.records:
        if isinstance(one, Generation) and one.repeat >= 0:
            tokens.setdefault((one.cell, one.prompt_ids), []).append((one.session, one.tokens))
    assert all(
        [session for session, _ in pair] == [0, 1] and pair[0][1] == pair[1][1]
        for pair in tokens.values()
    )
    for one in summarize(run.cells, run.records, 0):
        assert one.num_sessions == 2
        assert "not reproducible" not in one.flags


def test_a_session_that_decodes_otherwise_is_flagged(tmp_path: Path) -> None:
    session_of(tmp_path, 0)
    session_of(tmp_path, 1, target_seed=5)
    run = Store(tmp_path).read()
    assert all("not reproducible" in one.flags for one in summarize(run.cells, run.records, 0))


def test_each_session_finds_its_own_layouts(tmp_path: Path) -> None:
    ready = prepared()
    for layout in ("half", "packed"):
        ready.info["models"] = {"t": {"layouts": {"8x8": {"1": layout}}, "weights_sha256": "a"}}
        start(ready, tmp_path)


def test_more_sessions_and_a_budget_may_be_asked_for_later(tmp_path: Path) -> None:
    start(prepared(), tmp_path)
    start(prepared(sessions=3, max_minutes=1.0, target_width=0.05), tmp_path)
