"""Further sessions: the same sweep again, in fresh processes and into the same run folder.

Owns how such a process is begun. Its own preflight compares host, options, prompts and models
with those of the run, so that a session under other conditions is refused like any resume.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import torch

from specbench.experiment.config import Config, flag

# Given once for each value, where other lists are one value with commas.
_REPEATABLE = ("draft", "task", "arm")


def run_session(config: Config, folder: Path, session: int, quiet: bool) -> int:
    """Measure one further session and wait for it; returns its exit code.

    What it says of its progress, and the one line of an error, go where ours go.
    """
    # Its models need the memory that ours have left behind.
    gc.collect()
    torch.cuda.empty_cache()
    code = subprocess.run(command(config, folder, session, quiet), check=False).returncode
    return code if code >= 0 else 128 - code


def command(config: Config, folder: Path, session: int, quiet: bool) -> list[str]:
    """The command line of a session: every option as it was resolved."""
    options = [word for field in fields(Config) for word in _words(config, field.name)]
    where = ["--out", str(folder), "--resume", "--session", str(session)]
    start = [sys.executable, "-m", "specbench", "sweep"]
    return [*start, *options, *where, *(["--quiet"] if quiet else [])]


def _words(config: Config, name: str) -> list[str]:
    value = getattr(config, name)
    if value is None or value == ():
        return []
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no_{name}")]
    if name in _REPEATABLE:
        return [word for item in value for word in (flag(name), item)]
    if isinstance(value, tuple):
        value = ",".join(str(item) for item in value)
    return [flag(name), str(value)]
