"""T = 0: token ids of speculative decoding against the target alone.

Owns the comparison and what a first difference means. The two decoders run other kernels (a
block of tokens, one token), so two logits that rounding cannot tell apart may change places; a
gap that rounding cannot explain is a fault. The gap is always told, never the word alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from specbench.decoding import AcceptRule, Decoded, decode, uniforms
from specbench.measure.exactness.reference import forced_logits
from specbench.measure.exactness.status import EXACT, UNDERPOWERED, WRONG
from specbench.measure.exactness.wrong_rules import accept_always
from specbench.models.protocol import LanguageModel
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling
from specbench.sampling import accept

TIE, NEAR_TIE = "tie", "near tie"
# How far rounding may part two ways of computing the same logit, in units of eps * largest
# logit. One unit is the rounding of the logit itself; float32 runs through some hundred products
# whose errors add up to 1e-6 to 1e-4 of a logit in practice, and bfloat16 rounds the last one so
# coarsely that a few units hold all of it.
UNITS = {"float32": 1000.0, "float16": 16.0, "bfloat16": 4.0}
# No dtype excuses a gap of 0.5: probabilities that differ by a factor of 1.6.
LARGEST_TOLERANCE = 0.4

Top2 = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Difference:
    """The first position at which an output is not the target's own.

    target_token, speculative_token: None where that output had ended. top2_alone, top2_block:
    (token, logit) of the target's two likeliest, from fresh states, one token a call and all in
    one call. gap: the larger of the two distances between the two tokens' logits; None where
    there is none, because one output had ended or a token is forbidden. kind: "tie" (gap 0),
    "near tie" (up to `tolerance`) or "wrong".
    """

    prompt_id: str
    gamma: int
    position: int
    target_token: int | None
    speculative_token: int | None
    top2_alone: Top2
    top2_block: Top2
    gap: float | None
    tolerance: float
    kind: str

    def __str__(self) -> str:
        tokens = f"token {self.speculative_token} for {self.target_token}"
        return (
            f"{self.kind} at position {self.position} of prompt {self.prompt_id}, gamma "
            f"{self.gamma}: {tokens}, {self.gap_text}, tolerance {self.tolerance:.2g}"
        )

    @property
    def gap_text(self) -> str:
        """The gap in words; there is none where an output had ended."""
        return "no gap to measure" if self.gap is None else f"logit gap {self.gap:.2g}"


@dataclass(frozen=True)
class GreedyCheck:
    """Token ids at T = 0. num_tokens: compared, over all outputs; num_accepted, num_rejected:
    drafts. caught: what a decoder that accepts every draft did wrong; None where it did not
    show, so that this check proves nothing about rejection."""

    target: str
    draft: str
    sampling: Sampling
    gammas: tuple[int, ...]
    num_outputs: int
    num_tokens: int
    num_accepted: int
    num_rejected: int
    differences: tuple[Difference, ...]
    caught: Difference | None

    @property
    def status(self) -> str:
        """ "exact", "wrong" or "underpowered"."""
        if any(difference.kind == WRONG for difference in self.differences):
            return WRONG
        return EXACT if self.caught else UNDERPOWERED

    @property
    def sentence(self) -> str:
        """What was found, in one sentence with its numbers."""
        if self.status == WRONG:
            wrong = next(item for item in self.differences if item.kind == WRONG)
            return f"token ids differ from the target alone: {wrong}"
        same = self.num_outputs - len(self.differences)
        found = (
            f"{same} of {self.num_outputs} outputs ({self.num_tokens} tokens, "
            f"{self.num_rejected} drafts rejected) equal the target alone"
        )
        if self.differences:
            widest = max(self.differences, key=lambda item: item.gap or 0.0)
            found += f"; the others part at ties for the dtype, the widest a {widest}"
        if self.caught is None:
            return f"{found}; but so do those of a decoder that accepts every draft: more prompts"
        return f"{found}; a decoder that accepts every draft was caught ({self.caught.gap_text})"


def check_greedy(
    target: LanguageModel,
    draft: LanguageModel,
    items: Sequence[EncodedPrompt],
    sampling: Sampling,
    limits: Limits,
    gammas: Sequence[int],
    num_prompts: int,
    seed: int = 0,
) -> GreedyCheck:
    """Compare ids on the first `num_prompts` prompts, one by one and, at the last gamma, in one
    batch; and on more until the wrong decoder shows.

    sampling: of temperature 0, or any other that leaves one token.
    """
    caught: Difference | None = None
    outputs, compared = [], []  # of the target alone; beside each, what is held against it
    for index, item in enumerate(items):
        if index >= num_prompts and caught:
            break
        alone = _decode(target, None, 0, [item], sampling, limits, seed).tokens
        outputs += alone
        for gamma in gammas:
            decoded = _decode(target, draft, gamma, [item], sampling, limits, seed)
            compared.append((gamma, [item], alone, decoded))
        if not caught:
            wrong = _decode(target, draft, gammas[0], [item], sampling, limits, seed, accept_always)
            difference = examine(target, item, gammas[0], alone[0], wrong.tokens[0])
            caught = difference if difference and difference.kind == WRONG else None
    if num_prompts > 1:
        together = _decode(target, draft, gammas[-1], items[:num_prompts], sampling, limits, seed)
        compared.append((gammas[-1], list(items[:num_prompts]), outputs[:num_prompts], together))
    differences = [
        examine(target, item, gamma, own, speculative)
        for gamma, some, alone, decoded in compared
        for item, own, speculative in zip(some, alone, decoded.tokens, strict=True)
    ]
    counts = zip(*(_counts(decoded) for *_, decoded in compared), strict=True)
    num_outputs, tokens, accepted, rejected = (sum(column) for column in counts)
    return GreedyCheck(
        target.name, draft.name, sampling, tuple(gammas), num_outputs, tokens, accepted, rejected,
        tuple(one for one in differences if one), caught,
    )  # fmt: skip


def examine(
    target: LanguageModel,
    item: EncodedPrompt,
    gamma: int,
    alone: Sequence[int],
    speculative: Sequence[int],
) -> Difference | None:
    """The first difference of two outputs of the same prompt, with its gap and kind, or None."""
    shorter = min(len(alone), len(speculative))
    position = next((i for i in range(shorter) if alone[i] != speculative[i]), shorter)
    if position == len(alone) == len(speculative):
        return None
    ours, theirs = (row[position] if position < len(row) else None for row in (alone, speculative))
    given = list(alone[:position])
    one = forced_logits(target, item.token_ids, [given], one_by_one=True)[0, -1].double()
    # With one token more, since a block is never a single token: here it is not looked at.
    block = forced_logits(target, item.token_ids, [[*given, 0]])[0, -2].double()
    largest = max(float(row[row.isfinite()].abs().max()) for row in (one, block))
    allowed = tolerance(target.dtype, largest)
    gap = None
    if ours is not None and theirs is not None:
        widest = max(_gap(row, ours, theirs) for row in (one, block))
        gap = widest if isfinite(widest) else None
    return Difference(
        item.id, gamma, position, ours, theirs, _top2(one), _top2(block), gap, allowed,
        _kind(gap, allowed),
    )  # fmt: skip


def tolerance(dtype: str, largest_logit: float) -> float:
    """How wide a gap of two logits rounding may explain: units * eps * largest logit.

    dtype: of the weights, as a model says it ("float32", "float16+float32"); the coarsest
    counts. Never above 0.4.
    """
    names = [name for name in re.split(r"\W+", dtype) if name in UNITS] or ["float32"]
    relative = max(UNITS[name] * torch.finfo(getattr(torch, name)).eps for name in names)
    return min(relative * largest_logit, LARGEST_TOLERANCE)


def _decode(
    target: LanguageModel,
    draft: LanguageModel | None,
    gamma: int,
    items: Sequence[EncodedPrompt],
    sampling: Sampling,
    limits: Limits,
    seed: int,
    rule: AcceptRule = accept,
) -> Decoded:
    ids, prompts = [item.id for item in items], [item.token_ids for item in items]
    uniform = uniforms(seed, "exactness", ids, limits.max_new_tokens, gamma)
    return decode(target, draft, gamma, prompts, sampling, limits, uniform, rule=rule)


def _counts(decoded: Decoded) -> tuple[int, int, int, int]:
    """(outputs, tokens, accepted, rejected) of decoded prompts."""
    accepted = sum(sum(turn.num_accepted) for turn in decoded.rounds)
    tested = sum(sum(turn.num_tested) for turn in decoded.rounds)
    return len(decoded.tokens), sum(map(len, decoded.tokens)), accepted, tested - accepted


def _gap(logits: torch.Tensor, first: int, second: int) -> float:
    return abs(float(logits[first]) - float(logits[second]))


def _top2(logits: torch.Tensor) -> Top2:
    values, ids = logits.topk(2)
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))


def _kind(gap: float | None, allowed: float) -> str:
    if gap is None or not gap <= allowed:
        return WRONG
    return NEAR_TIE if gap else TIE
