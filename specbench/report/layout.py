"""How a row becomes the entries that people read, on paper and on screen alike.

Owns rounding, marks and what a missing value looks like. Knows nothing of files, of terminals
and of which tables there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.report.rows import Row, Value

MISSING = ""
DISAGREES = "✗"


@dataclass(frozen=True)
class Column:
    """A title and how a row's entry reads; number: whether it is aligned to the right."""

    title: str
    text: Callable[[Row], str]
    number: bool = True


@dataclass(frozen=True)
class Layout:
    """A table for people: its title, its columns, and what the words in it mean."""

    title: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    def texts(self, rows: Sequence[Row]) -> list[list[str]]:
        """The entries of every row."""
        return [[column.text(row) for column in self.columns] for row in rows]

    def shown(self, rows: Sequence[Row]) -> Layout:
        """The same without columns that are empty in every row."""
        kept = [column for column in self.columns if any(column.text(row) for row in rows)]
        return Layout(self.title, tuple(kept or self.columns), self.notes)


def value(name: str, title: str | None = None, digits: int = 2) -> Column:
    """A number, or a word; missing is empty."""
    return Column(title or name, lambda row: text_of(row[name], digits))


def word(name: str, title: str | None = None) -> Column:
    """A word, aligned to the left."""
    return Column(title or name, lambda row: text_of(row[name], 2), number=False)


def interval(name: str, title: str, digits: int = 2) -> Column:
    """A value with its 95 % interval, such as "1.35 [1.31, 1.40]"."""
    return Column(title, lambda row: interval_of(row, name, digits))


def marked(name: str, title: str, agrees: str, digits: int = 2) -> Column:
    """A predicted value, marked where the measured interval excludes it."""
    return Column(
        title,
        lambda row: text_of(row[name], digits) + (f" {DISAGREES}" if row[agrees] is False else ""),
    )


def sampling(row: Row) -> str:
    """The temperature, with filters only where there are any."""
    text = f"{row['temperature']:g}"
    if row.get("top_k"):
        text += f" top-k {row['top_k']}"
    if row.get("top_p", 1.0) != 1.0:
        text += f" top-p {row['top_p']:g}"
    return text


def interval_of(row: Row, name: str, digits: int = 2) -> str:
    """A value with its 95 % interval, the value alone where there is none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None or high is None or low == high:
        return text_of(row[name], digits)
    return f"{text_of(row[name], digits)} [{text_of(low, digits)}, {text_of(high, digits)}]"


def text_of(found: Value, digits: int = 2) -> str:
    """An entry as people read it; missing is empty."""
    if found is None:
        return MISSING
    if isinstance(found, bool):
        return "yes" if found else "no"
    return f"{found:.{digits}f}" if isinstance(found, float) else str(found)


TEMPERATURE = Column("T", sampling)
