"""Options: ranges, files, flags over files, and one clear line for what is not allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.experiment.config import (
    POCKET_DRAFTS,
    POCKET_TASKS,
    Config,
    UsageError,
    float_range,
    int_range,
    read_config,
)
from specbench.experiment.plan import plan


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1..8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("1..9:2", (1, 3, 5, 7, 9)),
        ("1..8:3", (1, 4, 7)),
        ("1,3,5", (1, 3, 5)),
        ("0", (0,)),
        ("2,1..3,8", (2, 1, 3, 8)),
    ],
)
def test_integer_ranges(text: str, values: tuple[int, ...]) -> None:
    assert int_range("--gamma", text) == values


@pytest.mark.parametrize(
    "text",
    ["", "1..", "..3", "3..1", "1..3:0", "1:2", "a", "1,,2", "1.5", "1..1001", f"0..{10**30}"],
)
def test_broken_ranges_name_option_value_and_allowed(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        int_range("--gamma", text)
    assert f"--gamma {text!r}" in str(caught.value)
    assert "allowed" in str(caught.value)


def test_number_lists() -> None:
    assert float_range("--temperature", "0,0.5,1") == (0.0, 0.5, 1.0)
    with pytest.raises(UsageError, match="--temperature 'x'"):
        float_range("--temperature", "x")


def test_no_option_is_a_whole_sweep() -> None:
    config = read_config(None, {})
    assert config.draft == POCKET_DRAFTS
    assert config.task == POCKET_TASKS
    assert config.gamma == (1, 2, 3, 4, 5, 6, 7, 8)
    twice = Config(draft=("pocket/base",) * 2, task=("pocket-ende",) * 2).resolved()
    assert (twice.draft, twice.task) == (("pocket/base",), ("pocket-ende",))
    assert Config(max_new_tokens=4).resolved().gamma == (1, 2, 3)


def test_the_target_alone_loads_no_draft() -> None:
    assert read_config(None, {"gamma": (0,)}).draft == ()


def test_a_pocket_target_is_not_its_own_default_draft() -> None:
    assert "pocket/base" not in read_config(None, {"target": "pocket/base"}).draft


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"temperature": (-0.1,)}, "--temperature -0.1"),
        ({"temperature": (float("nan"),)}, "--temperature nan"),
        ({"temperature": (float("inf"),)}, "--temperature inf"),
        ({"gamma": (-1,)}, "--gamma -1"),
        ({"gamma": (1, 100_000)}, "--gamma 100000"),
        ({"gamma": (3, 8), "max_new_tokens": 8}, "--gamma 8"),
        ({"limit": 0}, "--limit 0"),
        ({"top_p": 0.0}, "--top-p 0"),
        ({"top_p": 1.5}, "--top-p 1.5"),
        ({"top_k": -1}, "--top-k -1"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0"),
        ({"min_new_tokens": 200}, "--min-new-tokens 200"),
        ({"batch": (0,)}, "--batch 0"),
        ({"repeats": 0}, "--repeats 0"),
        ({"sessions": 0}, "--sessions 0"),
        ({"max_minutes": 0.0}, "--max-minutes 0.0"),
        ({"max_minutes": 1.0, "target_width": float("inf")}, "--target-width inf"),
        ({"target_width": 0.03}, "--target-width 0.03"),
        ({"target": "t5-base", "task": ("cnn-dm",)}, "--draft"),
        ({"target": "t5-base", "draft": ("t5-small",)}, "--task"),
    ],
)
def test_values_that_are_not_allowed(flags, named) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(None, flags)
    assert str(caught.value).startswith(named)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    text = 'gamma = "1..3"\ntemperature = [0, 0.5]\nlimit = 7\ndraft = "pocket/small"\n'
    path.write_text(text, encoding="utf-8-sig")  # as editors on Windows save it
    config = read_config(path, {"limit": 9, "seed": None})
    assert config.gamma == (1, 2, 3)
    assert config.temperature == (0.0, 0.5)
    assert config.draft == ("pocket/small",)
    assert (config.limit, config.seed) == (9, 0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gammas = [1]", "'gammas'"),
        ("limit = 1.5", "limit 1.5"),
        ("limit = true", "limit True"),
        ("gamma = [1.5]", "gamma '1.5'"),
        ("draft = [1]", "draft [1]"),
        ("target = 3", "target 3"),
        ("limit =", "not valid TOML"),
    ],
)
def test_broken_files_name_file_key_and_allowed(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(path, {})
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "none.toml", {})


def test_committed_configurations_are_valid() -> None:
    paths = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))
    assert paths
    for path in paths:
        read_config(path, {})


def test_plan_has_a_baseline_and_a_null_arm_in_each_group() -> None:
    config = Config(draft=("a", "b"), task=("x", "y"), gamma=(0, 1, 3), batch=(1, 4)).resolved()
    groups = plan(config, "float32", "cpu")
    assert len(groups) == 2 * 2 * 2
    for cells in groups:
        assert cells[0].arm.is_baseline
        assert [cell.arm.label for cell in cells] == [
            "baseline", "null", "a gamma=1", "a gamma=3", "b gamma=1", "b gamma=3",
        ]  # fmt: skip
    keys = [cell.key for cells in groups for cell in cells]
    assert len(keys) == len({*keys})


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": (0.5,)}, {"top_k": 3}, {"top_p": 0.5}, {"max_new_tokens": 7},
        {"min_new_tokens": 2}, {"seed": 1}, {"task": ("y",)}, {"gamma": (2,)}, {"draft": ("b",)},
        {"batch": (2,)}, {"temperature": (1.0000001,)}, {"top_p": 0.9999999},
    ],
)  # fmt: skip
def test_whatever_changes_tokens_changes_the_key(change) -> None:
    def keys(**options):
        given = {"draft": ("a",), "task": ("x",), "gamma": (1,), "temperature": (1.0,), **options}
        cells = plan(Config(**given).resolved(), "float32", "cpu")[0]
        return cells[-1].key

    assert keys() != keys(**change)
