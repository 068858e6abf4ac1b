"""What should come behind a prefix: the target's own law of one or two tokens, in cells.

Owns how the law is computed (by the target alone, from fresh states) and how far rounding may
move it. The least length of outputs is left out: it depends on positions, the rule does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specbench.decoding import Rules, law
from specbench.measure.exactness.cells import Cells, Floats, TokenLaw, build_cells
from specbench.measure.exactness.greedy import tolerance
from specbench.measure.exactness.prefixes import Prefix
from specbench.measure.exactness.reference import forced_logits
from specbench.models.protocol import LanguageModel
from specbench.records import Limits, Sampling

# A second token is judged behind at most so many first tokens, each of so many draws or more.
MAX_FOLLOWED, LEAST_FOLLOWED = 3, 50
# Rounding is allowed twice the distance seen between two ways of computing the same law, which
# is four times the noncentrality.
ROUNDING_ALLOWANCE = 4.0
# At a filter's edge rounding may let in one token more, or this much more of top_p.
EDGE = 0.02


def reference(
    target: LanguageModel, draft: LanguageModel, prefix: Prefix, sampling: Sampling, num_draws: int
) -> tuple[Cells, float]:
    """The cells of a prefix with their probabilities, and the noncentrality left to rounding."""
    laws = _Laws(target, draft, prefix, sampling)
    first = laws.at([()])[0]
    likely = np.argsort(-first.p)[:MAX_FOLLOWED].tolist()
    followed = [
        token
        for token in likely
        if token != target.eos_token and num_draws * first.p[token] >= LEAST_FOLLOWED
    ]
    behind = [(token,) for token in followed]
    cells = build_cells(first, dict(zip(followed, laws.at(behind), strict=True)), num_draws)
    again = laws.in_block([()])[0]
    then = dict(zip(followed, laws.in_block(behind), strict=True))
    moved = cells.masses(again, then) - cells.probs
    seen = num_draws * float((moved**2 / cells.probs).sum())
    # Logits that are off by e move a probability by e / T of itself; more is no rounding.
    most = tolerance(target.dtype, laws.largest_logit) / sampling.temperature
    return cells, min(ROUNDING_ALLOWANCE * seen, num_draws * most**2)


class _Laws:
    """The laws of the token behind a prefix and a few more tokens, from fresh states."""

    def __init__(
        self, target: LanguageModel, draft: LanguageModel, prefix: Prefix, sampling: Sampling
    ) -> None:
        self._target, self._draft = target, draft
        self._prefix, self._sampling = prefix, sampling
        self.largest_logit = 0.0

    def at(self, behind: Sequence[tuple[int, ...]]) -> list[TokenLaw]:
        """One law for each of `behind`, one call a token, as the target decodes alone."""
        if not behind:
            return []
        top_k = self._sampling.top_k + 1 if self._sampling.top_k else 0
        top_p = min(1.0, self._sampling.top_p + EDGE)
        wider = Sampling(self._sampling.temperature, top_k, top_p)
        logits = self._logits(self._target, behind, one_by_one=True)
        largest = logits[logits.isfinite()].abs().max()
        self.largest_logit = max(self.largest_logit, float(largest))
        p, possible = self._probs(logits, self._sampling), self._probs(logits, wider)
        q = self._probs(self._logits(self._draft, behind), self._sampling)
        return [TokenLaw(a, b, wide > 0.0) for a, b, wide in zip(p, q, possible, strict=True)]

    def in_block(self, behind: Sequence[tuple[int, ...]]) -> list[Floats]:
        """p again, from one call over all tokens."""
        if not behind:
            return []
        return self._probs(self._logits(self._target, behind), self._sampling)

    def _logits(
        self, model: LanguageModel, behind: Sequence[tuple[int, ...]], one_by_one: bool = False
    ) -> torch.Tensor:
        outputs = [[*self._prefix.tokens, *tokens] for tokens in behind]
        if one_by_one:
            return forced_logits(model, self._prefix.prompt, outputs, one_by_one)[:, -1:]
        # With one token more, since a block is never a single token: here it is not looked at.
        outputs = [[*output, 0] for output in outputs]
        return forced_logits(model, self._prefix.prompt, outputs)[:, -2:-1]

    def _probs(self, logits: torch.Tensor, sampling: Sampling) -> list[Floats]:
        rules = Rules(sampling, Limits(1), self._target.eos_token)
        probs = law(logits, [0] * len(logits), rules)[:, 0].double()
        return list((probs / probs.sum(dim=-1, keepdim=True)).cpu().numpy())
