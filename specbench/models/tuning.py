"""Which layout of a weight is the fastest, for each shape and number of rows, on the clock.

Owns the comparison and its rule. A form must beat the expected one by a margin to replace it,
so that a disturbed measurement does not change the rounding of a model from run to run; what
was chosen is returned, to be recorded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from specbench.models.linear import ROW_CLASSES, Form, Half, Linear, Matrix, Packed

# Of the expected form's time. Forms of several threads look better here, where the threads are
# still awake from the call before, than between a decoder's other kernels, which use one.
_MARGIN = 0.7
_LARGE = 1 << 19  # elements from which the blocked form is expected to win at several rows
_WIDE = 2  # times its outputs: a weight with so many inputs, and one row, wants them side by side
_CALLS, _SECONDS = 12, 0.05  # for one shape at one number of rows, whichever is first
_MOST_BYTES = 4 << 30  # of weights whose copies may be held in a second and third form


@torch.inference_mode()
def tune(linears: Sequence[Linear]) -> dict[str, dict[str, str]]:
    """The form chosen for each shape and class of rows: {"768x256": {"1": "transposed", ...}}.

    Changes each of `linears` to use it. Does nothing off the CPU, where the vendor's library
    chooses by itself, or where the copies would not fit.
    """
    shapes: dict[tuple[int, int], list[Linear]] = defaultdict(list)
    for linear in linears:
        shapes[linear.shape].append(linear)
    if sum(linear.num_bytes for linear in linears) > _MOST_BYTES:
        return {}
    return {f"{shape[0]}x{shape[1]}": _tune_shape(group) for shape, group in shapes.items()}


def _tune_shape(group: list[Linear]) -> dict[str, str]:
    candidates = _candidates(group)
    dtype = group[0].weight().dtype
    chosen = {}
    for rows in ROW_CLASSES:
        seconds = _seconds(candidates, torch.randn(rows, group[0].shape[1], dtype=dtype))
        expected = _expected(candidates, group[0], rows)
        fastest = min(seconds, key=lambda name: seconds[name])
        chosen[rows] = fastest if seconds[fastest] < _MARGIN * seconds[expected] else expected
    for index, linear in enumerate(group):
        linear.use({rows: candidates[name][index] for rows, name in chosen.items()})
    return {str(rows): name for rows, name in chosen.items()}


def _expected(candidates: dict[str, list[Form]], linear: Linear, rows: int) -> str:
    """The form that won wherever this was measured in quiet, at T5's shapes from small to large.

    Times over the transposed form's, two threads: plain at one row of 3072 inputs and 768 outputs
    .69 (2048 and 512: .62, 4096 and 1024: .73), where 768 inputs and 3072 outputs take 1.33; packed
    at two rows of 768 x 768 .77, of 3072 x 768 .73 (one thread: 1.18, 1.24, and at five .92, .52).
    """
    outputs, inputs = linear.shape
    if "half" in candidates:
        return "half"
    many = 2 if torch.get_num_threads() > 1 else 5
    if rows >= many and outputs * inputs >= _LARGE and "packed" in candidates:
        return "packed"
    return "plain" if rows < 3 and inputs >= _WIDE * outputs else "transposed"


def _candidates(group: list[Linear]) -> dict[str, list[Form]]:
    """The forms of every weight of a group, by name. The weights take turns when measured."""
    weights = [linear.weight() for linear in group]
    forms: dict[str, list[Form]] = {
        "transposed": [linear.forms[1] for linear in group],
        "plain": [Matrix(weight.t()) for weight in weights],
    }
    with suppress(RuntimeError):  # no blocked form for this CPU and dtype
        forms["packed"] = [Packed(weight) for weight in weights]
    with suppress(RuntimeError):  # not all of them are float16 numbers
        forms["half"] = [Half(weight) for weight in weights]
    return forms


def _seconds(candidates: dict[str, list[Form]], rows: Tensor) -> dict[str, float]:
    """Least seconds of a product by each form.

    The forms take turns, so that a disturbance meets all of them, and so do the weights, as a
    decoder takes its layers, so that no form is flattered by a warm cache.
    """
    best = dict.fromkeys(candidates, float("inf"))
    begin = time.perf_counter()
    for call in range(_CALLS):
        for name, forms in candidates.items():
            start = time.perf_counter()
            forms[call % len(forms)].product(rows)
            seconds = time.perf_counter() - start
            if call:  # the first call of a shape sets up the library's own kernels
                best[name] = min(best[name], seconds)
        if call >= 3 and time.perf_counter() - begin > _SECONDS:
            break
    return best
