"""Every layout of a weight gives the same product, and the choice of one is recorded."""

from __future__ import annotations

import re

import pytest
import tiny  # noqa: F401  sets the threads
import torch

from specbench.models import linear, tuning
from specbench.models.linear import ROW_CLASSES, Half, Linear, Matrix, Packed
from specbench.models.tuning import tune


def weight_of(out=40, width=24, seed=0):
    """(out, width) float32 numbers that float16 holds exactly."""
    return torch.randn(out, width, generator=torch.manual_seed(seed)).half().float()


FORMS = {
    "transposed": lambda weight: Matrix(weight.t().contiguous()),
    "plain": lambda weight: Matrix(weight.t()),
    "packed": Packed,
    "half": Half,
}


def form_of(name, weight):
    try:
        return FORMS[name](weight)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 16, 33])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_multiplies_alike(name, num_rows):
    weight, rows = weight_of(), torch.randn(num_rows, 24)
    form = form_of(name, weight)
    wanted = rows.double() @ weight.double().t()
    residual, out = torch.randn(num_rows, 40), torch.empty(num_rows, 40)
    form.into(out, rows)
    for got, exact in [
        (form.product(rows), wanted),
        (out, wanted),
        (form.added(residual, rows), wanted + residual),
    ]:
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_adding_leaves_the_residual_as_it_was(name):
    residual = torch.randn(3, 40)
    kept = residual.clone()
    form_of(name, weight_of()).added(residual, torch.randn(3, 24))
    assert torch.equal(residual, kept)


def test_half_storage_only_where_it_changes_nothing():
    weight = weight_of()
    weight[3, 4] += 1e-5
    with pytest.raises(RuntimeError, match="no float16 storage"):
        Half(weight)
    with pytest.raises(RuntimeError, match="no float16 storage"):
        Half(weight_of() * 2**20)
    with pytest.raises(RuntimeError, match="no float16 storage"):
        Half(weight_of() * torch.inf)
    with pytest.raises(RuntimeError, match="no float16 storage"):
        Half(weight_of().to(torch.bfloat16))


def test_rows_go_to_the_form_of_their_class():
    class Named:
        def __init__(self, rows):
            self.rows = rows

        def product(self, rows):
            return self.rows

    matrix = Linear(weight_of())
    matrix.use({rows: Named(rows) for rows in ROW_CLASSES})
    got = [matrix(torch.zeros(rows, 24)) for rows in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 400)]
    assert got == [1, 2, 3, 3, 5, 5, 8, 8, 16, 16, 16]


@pytest.mark.parametrize(("seconds", "wins"), [(0.9, False), (0.5, True)])
def test_a_form_must_win_by_a_margin(monkeypatch, seconds, wins):
    def measured(candidates, rows):
        return {name: seconds if name == "plain" else 1.0 for name in candidates}

    monkeypatch.setattr(tuning, "_seconds", measured)
    expected = "half" if linear.half_is_available() else "transposed"
    wanted = "plain" if wins else expected
    assert tune([Linear(weight_of())]) == {"40x24": {str(rows): wanted for rows in ROW_CLASSES}}


@pytest.mark.parametrize(
    ("threads", "shape", "wanted"),
    [
        (1, (40, 24), ["transposed"] * 3 + ["packed"] * 3),
        (2, (40, 24), ["transposed"] + ["packed"] * 5),
        (1, (24, 48), ["plain"] * 2 + ["transposed"] + ["packed"] * 3),
        (2, (24, 48), ["plain"] + ["packed"] * 5),
        (2, (8, 16), ["plain"] * 2 + ["transposed"] * 4),
    ],
)
def test_the_expected_form_depends_on_rows_shape_and_threads(monkeypatch, threads, shape, wanted):
    weight = weight_of(*shape) + 1e-6  # no float16 numbers
    form_of("packed", weight)
    monkeypatch.setattr(tuning, "_seconds", lambda candidates, _: dict.fromkeys(candidates, 1.0))
    monkeypatch.setattr(tuning, "_LARGE", 40 * 24)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    (chosen,) = tune([Linear(weight)]).values()
    assert list(chosen.values()) == wanted


def test_tuning_keeps_products_and_names_known_forms():
    weights = [weight_of(seed=seed) for seed in range(3)] + [weight_of(72, 24)]
    matrices = [Linear(weight) for weight in weights]
    chosen = tune(matrices)
    assert set(chosen) == {"40x24", "72x24"}
    assert {name for forms in chosen.values() for name in forms.values()} <= set(FORMS)
    for weight, matrix in zip(weights, matrices, strict=True):
        for num_rows in (1, 5, 40):
            rows = torch.randn(num_rows, 24)
            torch.testing.assert_close(matrix(rows), rows @ weight.t(), rtol=1e-5, atol=1e-5)


def test_weights_too_large_to_hold_twice_are_left_alone(monkeypatch):
    monkeypatch.setattr(tuning, "_MOST_BYTES", 10)
    matrix = Linear(weight_of())
    form = matrix.forms[1]
    assert tune([matrix]) == {}
    assert matrix.forms[1] is form


def test_a_weight_is_given_back_while_some_form_holds_it():
    matrix = Linear(weight_of())
    assert torch.equal(matrix.weight(), weight_of())
    if linear.half_is_available():
        matrix.use(dict.fromkeys(ROW_CLASSES, Half(weight_of())))
        with pytest.raises(ValueError, match=re.escape("(40, 24)")):
            matrix.weight()
