"""Models that are tables, models that count, and a clock that only moves when told."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.models.protocol import State

EOS = 1


class TableModel:
    """Next-token logits looked up by the last two tokens: a whole model small enough to
    enumerate.

    logits: (V + 1, V + 1, V); index V stands for the start token and for "nothing yet".
    """

    eos_token: int | None = EOS
    device = torch.device("cpu")
    dtype = "float32"

    def __init__(self, logits: torch.Tensor, name: str = "table") -> None:
        self.logits, self.name, self.vocab_size = logits.float(), name, logits.shape[-1]
        self.num_starts = 0
        self.widths: list[int] = []

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        self.num_starts += 1
        size = len(prompts)
        first = torch.full((size,), self.vocab_size)
        cache = torch.full((size, capacity), -1)
        return State(first, [0] * size, cache)

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        rows, width = tokens.shape
        self.widths.append(width)
        out = []
        for _ in range(width):
            column = tokens[:, len(out)]
            at = torch.tensor(state.lengths)
            if int(at.max()) >= state.memory.shape[1]:
                raise ValueError("capacity")
            row = torch.arange(rows)
            state.memory[row, at] = column
            before = torch.where(at > 0, state.memory[row, (at - 1).clamp(min=0)], self.vocab_size)
            out.append(self.logits[before, column])
            state.lengths = [length + 1 for length in state.lengths]
        return torch.stack(out, dim=1)

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        for row, (now, then) in enumerate(zip(state.lengths, lengths, strict=True)):
            if not 0 <= then <= now:
                raise ValueError(f"length {then}")
            state.memory[row, then:] = -1
        state.lengths = list(lengths)


def random_table(seed: int, vocab: int = 5, scale: float = 1.5) -> torch.Tensor:
    """Logits (vocab + 1, vocab + 1, vocab) of a random law on pairs of tokens."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(vocab + 1, vocab + 1, vocab, generator=generator)


def constant_table(logits: Sequence[float]) -> torch.Tensor:
    """The same logits (V,) whatever went before."""
    vocab = len(logits)
    return torch.tensor(logits).expand(vocab + 1, vocab + 1, vocab)


class ScriptedModel(TableModel):
    """Argmax follows a script: position i's logits prefer script[i], whatever went before."""

    def __init__(self, script: Sequence[int], vocab: int = 10, eos: int | None = EOS) -> None:
        super().__init__(torch.zeros(vocab + 1, vocab + 1, vocab), "scripted")
        self.script, self.eos_token = list(script), eos

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        start = list(state.lengths)
        logits = super().extend(state, tokens).clone()
        for row, length in enumerate(start):
            for column in range(tokens.shape[1]):
                position = min(length + column, len(self.script) - 1)
                logits[row, column, self.script[position]] = 10.0
        return logits


class Nudged(TableModel):
    """In a block of tokens, token 3 gains on token 2: another kernel's rounding, or worse."""

    def __init__(self, gap: float, nudge: float, dtype: str = "float32") -> None:
        super().__init__(constant_table([0.0, -9.0, 4.0, 4.0 - gap, 0.0]), "nudged")
        self.nudge, self.dtype = nudge, dtype

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().extend(state, tokens).clone()
        if tokens.shape[1] > 1:
            logits[..., 3] += self.nudge
        return logits


class VirtualClock:
    """Seconds that pass only when `sleep` is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
