"""The checkpoint family of a model: what prefixes and conventions it was trained with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def family_of(name: str, config: Any) -> str | None:
    """pocket, flan-t5, mt5, t5-v1_1, t5, else the architecture's name; None for an unknown T5.

    name: as the user wrote it; config: its transformers configuration. A T5 1.0 layout is
    called t5 only where its name or its own table of task prefixes says so, because a T5 that
    someone trained alone may know no prefix at all.
    """
    if name.startswith("pocket/"):
        return "pocket"
    if config.model_type != "t5":
        return str(config.model_type)
    # The folders that a checkpoint lies in say nothing of it.
    names = [Path(text.partition("@")[0]).name.lower() for text in (name, config.name_or_path)]
    if any(re.search(r"flan[-_]t5", one) for one in names):
        return "flan-t5"
    if any(re.search(r"v1[_.]1", one) for one in names):
        return "t5-v1_1"
    if task_prefixes(config) or any(one.startswith("t5-") for one in names):
        return "t5"
    return None


def task_prefixes(config: Any) -> dict[str, str]:
    """Prompt prefix of each task that the configuration itself lists; empty where it has none."""
    tasks = getattr(config, "task_specific_params", None) or {}
    return {task: values["prefix"] for task, values in tasks.items() if "prefix" in values}
