"""The one way a decoder sees a model: start on prompts, extend by tokens, roll back.

Owns the protocol and nothing else. Anything that can say the next-token logits of a sequence
fits it: T5, causal models, n-grams, copying from the prompt, table look-ups in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass
class State:
    """What a model remembers of a batch of B sequences.

    first_tokens: (B,) int64, the token each sequence begins with before anything is committed:
    the decoder start token, or the last prompt token of a causal model. It is the first token
    that `extend` is given, and it is never counted as committed.
    lengths: B integers on the host, the tokens that `extend` has taken and `rollback` has
    left in the cache, row by row; 0 after `start`.
    memory: the model's own: caches, encoder output, masks. Nobody else looks inside.
    """

    first_tokens: torch.Tensor
    lengths: list[int]
    memory: Any = None


class LanguageModel(Protocol):
    """A model as a decoder sees it; B rows, K tokens per row, V real tokens.

    name: as the user wrote it. vocab_size: V, the tokenizer's size: logits of padding pieces
    beyond it never leave the model. eos_token: its id, or None where the model has none.
    device: where logits live. dtype: of the weights, as recorded ("float32", "float16+float32").
    """

    name: str
    vocab_size: int
    eos_token: int | None
    device: torch.device
    dtype: str

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        """A fresh state for B prompts of token ids; the encoder runs here and only here.

        capacity: the most tokens that will ever be in the cache of a row at once.
        """
        ...

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        """Logits after each of the new tokens, (B, K, V), float32 on `device`.

        tokens: (B, K) int64. Row b's tokens follow its first `state.lengths[b]` ones; every
        length grows by K. Raises ValueError when a row would outgrow the capacity.
        """
        ...

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        """Forget the tokens of row b beyond lengths[b]; the encoder's part is never cut.

        Raises ValueError when a length is negative or above the present one.
        """
        ...
