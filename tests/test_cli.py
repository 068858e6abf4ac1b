"""The door: what each command prints, how it exits, and what a wrong input is told."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.experiment import prepare
from specbench.models import load_tokenizer

TINY = [
    "--gamma", "1,3", "--draft", "pocket/small", "--draft", "pocket/large", "--task", "pocket-ende",
    "--temperature", "0,1", "--limit", "3", "--max-new-tokens", "12", "--turns", "2",
    "--threads", "1",
]  # fmt: skip


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specbench", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One real sweep of the embedded models on a tiny grid, as a user would start it."""
    folder = tmp_path_factory.mktemp("sweep") / "run"
    command = [sys.executable, "-m", "specbench", "sweep", *TINY, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, specbench.cli; "
        "print([m for m in ('torch', 'transformers', 'pandas', 'matplotlib', 'datasets', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    ["sweep", "compare-theory", "recommend", "tables", "plot", "theory", "doctor"],
)
def test_every_command_explains_itself(call, command: str) -> None:
    assert command in call("--help")[1]
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "--json" in out


def test_exit_codes_are_in_the_help(call) -> None:
    assert "Exit codes: 0 done; 2 wrong usage; 3 refused" in " ".join(call("--help")[1].split())


@pytest.mark.parametrize(
    ("args", "code", "named"),
    [
        (["sweep", "--gamma", "x"], 2, "--gamma 'x'"),
        (["sweep", "--gamma", "3..1"], 2, "--gamma '3..1'"),
        (["sweep", "--temperature", "-0.1"], 2, "--temperature -0.1"),
        (["sweep", "--temperature", "nan"], 2, "--temperature nan"),
        (["sweep", "--top-p", "0"], 2, "--top-p 0"),
        (["sweep", "--limit", "many"], 2, "'many'"),
        (["sweep", "--top-p=abc"], 2, "'abc'"),
        (["sweep", "--no-such-option"], 2, "--no-such-option"),
        (["sweep", "--max-new-tokens", "10000000000000"], 2, "--max-new-tokens 10000000000000"),
        (
            ["sweep", "--max-prompt-tokens", "1"],
            2,
            "--max-prompt-tokens 1: allowed are integers >= 2",
        ),
        (["sweep", "--prefix", "\udcff"], 2, "--prefix"),
        (["sweep", "--task", "file:a\0b.jsonl"], 2, "--task"),
        (["sweep", "--target", ""], 2, "--target ''"),
        (["sweep", "--task", "file:~nobody-at-all/x.jsonl"], 3, "~nobody-at-all"),
        (
            ["sweep", "--target", "~nobody-at-all/x", "--gamma", "0", "--task", "pocket-ende"],
            3,
            "~nob",
        ),
        (["sweep", "--out", "lines"], 2, "--out lines: holds raw.jsonl without run.json"),
        (["swoop"], 2, "swoop"),
        (["sweep", "--config", "none.toml"], 2, "--config none.toml"),
        (["sweep", "--target", "pocket/nobody"], 3, "pocket/nobody"),
        (["sweep", "--draft", "pocket/nobody"], 3, "pocket/small"),
        (["sweep", "--task", "nonsense"], 2, "--task nonsense"),
        (["sweep", "--task", "file:none.jsonl"], 3, "none.jsonl"),
        (["sweep", "--task", "file:"], 2, "--task file:"),
        (["sweep", "--draft", ""], 3, "model ''"),
        (["theory", "--out", "a_file"], 2, "a_file"),
        (["sweep", "--device", "abacus"], 2, "--device abacus"),
        (["sweep", "--dtype", "float12"], 2, "--dtype float12"),
        (["sweep", "--threads", "999", "--dry-run"], 3, "--threads 999"),
        (["sweep", "--dtype", "float16", "--dry-run"], 3, "--dtype float16"),
        (["verify", "--threads", "999"], 3, "--threads 999"),
        (["sweep", "--batch", "9", "--limit", "4"], 3, "--batch 9"),
        (["compare-theory", "nowhere"], 2, "nowhere"),
        (["tables"], 2, "RUN"),
        (["recommend", "--what-if", "d=3", "nowhere"], 2, "nowhere"),
    ],
)
def test_a_wrong_input_is_one_line(call, monkeypatch, tmp_path, args, code, named) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "raw.jsonl").write_text("mine")
    exit_code, out, err = call(*args)
    assert exit_code == code
    assert named in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


