"""Batched decoding of training prompts with the compact model: greedy or sampled at T = 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from model import PocketT5
from torch import Tensor


def by_length(sources: list[np.ndarray], size: int) -> Iterator[tuple[list[int], Tensor]]:
    """Yield (indices, padded ids) of batches of ``size`` prompts of similar length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for at in range(0, len(order), size):
        rows = order[at : at + size]
        batch = torch.zeros(len(rows), max(len(sources[i]) for i in rows), dtype=torch.long)
        for j, i in enumerate(rows):
            batch[j, : len(sources[i])] = torch.from_numpy(np.asarray(sources[i], np.int64))
        yield rows, batch


@torch.no_grad()
def generate(
    model: PocketT5,
    source: Tensor,
    limit: int,
    sample: Tensor,
    generator: torch.Generator,
    keep: int = 0,
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Return the outputs of a batch and, with ``keep``, the model's own distribution at each token.

    Args:
        source: prompt ids (B, S), 0 for padding.
        limit: most tokens per output.
        sample: (B,) bool, True to draw at T = 1 and False to take the most likely token.
        generator: source of the draws.
        keep: number of most likely tokens whose probability (T = 1) is kept per position.

    Returns:
        Per prompt the ids (n,), and per prompt ``(ids, probabilities)`` of shape (n, keep).
        Finished prompts leave the batch, so the last long one does not hold up the others' cost.
    """
    alive = np.arange(len(source))
    outputs: list[list[int]] = [[] for _ in alive]
    kept: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in alive]
    state = model.start(source, limit)
    token = torch.zeros(len(source), dtype=torch.long)
    for _ in range(limit):
        probs = model.step(token, state).softmax(-1)
        drawn = torch.multinomial(probs, 1, generator=generator)[:, 0]
        token = torch.where(sample, drawn, probs.argmax(-1))
        if keep:
            values, ids = probs.topk(keep)
            ids_kept, values_kept = ids.to(torch.int16).numpy(), values.half().numpy()
        for j, i in enumerate(alive):
            outputs[i].append(int(token[j]))
            if keep:
                kept[i].append((ids_kept[j], values_kept[j]))
        going = token != 1
        count = int(going.sum())
        if count == 0:
            break
        if count <= 0.75 * len(alive):
            alive, token, sample = alive[going.numpy()], token[going], sample[going]
            state["mask"] = state["mask"][going]
            state["cross"] = [cache[:, going] for cache in state["cross"]]
            state["self"] = [cache[:, going] for cache in state["self"]]
    ended = [row[: row.index(1) + 1] if 1 in row else row for row in outputs]
    ids = [np.array(row, np.int16) for row in ended]
    if not keep:
        return ids, []
    pairs = [
        tuple(np.stack(part[: len(row)]) for part in zip(*steps, strict=True))
        for row, steps in zip(ended, kept, strict=True)
    ]
    return ids, pairs
