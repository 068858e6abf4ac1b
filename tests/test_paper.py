"""The published numbers against the closed forms, with the printed rounding taken seriously."""

import dataclasses

import pytest

from specbench.paper import (
    AGREES,
    DISAGREES,
    EXCEEDS_CEILING,
    FIGURE_3,
    FIGURE_3_ALPHAS,
    HALF_CENT,
    LENIENCE_ARGMAX_ALPHAS,
    LENIENCE_ARGMAX_SPEEDS,
    TABLE_1,
    TABLE_3,
    TABLE_5,
    TABLES_2_AND_4,
    SpeedRow,
    TheoryRow,
    ceiling,
    classify_row,
    predicted_range,
    prediction_is_reproduced,
    rows_for,
)
from specbench.theory import expected_tokens, operations_factor, optimal_gamma, walltime_improvement


@pytest.mark.parametrize("row", TABLE_1)
def test_the_closed_forms_reproduce_every_digit_of_table_1(row: TheoryRow) -> None:
    assert round(operations_factor(row.alpha, row.gamma, 0.0), 2) == row.operations
    assert round(walltime_improvement(row.alpha, row.gamma, 0.0), 2) == row.speed


@pytest.mark.parametrize("c", FIGURE_3)
def test_the_ends_of_figure_3(c: float) -> None:
    assert tuple(optimal_gamma(alpha, c) for alpha in FIGURE_3_ALPHAS) == FIGURE_3[c]


@pytest.mark.parametrize("row", TABLES_2_AND_4)
def test_every_printed_prediction_is_reproduced_within_rounding(row: SpeedRow) -> None:
    assert prediction_is_reproduced(row)
    assert walltime_improvement(row.alpha, row.gamma, row.c) == pytest.approx(row.expected, abs=0.1)


def test_three_printed_predictions_differ_in_the_printed_digit() -> None:
    differing = [
        (row.expected, round(walltime_improvement(row.alpha, row.gamma, row.c), 3))
        for row in TABLES_2_AND_4
        if round(walltime_improvement(row.alpha, row.gamma, row.c), 1) != row.expected
    ]
    assert differing == [(2.4, 2.347), (2.0, 1.934), (1.6, 1.541)]


def test_a_wrong_prediction_is_noticed() -> None:
    row = dataclasses.replace(TABLES_2_AND_4[0], expected=3.4)
    assert not prediction_is_reproduced(row)


def test_what_each_measured_speed_says_of_the_formula() -> None:
    verdicts = {row.row: classify_row(row) for row in TABLES_2_AND_4}
    assert [row for row, verdict in verdicts.items() if verdict == EXCEEDS_CEILING] == [7, 10, 11]
    assert [row for row, verdict in verdicts.items() if verdict == AGREES] == [5]
    assert sum(verdict == DISAGREES for verdict in verdicts.values()) == 8


def test_the_ceiling_allows_for_the_rounding_of_alpha() -> None:
    (row,) = rows_for("EnDe", "T5-small", 1)
    assert row.empirical > expected_tokens(row.alpha, row.gamma)
    assert row.empirical < ceiling(row)
    assert classify_row(row) == DISAGREES


def test_predicted_range_holds_the_prediction_of_the_printed_inputs() -> None:
    for row in TABLES_2_AND_4:
        low, high = predicted_range(row)
        assert low < walltime_improvement(row.alpha, row.gamma, row.c) < high <= ceiling(row)


def test_rows_for_selects_by_any_subset() -> None:
    assert rows_for() == TABLES_2_AND_4
    assert [row.row for row in rows_for(task="CNN/DM", temperature=0)] == [7, 8, 9]
    assert [row.row for row in rows_for(draft="T5-base", temperature=1.0)] == [5, 11]
    assert rows_for(task="lm1b") == ()
    assert [row.row for row in TABLES_2_AND_4] == list(range(1, 13))
    assert rows_for("EnDe", "T5-large", 1)[0].source == "Tables 2 and 4, row 6"


def test_alphas_of_the_t5_rows_are_the_same_in_tables_3_and_4() -> None:
    for row in TABLE_3:
        if row.draft.startswith("T5-"):
            task = row.target.split(", ")[1]
            printed = [rows_for(task, row.draft, t)[0].alpha for t in (0, 1)]
            assert printed == [row.alpha_t0, row.alpha_t1]


def test_table_5_begins_with_the_alphas_of_table_3() -> None:
    sampled = {row.draft: row.alpha_t1 for row in TABLE_3 if "EnDe" in row.target}
    for row in TABLE_5:
        assert row.alphas[0] == sampled[row.draft]
        assert list(row.alphas) == sorted(row.alphas)


def test_thm_3_8_reproduces_the_speeds_of_lenient_argmax() -> None:
    for alpha, speed in zip(LENIENCE_ARGMAX_ALPHAS, LENIENCE_ARGMAX_SPEEDS, strict=True):
        low = walltime_improvement(alpha - HALF_CENT, 8, 0.015)
        high = walltime_improvement(alpha + HALF_CENT, 8, 0.015)
        assert low - 0.05 <= speed <= high + 0.05
