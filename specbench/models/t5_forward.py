"""The passes of a T5: the encoder over prompts, the decoder over a block of new tokens.

Owns the order of a layer's kernels and the views of the cache. Knows nothing of `State`.
A decoder step is bound by reading weights and, on small models, by the number of kernels, so
whatever is the same for all layers (views, bias) is made once per call, outside their loop.

Tried and lost, microseconds of one thread at 8 heads of 32: scaled_dot_product_attention 13 to
18 against 10 to 13 of two products and a softmax, and 87 against 61 for 16 rows of a batch;
torch's rms_norm 15 against 8 (three kernels) or 10 (four).

Compiling, milliseconds of one thread for `decode_static` at 1 and 5 tokens, 15 layers of width
256, medians taken in turns: as it is 8.8 and 10.8 (`decode` 7.8 and 9.6), torch.compile on plain
matrices 18.7 and 25.5, for 64 to 111 s of compiling per shape; ahead of time with frozen weights
14.7 and 20.6 (`decode` then 7.3 and 10.4), for 47 to 58 s. One layer of width 128: .43 and .90,
frozen .75 and 1.21. Inductor cannot trace the float16 product, which is worth more than what it
fuses; before there was one it gave 1.94 -> 1.66.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specbench.models.placement import placed
from specbench.models.t5_attention import attend, encoder_bias, unit_rows
from specbench.models.t5_weights import Attention, FeedForward, Layer, Normed, T5Weights

_Fill = Callable[[int, Layer, Tensor], Tensor]
"""Puts a layer's new keys and values into the cache; returns its queries (B * H, K, d_kv)."""


@dataclass(frozen=True)
class T5Memory:
    """What a T5 keeps of B sequences whose prompts have at most S tokens.

    cache: (layers, capacity, B * H, 3, d_kv), queries, keys and values by position.
    cross_keys: per layer (B * H, d_kv, S); cross_values: per layer (B * H, S, d_kv).
    cross_bias: (B * H, 1, S), 0 or -inf at padding; None where nothing is padded.
    """

    cache: Tensor
    cross_keys: tuple[Tensor, ...]
    cross_values: tuple[Tensor, ...]
    cross_bias: Tensor | None

    @property
    def capacity(self) -> int:
        """The most tokens of a row that fit."""
        return self.cache.shape[1]


