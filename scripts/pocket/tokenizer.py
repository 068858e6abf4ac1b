"""The pocket tokenizer: 8,000 sentencepiece unigram pieces with T5's special ids.

pad 0, eos 1, unk 2, no bos (T5 starts decoding from pad), no sentinels, no byte
fallback. Texts are already tidied by ``corpus``, so the normaliser is the
identity and the saved ``tokenizer.json`` needs no character map: it stays small
and encodes exactly as sentencepiece itself does (checked here on the corpus).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import sentencepiece
from corpus import read_items
from transformers import AutoTokenizer, T5Tokenizer

NUM_PIECES = 8000
UNK = 2
OWN = ("train", "heldout")
PARTS = {  # what is encoded, of which items
    "train": ["train"],
    "heldout": ["heldout"],
    "near": ["train", "releases"],
    "wide": ["train", "releases", "further"],
}
PREFIXES = {"ende": "translate English to German: ", "summary": "summarize: "}


def train(work: Path) -> None:
    """Train the unigram model on both sides of the training items; write ``spiece.model``."""
    texts = [PREFIXES["ende"], PREFIXES["summary"]] * 3000
    for item in read_items(work / "train.jsonl"):
        texts += [item.source, item.target] if item.task == "ende" else [item.target]
        if item.task == "summary" and len(texts) % 3 == 0:
            texts.append(item.source)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(work / "spiece"),
        vocab_size=NUM_PIECES,
        model_type="unigram",
        character_coverage=0.9998,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        unk_id=UNK,
        bos_id=-1,
        byte_fallback=False,
        num_threads=2,
        minloglevel=1,
    )


def export(work: Path, folder: Path) -> None:
    """Write the transformers tokenizer files (``tokenizer.json``) into ``folder``."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(work / "spiece.model"))
    vocab = [(model.id_to_piece(i), model.get_score(i)) for i in range(len(model))]
    tokenizer = T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)
    tokenizer.save_pretrained(folder)


def check(work: Path, folder: Path) -> None:
    """Raise unless the exported tokenizer encodes held-out texts as sentencepiece, plus EOS."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(work / "spiece.model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) != (0, 1, UNK):
        raise ValueError("special ids differ from T5's")
    if len(tokenizer) != NUM_PIECES:
        raise ValueError(f"{len(tokenizer)} pieces instead of {NUM_PIECES}")
    for item in read_items(work / "heldout.jsonl"):
        for text in (PREFIXES[item.task] + item.source, item.target):
            ids = tokenizer(text).input_ids
            if ids != [*model.encode(text), 1]:
                raise ValueError(f"tokenizers disagree on {text!r}")
            if UNK not in ids and tokenizer.decode(ids, skip_special_tokens=True) != text:
                raise ValueError(f"not reversible: {text!r}")


def encode(work: Path) -> None:
    """Write each of ``PARTS``: all ids in one flat array per side, with offsets (EOS included).

    Texts from elsewhere than the tokenizer's own may hold characters that it lacks: left out.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=str(work / "spiece.model"))
    for part, files in PARTS.items():
        rows = []
        for name in files:
            for item in read_items(work / f"{name}.jsonl"):
                texts = [PREFIXES[item.task] + item.source, item.target]
                source, target = model.encode(texts, add_eos=True)
                if name in OWN or UNK not in source + target:
                    rows.append((item.task, source, target))
        arrays = {"task": np.array([task == "summary" for task, *_ in rows], np.int8)}
        for at, side in ((1, "source"), (2, "target")):
            arrays[side] = np.concatenate([np.array(row[at], np.int16) for row in rows])
            lengths = np.array([len(row[at]) for row in rows])
            arrays[f"{side}_ends"] = np.cumsum(lengths)
            for code, task in enumerate(PREFIXES):
                some = lengths[arrays["task"] == code]
                print(f"{part} {task} {side}: {some.sum()} tokens, mean {some.mean():.1f}")
        np.savez(work / f"{part}.npz", **arrays)


def main() -> None:
    """Train, export, check, and encode the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/pocket"))
    work: Path = parser.parse_args().work
    train(work)
    export(work, work / "tokenizer")
    check(work, work / "tokenizer")
    encode(work)


if __name__ == "__main__":
    main()
