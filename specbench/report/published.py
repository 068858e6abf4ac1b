"""The paper's numbers as rows: its own table through its own formula, and beside ours.

Owns which measured row may stand beside which published one, and what differs between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from specbench import paper, theory
from specbench.measure.summary import CellSummary
from specbench.records import Group
from specbench.report.layout import TEMPERATURE, Column, Layout, value, word
from specbench.report.rows import Row, own_drafted

_SIZES = re.compile(r"(?:^|/)(?:flan-)?t5-(?:v1_1-)?(small|base|large)(?:$|@|-)")
# Nothing of this is stated in the paper, so it cannot be the same.
_UNSTATED = "prompts, lengths, precision"


def table1_rows() -> list[Row]:
    """Table 1 as printed and as the closed forms give it; c = c_hat = 0."""
    return [
        {
            "alpha": row.alpha,
            "gamma": row.gamma,
            "operations_published": row.operations,
            "operations": theory.operations_factor(row.alpha, row.gamma, 0.0),
            "speed_published": row.speed,
            "speed": theory.walltime_improvement(row.alpha, row.gamma, 0.0),
        }
        for row in paper.TABLE_1
    ]


def paper_rows() -> list[Row]:
    """Tables 2 and 4 of the paper, each row with what Thm 3.8 makes of its printed inputs.

    predicted_low, predicted_high: for all alpha and c that round to the printed ones. ceiling:
    with c = 0. verdict: of the measured speed. expected_reproduced: of the printed EXP.
    """
    return [
        {
            "task": row.task,
            "draft": row.draft,
            "temperature": row.temperature,
            "gamma": row.gamma,
            "alpha": row.alpha,
            "c": row.c,
            "expected_published": row.expected,
            "predicted": theory.walltime_improvement(row.alpha, row.gamma, row.c),
            "predicted_low": paper.predicted_range(row)[0],
            "predicted_high": paper.predicted_range(row)[1],
            "expected_reproduced": paper.prediction_is_reproduced(row),
            "ceiling": paper.ceiling(row),
            "empirical_published": row.empirical,
            "verdict": paper.classify_row(row),
            "source": row.source,
        }
        for row in paper.TABLES_2_AND_4
    ]


def comparison_rows(summaries: Sequence[CellSummary]) -> list[Row]:
    """Each draft beside the published row of its task, size and temperature.

    The speed is that at the published gamma, where it was measured. Rows without a counterpart
    say why they cannot be compared.
    """
    rows: list[Row] = []
    first: dict[tuple[Group, str], CellSummary] = {}
    ours = own_drafted(summaries)
    for one in ours:
        first.setdefault((one.cell.group, one.cell.arm.draft or ""), one)
    for (group, draft), one in first.items():
        published = _counterpart(one)
        own = [it for it in ours if it.cell.group == group and it.cell.arm.draft == draft]
        rows.append(
            {
                "task": group.task,
                "target": group.target,
                "draft": draft,
                "temperature": group.sampling.temperature,
                "batch": group.batch,
                "alpha_overlap": one.alpha_overlap.value if one.alpha_overlap else None,
                "cost_coefficient": one.cost_coefficient.value if one.cost_coefficient else None,
                **_beside(published, own),
                "comparison": _reason(one) if published is None else _differs(one),
            }
        )
    return rows


def _beside(published: paper.SpeedRow | None, own: Sequence[CellSummary]) -> Row:
    names = ("gamma", "speedup", "alpha_published", "c_published", "speed_published", "source")
    if published is None:
        return dict.fromkeys(names)
    same = next((one for one in own if one.cell.arm.gamma == published.gamma), None)
    values = (
        published.gamma,
        same.speedup.value if same and same.speedup else None,
        published.alpha,
        published.c,
        published.empirical,
        published.source,
    )
    return dict(zip(names, values, strict=True))


def _counterpart(one: CellSummary) -> paper.SpeedRow | None:
    size = _SIZES.search(one.cell.arm.draft or "")
    task = paper_task(one.cell.group.task)
    if size is None or task is None or "pocket" in one.cell.group.target:
        return None
    found = paper.rows_for(task, f"T5-{size.group(1)}", one.cell.group.sampling.temperature)
    return found[0] if found else None


def paper_task(task: str) -> str | None:
    """The paper's name of a task, None for one that it did not measure."""
    known = {"wmt-ende": "EnDe", "cnn-dm": "CNN/DM"}
    return known.get(task.split("#", maxsplit=1)[0])


def _reason(one: CellSummary) -> str:
    group = one.cell.group
    if "pocket" in group.target or "pocket" in group.task:
        return "cannot be compared: other models, other texts"
    if paper_task(group.task) is None:
        return "cannot be compared: the paper did not measure this task"
    return "cannot be compared: no published row for this draft and temperature"


def _differs(one: CellSummary) -> str:
    group = one.cell.group
    differing = [f"target ({group.target}, not T5-XXL v1.1)", "fine-tuning", "hardware"]
    if group.batch != 1:
        differing.append(f"batch ({group.batch}, not 1)")
    if group.sampling.top_k or group.sampling.top_p < 1.0:
        differing.append("filters")
    return "differs in " + ", ".join(differing) + f"; not stated: {_UNSTATED}"


TABLE_1 = Layout(
    "Table 1 of the paper (c = ĉ = 0)",
    (
        value("alpha", "α", 1),
        value("gamma", "γ"),
        value("operations_published", "operations published"),
        value("operations", "operations computed"),
        value("speed_published", "speed published"),
        value("speed", "speed computed"),
    ),
)

PAPER = Layout(
    "The paper's Tables 2 and 4 through its own formula",
    (
        word("task"),
        word("draft"),
        TEMPERATURE,
        value("gamma", "γ"),
        value("alpha", "α"),
        value("c", "c"),
        value("expected_published", "EXP printed", 1),
        value("predicted", "Thm 3.8"),
        Column(
            "for inputs that round to those",
            lambda row: f"{row['predicted_low']:.2f} to {row['predicted_high']:.2f}",
        ),
        value("ceiling", "most for any c"),
        value("empirical_published", "EMP printed", 1),
        word("verdict"),
    ),
    (
        (
            "verdict: whether the printed measured speed (EMP) agrees with Thm 3.8 within the "
            "rounding of the printed α and c, disagrees, or lies above what any c >= 0 allows."
        ),
    ),
)

COMPARISON = Layout(
    "Beside the published values",
    (
        word("task"),
        word("target"),
        word("draft"),
        TEMPERATURE,
        value("batch"),
        value("alpha_overlap", "α"),
        value("alpha_published", "α published"),
        value("cost_coefficient", "c", 3),
        value("c_published", "c published"),
        value("gamma", "γ published"),
        value("speedup", "speedup at that γ"),
        value("speed_published", "speedup published", 1),
        word("comparison"),
    ),
)
