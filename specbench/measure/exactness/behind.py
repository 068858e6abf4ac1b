"""A model whose outputs begin behind given prefixes, so that a decoder draws what comes next.

Owns nothing but an offset: it is the model itself, and each fresh start is a rollback to the
prefixes. The encoder runs once for as many draws as are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.models.protocol import LanguageModel, State


class Behind:
    """`model` behind B prefixes of the outputs of B prompts; a `LanguageModel` itself.

    prompts, prefixes: B rows of token ids each; a prefix may be empty. room: the most tokens
    that will follow a prefix in the cache. One generation at a time: `start` begins the next.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        room: int,
    ) -> None:
        self.name, self.dtype, self.device = model.name, model.dtype, model.device
        self.vocab_size, self.eos_token = model.vocab_size, model.eos_token
        self._model, self._room = model, room
        self._offsets = [len(prefix) for prefix in prefixes]
        longest = max(self._offsets)
        self._state = model.start(prompts, longest + room)
        first = self._state.first_tokens.tolist()
        rows = [[token, *prefix] for token, prefix in zip(first, prefixes, strict=True)]
        self._first_tokens = torch.tensor([row[-1] for row in rows], device=self.device)
        if longest:
            padded = [(row[:-1] + row[:1] * longest)[:longest] for row in rows]
            model.extend(self._state, torch.tensor(padded, device=self.device))

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        """The prefixes again, as if nothing had followed them; the rows are those given before.

        Raises ValueError for another number of prompts or a capacity beyond `room`.
        """
        if len(prompts) != len(self._offsets) or capacity > self._room:
            raise ValueError(
                f"{len(prompts)} prompts with capacity {capacity}: expected "
                f"{len(self._offsets)} prompts and at most {self._room}"
            )
        self._model.rollback(self._state, self._offsets)
        return State(self._first_tokens, [0] * len(self._offsets), None)

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        """Logits after each of the new tokens; see `LanguageModel.extend`."""
        logits = self._model.extend(self._state, tokens)
        state.lengths = [length + tokens.shape[1] for length in state.lengths]
        return logits

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        """Forget the tokens of row b beyond lengths[b]; a prefix is never cut."""
        pairs = zip(self._offsets, lengths, strict=True)
        self._model.rollback(self._state, [offset + length for offset, length in pairs])
        state.lengths = list(lengths)
