"""Score the family on the held-out prompts: BLEU, ROUGE, perplexity and each draft's alpha_overlap.

alpha_overlap is the mean over the target's own tokens of sum_x min(p(x), q(x)),
with p and q the target's and the draft's distributions at the same temperature.
At T = 0 both are one-hot, so it is the share of positions where the two argmaxes
agree on the target's greedy output. Writes ``metrics.json`` into the work folder.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

import numpy as np
import sacrebleu
import sentencepiece
import torch
from decode import by_length, generate
from export import NAMES, NEW_TOKENS
from model import PocketT5
from rouge_score import rouge_scorer
from tokenizer import PREFIXES
from torch import Tensor
from train import load

BATCH = 48


def read_prompts(folder: Path, task: str, count: int) -> list[dict]:
    """Return the first ``count`` held-out prompts of a task."""
    lines = (folder / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def outputs_of(
    target: PocketT5, sources: list[np.ndarray], limit: int, temperature: int
) -> list[np.ndarray]:
    """Return the target's own outputs (ids, EOS included), greedy at T = 0 or drawn at T = 1."""
    out: list[np.ndarray] = [np.zeros(0)] * len(sources)
    generator = torch.Generator().manual_seed(0)
    for rows, batch in by_length(sources, BATCH):
        sample = torch.full((len(rows),), bool(temperature))
        for row, ids in zip(
            rows, generate(target, batch, limit, sample, generator)[0], strict=True
        ):
            out[row] = ids.astype(np.int64)
    return out


@torch.no_grad()
def overlaps(
    models: dict[str, PocketT5],
    sources: list[np.ndarray],
    outputs: list[np.ndarray],
    temperature: int,
) -> dict[str, float]:
    """Return each draft's alpha_overlap with the target on given outputs."""
    sums, count = dict.fromkeys(models, 0.0), 0
    for rows, batch in by_length(sources, 24):
        labels = torch.zeros(len(rows), max(len(outputs[i]) for i in rows), dtype=torch.long)
        for j, i in enumerate(rows):
            labels[j, : len(outputs[i])] = torch.from_numpy(outputs[i])
        real = torch.stack([torch.arange(labels.shape[1]) < len(outputs[i]) for i in rows])
        target = logits_of(models["target"], batch, labels)[real]
        count += len(target)
        for name, model in models.items():
            draft = logits_of(model, batch, labels)[real]
            if temperature:
                sums[name] += float(torch.minimum(target.softmax(-1), draft.softmax(-1)).sum())
            else:
                sums[name] += float((target.argmax(-1) == draft.argmax(-1)).sum())
    return {name: total / count for name, total in sums.items() if name != "target"}


def logits_of(model: PocketT5, source: Tensor, labels: Tensor) -> Tensor:
    """Return the logits (B, T, VOCAB) of a model that is fed ``labels``."""
    states, _ = model.decode(torch.nn.functional.pad(labels[:, :-1], (1, 0)), *model.encode(source))
    return model.logits(states)


def score(task: str, texts: list[str], references: list[str]) -> dict[str, float]:
    """Return BLEU and chrF of translations, ROUGE F1 (in percent) of summaries."""
    if task == "ende":
        bleu = sacrebleu.corpus_bleu(texts, [references])
        return {"bleu": bleu.score, "chrf": sacrebleu.corpus_chrf(texts, [references]).score}
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    rows = [
        scorer.score(reference, text) for reference, text in zip(references, texts, strict=True)
    ]
    return {
        name: 100 * float(np.mean([row[name].fmeasure for row in rows]))
        for name in ("rouge1", "rouge2", "rougeL")
    }


def main() -> None:
    """Evaluate the checkpoints under ``runs/`` and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    parser.add_argument("--prompts", type=Path, default=Path("specbench/pocket/prompts"))
    parser.add_argument("--count", type=int, default=100, help="prompts per task for the overlaps")
    parser.add_argument(
        "--quality", type=int, default=400, help="prompts per task for BLEU and ROUGE"
    )
    options = parser.parse_args()
    spiece = sentencepiece.SentencePieceProcessor(model_file=str(options.work / "spiece.model"))
    paths = {name: options.work / "runs" / name / "model.pt" for name in NAMES}
    models = {name: load(path) for name, path in paths.items() if path.exists()}
    metrics: dict = {
        "alpha_overlap": {},
        "quality": {},
        "tokens": {},
        "examples": {},
        "counts": vars(options) | {},
    }
    metrics["counts"] = {"overlap_prompts": options.count, "quality_prompts": options.quality}
    for task in PREFIXES:
        prompts = read_prompts(options.prompts, task, options.quality)
        sources = [np.array([*spiece.encode(PREFIXES[task] + p["source"]), 1]) for p in prompts]
        outputs = outputs_of(models["target"], sources, NEW_TOKENS[task], 0)
        texts = [spiece.decode([int(t) for t in ids if t > 2]) for ids in outputs]
        metrics["quality"][task] = score(task, texts, [p["reference"] for p in prompts])
        metrics["tokens"][task] = float(np.mean([len(ids) for ids in outputs]))
        order = sorted(range(len(prompts)), key=lambda i: zlib.crc32(prompts[i]["id"].encode()))
        metrics["examples"][task] = [
            {
                "source": prompts[i]["source"],
                "reference": prompts[i]["reference"],
                "output": texts[i],
            }
            for i in order[:40]
        ]
        for temperature in (0, 1):
            some = outputs[: options.count]
            if temperature:
                some = outputs_of(models["target"], sources[: options.count], NEW_TOKENS[task], 1)
            row = overlaps(models, sources[: options.count], some, temperature)
            metrics["alpha_overlap"][f"{task} T={temperature}"] = row
            print(
                f"{task} T={temperature}: "
                + ", ".join(f"{name} {value:.3f}" for name, value in row.items()),
                flush=True,
            )
        print(
            task,
            metrics["quality"][task],
            f"mean output {metrics['tokens'][task]:.1f} tokens",
            flush=True,
        )
    text = json.dumps(metrics, indent=1, ensure_ascii=False)
    (options.work / "metrics.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
