"""The optimiser, and how the processes of one run meet."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

BETAS, EPS = (0.9, 0.98), 1e-9
RMS_FLOOR = 1e-2  # a tensor near zero still moves as if its weights were this large


class Optimizer:
    """Adam whose step is scaled by each tensor's root mean square, over the tensors one rank owns.

    As in Adafactor (Shazeer and Stern 2018), a learning rate is a *relative* change per step, so
    one value fits embeddings (RMS 1) and matrices (RMS 0.05). Gradients are summed over ranks here.
    """

    def __init__(self, params: list[Tensor], grads: list[list[Tensor]]) -> None:
        self.params, self.grads = params, grads
        self.mean = [torch.zeros_like(p) for p in params]
        self.square = [torch.zeros_like(p) for p in params]
        self.count = 0

    @torch.no_grad()
    def step(self, lr: float, scale: float) -> None:
        """Change each tensor by about ``lr`` times its RMS; ``scale`` multiplies the gradients."""
        self.count += 1
        one, two = 1 - BETAS[0] ** self.count, 1 - BETAS[1] ** self.count
        for i, p in enumerate(self.params):
            grad = self.grads[0][i].clone()
            for other in self.grads[1:]:
                grad += other[i]
            grad *= scale
            self.mean[i].lerp_(grad, 1 - BETAS[0])
            self.square[i].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            rms = max(float(p.square().mean().sqrt()), RMS_FLOOR)
            spread = (self.square[i] / two).sqrt_().add_(EPS)
            p.addcdiv_(self.mean[i], spread, value=-lr * rms / one)

    def save(self, path: Path) -> None:
        """Write the moments."""
        torch.save({"mean": self.mean, "square": self.square, "count": self.count}, path)

    def resume(self, path: Path) -> None:
        """Take the moments of an earlier run where they fit this rank's tensors."""
        if not path.exists():
            return
        state = torch.load(path)
        if [m.shape for m in state["mean"]] == [m.shape for m in self.mean]:
            self.mean, self.square, self.count = state["mean"], state["square"], state["count"]


class Barrier:
    """Waits by spinning: the ranks meet every few tenths of a second and keep their cores."""

    def __init__(self, rank: int, phases: Tensor) -> None:
        self.rank, self.phases = rank, phases.numpy()

    def wait(self) -> None:
        """Return once every rank has come here as often as this one."""
        self.phases[self.rank] += 1
        goal = self.phases[self.rank]
        while (self.phases < goal).any():
            pass


def owned(sizes: list[int], rank: int, world: int) -> list[int]:
    """Return the tensors a rank updates, such that all ranks own about equally many numbers."""
    load: list[int] = [0] * world
    mine = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owner = load.index(min(load))
        load[owner] += sizes[i]
        if owner == rank:
            mine.append(i)
    return sorted(mine)
