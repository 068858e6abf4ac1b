"""The run folder: `run.json` written before measuring, `raw.jsonl` one record a line.

Owns reading, appending, resuming and refusing. The raw lines are the truth; everything else in
the folder is made from them. Knows nothing of formatting.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.experiment.config import UsageError
from specbench.experiment.lines import from_dict, to_dict
from specbench.measure import environment
from specbench.records import (
    SCHEMA_VERSION,
    Arm,
    Cell,
    Generation,
    Group,
    Limits,
    Record,
    Sampling,
    TokenDifference,
)

INFO, RAW = "run.json", "raw.jsonl"
_COMPARED = ("config", "prompts", "models")
_BY_NAME = ("prompts", "models")  # a table for each task or model
_GROWING = {"sessions", "max_minutes", "target_width"}


@dataclass(frozen=True)
class Run:
    """A run as it was read: `info` is what run.json holds, `cells` the whole grid.

    torn: the number of a last line that was left unfinished and is in no record, None where
    every line is whole.
    """

    info: dict[str, Any]
    cells: list[Cell]
    numbered: dict[tuple[Any, ...], tuple[int, Record]]
    torn: int | None = None

    @property
    def records(self) -> list[Record]:
        """Of several records about the same thing the last one, in the order of first mention."""
        return [record for _, record in self.numbered.values()]

    def line_of(self, record: Record) -> int:
        """The number of the raw line that a record was read from, from 1."""
        return self.numbered[record_key(record)][0]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


class Mismatch(RuntimeError):
    """A run cannot be gone on with, because something differs; the message names it."""


class Store:
    """Appends records to a run folder; a line leaves the process before the next is measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds a run, measured or not yet."""
        return (self.folder / INFO).exists()

    def refuse_strange_lines(self) -> None:
        """Raises UsageError where there are lines and no run: another's, or not of a run at all."""
        raw = self.folder / RAW
        if not self.has_begun and raw.exists() and raw.stat().st_size:
            raise UsageError(
                f"--out {self.folder}: holds {RAW} without {INFO}, which a sweep would overwrite; "
                "allowed is another folder"
            )

    def open(self, info: dict[str, Any], cells: list[Cell]) -> list[Record]:
        """Begin the run, or go on with the one that is there; returns what it already has.

        Raises Mismatch where the run in the folder was made otherwise.
        """
        if not self.has_begun:
            self.create(info, cells)
            return []
        earlier = self.read()
        for room in ("host", *_COMPARED):
            if not isinstance(earlier.info.get(room), dict):
                raise UsageError(f"RUN {self.folder}: {INFO} has no {room!r} to compare with")
        differing = unlike(earlier.info, info)
        if differing:
            field, before, now = differing[0]
            others = f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
            raise Mismatch(
                f"--resume: {field} was {before!r} in {self.folder} and is {now!r} now{others}; "
                "measurements of unlike runs are not joined; give the options of the first "
                "call again, or another --out"
            )
        self._repair()
        return earlier.records

    def create(self, info: dict[str, Any], cells: list[Cell]) -> None:
        """Begin a run: its configuration, host and grid are written before any measurement.

        Raises UsageError where the folder cannot be made, or holds lines already.
        """
        self.refuse_strange_lines()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--out {self.folder}: cannot be made ({error.strerror}); allowed is a folder"
            ) from None
        whole = {
            "schema_version": SCHEMA_VERSION,
            **info,
            "cells": [asdict(cell) for cell in cells],
        }
        (self.folder / RAW).touch()
        write_atomically(self.folder / INFO, json.dumps(whole, indent=2, ensure_ascii=False) + "\n")

    def append(self, record: Record) -> None:
        """Add one line and hand it to the operating system."""
        line = json.dumps(to_dict(record), separators=(",", ":"))
        with (self.folder / RAW).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _repair(self) -> None:
        """Cut off a last line that a kill left unfinished, so that the next one stands alone."""
        path = self.folder / RAW
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)

    def read(self) -> Run:
        """The whole run. Raises UsageError where the folder holds none or a broken one."""
        info = self._info()
        if info.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"RUN {self.folder}: schema version {info.get('schema_version')}; "
                f"allowed is {SCHEMA_VERSION}"
            )
        try:
            cells = [_cell(item) for item in info.pop("cells")]
            if int(info["config"]["seed"]) < 0:  # every interval depends on it
                raise ValueError("a negative seed")
        except (TypeError, KeyError, ValueError) as error:
            raise UsageError(f"RUN {self.folder}: {INFO}: cells or seed: {error}") from None
        for room in ("host", *_COMPARED):
            inner = info.get(room, {})
            parts = [inner, *(inner.values() if room in _BY_NAME and _is_table(inner) else ())]
            if not all(map(_is_table, parts)):
                raise UsageError(f"RUN {self.folder}: {INFO}: {room!r} is not what a sweep writes")
        return self._with_lines(info, cells)

    def _info(self) -> dict[str, Any]:
        try:
            info = json.loads((self.folder / INFO).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(
                f"RUN {self.folder}: holds no {INFO}; allowed is the folder of a sweep"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"RUN {self.folder}: {INFO} cannot be read ({error})") from None
        if not isinstance(info, dict):
            raise UsageError(f"RUN {self.folder}: {INFO} is no JSON object")
        return info

    def _with_lines(self, info: dict[str, Any], cells: list[Cell]) -> Run:
        numbered: dict[tuple[Any, ...], tuple[int, Record]] = {}
        try:
            lines = (self.folder / RAW).read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise UsageError(f"RUN {self.folder}: {RAW}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                # A kill left it unfinished; `_repair` cuts it off before a resume.
                return Run(info, cells, numbered, torn=number)
            try:
                record = from_dict(json.loads(line.decode("utf-8")))
            except ValueError as error:
                raise UsageError(
                    f"RUN {self.folder}: {RAW} line {number}: {_said(error)}"
                ) from None
            numbered[record_key(record)] = number, record
        return Run(info, cells, numbered)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _said(error: ValueError) -> str:
    """A parser counts lines from the start of what it was given, which is one line."""
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg}, column {error.colno})"
    return str(error)


