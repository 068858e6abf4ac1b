"""Random numbers as an argument: one independent stream per (seed, cell, prompt).

Owns how a stream is keyed. A stream does not depend on the order in which cells or prompts are
run, nor on which other rows share the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class RoundNumbers(NamedTuple):
    """What chance says in one round: to draw each of gamma drafts, (B, 1) each; to accept them,
    (B, gamma); for the token of the target's own, (B, 1)."""

    to_draw: Sequence[torch.Tensor]
    to_accept: torch.Tensor
    last: torch.Tensor


def uniforms(
    seed: int, cell: str, prompt_ids: Sequence[str], num_rounds: int, gamma: int
) -> torch.Tensor:
    """Uniform numbers in [0, 1), float64, shaped (B, num_rounds, 2 * gamma + 1).

    Round r of row b uses slots 0..gamma-1 to draw its drafts, gamma..2*gamma-1 to accept them
    and the last slot for the token of the target's own. `num_rounds` is at most
    max_new_tokens, since every round commits a token.
    """
    shape = (num_rounds, 2 * gamma + 1)
    rows = [_generator(seed, cell, prompt_id).random(shape) for prompt_id in prompt_ids]
    return torch.from_numpy(np.stack(rows))


def by_round(uniform: torch.Tensor) -> list[RoundNumbers]:
    """The numbers of `uniforms`, (B, R, 2 * gamma + 1), as views for each round.

    Taken apart once: between two model calls a view costs as much as a small product.
    """
    gamma = uniform.shape[2] // 2
    draws = [slot.split(1, dim=1) for slot in uniform[:, :, :gamma].unbind(2)]
    accepts = uniform[:, :, gamma : 2 * gamma].unbind(1)
    lasts = uniform[:, :, -1].split(1, dim=1)
    return [
        RoundNumbers([slot[index] for slot in draws], accepts[index], last)
        for index, last in enumerate(lasts)
    ]


def torch_seed(seed: int, cell: str, prompt_ids: Sequence[str]) -> int:
    """A seed for torch's own generator: another engine draws from nothing else."""
    return _key(seed, cell, "\x00".join(prompt_ids), num_bytes=8)


def _generator(seed: int, cell: str, prompt_id: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=_key(seed, cell, prompt_id, num_bytes=16)))


def _key(seed: int, cell: str, prompt_id: str, num_bytes: int) -> int:
    # A cryptographic hash, because neighbouring seeds must not give related Philox keys.
    text = f"{seed}\x00{cell}\x00{prompt_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=num_bytes).digest(), "little")
