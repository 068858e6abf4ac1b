"""The gate in a sweep and on the command line: what it writes, refuses and exits with."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Nudged, TableModel, constant_table, random_table

from specbench.cli import main
from specbench.experiment import prepare as preparing
from specbench.experiment.config import Config, UsageError, read_config
from specbench.experiment.plan import plan
from specbench.experiment.prepare import Prepared, Refused
from specbench.experiment.prove import gated
from specbench.experiment.store import Mismatch, Store
from specbench.measure.harness import Bench
from specbench.measure.timing import Stopwatch
from specbench.prompts import EncodedPrompt

OPTIONS = {"target": "t", "draft": ("d",), "task": ("x", "y"), "gamma": (2,), "max_new_tokens": 12}
HOST = {"cpu": {"model": "one"}, "threads": {"model": 1}}


def ready(draft=None, target=None, **options) -> Prepared:
    config = Config(**{**OPTIONS, **options}).resolved()
    models = {
        "t": target or TableModel(random_table(1, 12), "t"),
        "d": draft or TableModel(random_table(2, 12), "d"),
    }
    prompts = [EncodedPrompt(f"p{i}", (2,) * (i + 1)) for i in range(4)]
    return Prepared(
        config=config,
        groups=plan(config, "float32", "cpu"),
        bench=Bench(models, Stopwatch(), lambda: None),
        prompts=dict.fromkeys(config.task, prompts),
        info={"host": HOST, "config": config.as_dict(), "prompts": {}, "models": {}},
        notes=[],
    )


def test_a_sweep_writes_its_proof_and_a_resumed_one_skips_it(tmp_path: Path) -> None:
    store, told = Store(tmp_path), []
    proved = gated(ready(), store, told.append)
    assert told == ["exactness of d at T=0", "exactness of d at T=1"]
    store.open(proved.info, [])
    written = json.loads((tmp_path / "run.json").read_text())["exactness"]
    assert written["status"] == "exact"
    assert [item["status"] for item in written["checks"]] == ["exact", "exact"]
    again = gated(ready(), store, told.append)
    assert "exactness" not in again.info
    assert len(told) == 2
    store.open(again.info, [])
    with pytest.raises(Mismatch, match=r"config\.verify was True"):
        store.open(gated(ready(verify=False), store).info, [])


def test_no_proof_where_none_is_wanted_or_nothing_speculates(tmp_path: Path) -> None:
    for options in ({"verify": False}, {"draft": (), "gamma": (0,)}):
        assert "exactness" not in gated(ready(**options), Store(tmp_path)).info


@pytest.mark.parametrize(("temperature", "number"), [(0.0, "logit gap 1"), (1.0, "p < 1e-12")])
def test_a_wrong_pair_is_not_timed(tmp_path: Path, temperature, number) -> None:
    draft, target = TableModel(constant_table([0.0, 0.0, 0.0, 3.0, 0.0]), "d"), Nudged(0.5, 1.5)
    with pytest.raises(Refused, match=f"^nudged with d at T={temperature:g}: .*{number}") as told:
        gated(ready(draft, target, temperature=(temperature,)), Store(tmp_path))
    assert "\n" not in str(told.value)
    assert "--no-verify" in str(told.value)


def test_a_pair_that_proves_nothing_is_noted_and_timed(tmp_path: Path) -> None:
    copy = TableModel(random_table(1, 12), "d")
    for temperature, why in ((0.0, "more prompts"), (1.0, "no position found")):
        found = gated(ready(copy, temperature=(temperature,)), Store(tmp_path))
        assert found.info["exactness"]["status"] == "underpowered"
        assert found.notes[0].startswith(f"exactness not proved: t with d at T={temperature:g}: ")
        assert why in found.notes[0]
        assert found.info["notes"] == found.notes  # so that tables say it


def test_a_model_that_cannot_be_followed_is_left_to_its_cells(tmp_path: Path) -> None:
    broken = TableModel(constant_table([math.nan] * 12), "d")
    found = gated(ready(broken, temperature=(0.0,)), Store(tmp_path))
    said = "t with d at T=0: non-finite logits (position 0, draft)"
    assert found.notes == found.info["notes"] == [f"exactness not checked: {said}"]
    assert found.info["exactness"]["status"] == "not checked"
    assert found.info["exactness"]["verdict"] == f"not checked: {said}"


def test_a_draft_that_cannot_be_followed_leaves_the_others_their_proof(tmp_path: Path) -> None:
    prepared = ready(draft=None, temperature=(0.0,))
    models = {**prepared.bench.models, "n": TableModel(constant_table([math.nan] * 12), "n")}
    both = replace(
        prepared,
        config=replace(prepared.config, draft=("n", "d")),
        bench=replace(prepared.bench, models=models),
    )
    proof = gated(both, Store(tmp_path)).info["exactness"]
    assert [item["name"] for item in proof["checks"]] == ["t with d at T=0"]
    assert proof["checks"][0]["status"] == "exact"
    assert proof["unfollowed"] == ["t with n at T=0: non-finite logits (position 0, draft)"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command on table models; returns (exit code, stdout, stderr)."""

    def run(*args: str, draft=None, target=None) -> tuple[int, str, str]:
        seen = {}

        def prepare(config, say):
            seen["config"] = config
            return ready(draft, target, temperature=config.temperature, dtype=config.dtype)

        monkeypatch.setattr(preparing, "prepare", prepare)
        monkeypatch.setattr(sys, "argv", ["specbench", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_verify_exits_0_on_a_proof(call) -> None:
    code, out, err = call("verify", "t", "d", "--task", "x", "--draws", "100")
    assert (code, err) == (0, "")
    assert "t with d at T=0" in out
    assert "t with d at T=1: draws follow the target's own law at 8 prefixes" in " ".join(
        out.split()
    )
    assert "exact: 2 of 2 checks passed" in out
    assert "mismatch" not in out


def test_verify_exits_3_without_one(call) -> None:
    copy = TableModel(random_table(1, 12), "d")
    code, out, _ = call("verify", "t", "d", "--task", "x", "--json", draft=copy)
    found = json.loads(out)
    assert (code, found["status"]) == (3, "underpowered")
    assert {item["status"] for item in found["checks"]} == {"underpowered"}


def test_verify_exits_2_on_wrong_usage(call) -> None:
    assert call("verify", "t", "d", "--temperature", "-1", "--task", "x")[0] == 2


def test_sweep_refuses_a_pair_that_fails_and_measures_nothing(call, tmp_path: Path) -> None:
    draft, target = TableModel(constant_table([0.0, 0.0, 0.0, 3.0, 0.0]), "d"), Nudged(0.5, 1.5)
    args = ("sweep", "--target", "t", "--draft", "d", "--task", "x", "--temperature", "1")
    code, out, err = call(*args, "--out", str(tmp_path / "run"), draft=draft, target=target)
    assert (code, out) == (3, "")
    assert err.startswith("specbench: nudged with d at T=1: ")
    assert not (tmp_path / "run").exists()


def test_verify_is_an_option_of_a_sweep(tmp_path: Path) -> None:
    assert read_config(None, OPTIONS).as_dict()["verify"] is True
    file = tmp_path / "sweep.toml"
    file.write_text("verify = false\n")
    assert read_config(file, OPTIONS).verify is False
    assert read_config(file, {**OPTIONS, "verify": True}).verify is True
    file.write_text("verify = 1\n")
    with pytest.raises(UsageError, match="type bool"):
        read_config(file, OPTIONS)
