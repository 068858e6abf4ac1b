"""Many short generations of a pair behind given prefixes, by the decoder that is on trial.

Owns how draws are batched and keyed. Knows nothing of laws and tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

from specbench.decoding import AcceptRule, decode, uniforms
from specbench.measure.exactness.behind import Behind
from specbench.measure.exactness.prefixes import Prefix
from specbench.models.protocol import LanguageModel
from specbench.records import Limits, Sampling

# With 1, the second token is the target's own behind an accepted draft; with 2 it is a draft.
GAMMAS = (1, 2)
# Rows of one call: enough for a CPU's matrix product, and what a large model's caches allow.
ROWS = 64


@dataclass(frozen=True)
class Drawn:
    """outcomes: the first two tokens (one, where it was the end) of each draw, by prefix."""

    outcomes: list[list[tuple[int, ...]]]
    num_accepted: int
    num_rejected: int


class Draws:
    """Many short generations of a pair behind the same prefixes, each with its own stream.

    num_draws: at each prefix, rounded up to full calls; a call has every prefix several times.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        prefixes: Sequence[Prefix],
        sampling: Sampling,
        num_draws: int,
        seed: int,
    ) -> None:
        self._copies = max(1, ROWS // len(prefixes))
        self._num_calls = ceil(num_draws / self._copies)
        self.num_draws = self._copies * self._num_calls
        self._rows = [prefix for prefix in prefixes for _ in range(self._copies)]
        self._prompts = [prefix.prompt for prefix in self._rows]
        self._sampling, self._seed = sampling, seed
        room = 2 * (max(GAMMAS) + 1)
        given = [prefix.tokens for prefix in self._rows]
        self._target = Behind(target, self._prompts, given, room)
        self._draft = Behind(draft, self._prompts, given, room)
        self._key = f"exactness {draft.name} {sampling}"

    def take(self, name: str, rule: AcceptRule) -> Drawn:
        """All draws under one rule. name: keys their streams."""
        outcomes: list[list[tuple[int, ...]]] = [[] for _ in self._rows[:: self._copies]]
        accepted = tested = 0
        for call in range(self._num_calls):
            gamma = GAMMAS[call % len(GAMMAS)]
            ids = [f"{call}/{row}" for row in range(len(self._rows))]
            uniform = uniforms(self._seed, f"{self._key} {name}", ids, gamma + 1, gamma)
            decoded = decode(
                self._target, self._draft, gamma, self._prompts, self._sampling,
                Limits(gamma + 1), uniform, rule=rule,
            )  # fmt: skip
            for row, tokens in enumerate(decoded.tokens):
                outcomes[row // self._copies].append(tuple(tokens[:2]))
            accepted += sum(chain.from_iterable(turn.num_accepted for turn in decoded.rounds))
            tested += sum(chain.from_iterable(turn.num_tested for turn in decoded.rounds))
        return Drawn(outcomes, accepted, tested - accepted)
