"""The settings under which transformers decodes as we do: same law, same limits, fixed gamma.

What shortens drafts in transformers (5.24, `candidate_generator.py`) is switched off on the
assistant's own generation config, where it is looked up: the schedule (a heuristic one would
even outlive the call) and the cut-off by confidence (0.4 by default, moved by an ROC curve where
scikit-learn is installed). A draft still ends at its own EOS, behind which nothing is kept.

Filters named in a generation config would be applied to the draft twice (at T = 0.5 it would
draft at 0.25), those handed over as processors are applied once.
"""

from __future__ import annotations

from typing import Any

import torch

from specbench.models.adapter import TransformersModel
from specbench.models.peer_rounds import Task


class _WithoutPadding:
    """Forbids the pieces of a padded vocabulary that the tokenizer does not have."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (B, V), changed in place; transformers passes the ids so far as well."""
        del input_ids
        scores[:, self._vocab_size :] = -torch.inf
        return scores


def target_settings(task: Task) -> Any:
    """Lengths and tokens, and filters that do nothing: neither a checkpoint's nor defaults."""
    from transformers import GenerationConfig

    target, limits = task.target, task.limits
    settings: dict[str, Any] = {
        "max_new_tokens": limits.max_new_tokens,
        "num_beams": 1,
        "use_cache": True,
        "do_sample": task.sampling.temperature > 0,
        "eos_token_id": target.eos_token,
        "pad_token_id": pad_token(target),
        "decoder_start_token_id": target.start_token,
    }
    if limits.min_new_tokens:
        settings["min_new_tokens"] = limits.min_new_tokens
    if task.sampling.temperature > 0:
        settings |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(**settings)


def processors(task: Task) -> list[Any]:
    """From logits to the law, in the order in which our own `sampling` does it."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    sampling, vocab_size, found = task.sampling, task.target.vocab_size, []
    if task.target.network.config.get_text_config().vocab_size > vocab_size:
        found.append(_WithoutPadding(vocab_size))
    if sampling.temperature not in (0.0, 1.0):
        found.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.temperature > 0 and sampling.top_k:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.temperature > 0 and sampling.top_p < 1.0:
        found.append(TopPLogitsWarper(sampling.top_p))
    return found


def draft_settings(task: Task) -> Any:
    """What transformers looks up at the assistant: how many tokens it drafts."""
    from transformers import GenerationConfig

    return GenerationConfig(
        num_assistant_tokens=task.gamma,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
        eos_token_id=task.target.eos_token,
        pad_token_id=pad_token(task.target),
        decoder_start_token_id=task.target.start_token,
    )


def pad_token(target: TransformersModel) -> int | None:
    """What fills a batch; a model without such a token has its EOS there."""
    pad: int | None = target.network.config.get_text_config().pad_token_id
    return target.eos_token if pad is None else pad
