"""The weights of a T5 checkpoint, folded and fused once so that a step does less.

Owns what becomes of a transformers T5's parameters at load. Knows nothing of caches or batches.

Folded, because each is a product with a constant: the weight of every RMS norm and the
sqrt(d_model) of its mean go into the matrix after it, as does the scale d_model ** -0.5 of tied
logits. A matrix of float16 numbers, which `linear` can read in half the bytes, stays as it is,
and the constants become a gain on its rows. Fused: query, key and value of self-attention are
one matrix whose rows are ordered (head, q/k/v, d_kv), so that batch and heads merge into one
dimension without a copy; keys and values of all decoder layers' cross-attention are one matrix.
Padding pieces are cut from the head. Everything is folded in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from specbench.models.errors import ModelError
from specbench.models.linear import Linear, half_is_available, is_half_exact

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Normed:
    """A matrix (out, d_model) behind a norm; gain: (d_model), None where it is folded in."""

    matrix: Linear
    gain: Tensor | None


@dataclass(frozen=True)
class FeedForward:
    """wi (d_ff or, gated, 2 d_ff; d_model), wo (d_model, d_ff), and the activation between."""

    wi: Normed
    wo: Linear
    activation: Activation
    gated: bool


@dataclass(frozen=True)
class Attention:
    """The matrices around one attention. o: (d_model, inner).

    project: (3 inner, d_model), rows (head, q/k/v, d_kv); in cross-attention only the queries'.
    """

    project: Normed
    o: Linear


@dataclass(frozen=True)
class Layer:
    """One block; `cross` is None in an encoder."""

    own: Attention
    cross: Attention | None
    feed_forward: FeedForward


@dataclass(frozen=True)
class Stack:
    """Encoder or decoder. embedding: (pieces, d_model); relative_bias: (num_buckets, heads)."""

    embedding: Tensor
    layers: list[Layer]
    relative_bias: Tensor


@dataclass(frozen=True)
class T5Weights:
    """A whole model. cross_kv: (layers * 2 * inner, d_model) rows (layer, k/v, head, d_kv).

    head: (vocab_size, d_model). norm_floor: () float32, sqrt(d_model * epsilon) for `unit_rows`.
    """

    encoder: Stack
    decoder: Stack
    cross_kv: Normed
    head: Normed
    num_heads: int
    d_kv: int
    d_model: int
    norm_floor: Tensor
    dtype: torch.dtype
    max_distance: int

    def decoder_linears(self) -> list[Linear]:
        """The matrices that every decoder call multiplies by, the head among them."""
        linears = [self.head.matrix]
        for layer in self.decoder.layers:
            linears += [
                layer.own.project.matrix,
                layer.own.o,
                layer.feed_forward.wi.matrix,
                layer.feed_forward.wo,
            ]
            if layer.cross is not None:
                linears += [layer.cross.project.matrix, layer.cross.o]
        return linears


def fold(model: Any, vocab_size: int) -> T5Weights:
    """The weights of a transformers T5ForConditionalGeneration, its logits cut to vocab_size.

    Raises ModelError for an activation that T5 checkpoints do not use.
    """
    config = model.config
    floor = math.sqrt(config.d_model * config.layer_norm_epsilon)
    return T5Weights(
        encoder=_stack(model.encoder, config),
        decoder=_stack(model.decoder, config),
        cross_kv=_cross_kv(model),
        head=_head(model, config, vocab_size),
        num_heads=config.num_heads,
        d_kv=config.d_kv,
        d_model=config.d_model,
        norm_floor=torch.tensor(floor, dtype=torch.float32, device=model.device),
        dtype=model.dtype,
        max_distance=config.relative_attention_max_distance,
    )


def _stack(stack: Any, config: Any) -> Stack:
    attention = stack.block[0].layer[0].SelfAttention
    return Stack(
        embedding=stack.embed_tokens.weight.detach().clone(),
        layers=[_layer(block.layer, config) for block in stack.block],
        relative_bias=attention.relative_attention_bias.weight.detach().clone(),
    )


def _layer(parts: Any, config: Any) -> Layer:
    attention, norm = parts[0].SelfAttention, parts[0].layer_norm
    heads, d_kv = config.num_heads, config.d_kv
    by_head = [matrix.weight.view(heads, d_kv, -1) for matrix in (attention.q, attention.k)]
    by_head.append(attention.v.weight.view(heads, d_kv, -1))
    qkv = torch.stack(by_head, dim=1).reshape(3 * heads * d_kv, -1)
    return Layer(
        own=Attention(_after_norm(qkv, norm), Linear(attention.o.weight.detach())),
        cross=_cross(parts[1]) if len(parts) == 3 else None,
        feed_forward=_feed_forward(parts[-1], config),
    )


def _cross(part: Any) -> Attention:
    queries = _after_norm(part.EncDecAttention.q.weight, part.layer_norm)
    return Attention(queries, Linear(part.EncDecAttention.o.weight.detach()))


def _feed_forward(part: Any, config: Any) -> FeedForward:
    dense = part.DenseReluDense
    gated = config.is_gated_act
    wi = torch.cat([dense.wi_0.weight, dense.wi_1.weight]) if gated else dense.wi.weight
    return FeedForward(
        wi=_after_norm(wi, part.layer_norm),
        wo=Linear(dense.wo.weight.detach()),
        activation=_activation(config.dense_act_fn),
        gated=gated,
    )


def _activation(name: str) -> Activation:
    known: dict[str, Activation] = {
        "relu": torch.relu_,
        "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
        "gelu": F.gelu,
        "silu": F.silu,
    }
    if name not in known:
        raise ModelError(f"T5 activation {name!r}: supported are {', '.join(known)}")
    return known[name]


def _cross_kv(model: Any) -> Normed:
    rows = []
    for block in model.decoder.block:
        attention = block.layer[1].EncDecAttention
        rows += [attention.k.weight, attention.v.weight]
    return _after_norm(torch.cat(rows), model.encoder.final_layer_norm)


def _head(model: Any, config: Any, vocab_size: int) -> Normed:
    weight = model.lm_head.weight[:vocab_size]
    scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
    return _after_norm(weight, model.decoder.final_layer_norm, scale)


def _after_norm(weight: Tensor, norm: Any, scale: float = 1.0) -> Normed:
    """`weight` (out, d_model) for rows that `unit_rows` divided by their Euclidean length."""
    weight = weight.detach()
    gain: Tensor = norm.weight.detach().double() * (scale * math.sqrt(weight.shape[1]))
    if half_is_available() and is_half_exact(weight):
        return Normed(Linear(weight), gain.to(weight.dtype))
    return Normed(Linear((weight.double() * gain).to(weight.dtype)), None)
