"""Compare a regenerated grid.csv with the committed one; exit 0 when they agree, 1 when not.

Acceptance is a property of the models, the prompts and the seed: it must come out the same on
any machine, but for the last digit of a float32 sum, which can turn an argmax or a draw and send
the rest of one output another way. Hence a tolerance, tighter at T = 0 where few such turns
happen. Speed is a property of the machine: it must be there and finite, and is never compared.

Usage: python scripts/compare_results.py NEW_FOLDER COMMITTED_FOLDER
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

Row = dict[str, str]
Key = tuple[str, ...]

KEYS = (
    "task", "target", "draft", "temperature", "top_k", "top_p", "gamma", "batch", "replica",
    "engine", "dtype", "device", "min_new_tokens", "max_new_tokens", "seed",
)  # fmt: skip
SPEEDS = ("speedup", "decode_speedup", "speedup_geomean", "tokens_per_s", "ttft_s", "tpot_s")
# A drafted row without these is no result at all, whatever the committed table holds.
NEEDED = ("alpha_overlap", "acceptance_rate", "block_efficiency", "speedup", "tokens_per_s")
# Largest difference at T = 0 and at T > 0; block efficiency in parts of the committed value.
TOLERANCES = {
    "alpha_overlap": (0.02, 0.06),
    "acceptance_rate": (0.03, 0.12),
    "block_efficiency": (0.03, 0.12),
}
RELATIVE = {"block_efficiency"}


class Unreadable(Exception):
    """A table is missing or is not one; the message says which and why."""


def main(arguments: list[str]) -> int:
    """The exit code: 0 agrees, 1 differs, 2 wrong usage or unreadable tables."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        new, committed = (read_grid(Path(folder)) for folder in arguments)
    except Unreadable as error:
        print(f"compare_results: {error}", file=sys.stderr)
        return 2
    problems = compare(new, committed)
    for problem in problems:
        print(f"compare_results: {problem}", file=sys.stderr)
    if problems:
        return 1
    limits = ", ".join(f"{name} {zero:g} / {above:g}" for name, (zero, above) in TOLERANCES.items())
    print(f"compare_results: {len(new)} rows agree within (T = 0 / T > 0): {limits}")
    print("compare_results: speeds are present and finite; they belong to this machine only")
    return 0


def read_grid(folder: Path) -> dict[Key, Row]:
    """The rows of the folder's only grid.csv, by the cell they describe. Raises Unreadable."""
    paths = sorted(folder.rglob("grid.csv"))
    if len(paths) != 1:
        raise Unreadable(f"{folder}: {len(paths)} files named grid.csv where one is expected")
    with paths[0].open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = [*reader]
        columns = reader.fieldnames or []
    missing = [name for name in ("gamma", "temperature", "flags", *NEEDED) if name not in columns]
    if missing or not rows:
        raise Unreadable(f"{paths[0]}: no {', '.join(missing) or 'rows'}")
    table = {tuple(row.get(key) or "" for key in KEYS): row for row in rows}
    if len(table) != len(rows):
        raise Unreadable(f"{paths[0]}: two rows describe the same cell")
    return table


def compare(new: dict[Key, Row], committed: dict[Key, Row]) -> list[str]:
    """One line for each difference; empty when the tables agree."""
    problems = [f"{name(key)}: is not in the new table" for key in committed if key not in new]
    problems += [
        f"{name(key)}: is not in the committed table" for key in new if key not in committed
    ]
    for key, expected in committed.items():
        if key in new:
            found = [*acceptance(new[key], expected), *speeds(new[key], expected)]
            problems += [f"{name(key)}: {problem}" for problem in found]
    return problems


def acceptance(new: Row, committed: Row) -> list[str]:
    """What is missing or too far off among the figures that no machine may change."""
    if new.get("prompts_sha256") != committed.get("prompts_sha256"):
        return ["other prompts were measured (prompts_sha256)"]
    problems = []
    for column, limits in TOLERANCES.items():
        value, expected = number(new, column), number(committed, column)
        if expected is None and (value is None or not is_drafted(new)):
            if is_drafted(new):
                problems.append(f"{column} is missing")
            continue
        if value is None or expected is None or not math.isfinite(value + expected):
            problems.append(f"{column} is {shown(value)} where {shown(expected)} is committed")
            continue
        allowed = limits[float(new["temperature"]) > 0]
        if column in RELATIVE:
            allowed *= abs(expected)
        if abs(value - expected) > allowed:
            problems.append(
                f"{column} {value:.4f} is more than {allowed:.3f} from the committed {expected:.4f}"
            )
    return problems


def speeds(new: Row, committed: Row) -> list[str]:
    """Which speeds are missing or not finite; their values are this machine's affair."""
    problems = []
    for column in SPEEDS:
        value = number(new, column)
        needed = (column in NEEDED and is_drafted(new)) or number(committed, column) is not None
        if value is None and needed:
            problems.append(f"{column} is missing")
        elif value is not None and not (math.isfinite(value) and value > 0):
            problems.append(f"{column} is {value}")
    if int(new.get("num_failed") or 0):
        problems.append(f"{new['num_failed']} generations failed")
    return problems


def is_drafted(row: Row) -> bool:
    """Whether the row speculates at all."""
    return int(row["gamma"]) > 0


def number(row: Row, column: str) -> float | None:
    """A cell as a number, NaN for what is none; None where it is empty."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan


def shown(value: float | None) -> str:
    """A number, or the word for none."""
    return "nothing" if value is None else f"{value:.4f}"


def name(key: Key) -> str:
    """The cell in words."""
    return " ".join(f"{label}={value}" for label, value in zip(KEYS, key, strict=True) if value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