def unlike(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, before, now) of what forbids joining two runs: options, prompts, models, host.

    How much is measured may grow with a resume: more sessions, a budget to refine. Which layout
    of a weight was the fastest is for each process to find out by the clock, and part of what
    sessions differ by.
    """
    differing = environment.differences(before["host"], now["host"])
    for room in _COMPARED:
        old, new = _compared(before[room]), _compared(now[room])
        differing += [
            (f"{room}.{name}", old.get(name), new.get(name))
            for name in sorted({*old, *new} - _GROWING)
            if old.get(name) != new.get(name)
        ]
    return differing


def _compared(room: dict[str, Any]) -> dict[str, Any]:
    """What JSON makes of a part of run.json, without what every process finds out by itself; the
    fields of a model or of a task's prompts by names like "pocket/target.sha256"."""
    fields: dict[str, Any] = {}
    for name, about in json.loads(json.dumps(room)).items():
        if isinstance(about, dict):
            about.pop("layouts", None)
            fields |= {f"{name}.{inner}": value for inner, value in about.items()}
        else:
            fields[name] = about
    return fields


def record_key(record: Record) -> tuple[Any, ...]:
    """What a record is about; two with the same key are the same measurement."""
    if isinstance(record, Generation):
        return ("generation", record.cell, record.prompt_ids, record.repeat, record.session)
    if isinstance(record, TokenDifference):
        return ("difference", record.cell, record.prompt_id)
    kind = type(record).__name__
    values = asdict(record)
    values.pop("overlaps", None)
    values.pop("seconds", None)
    return (kind, *values.values())


def _cell(item: dict[str, Any]) -> Cell:
    group = dict(item["group"])
    group["sampling"] = Sampling(**group["sampling"])
    group["limits"] = Limits(**group["limits"])
    return Cell(Group(**group), Arm(**item["arm"]))