def encode(weights: T5Weights, ids: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cross-attention keys (layers, B * H, d_kv, S) and values (layers, B * H, S, d_kv).

    ids: (S, B) int64, positions first. padding: (B * H, 1, S), 0 or -inf; None hides nothing.
    """
    w, (length, batch) = weights, ids.shape
    merged = batch * w.num_heads
    bias = encoder_bias(w.encoder.relative_bias, length, w.max_distance)
    if batch > 1:
        bias = bias.repeat(batch, 1, 1)
    if padding is not None:
        bias = bias + padding
    hidden = F.embedding(ids.reshape(-1), w.encoder.embedding)
    for layer in w.encoder.layers:
        fused = _project(w, layer.own.project, hidden).view(length, merged, 3, w.d_kv)
        queries, keys, values = fused.permute(2, 1, 0, 3).unbind(0)
        mixed = attend(queries, keys.transpose(1, 2), values, bias, length * batch)
        hidden = layer.own.o.added(hidden, mixed)
        hidden = _feed_forward(w, layer.feed_forward, hidden)
    kv = _project(w, w.cross_kv, hidden)
    kv = kv.view(length, batch, len(w.decoder.layers), 2, w.num_heads, w.d_kv)
    keys = kv[:, :, :, 0].permute(2, 1, 3, 4, 0).reshape(-1, merged, w.d_kv, length)
    values = kv[:, :, :, 1].permute(2, 1, 3, 0, 4).reshape(-1, merged, length, w.d_kv)
    return keys, values


def decode(
    weights: T5Weights, memory: T5Memory, tokens: Tensor, lengths: Sequence[int], bias: Tensor
) -> Tensor:
    """Logits (K * B, V), positions first, of new tokens (K, B); fills their place in the cache.

    lengths: the tokens that each row has in the cache. bias: broadcastable to (B * H, K, N)
    with N = max(lengths) + K; it hides from each query what its row does not hold before it.
    """
    num_new = tokens.shape[0]
    if min(lengths) == max(lengths):
        fill = _even_writer(memory.cache, lengths, num_new)
    else:
        fill = _scattering_writer(memory.cache, placed(lengths, tokens.device), num_new)
    return _layers(weights, memory, tokens, max(lengths) + num_new, fill, bias)


def decode_static(
    weights: T5Weights, memory: T5Memory, tokens: Tensor, lengths: Tensor, bias: Tensor
) -> Tensor:
    """What `decode` returns, by kernels that are the same whatever the lengths are.

    lengths: (B,) int64 on the device. bias: broadcastable to (B * H, K, capacity). The price is
    attention over the whole capacity; what is gained is that the kernels can be recorded once.
    """
    fill = _scattering_writer(memory.cache, lengths, tokens.shape[0])
    return _layers(weights, memory, tokens, memory.capacity, fill, bias)


def _layers(
    w: T5Weights, memory: T5Memory, tokens: Tensor, num_keys: int, fill: _Fill, bias: Tensor
) -> Tensor:
    """The decoder's layers and its head, over the first `num_keys` positions of the cache."""
    num_rows = tokens.numel()
    used = memory.cache[:, :num_keys]
    keys = used[:, :, :, 1].permute(0, 2, 3, 1).unbind(0)
    values = used[:, :, :, 2].transpose(1, 2).unbind(0)
    hidden = F.embedding(tokens.reshape(-1), w.decoder.embedding)
    for index, layer in enumerate(w.decoder.layers):
        rows = unit_rows(hidden, w.norm_floor, layer.own.project.gain)
        queries = fill(index, layer, rows)
        mixed = attend(queries, keys[index], values[index], bias, num_rows)
        hidden = layer.own.o.added(hidden, mixed)
        if layer.cross is not None:
            hidden = _cross(w, memory, index, layer.cross, hidden)
        hidden = _feed_forward(w, layer.feed_forward, hidden)
    return _project(w, w.head, hidden)


def _even_writer(cache: Tensor, lengths: Sequence[int], num_new: int) -> _Fill:
    """Rows of one length: the product lands in the cache, and its queries are a view of it."""
    new = cache[:, lengths[0] : lengths[0] + num_new]
    slots = new.view(new.shape[0], num_new * len(lengths), -1).unbind(0)
    queries = new[:, :, :, 0].transpose(1, 2).unbind(0)

    def fill(index: int, layer: Layer, rows: Tensor) -> Tensor:
        layer.own.project.matrix.into(slots[index], rows)
        return queries[index]

    return fill


def _scattering_writer(cache: Tensor, lengths: Tensor, num_new: int) -> _Fill:
    """Rows of any lengths (B,): the product is scattered, position by position, to their places."""
    batch = len(lengths)
    positions = torch.arange(num_new, device=cache.device)[:, None] + lengths
    places = (positions * batch + torch.arange(batch, device=cache.device)).reshape(-1)
    slots = cache.view(cache.shape[0], cache.shape[1] * batch, -1).unbind(0)

    def fill(index: int, layer: Layer, rows: Tensor) -> Tensor:
        fused = layer.own.project.matrix(rows)
        slots[index].index_copy_(0, places, fused)
        return fused.view(num_new, *cache.shape[2:])[:, :, 0].transpose(0, 1)

    return fill


def _project(w: T5Weights, part: Normed, hidden: Tensor) -> Tensor:
    return part.matrix(unit_rows(hidden, w.norm_floor, part.gain))


def _cross(
    w: T5Weights, memory: T5Memory, index: int, attention: Attention, hidden: Tensor
) -> Tensor:
    keys, values = memory.cross_keys[index], memory.cross_values[index]
    queries = _project(w, attention.project, hidden)
    queries = queries.view(-1, keys.shape[0], w.d_kv).transpose(0, 1)
    mixed = attend(queries, keys, values, memory.cross_bias, hidden.shape[0])
    return attention.o.added(hidden, mixed)


def _feed_forward(w: T5Weights, dense: FeedForward, hidden: Tensor) -> Tensor:
    inner = _project(w, dense.wi, hidden)
    if dense.gated:
        gate, linear = inner.chunk(2, dim=-1)
        inner = dense.activation(gate) * linear
    else:
        inner = dense.activation(inner)
    return dense.wo.added(hidden, inner)
