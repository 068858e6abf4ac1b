"""The encoded corpus and the stream of training batches drawn from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MAX_SOURCE, MAX_TARGET = 120, 100  # tokens; longer items are left out
UNLIMITED = 10**6
POOL = 3000  # items that are sorted by length together


class Corpus:
    """The encoded items of one part; ids are flat arrays per side, cut at ``ends``."""

    def __init__(self, path: Path) -> None:
        data = dict(np.load(path))
        self.task = data["task"]  # 0 translation, 1 summary
        self.flat = {side: data[side].astype(np.int64) for side in ("source", "target")}
        self.ends = {side: data[f"{side}_ends"] for side in ("source", "target")}
        self.top, self.probs = data.get("top"), data.get("probs")  # a teacher's soft labels

    def __len__(self) -> int:
        return len(self.task)

    def span(self, side: str, i: int) -> slice:
        """Return where item ``i`` lies in the flat array of a side."""
        return slice(self.ends[side][i - 1] if i else 0, self.ends[side][i])

    def source(self, i: int) -> np.ndarray:
        """Return the ids of item ``i``'s source, prefix and EOS included."""
        return self.flat["source"][self.span("source", i)]

    def target(self, i: int) -> np.ndarray:
        """Return the ids of item ``i``'s target, EOS included."""
        return self.flat["target"][self.span("target", i)]

    def lengths(self, side: str) -> np.ndarray:
        """Return the number of tokens of every item on a side."""
        return np.diff(self.ends[side], prepend=0)


class Batches:
    """An endless, seeded stream of batches of similar length; every rank draws the same stream.

    Args:
        corpus: what is drawn from.
        aligned: source position of every target piece (flat), or None.
        tokens: most padded tokens (source plus target) of a batch.
        translation: share of the batches that are translation.
        seed: of the order.
    """

    def __init__(
        self, corpus: Corpus, aligned: np.ndarray | None, tokens: int, translation: float, seed: int
    ) -> None:
        self.corpus, self.aligned = corpus, aligned
        self.tokens, self.translation = tokens, translation
        self.rng = np.random.default_rng(seed)
        self.source, self.target = corpus.lengths("source"), corpus.lengths("target")
        fits = (self.source <= MAX_SOURCE) & (self.target <= MAX_TARGET)
        self.pools = [np.flatnonzero(fits & (corpus.task == task)) for task in (0, 1)]
        self.queues: list[list[np.ndarray]] = [[], []]
        self.left = [pool[:0] for pool in self.pools]

    def refill(self, task: int, longest: int) -> None:
        """Cut the next ``POOL`` items of a task into batches, without those over ``longest``."""
        if len(self.left[task]) == 0:
            self.left[task] = self.rng.permutation(self.pools[task])
        some, self.left[task] = self.left[task][:POOL], self.left[task][POOL:]
        some = some[self.source[some] + self.target[some] <= longest]
        size = np.maximum(self.source[some], self.target[some]) if task == 0 else self.source[some]
        some = some[np.argsort(size + self.rng.random(len(some)))]
        cut, widest = 0, np.zeros(2, int)
        for at, i in enumerate(some):
            wider = np.maximum(widest, (self.source[i], self.target[i]))
            if at > cut and wider.sum() * (at - cut + 1) > self.tokens:
                self.queues[task].append(some[cut:at])
                cut, wider = at, np.array((self.source[i], self.target[i]))
            widest = wider
        if cut < len(some):
            self.queues[task].append(some[cut:])
        self.rng.shuffle(self.queues[task])

    def next(self, longest: int = UNLIMITED) -> np.ndarray:
        """Return the item numbers of the next batch, all of one task."""
        task = int(self.rng.random() >= self.translation)
        while not self.queues[task]:
            self.refill(task, longest)
        return self.queues[task].pop()

    def soft_labels(self, rows: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """Return a teacher's ids and probabilities, each (N, keep), of the N real positions."""
        if self.corpus.top is None:
            return None
        spans = [self.corpus.span("target", i) for i in rows]
        top = np.concatenate([self.corpus.top[span] for span in spans])
        probs = np.concatenate([self.corpus.probs[span] for span in spans])
        return torch.from_numpy(top.astype(np.int64)), torch.from_numpy(probs.astype(np.float32))

    def collate(self, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return (source, target, aligned) of items, padded with 0 (aligned with -1)."""
        shape = len(rows), self.target[rows].max()
        source = np.zeros((len(rows), self.source[rows].max()), np.int64)
        target, aligned = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        for j, i in enumerate(rows):
            source[j, : self.source[i]] = self.corpus.source(i)
            target[j, : self.target[i]] = self.corpus.target(i)
            if self.aligned is not None:
                aligned[j, : self.target[i]] = self.aligned[self.corpus.span("target", i)]
        return torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(aligned)
