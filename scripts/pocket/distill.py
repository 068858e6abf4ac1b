"""Let the target write the data that its distilled draft learns from.

Acceptance is sum_x min(p, q) on text the *target* writes, so the distilled draft
is trained on exactly that: the target's outputs on training prompts, half greedy
and half sampled at T = 1, with the target's own most likely tokens at every
position (:data:`KEEP` of them) as soft labels. ``train --data teacher.npz`` then
minimises the cross-entropy against those soft labels (sequence-level and
word-level distillation: Kim and Rush 2016; for speculation: Zhou et al. 2024).
Reading is far cheaper than writing, so the target also labels training targets that
others wrote: without that much more text the draft learns the outputs by heart.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from data import Batches, Corpus
from decode import by_length, generate
from model import PocketT5
from torch.nn import functional as F
from train import load

KEEP = 24  # soft labels per position
BATCH = 96
MAX_SOURCE = {0: 75, 1: 90}  # tokens; teacher time is spent on prompts of ordinary length
LIMIT = {0: 96, 1: 40}
SHARE_TRANSLATION = 0.6


def write_share(rank: int, world: int, options: argparse.Namespace) -> None:
    """Decode this rank's prompts until its minutes are over; write ``teacher.<rank>.npz``."""
    torch.set_num_threads(1)
    model = load(options.teacher)
    corpus = Corpus(options.work / "train.npz")
    rng = np.random.default_rng(options.seed)
    lengths = corpus.lengths("source")
    pools = [
        rng.permutation(np.flatnonzero((corpus.task == t) & (lengths <= MAX_SOURCE[t])))
        for t in (0, 1)
    ]
    generator = torch.Generator().manual_seed(options.seed + rank)
    start, done = time.monotonic(), []
    tasks, sources, targets, ids, probs = [], [], [], [], []
    chunk = 4 * BATCH
    for turn in range(10**6):
        if time.monotonic() - start > 60 * options.minutes:
            break
        task = int((turn * SHARE_TRANSLATION) % 1 >= SHARE_TRANSLATION)
        mine = pools[task][rank::world][sum(t == task for t in done) * chunk :][:chunk]
        done.append(task)
        prompts = [corpus.source(i) for i in mine]
        for rows, batch in by_length(prompts, BATCH):
            sample = torch.rand(len(rows), generator=generator) < options.sampled
            outputs, pairs = generate(model, batch, LIMIT[task], sample, generator, KEEP)
            for row, output, (top, values) in zip(rows, outputs, pairs, strict=True):
                if output[-1] == 1 and (output > 0).all():  # ended, and no padding drawn
                    tasks.append(task)
                    sources.append(prompts[row].astype(np.int16))
                    targets.append(output)
                    ids.append(top)
                    probs.append(values)
        if rank == 0:
            print(
                f"{(time.monotonic() - start) / 60:.1f} min: {len(tasks) * world} outputs",
                flush=True,
            )
    outputs = packed(tasks, sources, targets, np.concatenate(ids), np.concatenate(probs))
    read = label(model, corpus, options.seed + 1 + rank, options.read_minutes)
    np.savez(options.work / f"teacher.{rank}.npz", **joined([outputs, *read]))


@torch.no_grad()
def label(
    model: PocketT5, corpus: Corpus, seed: int, minutes: float
) -> list[dict[str, np.ndarray]]:
    """Return training items with the model's soft labels on their own targets, batch by batch."""
    batches, parts = Batches(corpus, None, 3000, SHARE_TRANSLATION, seed), []
    start = time.monotonic()
    while time.monotonic() - start < 60 * minutes:
        rows = batches.next()
        source, target, _ = batches.collate(rows)
        states, _ = model.decode(F.pad(target[:, :-1], (1, 0)), *model.encode(source))
        probs, ids = model.logits(states[target > 0]).softmax(-1).topk(KEEP)
        parts.append(
            packed(
                [corpus.task[i] for i in rows],
                [corpus.source(i) for i in rows],
                [corpus.target(i) for i in rows],
                ids.to(torch.int16).numpy(),
                probs.half().numpy(),
            )
        )
    return parts


def packed(
    tasks: list[int],
    sources: list[np.ndarray],
    targets: list[np.ndarray],
    top: np.ndarray,
    probs: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the arrays of an encoded corpus with soft labels (see ``data.Corpus``)."""
    return {
        "task": np.array(tasks, np.int8),
        "source": np.concatenate(sources).astype(np.int16),
        "source_ends": np.cumsum([len(row) for row in sources]),
        "target": np.concatenate(targets).astype(np.int16),
        "target_ends": np.cumsum([len(row) for row in targets]),
        "top": top,
        "probs": probs,
    }


def joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return encoded corpora as one."""
    for side in ("source", "target"):
        starts = np.cumsum([0, *(len(part[side]) for part in parts)])
        for part, start in zip(parts, starts, strict=False):
            part[f"{side}_ends"] = part[f"{side}_ends"] + start
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join(work: Path, world: int) -> None:
    """Put the ranks' items together as ``teacher.npz``."""
    parts = [work / f"teacher.{rank}.npz" for rank in range(world)]
    out = joined([dict(np.load(part)) for part in parts])
    np.savez(work / "teacher.npz", **out)
    for part in parts:
        part.unlink()
    print(f"teacher.npz: {len(out['task'])} items, {len(out['target'])} tokens")


def main() -> None:
    """Write ``teacher.npz`` into the work folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    parser.add_argument("--teacher", type=Path, required=True, help="checkpoint of the target")
    parser.add_argument("--minutes", type=float, default=6.0, help="for outputs")
    parser.add_argument("--read-minutes", type=float, default=6.0, help="for labels on the data")
    parser.add_argument(
        "--sampled", type=float, default=0.5, help="share of outputs drawn at T = 1"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--world", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mp.spawn(write_share, (options.world, options), nprocs=options.world)
    join(options.work, options.world)


if __name__ == "__main__":
    main()
