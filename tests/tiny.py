"""Tiny random transformers models, built from configuration objects and saved to a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

# Threads of a busy machine wait for each other, and nothing here is worth a second one.
torch.set_num_threads(1)

PIECES = 60
PADDED = 64


def tokenizer(size: int = PIECES, swapped: tuple[int, int] | None = None) -> T5Tokenizer:
    """A T5 tokenizer of `size` one-word pieces, two of them exchanged where asked."""
    words = ["<pad>", "</s>", "<unk>", "\u2581", *(f"\u2581w{i}" for i in range(4, size))]
    if swapped:
        first, second = swapped
        words[first], words[second] = words[second], words[first]
    return T5Tokenizer(vocab=[(word, -float(i)) for i, word in enumerate(words)], extra_ids=0)


def t5(layout: str = "1.0", seed: int = 0, **changes: Any) -> T5ForConditionalGeneration:
    """A T5 of unequal depths and a d_kv that is not d_model / heads, every weight random."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"vocab_size": PADDED, "d_model": 24, "d_kv": 5, "d_ff": 40}
    shape |= {"num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0}
    if layout == "1.1":
        shape |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    model = T5ForConditionalGeneration(T5Config(**(shape | changes))).eval()
    if layout == "1.1":
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.requires_grad_(False)


def save(model: Any, folder: Path, size: int = PIECES, **config: Any) -> str:
    """The folder's name after the model and a tokenizer went into it.

    config: keys of config.json to overwrite; None removes one.
    """
    model.save_pretrained(folder)
    tokenizer(size).save_pretrained(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: v for key, v in values.items() if v is not None}))
    return str(folder)
