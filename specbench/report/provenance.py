"""What a reader of any table must find: where, with what and from what it was measured.

Owns the choice of those facts and their wording. A fact that was not recorded is said to be so;
nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.measure.summary import CellSummary

Info = dict[str, Any]
UNKNOWN = "not recorded"


def facts(info: Info, summaries: Sequence[CellSummary]) -> dict[str, str]:
    """The facts by name, in the order in which they are shown above a table."""
    groups = [summary.cell.group for summary in summaries]
    config = info.get("config", {})
    lengths = {(group.limits.min_new_tokens, group.limits.max_new_tokens) for group in groups}
    notes = info.get("notes")
    return {
        "hardware": hardware(info),
        "dtype": _listed(group.dtype for group in groups),
        "batch": _listed(group.batch for group in groups),
        "target": _listed(group.target for group in groups),
        "allowed output tokens": _listed(f"{low} to {high}" for low, high in sorted(lengths)),
        "prompts": "; ".join(_prompts(task, about) for task, about in _tasks(info)) or UNKNOWN,
        "repeats": str(config.get("repeats", UNKNOWN)),
        "sessions": _sessions(summaries),
        "seed": _listed(group.seed for group in groups),
        "commit": commit(info),
        "versions": _versions(info),
        "command": str(info.get("command") or UNKNOWN),
        **({"notes": "; ".join(map(str, notes))} if notes else {}),
    }


def hardware(info: Info) -> str:
    """Processor or GPU, cores and threads in a few words."""
    host = info.get("host") or {}
    device, cpu = host.get("device") or {}, host.get("cpu") or {}
    threads = (host.get("threads") or {}).get("model")
    name = device.get("name") or cpu.get("name")
    if name is None:
        return UNKNOWN
    parts = [str(name)]
    if device.get("type", "cpu") == "cpu":
        parts.append(f"cores: {cpu.get('num_usable', '?')}")
        parts.append(f"threads: {threads if threads is not None else '?'}")
    return ", ".join(parts)


def commit(info: Info) -> str:
    """The commit of the measuring code, marked where it had been edited since."""
    source = (info.get("host") or {}).get("source") or {}
    if source.get("commit"):
        return str(source["commit"])[:12] + (" and edits" if source.get("dirty") else "")
    if source.get("code_sha256"):
        return f"none, code sha256 {source['code_sha256'][:12]}"
    return UNKNOWN


def caption(info: Info, summaries: Sequence[CellSummary]) -> str:
    """One line for the foot of a figure."""
    known = facts(info, summaries)
    shown = f"{known['hardware']}; {known['dtype']}; batch {known['batch']}; target "
    shown += (
        f"{known['target']}; {known['allowed output tokens']} output tokens; prompts: "
        f"{_num_prompts(info)}; seed {known['seed']}; "
    )
    return shown + f"commit {known['commit']}"


def _num_prompts(info: Info) -> str:
    counts = (f"{about.get('num_prompts', '?')} of {task}" for task, about in _tasks(info))
    return ", ".join(counts) or UNKNOWN


def columns(info: Info, task: str) -> dict[str, str]:
    """The facts that the rows of a CSV carry besides those of their cell."""
    about = dict(_tasks(info)).get(task, {})
    return {
        "hardware": hardware(info),
        "prompts_sha256": str(about.get("sha256") or UNKNOWN),
        "commit": commit(info),
        "command": str(info.get("command") or UNKNOWN),
    }


def is_synthetic(info: Info, task: str) -> bool:
    """Whether the task's texts repeat themselves, so that its speeds flatter."""
    return bool(dict(_tasks(info)).get(task, {}).get("synthetic"))


def natural(info: Info, summaries: Sequence[CellSummary]) -> list[CellSummary]:
    """Without tasks whose texts repeat themselves."""
    return [one for one in summaries if not is_synthetic(info, one.cell.group.task)]


def left_out(info: Info) -> str | None:
    """Which tasks `natural` leaves out, in a sentence; None for none."""
    tasks = [task for task, _ in _tasks(info) if is_synthetic(info, task)]
    if not tasks:
        return None
    return f"Left out, because their prompts are synthetic: {', '.join(tasks)}."


def _sessions(summaries: Sequence[CellSummary]) -> str:
    most = max((summary.num_sessions for summary in summaries), default=0)
    if most > 1:
        return f"{most}, each a process of its own; what differs between them is in the intervals"
    return "one; what differs between processes is not in the intervals"


def _tasks(info: Info) -> list[tuple[str, dict[str, Any]]]:
    return list((info.get("prompts") or {}).items())


def _prompts(task: str, about: dict[str, Any]) -> str:
    lengths = f"{about.get('min_tokens', '?')} to {about.get('max_tokens', '?')} tokens"
    cut = f", {about['num_truncated']} cut" if about.get("num_truncated") else ""
    digest = str(about.get("sha256", UNKNOWN))[:12]
    label = ", synthetic" if about.get("synthetic") else ""
    return f"{task} {about.get('num_prompts', '?')} of {lengths}{cut}{label} (sha256 {digest})"


def _versions(info: Info) -> str:
    packages = (info.get("host") or {}).get("packages") or {}
    known = [f"{name} {packages[name]}" for name in ("torch", "transformers") if packages.get(name)]
    if info.get("specbench"):
        known.insert(0, f"specbench {info['specbench']}")
    return ", ".join(known) or UNKNOWN


def _listed(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values)) or UNKNOWN
