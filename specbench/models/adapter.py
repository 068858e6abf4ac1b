"""Any other transformers model behind the decoder's protocol, by its own forward and cache.

Owns the calls of that forward; `cache` owns what is inside a cache. Knows nothing of how tokens
are chosen.

A causal model to which columns of its cache mean nothing (`cache.ignores_columns`) decodes a batch
together, in one cache. A token that a row has rolled back stays in its column as a hole, masked
for that row, until no row holds that column or a later one; what counts is the position that the
forward is told. A prompt is padded behind its end, where causal attention cannot look. Two rows,
prompts of 3 and 1 tokens, behind a round of 2 drafts of which the second row kept one:

    column     0    1    2    3    4    5
    row 0      p0   p1   x0   x1   x2   ...
    row 1      -    -    y0   y1   -    ...     - padding or hole, hidden from row 1

So a cache may hold more columns than the longest row has tokens, up to gamma + 1 a round.
Other models (an encoder-decoder's forward counts its positions by columns) decode a batch as B
caches of one row each, exact too, at the cost of B single decodings. The cross-attention part of
a cache is filled once and never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.models.cache import (
    cache_keyword,
    cache_length,
    crop,
    ignores_columns,
    new_cache,
)
from specbench.models.errors import ModelError
from specbench.models.placement import placed
from specbench.models.protocol import State
from specbench.models.quiet import hush_about_masks
from specbench.models.state import check_extend, check_rollback, check_start


@dataclass
class _Group:
    """Rows that share a cache.

    rows: their places in the batch. offset: tokens of each that `lengths` does not count, a causal
    prompt's. columns: where in the cache the tokens of each lie, those first.
    """

    cache: Any
    rows: range
    offset: list[int]
    columns: list[list[int]]
    encoded: Any = None

    def keep(self, lengths: Sequence[int]) -> int:
        """Let go of what lies beyond `lengths` tokens behind the prompts; the columns in use."""
        for held, offset, length in zip(self.columns, self.offset, lengths, strict=True):
            del held[offset + length :]
        return max((held[-1] + 1 for held in self.columns if held), default=0)

    def lacks_nothing(self) -> bool:
        """Whether every row holds every column, so that there is nothing to hide."""
        return all(len(held) == cache_length(self.cache) for held in self.columns)


@dataclass
class _Memory:
    capacity: int
    groups: list[_Group]


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
        self._together = not self._seq2seq and ignores_columns(network)
        self._new_cache()  # refuses here, not at the first prompt
        hush_about_masks()

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        """A fresh state for B prompts; see `LanguageModel.start`.

        A causal model reads all of a prompt but its last token, which becomes the first of
        the tokens that `extend` is given.
        """
        check_start(prompts, capacity)
        every = range(len(prompts))
        parts = [every] if self._together else [every[row : row + 1] for row in every]
        memory = _Memory(capacity, [self._read(rows, prompts) for rows in parts])
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
            self._forward(group, tokens[group.rows.start : group.rows.stop])
            for group in memory.groups
        ]
        state.lengths = [length + tokens.shape[1] for length in state.lengths]
        return torch.cat(logits)[..., : self.vocab_size].float()

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        """Forget the tokens of row b beyond lengths[b]; see `LanguageModel.rollback`.

        Raises ModelError when a cache does not come out as long as was asked.
        """
        check_rollback(state, lengths)
        for group in state.memory.groups:
            crop(self.name, group.cache, group.keep([lengths[row] for row in group.rows]))
        state.lengths = list(lengths)

    def _read(self, rows: range, prompts: Sequence[Sequence[int]]) -> _Group:
        """The state of some rows after their prompts: the encoder's output, or cached prompts."""
        group = _Group(self._new_cache(), rows, [0 for _ in rows], [[] for _ in rows])
        given = [list(prompts[row]) for row in rows]
        if self._seq2seq:
            self.num_encoder_calls += 1
            ids = torch.tensor(given, dtype=torch.long, device=self.device)
            group.encoded = self.network.get_encoder()(input_ids=ids)
            return group
        group.offset = [len(prompt) - 1 for prompt in given]
        longest = max(group.offset)
        if longest:
            padded = [(prompt[:-1] + [prompt[-1]] * longest)[:longest] for prompt in given]
            self._forward(group, torch.tensor(padded, dtype=torch.long, device=self.device))
            for held, count in zip(group.columns, group.offset, strict=True):
                del held[count:]
        return group

    def _forward(self, group: _Group, tokens: Tensor) -> Tensor:
        """Logits (rows, K, padded V) after tokens (rows, K), which join the group's cache."""
        before, num_new = cache_length(group.cache), tokens.shape[1]
        inputs: dict[str, Any] = {self._keyword: group.cache, "use_cache": True}
        if self._seq2seq:
            inputs |= {"decoder_input_ids": tokens, "encoder_outputs": group.encoded}
        else:
            inputs |= {"input_ids": tokens}
        if not group.lacks_nothing():
            inputs |= self._seen(group, before, num_new)
        logits: Tensor = self.network(**inputs).logits
        if cache_length(group.cache) != before + num_new:
            raise ModelError(f"model {self.name!r}: its forward did not fill its cache")
        for held in group.columns:
            held.extend(range(before, before + num_new))
        return logits

    def _seen(self, group: _Group, before: int, num_new: int) -> dict[str, Tensor]:
        """What each row may look at, (rows, before + K), and its own positions, (rows, K)."""
        mask = [[0] * before + [1] * num_new for _ in group.rows]
        for seen, held in zip(mask, group.columns, strict=True):
            for column in held:
                seen[column] = 1
        positions = [[*range(len(held), len(held) + num_new)] for held in group.columns]
        return {
            "attention_mask": placed(mask, self.device),
            "position_ids": placed(positions, self.device),
        }

    def _new_cache(self) -> Any:
        return new_cache(self.name, self.network)
