"""Any other transformers model behind the decoder's protocol, by its own forward and cache.

Owns the calls of that forward; `cache` owns what is inside a cache. Knows nothing of how tokens
are chosen.

A batch is decoded as B states of one row each. It costs what B single decodings cost, and is
exact: no padding enters a cache that cannot be told about it. Only the lean T5 gains by batches.
The cross-attention part of an encoder-decoder's cache is filled once and never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.models.cache import cache_keyword, cache_length, crop, new_cache
from specbench.models.errors import ModelError
from specbench.models.protocol import State
from specbench.models.state import check_extend, check_rollback, check_start


@dataclass
class _Row:
    """One sequence. offset: cached tokens that `lengths` does not count (a causal prompt's)."""

    cache: Any
    offset: int = 0
    encoded: Any = None


@dataclass
class _Memory:
    capacity: int
    rows: list[_Row] = field(default_factory=list)


class TransformersModel:
    """A causal or encoder-decoder transformers model as a `LanguageModel`.

    num_encoder_calls: encoder passes since the model was made; 0 for a causal model.
    Raises ModelError for a cache that cannot be rolled back: sliding windows, recurrent states.
    """

    def __init__(
        self,
        name: str,
        network: Any,
        *,
        vocab_size: int,
        eos_token: int | None,
        start_token: int | None,
        dtype: str,
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.eos_token = eos_token
        self.start_token = start_token
        self.device = network.device
        self.dtype = dtype
        self.network = network
        self.num_encoder_calls = 0
        self.facts: dict[str, Any] = {}
        self._seq2seq = bool(network.config.is_encoder_decoder)
        if self._seq2seq and start_token is None:
            raise ModelError(f"model {name!r}: config.json has no decoder_start_token_id")
        self._keyword = cache_keyword(network)
        self._new_cache()  # refuses here, not at the first prompt

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        """A fresh state for B prompts; see `LanguageModel.start`.

        A causal model reads all of a prompt but its last token, which becomes the first of
        the tokens that `extend` is given.
        """
        check_start(prompts, capacity)
        memory = _Memory(capacity, [self._read(list(prompt)) for prompt in prompts])
        if self._seq2seq:
            first = [int(self.start_token or 0)] * len(prompts)
        else:
            first = [int(prompt[-1]) for prompt in prompts]
        tokens = torch.tensor(first, dtype=torch.long, device=self.device)
        return State(first_tokens=tokens, lengths=[0] * len(prompts), memory=memory)

    @torch.inference_mode()
    def extend(self, state: State, tokens: Tensor) -> Tensor:
        """Logits (B, K, V) after each of the new tokens; see `LanguageModel.extend`."""
        memory: _Memory = state.memory
        check_extend(state, tokens, memory.capacity)
        logits = [
            self._forward(row, tokens[index : index + 1]) for index, row in enumerate(memory.rows)
        ]
        state.lengths = [length + tokens.shape[1] for length in state.lengths]
        return torch.cat(logits)[..., : self.vocab_size].float()

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        """Forget the tokens of row b beyond lengths[b]; see `LanguageModel.rollback`.

        Raises ModelError when the cache does not come out as long as was asked.
        """
        check_rollback(state, lengths)
        for index, row in enumerate(state.memory.rows):
            crop(self.name, row.cache, row.offset + lengths[index])
        state.lengths = list(lengths)

    def _read(self, prompt: list[int]) -> _Row:
        """The state of a row after its prompt: the encoder's output, or the cached prompt."""
        ids = torch.tensor([prompt], dtype=torch.long, device=self.device)
        row = _Row(self._new_cache())
        if self._seq2seq:
            self.num_encoder_calls += 1
            row.encoded = self.network.get_encoder()(input_ids=ids)
        elif len(prompt) > 1:
            self._forward(row, ids[:, :-1])
            row.offset = len(prompt) - 1
        return row

    def _forward(self, row: _Row, tokens: Tensor) -> Tensor:
        """Logits (1, K, padded V) after tokens (1, K), which join the row's cache."""
        before = cache_length(row.cache)
        inputs: dict[str, Any] = {self._keyword: row.cache, "use_cache": True}
        if self._seq2seq:
            inputs |= {"decoder_input_ids": tokens, "encoder_outputs": row.encoded}
        else:
            inputs |= {"input_ids": tokens}
        logits: Tensor = self.network(**inputs).logits
        if cache_length(row.cache) != before + tokens.shape[1]:
            raise ModelError(f"model {self.name!r}: its forward did not fill its cache")
        return logits

    def _new_cache(self) -> Any:
        return new_cache(self.name, self.network)
