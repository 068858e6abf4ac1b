"""The README tells the truth: its tables are the files', its commands and options exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A line that ends in a backslash goes on in the next one.
CALLS = re.findall(r"^\$ (?:specbench) ([a-z-]+)((?:[^\n#]|\\\n)*)", README, re.MULTILINE)


def test_generated_blocks_are_the_files() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "readme"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_relative_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize(
    ("command", "rest"), CALLS, ids=[f"{c} {i}" for i, (c, _) in enumerate(CALLS)]
)
def test_commands_and_options_exist(command, rest, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    known = capsys.readouterr().out
    for option in re.findall(r"--[a-z-]+", rest):
        assert option in known, f"{command} {option}"


def test_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:scripts|tests|configs)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name
