"""The scripts and configurations: they parse, and the comparison of results sees what it must."""

import csv
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch

from specbench.experiment.config import read_config

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [".ci/run"] + [
    f"scripts/{name}" for name in ("bench", "check_results", "lock", "setup", "test")
]


def load(name):
    """A Python script as a module; scripts are not on the import path."""
    path = ROOT / "scripts" / name
    loader = SourceFileLoader(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    loader.exec_module(module)
    return module


compare_results = load("compare_results.py")


@pytest.mark.parametrize("name", SCRIPTS)
def test_shell_script_parses_is_executable_and_stops_at_the_first_error(name):
    path = ROOT / name
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


def test_setup_refuses_an_old_python_in_one_line(tmp_path):
    (tmp_path / "scripts").mkdir()
    setup = tmp_path / "scripts" / "setup"
    setup.write_text((ROOT / "scripts" / "setup").read_text(encoding="utf-8"), encoding="utf-8")
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.10 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["bash", str(setup)],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"specbench setup: '{old}' is Python 3.10; set PYTHON to a Python 3.11 or newer"
    ]
    assert not (tmp_path / ".venv").exists()


def test_unknown_argument_of_check_results_is_refused():
    script = str(ROOT / "scripts" / "check_results")
    done = subprocess.run([script, "--all"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "check_results --all: allowed is --update\n"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_configuration_is_one_that_sweep_accepts(path):
    config = read_config(path, {})
    assert config.temperature == (0.0, 1.0)
    assert len(config.task) == 2
    assert config.draft


def test_lock_pins_every_dependency_without_a_build_label():
    lines = (ROOT / "constraints.lock").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    assert not [version for version in pins.values() if "+" in version]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for extra in project["optional-dependencies"].values() for item in extra]
    for requirement in [*project["dependencies"], *extras]:
        name = requirement.split(">")[0]
        assert name in pins, f"{name} is not in constraints.lock: run scripts/lock"


def test_gpu_check_refuses_a_machine_without_a_gpu_in_one_line():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == "gpu_check: --device cuda: this machine has 0 CUDA devices\n"
    assert done.stdout == ""


@pytest.mark.slow
def test_gpu_check_runs_through_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # no cache beside the scripts
    gpu_check = load("gpu_check")
    monkeypatch.setattr(gpu_check, "TARGET", "pocket/small")
    monkeypatch.setattr(gpu_check, "TEXTS", gpu_check.TEXTS[:1])
    monkeypatch.setattr(gpu_check, "LIMITS", {torch.float32: 1e-4})
    options = ["--device", "cpu", "--shapes", "tiny", "--no-sweep", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu_check", *options])
    assert gpu_check.main() == 0
    assert "| tiny | 0.0" in capsys.readouterr().out
    facts = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert [step["shape"] for step in facts["steps"]] == ["tiny"]
    assert all(step["step_5_s"] > 0 < step["floor_s"] for step in facts["steps"])
    assert len(facts["numerics"]) == 2
    assert len(facts["greedy"]) == 2
    assert all(one["ok"] for one in [*facts["numerics"], *facts["greedy"]])
    # one check that failed ends with another code
    monkeypatch.setattr(gpu_check, "LIMITS", {torch.float32: 0.0})
    monkeypatch.setattr(gpu_check, "greedy", lambda _: [])
    monkeypatch.setattr(gpu_check, "shapes", lambda *_: (1.0, []))
    assert gpu_check.main() == 1


# The comparison of result tables


def row(gamma, temperature="0.0", **changes):
    drafted = {
        "draft": "pocket/small",
        "alpha_overlap": "0.60",
        "acceptance_rate": "0.58",
        "block_efficiency": "2.0",
        "speedup": "1.2",
    }
    return {
        "task": "pocket-ende",
        "temperature": temperature,
        "gamma": str(gamma),
        "draft": "",
        "alpha_overlap": "",
        "acceptance_rate": "",
        "block_efficiency": "1.0",
        "speedup": "",
        "tokens_per_s": "50.0",
        "num_failed": "0",
        "flags": "",
        "prompts_sha256": "abc",
        **(drafted if gamma else {}),
        **changes,
    }


def folder(path, rows):
    path.mkdir(parents=True)
    with (path / "grid.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


COMMITTED = [row(0), row(2), row(2, "1.0")]


def verdict(tmp_path, rows, capsys):
    """(exit code, what was said) of a comparison with the committed rows."""
    new = folder(tmp_path / "new" / "tables", rows)
    code = compare_results.main([new, folder(tmp_path / "old", COMMITTED)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_equal_tables_agree(tmp_path, capsys):
    code, said = verdict(tmp_path, COMMITTED, capsys)
    assert code == 0
    assert "3 rows agree within" in said


def test_other_speeds_and_the_last_digits_agree(tmp_path, capsys):
    faster = [row(0, tokens_per_s="500"), row(2, speedup="3.9", acceptance_rate="0.585")]
    assert verdict(tmp_path, [*faster, row(2, "1.0", alpha_overlap="0.64")], capsys)[0] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alpha_overlap": "0.63"}, "alpha_overlap 0.6300 is more than 0.020 from the committed"),
        ({"acceptance_rate": "0.50"}, "acceptance_rate 0.5000 is more than 0.030"),
        ({"block_efficiency": "2.1"}, "block_efficiency 2.1000 is more than 0.060"),
        ({"alpha_overlap": ""}, "alpha_overlap is nothing where 0.6000 is committed"),
        ({"alpha_overlap": "nan"}, "alpha_overlap is nan"),
        ({"speedup": ""}, "speedup is missing"),
        ({"speedup": "nan"}, "speedup is nan"),
        ({"speedup": "inf"}, "speedup is inf"),
        ({"tokens_per_s": "0"}, "tokens_per_s is 0.0"),
        ({"tokens_per_s": "fast"}, "tokens_per_s is nan"),
        ({"num_failed": "2"}, "2 generations failed"),
        ({"prompts_sha256": "abd"}, "other prompts were measured"),
        ({"gamma": "3"}, "gamma=2: is not in the new table"),
    ],
)
def test_altered_cell_is_named(tmp_path, capsys, changes, said):
    code, found = verdict(tmp_path, [row(0), {**row(2), **changes}, row(2, "1.0")], capsys)
    assert code == 1
    assert said in found.replace(" replica=", "")


def test_draws_may_turn_at_a_temperature_but_not_without_limit(tmp_path, capsys):
    drawn = [row(0), row(2), row(2, "1.0", alpha_overlap="0.68")]
    code, said = verdict(tmp_path, drawn, capsys)
    assert code == 1
    assert "alpha_overlap 0.6800 is more than 0.060" in said


def test_extra_row_is_named(tmp_path, capsys):
    code, said = verdict(tmp_path, [*COMMITTED, row(4)], capsys)
    assert code == 1
    assert "gamma=4: is not in the committed table" in said


def test_value_missing_from_both_tables_is_no_agreement(tmp_path, capsys):
    rows = [row(0), row(2, alpha_overlap="")]
    new, old = (folder(tmp_path / name, rows) for name in ("new", "old"))
    assert compare_results.main([new, old]) == 1
    assert "alpha_overlap is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "0 files named grid.csv where one is expected"),
        ([{"gamma": "1"}], "no temperature, flags, alpha_overlap"),
        ([row(2), row(2)], "two rows describe the same cell"),
    ],
)
def test_table_that_is_none_is_refused(tmp_path, capsys, rows, said):
    new = tmp_path / "new"
    if rows is None:
        new.mkdir()
    else:
        folder(new, rows)
    assert compare_results.main([str(new), folder(tmp_path / "old", COMMITTED)]) == 2
    assert said in capsys.readouterr().err


def test_wrong_usage_prints_the_usage(capsys):
    assert compare_results.main([]) == 2
    assert "Usage:" in capsys.readouterr().err
