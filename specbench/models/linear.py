"""A weight matrix, kept in the forms that multiply a few rows fastest on this machine.

Owns the layouts of a weight and how each multiplies. Knows nothing of T5, nor of which layout
is the fastest: `tuning` measures that.

Physics: a decoder step multiplies R = B * K rows, and R is small, so that a product should cost
the reading of its weight and no more. How near it comes depends on the layout. BLAS reads an
(in, out) matrix once for one row, at twice the speed of (out, in), but works through it again
for more; oneDNN's blocked form costs more for one row and then stays nearly flat, which is what
makes verifying gamma + 1 tokens nearly free. A weight whose every element is a float16 number,
as in a checkpoint that was saved in half precision, is read in half the bytes by FBGEMM and
multiplied in float32: the same products, not an approximation.

Measured in microseconds of one thread on an AVX2 core, for a 768 x 256 weight and 1, 5, 8 rows:
plain 103, 163, 214 and oneDNN 102, 133, 177 and transposed 58, 146, 184 and float16 39, 52, 81
(a busy machine: read the ratios). Six rows fill FBGEMM's AVX2 registers: 8000 x 256 takes 513 for
one row, 713 to 718 for five and six, 1151 for seven, 1236 for twelve, 1730 for thirteen, so that
verifying eight tokens costs what twelve would. torch's other float16 product,
quantized.linear_dynamic_fp16, uses all threads: alone it takes .69 to .84 of that for 8000 x 256,
twice as long for 768 x 256; but between a decoder's other kernels, which use one thread, waking
the second costs more: with it a one-layer draft's step took .72 ms instead of .45 to .60.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch
from torch import Tensor

ROW_CLASSES = (1, 2, 3, 5, 8, 16)
"""Rows at which forms are told apart; R rows use the largest class that is not above R."""

_PACKED_FOR = 16  # rows that oneDNN is told to expect: as good from 3 rows on as the exact number


class Form(Protocol):
    """One layout of a weight W (out, in), multiplying rows x (R, in)."""

    def product(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out)."""
        ...

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        ...

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        ...


class Matrix:
    """An ordinary matrix (in, out) for BLAS; "plain" where it is a view of (out, in)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def product(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out)."""
        return torch.mm(rows, self.matrix)

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        torch.mm(rows, self.matrix, out=out)

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        return torch.addmm(residual, rows, self.matrix)


class Packed:
    """oneDNN's blocked layout. Raises RuntimeError where this CPU or dtype has none."""

    def __init__(self, weight: Tensor) -> None:
        if not torch._C._has_mkldnn:
            raise RuntimeError("this torch was built without oneDNN")
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._added = torch.ops.mkldnn._linear_pointwise.binary
        self.blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)

    def product(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out)."""
        result: Tensor = self._product(rows, self.blocks, None, "none", [], "")
        return result

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        out.copy_(self.product(rows))

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        result: Tensor = self._added(rows, residual, self.blocks, None, "add")
        return result


class Half:
    """FBGEMM's float16 storage of a float32 weight that float16 holds exactly.

    Its function is marked as deprecated in torch 2.13; where it is gone, so is this form.
    One thread multiplies, which for these sizes is faster than waking a second.
    Raises RuntimeError where the form is not to be had, or would change a number.
    """

    def __init__(self, weight: Tensor) -> None:
        if not (half_is_available() and is_half_exact(weight)):
            raise RuntimeError("no float16 storage for this weight")
        self._product = torch.fbgemm_linear_fp16_weight_fp32_activation
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the deprecation, said once for each function
            self.blocks: Tensor = torch.fbgemm_pack_gemm_matrix_fp16(weight)
            self._product(weight[:1], self.blocks, None)

    def product(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out)."""
        return self._product(rows, self.blocks, None)

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        out.copy_(self._product(rows, self.blocks, None))

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        return self._product(rows, self.blocks, None).add_(residual)


def half_is_available() -> bool:
    """Whether this torch can multiply by float16-stored weights in float32 on the CPU."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(
        torch, "fbgemm_linear_fp16_weight_fp32_activation"
    )


def is_half_exact(weight: Tensor) -> bool:
    """Whether a float32 weight on the CPU has only values that float16 holds exactly."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    # FBGEMM packs an infinity as the largest number.
    return bool(weight.isfinite().all()) and torch.equal(weight.half().float(), weight)


class Linear:
    """x W^T for rows x (R, in) and a weight W (out, in), by the form chosen for R.

    forms: the form of each class in ROW_CLASSES; one matrix (in, out) for all at first.
    """

    def __init__(self, weight: Tensor) -> None:
        self.shape = (weight.shape[0], weight.shape[1])
        self.num_bytes = weight.numel() * weight.element_size()
        self.use(dict.fromkeys(ROW_CLASSES, Matrix(weight.detach().t().contiguous())))

    def use(self, forms: dict[int, Form]) -> None:
        """Multiply R rows by the form of R's class from now on."""
        self.forms = forms
        classes = [max(c for c in forms if c <= rows) for rows in range(1, ROW_CLASSES[-1] + 1)]
        self._by_rows = [forms[1], *(forms[c] for c in classes)]

    def weight(self) -> Tensor:
        """A copy of W (out, in). Raises ValueError when no chosen form holds it as a matrix."""
        for form in self.forms.values():
            if isinstance(form, Matrix):
                return form.matrix.t().contiguous()
        raise ValueError(f"the weight of shape {self.shape} is kept in other forms only")

    def __call__(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out)."""
        return self._form(rows).product(rows)

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        self._form(rows).into(out, rows)

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        return self._form(rows).added(residual, rows)

    def _form(self, rows: Tensor) -> Form:
        return self._by_rows[min(rows.shape[0], ROW_CLASSES[-1])]
