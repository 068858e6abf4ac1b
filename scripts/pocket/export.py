"""Write checkpoints as ordinary transformers T5 folders (float16), and the held-out prompts.

Each folder holds ``config.json``, ``generation_config.json``, ``model.safetensors``
and the tokenizer. :func:`check` reloads it through transformers and compares the
logits with the training forward, so a folder that exists is a folder that works.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from corpus import sentences
from data import Corpus
from model import VOCAB, PocketT5
from tokenizer import PREFIXES
from train import load
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    T5Config,
    T5ForConditionalGeneration,
)

NAMES = ("target", "large", "base", "small", "small-distilled")
NUM_PROMPTS = 400
# Bounds in tokens, EOS included, prefix included on the source side.
SOURCE_TOKENS = {"ende": (18, 100), "summary": (25, 115)}
TARGET_TOKENS = {"ende": (12, 90), "summary": (6, 40)}
NEW_TOKENS = {"ende": 128, "summary": 64}


def config_of(model: PocketT5) -> T5Config:
    """Return the transformers configuration of a pocket model."""
    shape = model.shape
    return T5Config(
        vocab_size=VOCAB,
        d_model=shape.width,
        d_kv=shape.d_kv,
        d_ff=shape.hidden,
        num_heads=shape.heads,
        num_layers=shape.depth,
        num_decoder_layers=shape.depth,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        tie_word_embeddings=True,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        n_positions=512,
        architectures=["T5ForConditionalGeneration"],
        task_specific_params={
            "summarization": {"max_length": NEW_TOKENS["summary"], "prefix": PREFIXES["summary"]},
            "translation_en_to_de": {"max_length": NEW_TOKENS["ende"], "prefix": PREFIXES["ende"]},
        },
    )


def export(model: PocketT5, tokenizer: Path, folder: Path) -> None:
    """Write one model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = T5ForConditionalGeneration(config_of(model))
    missing, unexpected = out.load_state_dict(model.to_transformers(), strict=False)
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    if set(missing) - tied or unexpected:
        raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    out.tie_weights()
    out.generation_config = GenerationConfig(
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
    )
    out.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner only
    for path in tokenizer.glob("*.json"):
        text = json.loads(path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(
            json.dumps(text, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
        )


def check(model: PocketT5, folder: Path, prompts: list[dict]) -> float:
    """Return the largest difference of probability between the two forwards on a few prompts."""
    again = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        [PREFIXES["ende"] + p["source"] for p in prompts], return_tensors="pt", padding=True
    )
    labels = tokenizer(
        [p["reference"] for p in prompts], return_tensors="pt", padding=True
    ).input_ids
    inputs = torch.nn.functional.pad(labels[:, :-1], (1, 0))
    with torch.no_grad():
        theirs = again(**batch, decoder_input_ids=inputs).logits.softmax(-1)
        states, _ = model.decode(inputs, *model.encode(batch.input_ids))
        ours = model.logits(states).softmax(-1)
    worst = float((theirs - ours)[labels > 0].abs().max())
    if worst > 0.02:  # float16 rounding of the weights leaves about 1e-3
        raise ValueError(f"{folder.name}: the exported model differs by {worst}")
    return worst


def choose_prompts(work: Path, task: str) -> list[dict]:
    """Return ``NUM_PROMPTS`` held-out prompts of varied length that share no sentence."""
    rows = [json.loads(line) for line in (work / "heldout.jsonl").open(encoding="utf-8")]
    corpus = Corpus(work / "heldout.npz")
    sizes = zip(corpus.lengths("source"), corpus.lengths("target"), strict=True)
    fits = [
        row
        for row, (source, target) in zip(rows, sizes, strict=True)
        if row["task"] == task
        and SOURCE_TOKENS[task][0] <= source <= SOURCE_TOKENS[task][1]
        and TARGET_TOKENS[task][0] <= target <= TARGET_TOKENS[task][1]
    ]
    order = torch.randperm(len(fits), generator=torch.Generator().manual_seed(7)).tolist()
    # Half of the translation prompts are whole paragraphs: they come first, then all the rest.
    if task == "ende":
        several = [i for i in order if len(sentences(fits[i]["source"])) > 1]
        several = several[: NUM_PROMPTS // 2]
        order = several + [i for i in order if len(sentences(fits[i]["source"])) == 1]
    used: set[str] = set()
    chosen = []
    for i in order:
        row = fits[i]
        parts = {*sentences(row["source"]), row["target"]}
        if len(chosen) < NUM_PROMPTS and not parts & used:
            used |= parts
            chosen.append(row)
    chosen.sort(
        key=lambda row: torch.tensor(len(row["source"]) * 7919 % 101).item()
    )  # lengths mixed, fixed order
    return [
        {
            "id": f"{task}-{at:03d}",
            "source": row["source"],
            "reference": row["target"],
            "package": row["package"],
        }
        for at, row in enumerate(chosen)
    ]


def write_prompts(work: Path, folder: Path) -> None:
    """Write ``prompts/ende.jsonl`` and ``prompts/summary.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in PREFIXES:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in choose_prompts(work, task)]
        (folder / f"{task}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{task}: {len(lines)} prompts")


def main() -> None:
    """Export every checkpoint that exists."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    parser.add_argument("--out", type=Path, default=Path("specbench/pocket"))
    options = parser.parse_args()
    write_prompts(options.work, options.out / "prompts")
    prompts = [
        json.loads(line) for line in (options.out / "prompts/ende.jsonl").open(encoding="utf-8")
    ][:8]
    for name in NAMES:
        checkpoint = options.work / "runs" / name / "model.pt"
        if checkpoint.exists():
            model = load(checkpoint)
            shutil.rmtree(options.out / name, ignore_errors=True)
            export(model, options.work / "tokenizer", options.out / name)
            worst = check(model, options.out / name, prompts)
            size = sum(path.stat().st_size for path in (options.out / name).iterdir())
            print(f"{name}: {size / 1e6:.1f} MB, largest difference of probability {worst:.1e}")


if __name__ == "__main__":
    main()
