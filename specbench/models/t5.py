"""The lean T5: any T5 checkpoint behind the decoder's protocol, with little besides the products.

Owns the caches and their lengths. Knows nothing of how tokens are chosen or how a checkpoint is
found; `t5_weights` says what is folded at load, `t5_forward` what a pass does.

A cache of a layer is one buffer (capacity, B * H, 3, d_kv) that the fused query-key-value
product writes into; queries, keys and values are strided views of it. Nothing is copied when a
token comes, and to roll back is to lower a length. Rows of unequal length take the same path
but for two things: the product is scattered to each row's own place, and the bias is a stack
of one slice per row, which also hides what lies beyond a shorter row.

With a recorder, as on CUDA, a state borrows fixed buffers instead (`t5_static`): one launch for
a whole pass is worth attention over more than is there. On a CPU it would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.graphs import Recorder
from specbench.models.placement import placed
from specbench.models.protocol import State
from specbench.models.state import check_extend, check_rollback, check_start
from specbench.models.t5_attention import DecoderBias
from specbench.models.t5_forward import T5Memory, decode, encode
from specbench.models.t5_static import Lease, Pool, shape_for
from specbench.models.t5_weights import T5Weights

_Encoded = tuple[Tensor, Tensor, Tensor | None]  # what `encode` returns, and the padding
_BLOCK = 16  # queries that a bias strip holds at least; a longer block makes a longer strip


class LeanT5:
    """A T5 encoder-decoder as a `LanguageModel`.

    num_encoder_calls: encoder passes since the model was made, one for each `start`.
    layouts: the form chosen for each shape of weight and number of rows, see `tuning`.
    new_recorder: makes what records passes, see `graphs.recorders_for`; None takes shapes as
    they come.
    """

    def __init__(
        self,
        name: str,
        weights: T5Weights,
        *,
        vocab_size: int,
        eos_token: int | None,
        start_token: int,
        dtype: str,
        layouts: dict[str, dict[str, str]] | None = None,
        new_recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.eos_token = eos_token
        self.start_token = start_token
        self.device = weights.norm_floor.device
        self.dtype = dtype
        self.weights = weights
        self.layouts = layouts or {}
        self.num_encoder_calls = 0
        self.facts: dict[str, Any] = {}
        self._strip: DecoderBias | None = None
        self._pool = None if new_recorder is None else Pool(weights, new_recorder)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        """A fresh state for B prompts; see `LanguageModel.start`.

        Raises ValueError for no prompts, an empty one, or a capacity below 1.
        """
        check_start(prompts, capacity)
        batch, encoded = len(prompts), self._encoded(prompts)
        memory: T5Memory | Lease
        if self._pool is None:
            memory = self._memory(encoded, capacity)
        else:
            longest = max(map(len, prompts))
            memory = self._pool.lease(shape_for(batch, longest, capacity), capacity)
            memory.buffers.fill(*encoded)
        first = torch.full((batch,), self.start_token, dtype=torch.long, device=self.device)
        return State(first_tokens=first, lengths=[0] * batch, memory=memory)

    @torch.inference_mode()
    def extend(self, state: State, tokens: Tensor) -> Tensor:
        """Logits (B, K, V) after each of the new tokens; see `LanguageModel.extend`."""
        memory: T5Memory | Lease = state.memory
        check_extend(state, tokens, memory.capacity)
        batch, num_new = tokens.shape
        if isinstance(memory, Lease):
            logits = memory.buffers.logits(tokens.t(), state.lengths)
        else:
            bias = self._bias(state.lengths, num_new, memory.capacity)
            logits = decode(self.weights, memory, tokens.t(), state.lengths, bias).float()
        state.lengths = [length + num_new for length in state.lengths]
        return logits.view(num_new, batch, -1).transpose(0, 1)

    @torch.inference_mode()
    def prepare(
        self, batch: int, longest: int, capacity: int, widths: Sequence[int], num_states: int = 1
    ) -> None:
        """Record now what is recorded at first use otherwise, so that no clock meets it.

        For states of `batch` prompts of at most `longest` tokens and this capacity, `num_states`
        of them alive at once, and calls of `widths` tokens. Without a recorder: nothing to do.
        """
        if self._pool is not None:
            self._pool.prepare(shape_for(batch, longest, capacity), widths, num_states)

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        """Forget the tokens of row b beyond lengths[b]; see `LanguageModel.rollback`."""
        check_rollback(state, lengths)
        state.lengths = list(lengths)

    def _memory(self, encoded: _Encoded, capacity: int) -> T5Memory:
        """Memory of its own for a state, as large as it needs."""
        w, (keys, values, padding) = self.weights, encoded
        shape = (len(w.decoder.layers), capacity, keys.shape[1], 3, w.d_kv)
        # zeros, not empty: what is hidden still meets a weight of 0, and 0 * nan is nan
        cache = torch.zeros(shape, dtype=w.dtype, device=self.device)
        return T5Memory(cache, keys.unbind(0), values.unbind(0), padding)

    def _encoded(self, prompts: Sequence[Sequence[int]]) -> _Encoded:
        """Cross-attention keys, values and padding of each row; equal prompts are encoded once."""
        place = {prompt: index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        ids, padding = self._padded(list(place))
        self.num_encoder_calls += 1
        keys, values = encode(self.weights, ids, padding)
        if len(place) < len(prompts):
            rows = placed([place[tuple(prompt)] for prompt in prompts], self.device)
            keys, values = self._taken(keys, rows, 1), self._taken(values, rows, 1)
            padding = None if padding is None else self._taken(padding, rows, 0)
        return keys, values, padding

    def _taken(self, part: Tensor, rows: Tensor, dim: int) -> Tensor:
        """The rows of a tensor whose dimension `dim` is (B * H)."""
        split: Tensor = part.unflatten(dim, (-1, self.weights.num_heads))
        return split.index_select(dim, rows).flatten(dim, dim + 1)

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Ids (S, B) padded at the end, and the bias (B * H, 1, S) that hides the padding."""
        longest = max(map(len, prompts))
        rows = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        ids = placed(rows, self.device).t()
        ends = [len(prompt) for prompt in prompts]
        if min(ends) == longest:
            return ids, None
        place = torch.arange(longest, device=self.device)
        beyond = place >= placed(ends, self.device)[:, None]
        bias = torch.zeros(beyond.shape, dtype=self.weights.dtype, device=self.device)
        bias.masked_fill_(beyond, -torch.inf)
        return ids, bias.repeat_interleave(self.weights.num_heads, dim=0)[:, None]

    def _bias(self, lengths: Sequence[int], num_new: int, capacity: int) -> Tensor:
        """Causal relative bias of K queries per row, (H, K, N) or, for B > 1, (B * H, K, N)."""
        strip, num_keys = self._strip, max(lengths) + num_new
        if strip is None or strip.capacity < capacity or strip.block < num_new:
            table, distance = self.weights.decoder.relative_bias, self.weights.max_distance
            strip = DecoderBias(table, capacity, max(num_new, _BLOCK), distance)
            self._strip = strip
        if len(lengths) == 1:
            return strip.at(lengths[0], num_new, num_keys)
        rows = torch.stack([strip.at(length, num_new, num_keys) for length in lengths])
        return rows.flatten(0, 1)
