"""Word alignments and bilingual starting embeddings, from counts alone.

A small T5 spends most of a short training run discovering which source piece a
target piece comes from: its loss sits on a plateau until cross-attention finds
it. Both things made here shorten that plateau to a few minutes:

* IBM Model 1 with a diagonal prior (Brown et al. 1993; Dyer et al. 2013) gives
  each target piece its most likely source position; ``train`` asks one
  cross-attention head to look there (guided alignment, Chen et al. 2016).
* A truncated SVD of the positive pointwise mutual information of pieces that
  stand near each other or are aligned puts "house" beside "Haus" in the tied
  embedding before the first step.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from data import Corpus
from model import VOCAB

EM_ROUNDS = 5
EM_MAX_TOKENS = 40  # pairs longer than this do not vote in EM
DIAGONAL = 4.0  # strength of the prior exp(-DIAGONAL * |i/m - j/n|)
SVD_RANK = 256


def prefix_length(corpus: Corpus, task: int) -> int:
    """Return the number of leading pieces that all sources of a task share."""
    rows = [corpus.source(i) for i in np.flatnonzero(corpus.task == task)[:200]]
    same = 0
    while len({int(row[same]) for row in rows}) == 1:
        same += 1
    return same


def prior(m: int, n: int) -> np.ndarray:
    """Return the (n, m) diagonal prior of n target positions over m source positions."""
    return np.exp(-DIAGONAL * np.abs(np.arange(n)[:, None] / n - np.arange(m)[None] / m)).astype(
        np.float32
    )


def lexicon(corpus: Corpus, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Return p(target | source) and the expected pair counts, both flat (VOCAB * VOCAB,)."""
    keys, weights, starts, at = [], [], [], 0
    sources, targets = corpus.lengths("source") - skip - 1, corpus.lengths("target") - 1
    chosen = np.flatnonzero(
        (corpus.task == 0) & (sources <= EM_MAX_TOKENS) & (targets <= EM_MAX_TOKENS)
    )
    for i in chosen:
        source, target = corpus.source(i)[skip:-1], corpus.target(i)[:-1]
        keys.append((source[None] * VOCAB + target[:, None]).astype(np.int32).ravel())
        weights.append(prior(len(source), len(target)).ravel())
        starts.append(at + len(source) * np.arange(len(target)))
        at += len(source) * len(target)
    key, weight, start = np.concatenate(keys), np.concatenate(weights), np.concatenate(starts)
    widths = np.diff(start, append=at)
    table = np.full(VOCAB * VOCAB, 1e-3, np.float32)
    table[np.arange(VOCAB) * (VOCAB + 1)] = 1e-2  # names and numbers stay as they are
    for _ in range(EM_ROUNDS):
        cell = table[key] * weight
        cell /= np.repeat(np.add.reduceat(cell, start), widths) + 1e-12
        counts = np.bincount(key, cell, minlength=VOCAB * VOCAB).astype(np.float32)
        by_source = counts.reshape(VOCAB, VOCAB)
        table = (by_source / (by_source.sum(1, keepdims=True) + 0.5)).ravel()
    return table, counts


def align(corpus: Corpus, table: np.ndarray, skip: int) -> np.ndarray:
    """Return, for each target piece of the corpus, its source position or -1 (flat, int16)."""
    out = np.full(int(corpus.ends["target"][-1]), -1, np.int16)
    for i in range(len(corpus)):
        source, target = corpus.source(i), corpus.target(i)
        if corpus.task[i] == 0 and len(source) > skip + 1 and len(target) > 1:
            inner, words = source[skip:-1], target[:-1]
            score = table[inner[None] * VOCAB + words[:, None]] * prior(len(inner), len(words))
            found = np.where(score.max(1) > 1e-4, score.argmax(1) + skip, -1)
        else:
            found = copied(source, target[:-1])
        out[corpus.span("target", i)] = np.append(found, len(source) - 1)
    return out


def copied(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return where each target piece stands in the source (after its predecessor), or -1."""
    found = np.full(len(target), -1)
    for j, piece in enumerate(target):
        places = np.flatnonzero(source[:-1] == piece)
        if len(places):
            follows = j and found[j - 1] >= 0 and found[j - 1] + 1 in places
            found[j] = found[j - 1] + 1 if follows else places[0]
    return found


def embeddings(corpus: Corpus, counts: np.ndarray) -> torch.Tensor:
    """Return starting embeddings (VOCAB, SVD_RANK): leading dimensions first, rows of RMS 1."""
    near = np.zeros((VOCAB, VOCAB), np.float32)
    flats = [corpus.flat["target"], corpus.flat["source"]]
    for flat in flats:
        for distance in (1, 2, 3):
            pair = np.bincount(flat[:-distance] * VOCAB + flat[distance:], minlength=VOCAB * VOCAB)
            near += pair.reshape(VOCAB, VOCAB).astype(np.float32) / distance
    total = torch.zeros(VOCAB, VOCAB)
    for matrix in (near, counts.reshape(VOCAB, VOCAB)):
        both = torch.from_numpy(matrix + matrix.T)
        sums = both.sum(1) + 1.0
        total += (both * both.sum() / sums[:, None] / sums[None] + 1e-9).log().clamp(min=0)
    torch.manual_seed(0)
    left, values, _ = torch.svd_lowrank(total, q=SVD_RANK, niter=2)
    rows = left * values.sqrt()
    rows = rows - rows.mean(0)
    return rows / (rows.square().mean(1, keepdim=True).sqrt() + 1e-3)


def main() -> None:
    """Write ``align.npy`` and ``embed.pt`` into the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    work: Path = parser.parse_args().work
    corpus = Corpus(work / "train.npz")
    skip = prefix_length(corpus, 0)
    table, counts = lexicon(corpus, skip)
    np.save(work / "align.npy", align(corpus, table, skip))
    torch.save(embeddings(corpus, counts), work / "embed.pt")


if __name__ == "__main__":
    main()
