"""The rooms and their one direction: read from the imports, so that the table stays true."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "specbench"

# From bottom to top: a module imports from its own row and from the rows before it. The words are
# below the maths, so that `sampling` can be told what it draws from in the words of a record.
ROWS = [
    {"records"},
    {"theory", "sampling", "statistics", "paper"},
    {"models"},
    {"prompts"},
    {"decoding"},
    {"measure"},
    {"experiment"},
    {"report"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
ONLY_IN = {"transformers": {"models"}, "datasets": {"prompts"}}
# Slow to import; the door answers `--help` without them.
HEAVY = {
    "torch", "transformers", "datasets", "numpy", "scipy", "pandas", "matplotlib", "sentencepiece",
    "safetensors", "huggingface_hub",
}  # fmt: skip


def imports(source, module):
    """(imported module, whether on import of this one) for each import in a module's source.

    Imports inside a function happen when it is called; those under TYPE_CHECKING never do.
    """
    found = []

    def visit(node, at_top):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child, at_top)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level] + ([base] if base else [])
                base = ".".join(parts)
            found.extend((f"{base}.{alias.name}", at_top) for alias in node.names)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_top and not inside)

    visit(ast.parse(source), True)
    return found


def room_of(module):
    """The room of a module inside the package; "" for the package itself."""
    return [*module.split("."), ""][1]


def violations(sources):
    """What breaks the table, one line each, in a mapping of module names to sources."""
    broken = []
    for module, source in sources.items():
        room = room_of(module)
        for imported, at_top in imports(source, module):
            top = imported.split(".")[0]
            if top == "specbench":
                broken += upward(module, room, imported)
            elif room not in ONLY_IN.get(top, {room}):
                broken.append(f"{module} imports {top}, which only {ONLY_IN[top]} may")
            elif top in HEAVY and at_top and room in {"cli", "__main__", ""}:
                broken.append(f"{module} imports {top} at its top")
            elif top == "torch" and room == "report":
                broken.append(f"{module} imports torch")
    return broken


def upward(module, room, imported):
    other = room_of(imported)
    if other not in LEVEL or other == room:  # the package itself holds only its version
        return []
    if room not in LEVEL:
        return [f"{module}: {room!r} is no room of the table"]
    if LEVEL[other] > LEVEL[room]:
        return [f"{module} imports {imported}, which is above it"]
    return []


def cycle(sources):
    """The modules of one import cycle at import time, or an empty list."""
    edges = {module: set() for module in sources}
    for module, source in sources.items():
        for imported, at_top in imports(source, module):
            name = imported
            while at_top and name and name not in sources:
                name = name.rpartition(".")[0]  # the rest is a name inside a module
            if at_top and name and name != module:
                edges[module].add(name)
    done, path = set(), []

    def walk(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        path.append(module)
        for other in sorted(edges[module]):
            if found := walk(other):
                return found
        done.add(path.pop())
        return []

    return next((found for module in sorted(sources) if (found := walk(module))), [])


@pytest.fixture(scope="module")
def sources():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def test_every_room_is_in_the_table(sources):
    assert {room_of(module) for module in sources} - {""} <= {*LEVEL}
    assert len(sources) > 20


def test_imports_point_down_and_stay_in_their_rooms(sources):
    assert violations(sources) == []


def test_no_import_cycle(sources):
    assert cycle(sources) == []


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("specbench.theory", "from specbench.models import t5", "which is above it"),
        ("specbench.records", "from specbench.theory import alpha", "which is above it"),
        ("specbench.theory", "def f():\n    import specbench.cli", "which is above it"),
        ("specbench.decoding.loop", "from ..measure import metrics", "which is above it"),
        ("specbench.prompts.load", "from specbench import experiment", "which is above it"),
        ("specbench.report.page", "def f():\n    import torch", "imports torch"),
        ("specbench.decoding.loop", "import transformers.cache_utils", "which only {'models'}"),
        ("specbench.models.t5", "def f():\n    from datasets import x", "which only {'prompts'}"),
        ("specbench.cli.app", "import pandas as pd", "imports pandas at its top"),
        ("specbench", "try:\n    import torch\nexcept ImportError:\n    pass", "at its top"),
        ("specbench.utils", "from specbench.records import Round", "is no room of the table"),
    ],
)
def test_planted_violation_is_found(module, source, said):
    (found,) = violations({module: source})
    assert said in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("specbench.statistics", "from specbench.theory import alpha"),
        ("specbench.sampling", "from specbench.records import Sampling"),
        ("specbench.cli.app", "def f():\n    import torch\n    from specbench.report import page"),
        ("specbench.cli.app", "if typing.TYPE_CHECKING:\n    import torch"),
        ("specbench.models.t5", "import transformers"),
        ("specbench.report.page", "from specbench.measure.summary import CellSummary"),
        ("specbench.measure.host", "from specbench import __version__"),
    ],
)
def test_allowed_import_is_let_through(module, source):
    assert violations({module: source}) == []


def test_planted_cycle_is_found():
    planted = {
        "specbench.models": "from specbench.models.a import f",
        "specbench.models.a": "from specbench.models.b import g",
        "specbench.models.b": "import specbench.models.a",
    }
    assert cycle(planted) == ["specbench.models.a", "specbench.models.b"]
    planted["specbench.models.b"] = "def g():\n    import specbench.models.a"
    assert cycle(planted) == []