def test_dry_run_guesses_from_the_prompts_that_there_are(call) -> None:
    minutes = []
    for limit in ("400", "1000000"):
        code, out, _ = call(
            "sweep", "--task", "pocket-ende", "--limit", limit, "--dry-run", "--json"
        )
        assert code == 0
        minutes.append(json.loads(out)["estimated_minutes"])
    assert minutes[0] == minutes[1] > 0
    longer = ["--limit", "400", "--sessions", "3", "--max-minutes", "20"]
    _, out, _ = call("sweep", "--task", "pocket-ende", *longer, "--dry-run", "--json")
    assert json.loads(out)["estimated_minutes"] == pytest.approx(3 * minutes[0] + 20)


def test_dry_run_plans_and_measures_nothing(call, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("sweep", "--gamma", "1..8", "--dry-run")
    assert code == 0
    for part in (
        "pocket/target",
        "pocket/small-distilled",
        "pocket-ende",
        "136 in 4 groups",
        "minutes",
    ):
        assert part in out
    code, out, _ = call("sweep", "--dry-run", "--json", "--gamma", "1,2")
    plan = json.loads(out)
    assert plan["num_cells"] == 4 * (2 + 4 * 2)
    assert plan["estimated_minutes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_which_prompts_no_batch_takes(call, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("sweep", "--dry-run", "--json", "--limit", "5", "--batch", "1,2")
    assert code == 0
    assert "pocket-ende: batch 2 leaves out 1 of 5 prompts" in json.loads(out)["notes"]


def test_prompts_and_outputs_beyond_a_models_positions_are_refused(
    call, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        prepare,
        "load_tokenizer",
        lambda name: dataclasses.replace(load_tokenizer(name), max_positions=100),
    )
    grid = ("sweep", "--gamma", "1", "--task", "pocket-ende", "--dry-run")
    assert call(*grid, "--max-new-tokens", "91")[0] == 0  # 9 for the padding of a batch
    code, _, err = call(*grid, "--max-new-tokens", "92")
    assert (code, len(err.strip().splitlines())) == (3, 1)
    assert "--max-new-tokens 92: pocket/target has 100 positions" in err


def test_a_sweep_leaves_raw_lines_tables_and_figures(run_folder: Path) -> None:
    info = json.loads((run_folder / "run.json").read_text())
    assert info["host"]["cpu"]
    assert info["prompts"]["pocket-ende"]["prefix"] == "translate English to German: "
    for name in ("table2", "table4", "grid"):
        assert (run_folder / "tables" / f"{name}.csv").stat().st_size
        assert (run_folder / "tables" / f"{name}.md").stat().st_size
    assert list((run_folder / "figures").glob("*.png"))
    grid = rows(run_folder / "tables" / "grid.csv")
    assert len(grid) == len(info["cells"]) == 2 * (2 + 2 * 2)


def test_a_real_run_keeps_its_promises(run_folder: Path) -> None:
    lines = [json.loads(line) for line in (run_folder / "raw.jsonl").read_text().splitlines()]
    generations = [one for one in lines if one["kind"] == "generation" and one["repeat"] >= 0]
    by_cell: dict[str, dict[str, list]] = {}
    for one in generations:
        assert one["status"] == "ok"
        assert sum(r["num_committed"][0] for r in one["rounds"]) == len(one["tokens"][0]) <= 12
        by_cell.setdefault(one["cell"], {})[one["prompt_ids"][0]] = one["tokens"][0]
    greedy = [outputs for cell, outputs in by_cell.items() if "T=0 " in cell]
    # At T = 0 every arm commits the baseline's own ids.
    assert len(greedy) == 6
    assert all(outputs == greedy[0] for outputs in greedy)


def test_tables_come_again_from_the_raw_lines(call, run_folder: Path) -> None:
    path = run_folder / "tables" / "grid.csv"
    before = path.read_bytes()
    path.unlink()
    code, _, _ = call("tables", str(run_folder))
    assert code == 0
    assert path.read_bytes() == before


def test_figures_come_again(call, run_folder: Path) -> None:
    code, out, _ = call("plot", str(run_folder), "--json")
    assert code == 0
    files = json.loads(out)["files"]
    assert files
    assert all(Path(file).read_bytes()[:4] == b"\x89PNG" for file in files if file.endswith("png"))


def test_compare_theory_prints_and_speaks_json(call, run_folder: Path) -> None:
    code, out, _ = call("compare-theory", str(run_folder))
    assert code == 0
    assert "pocket/small" in out
    code, out, _ = call("compare-theory", str(run_folder), "--json")
    table = json.loads(out)["table4"]
    assert len(table) == 2 * 2 * 2
    assert call("compare-theory", str(run_folder), "--quiet")[1:] == ("", "")


def test_recommend_and_what_if(call, run_folder: Path) -> None:
    code, out, _ = call("recommend", str(run_folder), "--what-if", "c=0.02", "--json")
    assert code == 0
    found = json.loads(out)
    assert len(found["recommendations"]) == 2
    assert found["what_if"]
    for wrong in ("c=nan", "c=inf", "alpha=nan"):
        code, _, err = call("recommend", str(run_folder), "--what-if", wrong)
        assert (code, err.count("\n")) == (2, 1)
        assert wrong in err
    code, _, err = call("recommend", str(run_folder), "--what-if", "c=1", "--what-if", "c=2")
    assert (code, "c=2" in err) == (2, True)
    code, _, err = call("recommend", str(run_folder), "--what-if", "alpha=2")
    assert (code, "alpha=2" in err) == (2, True)


def test_a_finished_run_is_not_overwritten_and_resumes_at_once(call, run_folder: Path) -> None:
    before = (run_folder / "raw.jsonl").read_bytes()
    code, _, err = call("sweep", *TINY, "--out", str(run_folder))
    assert code == 2
    assert "--resume" in err
    code, _, _ = call("sweep", *TINY, "--out", str(run_folder), "--resume")
    assert code == 0
    assert (run_folder / "raw.jsonl").read_bytes() == before
    code, _, err = call("sweep", *TINY, "--seed", "1", "--out", str(run_folder), "--resume")
    assert code == 3
    assert "config.seed was 0" in err


def test_brackets_are_text_and_no_markup(call) -> None:
    code, out, _ = call("sweep", "--dry-run", "--prefix", "[/INST] [red]", "--limit", "1")
    assert code == 0
    assert "prefix '[/INST] [red]'" in out


def test_a_run_without_drafts_says_that_there_is_nothing_to_show(call, tmp_path: Path) -> None:
    run = str(tmp_path / "alone")
    code, _, err = call(
        "sweep", "--gamma", "0", "--task", "pocket-summary", "--temperature", "0", "--limit", "1",
        "--max-new-tokens", "4", "--turns", "1", "--out", run,
    )  # fmt: skip
    assert code == 0, err
    assert "nothing to draw" in call("plot", run)[2]
    assert "nothing to compare" in call("compare-theory", run)[2]


def test_prompts_from_a_file(call, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    texts = ["The house is wonderful.", "This package contains the documentation.", "A library."]
    path.write_text("".join(json.dumps({"source": text}) + "\n" for text in texts))
    code, out, err = call(
        "sweep", "--task", f"file:{path}#translation", "--gamma", "2", "--draft", "pocket/small",
        "--temperature", "0", "--max-new-tokens", "8", "--turns", "1", "--json",
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["num_failed_cells"] == 0


def test_theory_draws_and_prints_table_1(call, tmp_path: Path) -> None:
    code, out, _ = call("theory", "--out", str(tmp_path), "--json")
    assert code == 0
    found = json.loads(out)
    assert len(found["table1"]) == 6
    assert len(list(tmp_path.glob("*.png"))) == 3


def test_doctor_looks_at_the_machine(call) -> None:
    code, out, _ = call("doctor", "--json")
    checks = {check["name"]: check["status"] for check in json.loads(out)}
    assert checks
    assert code == (3 if "fail" in checks.values() else 0)


def test_no_color_is_respected(run_folder: Path) -> None:
    import os

    environ = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "specbench", "compare-theory", str(run_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    # Bold and italics may stay; colours are codes 30 to 37, 90 to 97, and 38 for any other.
    assert not re.search(r"\x1b\[[\d;]*\b(3[0-8]|9[0-7])\b", done.stdout)
