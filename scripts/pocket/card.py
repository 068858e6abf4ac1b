"""Write ``MODEL_CARD.md`` beside the exported models: ``card.md`` filled with what was measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from corpus import HELDOUT_PERMILLE, MAX_SEEN_NGRAMS, MAX_SUMMARY_WORDS
from export import NAMES

TEMPLATE = Path(__file__).with_name("card.md")
VERDICT = Path(__file__).with_name("verdict.md")  # written by whoever has read the outputs
DRAFTS = ("small", "small-distilled", "base", "large")
TASKS = ("ende", "summary")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def shapes(work: Path, folder: Path) -> str:
    """Return the table of the models: shape, parameters, size."""
    rows = []
    for name in NAMES:
        state = torch.load(work / "runs" / name / "model.pt")
        shape = state["shape"]
        numbers = sum(weight.numel() for weight in state["weights"].values()) / 1e6
        size = sum(path.stat().st_size for path in (folder / name).iterdir()) / 1e6
        layers, heads = (
            f"{shape['depth']} + {shape['depth']}",
            f"{shape['heads']} x {shape['d_kv']}",
        )
        sizes = [str(shape["width"]), str(shape["hidden"]), heads]
        rows.append([f"`{name}`", layers, *sizes, f"{numbers:.2f} M", f"{size:.1f} MB"])
    columns = ["model", "layers", "width", "feed-forward", "heads x d_kv", "parameters", "folder"]
    return table(columns, rows)


def counts(work: Path) -> str:
    """Return the table of the corpus: items per part and task."""
    rows = []
    for part in ("train", "releases", "further", "heldout"):
        lines = (work / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
        rows.append(
            [part, *(str(sum(f'"task": "{t}"' in line[:24] for line in lines)) for t in TASKS)]
        )
    return table(["part", "translation pairs", "summaries"], rows)


def log(work: Path) -> str:
    """Return the table of the runs: minutes, steps, held-out losses at the end."""
    rows = []
    for path in sorted((work / "runs").glob("*/log.jsonl")):
        record = json.loads(path.read_text().splitlines()[-1])
        losses = [f"{record['heldout'][task]:.2f}" for task in TASKS]
        rows.append(
            [f"`{path.parent.name}`", f"{record['minutes']:.0f}", str(record["step"]), *losses]
        )
    columns = [
        "run",
        "minutes",
        "steps",
        "translation, held-out nats per token",
        "summary, the same",
    ]
    return table(columns, rows)


def quality(metrics: dict) -> str:
    """Return BLEU, chrF and ROUGE in a sentence each."""
    ende, summary = metrics["quality"]["ende"], metrics["quality"]["summary"]
    tokens, count = metrics["tokens"], metrics["counts"]["quality_prompts"]
    return (
        f"Translation: BLEU {ende['bleu']:.1f}, chrF {ende['chrf']:.1f} (sacrebleu, one "
        "reference); "
        f"outputs of {tokens['ende']:.1f} tokens on average.\nSummary: ROUGE-1/2/L "
        f"{summary['rouge1']:.1f} / {summary['rouge2']:.1f} / {summary['rougeL']:.1f} "
        f"(rouge-score, stemmed); outputs of {tokens['summary']:.1f} tokens on average.\n"
        f"{count} prompts a task."
    )


def alpha(metrics: dict) -> str:
    """Return alpha_overlap: a row per task and temperature, a column per draft."""
    rows = [
        [cell, *(f"{row[name]:.3f}" for name in DRAFTS)]
        for cell, row in metrics["alpha_overlap"].items()
    ]
    return table(["task, temperature", *(f"`{name}`" for name in DRAFTS)], rows)


def examples(rows: list[dict], count: int) -> str:
    """Return ``count`` outputs beside their sources and references."""
    return "\n".join(
        f"{at}. source: {row['source']}\n   - reference: {row['reference']}\n"
        f"   - output: **{row['output']}**"
        for at, row in enumerate(rows[:count], 1)
    )


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    parser.add_argument("--out", type=Path, default=Path("specbench/pocket"))
    options = parser.parse_args()
    metrics = json.loads((options.work / "metrics.json").read_text(encoding="utf-8"))
    card = TEMPLATE.read_text(encoding="utf-8").format(
        shapes=shapes(options.work, options.out),
        words=MAX_SUMMARY_WORDS,
        permille=HELDOUT_PERMILLE,
        seen=MAX_SEEN_NGRAMS,
        counts=counts(options.work),
        log=log(options.work),
        quality=quality(metrics),
        overlap_prompts=metrics["counts"]["overlap_prompts"],
        alpha=alpha(metrics),
        translations=examples(metrics["examples"]["ende"], 10),
        summaries=examples(metrics["examples"]["summary"], 5),
        verdict=VERDICT.read_text(encoding="utf-8").strip(),
    )
    (options.out / "MODEL_CARD.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
