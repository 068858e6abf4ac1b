"""A reader that leaves early, as `| head` does, ends every command quietly."""

import os
import subprocess
import sys

import pytest
from synthetic import Plan

from specbench.experiment.store import Store

COMMANDS = [
    ["--help"],
    ["--version"],
    ["sweep", "--help"],
    ["sweep", "--dry-run", "--gamma", "1"],
    ["theory", "--out", "FIGURES"],
    ["tables", "RUN"],
    ["tables", "RUN", "--json"],
    ["compare-theory", "RUN", "--quiet", "--json"],
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("piped")
    cells, records = Plan(num_prompts=3, lengths=12).build()
    store = Store(folder / "run")
    store.create({"config": {"seed": 0}}, cells)
    for record in records:
        store.append(record)
    return {"RUN": str(store.folder), "FIGURES": str(folder)}


def into_a_closed_pipe(args, places, **streams):
    """The exit code and what was said on stderr by a command whose stdout nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specbench", *(places.get(word, word) for word in args)]
    done = subprocess.run(
        command, stdout=writer, check=False, **(streams or {"stderr": subprocess.PIPE})
    )
    os.close(writer)
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_nobody_reads_the_results(args, places):
    assert into_a_closed_pipe(args, places) == (141, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_that_a_stream_lacks_end_nothing(places, encoding):
    command = [sys.executable, "-m", "specbench", "compare-theory", places["RUN"]]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, check=False, env=environ)
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0)
    assert rb"\u03b3" in done.stdout


def test_a_closed_stream_swallows_what_is_printed(places):
    command = f"{sys.executable} -m specbench tables {places['RUN']} >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


def test_nobody_reads_the_errors_either(places):
    args = ["tables", "nowhere"]
    assert into_a_closed_pipe(args, places, stderr=subprocess.STDOUT) == (141, b"")
    code, said = into_a_closed_pipe(args, places)
    assert (code, len(said.splitlines())) == (2, 1)
