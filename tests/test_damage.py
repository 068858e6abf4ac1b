"""Raw lines that were damaged: dropped with a word where a kill explains it, else refused."""

import json
import sys

import pytest
from synthetic import Machine, Plan

from specbench.cli import main
from specbench.experiment.store import INFO, RAW, Store

CELLS, RECORDS = Plan(
    gammas=(3,), num_prompts=3, lengths=12, machine=Machine(target_prefill_s=0.01)
).build()
# The raw lines in order: three times baseline and arm, three overlaps, then step times.
ARM, OVERLAPS, STEPS = 2, 7, 10


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "run")
    store.create({"config": {"seed": 0}}, CELLS)
    for record in RECORDS:
        store.append(record)
    return store.folder


@pytest.fixture
def tables(folder, monkeypatch, capsys):
    def run():
        monkeypatch.setattr(sys, "argv", ["specbench", "tables", str(folder), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def edit(folder, number, change):
    """Replace raw line `number`, from 1, by what `change` makes of its parsed form."""
    lines = (folder / RAW).read_text().splitlines()
    changed = change(json.loads(lines[number - 1]))
    lines[number - 1] = changed if isinstance(changed, str) else json.dumps(changed)
    (folder / RAW).write_text("\n".join(lines) + "\n")


def in_round(**values):
    return lambda line: {**line, "rounds": [{**line["rounds"][0], **values}, *line["rounds"][1:]]}


def test_a_whole_run_says_nothing(tables):
    assert tables()[::2] == (0, "")


def test_a_torn_last_line_is_dropped_and_said(folder, tables):
    whole = (folder / RAW).read_bytes()
    (folder / RAW).write_bytes(whole[:-30])
    code, _, err = tables()
    assert code == 0
    assert err == f"{folder / RAW} line {len(RECORDS)} was left unfinished and is dropped\n"
    assert len(Store(folder).read().records) == len(RECORDS) - 1


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (ARM, lambda line: {**line, "total_s": -1.0}, "total_s is -1 seconds"),
        (ARM, lambda line: {**line, "total_s": 0.005}, "decode_s is -0.005 seconds"),
        (ARM, lambda line: {**line, "total_s": float("nan")}, "total_s is nan"),
        (ARM, lambda line: {**line, "total_s": "1.0"}, "total_s is '1.0'"),
        (ARM, in_round(verify_s=-0.1), "round 0, verify_s is -0.1 seconds"),
        (ARM, in_round(verify_s=float("inf")), "verify_s is inf"),
        (ARM, in_round(num_drafted=[2.5]), "num_drafted is (2.5,)"),
        (ARM, lambda line: {**line, "rounds": [1]}, "rounds is (1,)"),
        (ARM, lambda line: {**line, "tokens": [line["tokens"][0][:-1]]}, "11 tokens but the"),
        (ARM, lambda line: {**line, "tokens": None}, "tokens is None"),
        (ARM, lambda line: {**line, "cell": "elsewhere"}, "the run has no such cell"),
        (OVERLAPS, lambda line: {**line, "overlaps": [1.5]}, "overlap 1.5"),
        (OVERLAPS, lambda line: {**line, "cell": "elsewhere"}, "the run has no such cell"),
        (STEPS, lambda line: {**line, "seconds": [-0.02]}, "a call is -0.02 seconds"),
        (ARM, lambda line: json.dumps(line)[:-9], "not valid JSON"),
        (ARM, lambda line: "[]", "[] is no record"),
        (ARM, lambda line: "", "not valid JSON"),
    ],
)
def test_any_other_damage_is_refused_by_line(folder, tables, number, change, said):
    edit(folder, number, change)
    code, out, err = tables()
    assert (code, out) == (2, "")
    assert f"{RAW} line {number}: " in err
    assert said in err
    assert len(err.splitlines()) == 1


def test_bytes_that_are_no_text_are_refused_by_line(folder, tables):
    (folder / RAW).write_bytes((folder / RAW).read_bytes() + b"\xff\xfe\n")
    code, _, err = tables()
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"{RAW} line {len(RECORDS) + 1}: " in err


def test_a_run_without_measurements_is_refused(folder, tables):
    (folder / RAW).write_bytes(b"")
    code, out, err = tables()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "holds no measurement" in err
    (folder / RAW).unlink()
    code, _, err = tables()
    assert (code, len(err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 1, "cells": []}',
        '{"schema_version": 1, "cells": [], "config": {"seed": -5}}',
        '{"schema_version": 1, "cells": [], "config": {"seed": 0}, "prompts": [1]}',
        '{"schema_version": 1, "cells": [], "config": {"seed": 0}, "prompts": {"task": 1}}',
        '{"schema_version": 1, "cells": [], "config": {"seed": 0}, "host": "x"}',
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(folder, tables, text):
    (folder / INFO).write_text(text)
    code, _, err = tables()
    assert (code, len(err.splitlines())) == (2, 1)
    assert INFO in err or "schema version None" in err
