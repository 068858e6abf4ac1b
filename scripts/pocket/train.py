"""Train one pocket model for a given number of minutes, on every core, resumably.

The objective is cross-entropy over real target positions (against the data, or
against a teacher's soft labels) plus, at first, a guided-alignment term on two
cross-attention heads (see ``align``). The optimiser is in ``optimise``: plain
AdamW at 1e-3 stalls on this data.

Parallelism: one single-threaded process per core. Parameters and gradients live
in shared memory; each process back-propagates its own batch, then updates the
tensors it owns. That is plain synchronous data parallelism without copies.

Time is the budget (minutes of wall clock), so a run is reproducible in its seeds,
order and schedule but not to the bit across machines of different speed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from data import UNLIMITED, Batches, Corpus
from model import PocketT5, Shape, grow
from optimise import Barrier, Optimizer, owned
from torch import Tensor
from torch.nn import functional as F

CHECKPOINT_S = 150.0
REPORT_STEPS = 100


def losses(
    model: PocketT5,
    batch: tuple[Tensor, Tensor, Tensor],
    guide: float = 0.0,
    soft: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (summed cross-entropy in nats, summed alignment loss) over real target positions.

    With ``soft`` labels the cross-entropy is against them instead of against the one token written.
    """
    source, target, aligned = batch
    states, crossed = model.decode(F.pad(target[:, :-1], (1, 0)), *model.encode(source))
    real = target > 0
    logits = model.logits(states[real])
    if soft is None:
        entropy = F.cross_entropy(logits, target[real], reduction="sum")
    else:
        weight = soft[1] / soft[1].sum(1, keepdim=True)
        entropy = -(weight * logits.log_softmax(-1).gather(1, soft[0])).sum()
    if guide == 0.0:
        return entropy, entropy.new_zeros(())
    probs = crossed[max(len(crossed) // 2 - 1, 0)][:, :2].mean(1)
    looked = probs.gather(2, aligned.clamp(min=0)[..., None])[..., 0][aligned >= 0]
    return entropy, -(looked + 1e-4).log().sum()


def initialise(model: PocketT5, embed: Tensor, seed: int) -> None:
    """Start from bilingual embeddings, neighbour-seeing heads and a copying cross-attention."""
    torch.manual_seed(seed)
    with torch.no_grad():
        rows = embed[:, : model.shape.width]
        rows = rows / (rows.square().mean(1, keepdim=True).sqrt() + 1e-3)
        model.embed.copy_(0.8 * rows + 0.3 * torch.randn_like(rows))
        for head, bucket in enumerate((1, 17, 2, 18)[: model.shape.heads]):  # -1, +1, -2, +2
            model.encoder_bias[bucket, head] = 3.0
        for head, bucket in enumerate((1, 2, 3)[: model.shape.heads]):
            model.decoder_bias[bucket, head] = 3.0
        for layer in model.decoder:
            value = layer.cross_attn.qkv.chunk(3)[2]
            layer.cross_attn.o.copy_(value.T * 0.5)


@torch.no_grad()
def heldout_loss(model: PocketT5, batches: Batches) -> dict[str, float]:
    """Return the held-out cross-entropy in nats per token of each task, over about 150 items."""
    out = {}
    for task, name in ((0, "ende"), (1, "summary")):
        total, count = 0.0, 0
        rows = batches.pools[task][:152]
        rows = rows[np.argsort(batches.source[rows])]
        for at in range(0, len(rows), 19):
            batch = batches.collate(rows[at : at + 19])
            total += float(losses(model, batch)[0])
            count += int((batch[1] > 0).sum())
        out[name] = total / count
    return out


class Worker:
    """One rank of a run."""

    def __init__(
        self,
        rank: int,
        model: PocketT5,
        grads: list[list[Tensor]],
        shared: dict,
        options: argparse.Namespace,
    ) -> None:
        self.rank, self.world, self.model, self.options = rank, options.world, model, options
        self.barrier = Barrier(rank, shared["phases"])
        self.counts, self.clock = shared["counts"], shared["clock"]
        params = list(model.parameters())
        for p, grad in zip(params, grads[rank], strict=True):
            p.grad = grad
        self.grads = grads[rank]
        mine = owned([p.numel() for p in params], rank, self.world)
        self.optimizer = Optimizer([params[i] for i in mine], [[g[i] for i in mine] for g in grads])
        self.step, self.before = shared["step"], shared["elapsed"]
        if self.step:
            self.optimizer.resume(options.out / f"optimizer{rank}.pt")
        guided = options.guide and options.data == "train.npz"
        self.batches = Batches(
            Corpus(options.work / options.data),
            np.load(options.work / "align.npy") if guided else None,
            options.tokens, options.translation, options.seed + self.step,
        )  # fmt: skip
        self.held = Batches(Corpus(options.work / "heldout.npz"), None, options.tokens, 0.5, 0)
        self.seen = np.zeros(
            4
        )  # nats, target tokens, alignment nats, all tokens; since the last report

    def run(self) -> None:
        """Train until the minutes are over."""
        start, saved = time.monotonic(), self.before
        while True:
            self.barrier.wait()
            if self.rank == 0:
                self.clock[0] = self.before + time.monotonic() - start
            self.barrier.wait()
            elapsed = float(self.clock[0])
            over = elapsed >= 60 * self.options.minutes
            if over or elapsed - saved > CHECKPOINT_S:
                saved = elapsed
                self.checkpoint(elapsed)
            if over:
                return
            self.train_step(elapsed)

    def train_step(self, elapsed: float) -> None:
        """Take one step, ``elapsed`` seconds into the run."""
        options = self.options
        self.step += 1
        longest = options.short if elapsed < 60 * options.short_minutes else UNLIMITED
        rows = [self.batches.next(longest) for _ in range(self.world)][self.rank]
        batch = self.batches.collate(rows)
        for grad in self.grads:
            grad.zero_()
        guide = options.guide * max(0.0, 1 - elapsed / (60 * options.guide_minutes))
        entropy, guided = losses(self.model, batch, guide, self.batches.soft_labels(rows))
        # A summary has few target tokens for its long source: without a weight they drown.
        weight = options.summary_weight if self.batches.corpus.task[rows[0]] else 1.0
        (weight * (entropy + guide * guided)).backward()
        count = int((batch[1] > 0).sum())
        self.counts[self.rank] = weight * count
        self.seen += [
            float(entropy.detach()),
            count,
            float(guided.detach()),
            int((batch[0] > 0).sum()) + count,
        ]
        self.barrier.wait()
        self.optimizer.step(self.learning_rate(elapsed), 1.0 / float(self.counts.sum()))
        if self.rank == 0 and self.step % REPORT_STEPS == 0:
            nats, tokens, looked, total = self.seen
            print(
                f"step {self.step} {elapsed / 60:.1f} min: {nats / tokens:.3f} nats, "
                f"alignment {looked / tokens:.2f}, {total * self.world:.0f} tokens",
                flush=True,
            )
            self.seen[:] = 0

    def learning_rate(self, elapsed: float) -> float:
        """Return the relative rate: warm-up in steps, then linear in time to ``lr_end``."""
        options = self.options
        done = min(elapsed / (60 * options.minutes), 1.0)
        rate = options.lr + (options.lr_end - options.lr) * done
        return min(self.step / options.warmup, 1.0) * rate

    def checkpoint(self, elapsed: float) -> None:
        """Write this rank's moments; rank 0 also writes the model and a line of the log."""
        self.optimizer.save(self.options.out / f"optimizer{self.rank}.pt")
        if self.rank:
            return
        record = {
            "step": self.step,
            "minutes": round(elapsed / 60, 2),
            "heldout": heldout_loss(self.model, self.held),
        }
        print(json.dumps(record), flush=True)
        with (self.options.out / "log.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
        save(self.model, self.options.out, self.step, elapsed)


def work(
    rank: int, model: PocketT5, grads: list[list[Tensor]], shared: dict, options: argparse.Namespace
) -> None:
    """Run one rank on one thread of its own core."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    Worker(rank, model, grads, shared, options).run()


def save(model: PocketT5, folder: Path, step: int, elapsed: float) -> None:
    """Write ``model.pt`` (weights, shape, progress) so that a crash never leaves half a file."""
    state = {"shape": vars(model.shape), "weights": model.state_dict()}
    torch.save({**state, "step": step, "elapsed": elapsed}, folder / "model.tmp")
    (folder / "model.tmp").replace(folder / "model.pt")


def load(path: Path) -> PocketT5:
    """Return the model of a checkpoint."""
    state = torch.load(path)
    model = PocketT5(Shape(**state["shape"]))
    model.load_state_dict(state["weights"])
    return model


def prepare(options: argparse.Namespace) -> tuple[PocketT5, int, float]:
    """Return the model to train with the steps and seconds that this run has behind it."""
    path = options.out / "model.pt"
    if path.exists():
        state = torch.load(path)
        return load(path), state["step"], state["elapsed"]
    if options.start:
        model = load(options.start)
        return (grow(model, options.depth) if options.depth > model.shape.depth else model), 0, 0.0
    torch.manual_seed(options.seed)
    shape = Shape(options.depth, options.width, options.hidden, options.heads, options.d_kv)
    model = PocketT5(shape)
    initialise(model, torch.load(options.work / "embed.pt"), options.seed)
    return model, 0, 0.0


def parse() -> argparse.Namespace:
    """Return the options of one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--work", type=Path, default=Path("build/pocket"))
    add("--out", type=Path, required=True, help="folder of this run's checkpoint")
    add("--start", type=Path, help="checkpoint to start from, and to grow if --depth is larger")
    add("--data", default="train.npz", help="file in the work folder; teacher.npz to distil")
    add("--depth", type=int, default=0, help="layers of the encoder, and of the decoder")
    add("--width", type=int, default=256)
    add("--hidden", type=int, default=512)
    add("--heads", type=int, default=8)
    add("--d-kv", type=int, default=32)
    add("--minutes", type=float, default=10.0, help="wall clock of the whole run, resumed or not")
    add("--tokens", type=int, default=800, help="most padded tokens of a rank's batch")
    add("--lr", type=float, default=2e-2, help="peak relative step")
    add("--lr-end", type=float, default=0.0, help="relative step when the minutes are over")
    add("--warmup", type=int, default=300, help="steps")
    add("--translation", type=float, default=0.65, help="share of the batches")
    add("--summary-weight", type=float, default=3.0, help="weight of a summary's target token")
    add("--guide", type=float, default=0.3, help="weight of the alignment loss at the start")
    add("--guide-minutes", type=float, default=20.0, help="when that weight has fallen to zero")
    add("--short", type=int, default=60, help="tokens: longest item in the short minutes")
    add("--short-minutes", type=float, default=0.0)
    add("--seed", type=int, default=0)
    add("--world", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def main() -> None:
    """Share the memory and start one process per core."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    model, step, elapsed = prepare(options)
    model.share_memory()
    world = range(options.world)
    grads = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in world]
    shared = {
        "phases": torch.zeros(options.world, dtype=torch.long).share_memory_(),
        "counts": torch.zeros(options.world).share_memory_(),
        "clock": torch.zeros(1, dtype=torch.float64).share_memory_(),
        "step": step,
        "elapsed": elapsed,
    }
    mp.spawn(work, (model, grads, shared, options), nprocs=options.world)


if __name__ == "__main__":
    main()
