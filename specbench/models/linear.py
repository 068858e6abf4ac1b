"""A weight matrix, kept in the form that multiplies a few rows fastest on this machine.

Owns the layouts of a weight and the choice between them. Knows nothing of T5.

Physics: a decoder step multiplies R = B * K rows, and R is small, so that a product should cost
the reading of its weight and no more. How near it comes depends on the layout: BLAS walks a
(out, in) weight badly for one row, and only oneDNN's blocked form keeps eight rows nearly as
cheap as one. The forms are compared on the clock at load, for each shape and class of R.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

ROW_CLASSES = (1, 2, 5, 8, 16)
"""Rows at which the forms are compared; R rows use the largest class that is not above R."""

FORMS = ("plain", "transposed", "packed")


@dataclass
class Linear:
    """y = x W^T for x (R, in) and W (out, in), in whichever form is fastest for R.

    plain: W as it came, (out, in). transposed: (in, out), contiguous. packed: oneDNN's blocked
    form for each class of R that chose it. forms: the chosen form of each class in ROW_CLASSES.
    """

    plain: Tensor
    transposed: Tensor
    packed: dict[int, Tensor] = field(default_factory=dict)
    forms: tuple[str, ...] = ("transposed",) * len(ROW_CLASSES)

    @classmethod
    def of(cls, weight: Tensor) -> Linear:
        """A product with `weight` (out, in); `tune` may change its form later."""
        weight = weight.contiguous()
        return cls(plain=weight, transposed=weight.t().contiguous())

    def __call__(self, rows: Tensor) -> Tensor:
        """x W^T, (R, out), for rows x (R, in)."""
        return torch.mm(rows, self.transposed)

    def into(self, out: Tensor, rows: Tensor) -> None:
        """Write x W^T into `out` (R, out)."""
        torch.mm(rows, self.transposed, out=out)

    def added(self, residual: Tensor, rows: Tensor) -> Tensor:
        """residual + x W^T, (R, out)."""
        return torch.addmm(residual, rows, self.transposed)
