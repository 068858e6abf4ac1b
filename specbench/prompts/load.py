"""From a task's name to a prompt set: the source, the prefix, the selection and the fingerprint.

The prefix is part of the prompt: T5 without "translate English to German: " does another task,
and another acceptance rate is measured. It is therefore part of the hash that names a prompt set.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from specbench.prompts.hosted import HOSTED, read_hosted
from specbench.prompts.items import Prompt, PromptError, PromptSet, UnknownTask
from specbench.prompts.jsonl import read_jsonl

TRANSLATION = "translation"
SUMMARY = "summary"

# What each family was trained with. A family that is not here (T5 1.1 has never seen a task, and
# each fine-tune of it chose its own) must be given its prefix.
PREFIXES: dict[str, dict[str, str]] = {
    "pocket": {TRANSLATION: "translate English to German: ", SUMMARY: "summarize: "},
    "t5": {TRANSLATION: "translate English to German: ", SUMMARY: "summarize: "},
    "flan-t5": {TRANSLATION: "Translate to German: ", SUMMARY: "Summarize: "},
}

_EMBEDDED = {"pocket-ende": "ende.jsonl", "pocket-summary": "summary.jsonl"}
_KINDS = {
    "pocket-ende": TRANSLATION,
    "wmt-ende": TRANSLATION,
    "pocket-summary": SUMMARY,
    "cnn-dm": SUMMARY,
}
# Names of data sets that were scripts, which no current release of `datasets` runs.
_SUPERSEDED = {"wmt14": "wmt-ende", "cnn_dailymail": "cnn-dm"}
TASKS = tuple(_KINDS)
_ASKED = {"", TRANSLATION, SUMMARY}  # what may follow a file's #


def load_prompts(
    task: str,
    *,
    limit: int | None,
    seed: int,
    family: str | None = None,
    prefix: str | None = None,
) -> PromptSet:
    """The prompts of a task, chosen by a seeded hash of each item's id.

    The `limit` items with the smallest hash are taken, in the order of the hash, so an item that
    is added elsewhere changes nothing but its own place, and a larger limit extends a smaller one.

    task: one of TASKS, or file:PATH.jsonl with an optional #translation or #summary that asks
    for the family's prefix; without it a file's texts get none.
    limit: the most prompts to take; None takes all. family: of the target's checkpoint, a key of
    PREFIXES. prefix: overrides the family's; "" is none.
    Raises UnknownTask for an unknown task, PromptError for a family without a prefix, a source
    that cannot be read, and a source that holds no prompt.
    """
    if limit is not None and limit < 1:
        raise PromptError(f"--limit {limit}: allowed are integers >= 1")
    source, kind = _source_and_kind(task)
    if prefix is None:
        prefix = _prefix(task, kind, family)
    items = _items(source)
    chosen = sorted(items, key=lambda item: (_rank(seed, item.id), item.id))[:limit]
    prompts = tuple(replace(item, text=prefix + item.text) for item in chosen)
    return PromptSet(
        task=task,
        prompts=prompts,
        sha256=_fingerprint(prefix, prompts),
        prefix=prefix,
        num_available=len(items),
        synthetic=_is_synthetic([item.text for item in chosen]),
    )


def _source_and_kind(task: str) -> tuple[str, str | None]:
    if task.startswith("file:"):
        source, mark, kind = task.rpartition("#")
        if not mark or (kind not in _ASKED and _path(task).exists()):
            source, kind = task, ""  # any # is the path's own
        if source == "file:":
            raise UnknownTask(f"--task {task}: allowed is file:PATH.jsonl, found no path")
        if kind not in _ASKED:
            raise UnknownTask(
                f"--task {task}: after # allowed are {TRANSLATION} and {SUMMARY}, found {kind!r}"
            )
        return source, kind or None
    if task in _KINDS:
        return task, _KINDS[task]
    known = f"allowed are {', '.join(TASKS)} and file:PATH.jsonl"
    if task in _SUPERSEDED:
        name = _SUPERSEDED[task]
        raise UnknownTask(
            f"--task {task}: that data set is a script, which is never run; use {name}, which "
            f"reads {HOSTED[name].repository} ({known})"
        )
    raise UnknownTask(f"--task {task}: {known}")


def _prefix(task: str, kind: str | None, family: str | None) -> str:
    if kind is None:
        return ""
    if family not in PREFIXES:
        raise PromptError(
            f"--task {task}: the prefix of checkpoint family {family or 'unknown'} is not known; "
            f'give it with --prefix (for T5 {PREFIXES["t5"][kind]!r}, "" for none)'
        )
    return PREFIXES[family][kind]


def _items(source: str) -> list[Prompt]:
    if source in HOSTED:
        return read_hosted(HOSTED[source])
    if source in _EMBEDDED:
        file = resources.files("specbench") / "pocket" / "prompts" / _EMBEDDED[source]
        with resources.as_file(file) as path:
            return read_jsonl(path)
    return read_jsonl(_path(source))


def _path(source: str) -> Path:
    return Path(os.path.expanduser(source.removeprefix("file:")))  # noqa: PTH111  as ~nobody


def _rank(seed: int, item_id: str) -> bytes:
    return hashlib.blake2b(f"{seed}\x00{item_id}".encode(), digest_size=16).digest()


def _fingerprint(prefix: str, prompts: Iterable[Prompt]) -> str:
    content = [prefix, [[prompt.id, prompt.text] for prompt in prompts]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _is_synthetic(texts: Sequence[str]) -> bool:
    """Whether more than one text in ten repeats another one, or itself."""
    repeated = len(texts) - len({*texts})
    return repeated + sum(_repeats_itself(text) for text in texts) > 0.1 * len(texts)


def _repeats_itself(text: str) -> bool:
    words = text.split()
    return len(words) >= 20 and len({*words}) < 0.2 * len(words)
