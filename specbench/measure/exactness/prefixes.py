"""Where in the target's own outputs a wrong accept rule shows most.

Owns the choice of prefixes. The choice looks at laws alone and never at a draw, so that it
cannot bend the test that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from specbench.decoding import Rules, law
from specbench.measure.exactness.reference import forced_logits
from specbench.models.protocol import LanguageModel
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling
from specbench.sampling import overlap

# Outside, hardly any draft is rejected, or hardly any is kept.
LEAST_OVERLAP, LARGEST_OVERLAP = 0.05, 0.95


@dataclass(frozen=True)
class Prefix:
    """A prompt and the first tokens of the target's own output. overlap: sum_x min(p, q) of
    what comes next; contrast: how far (total variation) a draw from p instead of the residual
    would move it."""

    prompt_id: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    overlap: float
    contrast: float


def choose_prefixes(
    target: LanguageModel,
    draft: LanguageModel,
    items: Sequence[EncodedPrompt],
    outputs: Sequence[Sequence[int]],
    sampling: Sampling,
    count: int,
) -> list[Prefix]:
    """Up to `count` prefixes of the largest contrast, spread over the prompts.

    outputs: one of the target alone for each item, a token or more.
    """
    share = ceil(count / len(items))
    found: list[Prefix] = []
    for item, output in zip(items, outputs, strict=True):
        usable = [
            prefix
            for prefix in _prefixes(target, draft, item, output, sampling)
            if LEAST_OVERLAP <= prefix.overlap <= LARGEST_OVERLAP
        ]
        found += sorted(usable, key=_contrast)[-share:]
    return sorted(found, key=_contrast)[-count:]


def _prefixes(
    target: LanguageModel,
    draft: LanguageModel,
    item: EncodedPrompt,
    output: Sequence[int],
    sampling: Sampling,
) -> list[Prefix]:
    """Every proper prefix of an output, the empty one first."""
    # Without a least length: which position a token has does not matter to the rule.
    rules = Rules(sampling, Limits(len(output)), target.eos_token)
    p, q = (
        law(forced_logits(model, item.token_ids, [output[:-1]]), [0], rules)[0].double().cpu()
        for model in (target, draft)
    )
    beta = overlap(p, q)
    # min(p, q) + (1 - beta) p against p: |max(0, p - q) - (1 - beta) p|.
    excess = (p - q).clamp(min=0.0)
    contrast = (excess - (1.0 - beta)[:, None] * p).abs().sum(dim=-1) / 2.0
    return [
        Prefix(item.id, tuple(item.token_ids), tuple(output[:length]), *values)
        for length, values in enumerate(torch.stack((beta, contrast), dim=1).tolist())
    ]


def _contrast(prefix: Prefix) -> float:
    return prefix.contrast
