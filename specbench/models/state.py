"""The checks that every model makes of its arguments, so that each refusal reads alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specbench.models.protocol import State


def check_start(prompts: Sequence[Sequence[int]], capacity: int) -> None:
    """Raise ValueError for no prompts, an empty prompt, or a capacity below 1."""
    if capacity < 1:
        raise ValueError(f"capacity {capacity}: at least 1 token must fit")
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ValueError("prompts: at least one is needed, and none may be empty")


def check_extend(state: State, tokens: Tensor, capacity: int) -> None:
    """Raise ValueError unless `tokens` (B, K) fit the state's rows and their capacity."""
    if tokens.dim() != 2 or tokens.shape[0] != len(state.lengths) or tokens.shape[1] < 1:
        raise ValueError(
            f"tokens of shape {tuple(tokens.shape)} for {len(state.lengths)} rows: expected (B, K)"
        )
    longest = max(state.lengths) + tokens.shape[1]
    if longest > capacity:
        raise ValueError(f"a row of {longest} tokens outgrows the capacity of {capacity}")


def check_rollback(state: State, lengths: Sequence[int]) -> None:
    """Raise ValueError unless there is one length per row between 0 and the present one."""
    if len(lengths) != len(state.lengths):
        raise ValueError(f"{len(lengths)} lengths for {len(state.lengths)} rows")
    for row, (wanted, now) in enumerate(zip(lengths, state.lengths, strict=True)):
        if not 0 <= wanted <= now:
            raise ValueError(f"rollback of row {row} to {wanted}: allowed are 0 to {now}")
