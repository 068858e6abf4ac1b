"""A record as a line of JSON, and a line as the record it was: with every type checked.

Owns what a line may hold. Knows nothing of files (`store`).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from specbench.records import (
    Generation,
    OverlapTrace,
    Record,
    Round,
    StepTimes,
    TokenDifference,
)

_KINDS: dict[str, type] = {
    "generation": Generation,
    "overlaps": OverlapTrace,
    "steps": StepTimes,
    "difference": TokenDifference,
}


def to_dict(record: Record) -> dict[str, Any]:
    """A plain dictionary with the record's `kind` and every field, ready for JSON."""
    kind = next(name for name, cls in _KINDS.items() if type(record) is cls)
    return {"kind": kind, **asdict(record)}


def from_dict(line: Any) -> Record:
    """The record that `to_dict` wrote, from parsed JSON.

    Raises ValueError for an unknown kind or field, and for a value that the field cannot hold.
    """
    if not isinstance(line, dict):
        raise ValueError(f"{_brief(line)} is no record")
    values = dict(line)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"record kind {kind!r}: allowed are {', '.join(_KINDS)}")
    rounds = values.get("rounds")
    if isinstance(rounds, list):
        values["rounds"] = [
            _made(Round, item) if isinstance(item, dict) else item for item in rounds
        ]
    made: Record = _made(_KINDS[kind], values)
    return made


def _made(kind: type, values: dict[str, Any]) -> Any:
    """An object of this kind, each of its values of the type that the field says."""
    hints = _hints(kind)
    values = {name: _tuple(value) for name, value in values.items()}
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            allowed = hints[name].__name__ if isinstance(hints[name], type) else hints[name]
            raise ValueError(f"{name} is {_brief(value)}: allowed is {allowed}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return isinstance(value, tuple) and all(_fits(one, item) for one in value)
    if isinstance(hint, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint is float:  # JSON may write it without a point, and Python's reads NaN, which is none
        return type(value) in (float, int) and isfinite(value)
    return type(value) is hint


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
