"""Items from a JSON-lines file. Owns its form, and what is said about a line that breaks it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from specbench.prompts.items import Prompt, PromptError


def read_jsonl(path: Path) -> list[Prompt]:
    """The items of a JSON-lines file: "source" required, "id" and "reference" optional.

    An item without an id is named by a hash of its text. Raises PromptError naming file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PromptError(f"{path}: cannot be read: {reason}") from None
    items: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        item, named = _item(f"{path}:{number}", line)
        if item.id in line_of:
            if named:
                first = line_of[item.id]
                raise PromptError(f'{path}:{number}: "id" {item.id!r} is already on line {first}')
            item = replace(item, id=f"{item.id}-{number}")
        line_of[item.id] = number
        items.append(item)
    if not items:
        raise PromptError(f"{path}: holds no prompts")
    return items


def _item(where: str, line: str) -> tuple[Prompt, bool]:
    """The item on one line and whether it named itself."""
    if line.lstrip().startswith("<"):
        raise PromptError(f"{where}: is not JSON; it looks like an HTML page")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where}: is not JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(row, dict):
        raise PromptError(f'{where}: allowed is an object like {{"source": "A sentence."}}')
    for key, required in {"source": True, "id": False, "reference": False}.items():
        value = row.get(key)
        if value is None and not required:
            continue
        if value is None:
            raise PromptError(f'{where}: the key "{key}" is missing')
        if key == "id" and isinstance(value, int):
            continue
        if not isinstance(value, str) or (key != "reference" and not value.strip()):
            raise PromptError(f'{where}: "{key}" must be a text that is not empty')
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise PromptError(f'{where}: "{key}" holds half a surrogate pair, which is not text')
    text = row["source"]
    named = row.get("id") is not None
    name = str(row["id"]) if named else hashlib.sha256(text.encode()).hexdigest()[:16]
    return Prompt(name, text, row.get("reference")), named
