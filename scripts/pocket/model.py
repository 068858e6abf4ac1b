"""A compact T5 (1.0 layout) for training on a CPU, and its export to transformers.

Same function as ``T5ForConditionalGeneration`` with a relu feed-forward and tied
embeddings, with two changes that only training sees: query, key and value share
one matrix product, and queries are divided by sqrt(d_kv) (transformers' T5 keeps
that factor inside ``q``; :meth:`PocketT5.to_transformers` folds it in, and
``export`` compares the two forwards). No dropout: the data is seen a few times only.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB = 8064  # 8,000 pieces padded to a multiple of 128, as T5 pads
BUCKETS, MAX_DISTANCE = 32, 128


@dataclass(frozen=True)
class Shape:
    """Sizes of one model; the encoder and the decoder both have ``depth`` layers."""

    depth: int
    width: int = 256
    hidden: int = 512
    heads: int = 8
    d_kv: int = 32


class Attention(nn.Module):
    """Multi-head attention; ``forward`` returns the output and the probabilities (B, H, T, S)."""

    def __init__(self, shape: Shape, cross: bool) -> None:
        super().__init__()
        inner, width = shape.heads * shape.d_kv, shape.width
        self.heads, self.d_kv, self.cross = shape.heads, shape.d_kv, cross
        self.qkv = nn.Parameter(torch.randn(3 * inner, width) * width**-0.5)
        self.o = nn.Parameter(torch.randn(width, inner) * inner**-0.5 * 0.5)

    def split(self, x: Tensor, parts: int) -> Tensor:
        """Return (parts, B, H, T, d_kv) from (B, T, parts*H*d_kv)."""
        return x.view(*x.shape[:2], parts, self.heads, self.d_kv).permute(2, 0, 3, 1, 4)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Return keys and values (2, B, H, S, d_kv) of what is attended to."""
        return self.split(F.linear(memory, self.qkv[self.heads * self.d_kv :]), 2)

    def forward(
        self, x: Tensor, bias: Tensor, keys_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (B, T, width) and the probabilities; ``bias`` is added to the scores."""
        if keys_values is None:
            query, key, value = self.split(F.linear(x, self.qkv), 3)
        else:
            query = self.split(F.linear(x, self.qkv[: self.heads * self.d_kv]), 1)[0]
            key, value = keys_values
        scores = torch.matmul(query * self.d_kv**-0.5, key.transpose(-1, -2)) + bias
        probs = scores.softmax(-1)
        mixed = torch.matmul(probs, value).transpose(1, 2).reshape(*x.shape[:2], -1)
        return F.linear(mixed, self.o), probs


class Layer(nn.Module):
    """Pre-norm residual layer: self-attention, cross-attention in a decoder, feed-forward."""

    def __init__(self, shape: Shape, cross: bool) -> None:
        super().__init__()
        self.self_attn = Attention(shape, cross=False)
        self.cross_attn = Attention(shape, cross=True) if cross else None
        self.norms = nn.Parameter(torch.ones(3 if cross else 2, shape.width))
        self.wi = nn.Parameter(torch.randn(shape.hidden, shape.width) * shape.width**-0.5)
        self.wo = nn.Parameter(torch.randn(shape.width, shape.hidden) * shape.hidden**-0.5 * 0.5)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with the feed-forward part added."""
        return x + F.linear(F.linear(norm(x, self.norms[-1]), self.wi).relu_(), self.wo)


class PocketT5(nn.Module):
    """Encoder, decoder and the tied embedding; logits have ``VOCAB`` columns."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(torch.randn(VOCAB, shape.width))
        self.encoder = nn.ModuleList(Layer(shape, cross=False) for _ in range(shape.depth))
        self.decoder = nn.ModuleList(Layer(shape, cross=True) for _ in range(shape.depth))
        self.final_norms = nn.Parameter(torch.ones(2, shape.width))
        self.encoder_bias = nn.Parameter(torch.randn(BUCKETS, shape.heads) * 0.1)
        self.decoder_bias = nn.Parameter(torch.randn(BUCKETS, shape.heads) * 0.1)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoder states (B, S, width) and the additive padding mask (B, 1, 1, S)."""
        mask = (source == 0)[:, None, None] * -1e9
        bias = position_bias(self.encoder_bias, source.shape[1], both_ways=True) + mask
        x = F.embedding(source, self.embed)
        for layer in self.encoder:
            x = x + layer.self_attn(norm(x, layer.norms[0]), bias)[0]
            x = layer.feed_forward(x)
        return norm(x, self.final_norms[0]), mask

    def decode(self, inputs: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return final states (B, T, width), for ``logits``, and each layer's cross-attention."""
        length = inputs.shape[1]
        causal = torch.full((length, length), -1e9).triu(1)
        bias = position_bias(self.decoder_bias, length, both_ways=False) + causal
        x, crossed = F.embedding(inputs, self.embed), []
        for layer in self.decoder:
            x = x + layer.self_attn(norm(x, layer.norms[0]), bias)[0]
            cross = layer.cross_attn
            mixed, probs = cross(norm(x, layer.norms[1]), mask, cross.keys_values(memory))
            crossed.append(probs)
            x = layer.feed_forward(x + mixed)
        return norm(x, self.final_norms[1]) * self.shape.width**-0.5, crossed

    def logits(self, states: Tensor) -> Tensor:
        """Return logits (..., VOCAB) of states that ``decode`` or ``step`` returned."""
        return F.linear(states, self.embed)

    def start(self, source: Tensor, limit: int) -> dict[str, Tensor | int | list]:
        """Return the cached state for decoding up to ``limit`` tokens from ``source`` (B, S)."""
        memory, mask = self.encode(source)
        batch, heads, d_kv = len(source), self.shape.heads, self.shape.d_kv
        return {
            "length": 0,
            "mask": mask,
            "bias": position_bias(self.decoder_bias, limit, both_ways=False),
            "cross": [layer.cross_attn.keys_values(memory).contiguous() for layer in self.decoder],
            "self": [torch.zeros(2, batch, heads, limit, d_kv) for _ in self.decoder],
        }

    def step(self, token: Tensor, state: dict) -> Tensor:
        """Return logits (B, VOCAB) after one more token (B,); ``state`` grows by one position."""
        at = state["length"]
        bias = state["bias"][:, :, at : at + 1, : at + 1]
        x = F.embedding(token[:, None], self.embed)
        for layer, cache, crossed in zip(self.decoder, state["self"], state["cross"], strict=True):
            attn, h = layer.self_attn, norm(x, layer.norms[0])
            cache[:, :, :, at] = attn.keys_values(h)[:, :, :, 0]
            x = x + attn(h, bias, cache[:, :, :, : at + 1])[0]
            x = x + layer.cross_attn(norm(x, layer.norms[1]), state["mask"], crossed)[0]
            x = layer.feed_forward(x)
        state["length"] = at + 1
        return self.logits(norm(x, self.final_norms[1]) * self.shape.width**-0.5)[:, 0]

    def to_transformers(self) -> dict[str, Tensor]:
        """Return the weights under the names of ``T5ForConditionalGeneration``."""
        out = {"shared.weight": self.embed}
        for side, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            for i, layer in enumerate(layers):
                parts = {"SelfAttention": layer.self_attn}
                if layer.cross_attn is not None:
                    parts["EncDecAttention"] = layer.cross_attn
                for j, (name, attn) in enumerate(parts.items()):
                    query, key, value = attn.qkv.chunk(3)
                    path = f"{side}.block.{i}.layer.{j}."
                    for letter, weight in zip(
                        "qkvo", (query * attn.d_kv**-0.5, key, value, attn.o), strict=True
                    ):
                        out[f"{path}{name}.{letter}.weight"] = weight
                    out[f"{path}layer_norm.weight"] = layer.norms[j]
                path = f"{side}.block.{i}.layer.{len(parts)}."
                out[f"{path}layer_norm.weight"] = layer.norms[-1]
                out[f"{path}DenseReluDense.wi.weight"] = layer.wi
                out[f"{path}DenseReluDense.wo.weight"] = layer.wo
            bias = self.encoder_bias if side == "encoder" else self.decoder_bias
            out[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = bias
            out[f"{side}.final_layer_norm.weight"] = self.final_norms[int(side == "decoder")]
        return {name: weight.detach().clone().contiguous() for name, weight in out.items()}


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return T5's layer norm: divided by the root mean square, no mean, no bias."""
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def position_bias(table: Tensor, length: int, *, both_ways: bool) -> Tensor:
    """Return T5's relative position bias (1, H, length, length) from its (BUCKETS, H) table."""
    at = torch.arange(length)
    return table[buckets(at[None] - at[:, None], both_ways)].permute(2, 0, 1)[None]


def buckets(relative: Tensor, both_ways: bool) -> Tensor:
    """Return T5's bucket of each relative position (key - query): exact near, logarithmic far."""
    count, offset = BUCKETS, torch.zeros_like(relative)
    if both_ways:
        count //= 2
        offset = (relative > 0) * count
        distance = relative.abs()
    else:
        distance = (-relative).clamp(min=0)
    exact = count // 2
    far = exact + (
        (distance.clamp(min=1).float() / exact).log()
        / math.log(MAX_DISTANCE / exact)
        * (count - exact)
    ).long().clamp(max=count - exact - 1)
    return offset + torch.where(distance < exact, distance, far)


def grow(model: PocketT5, depth: int, keep: float = 0.7) -> PocketT5:
    """Return a deeper model of nearly the same function: each layer becomes a run of copies.

    A layer adds ``f(x)`` to the residual stream. Its first copy adds ``keep * f(x)`` and the others
    share the rest, so their sum stays close to ``f`` (exactly, but for ``f``'s reaction to its own
    addition), while every layer works and learns from the first step. Copies with *zero* output
    keep the function exactly, but their inner weights get no gradient until the output has grown.
    """
    grown = PocketT5(replace(model.shape, depth=depth))
    old = len(model.encoder)
    origins = [i * old // depth for i in range(depth)]
    for side in ("encoder", "decoder"):
        layers = nn.ModuleList()
        for i, origin in enumerate(origins):
            layer = deepcopy(getattr(model, side)[origin])
            copies = origins.count(origin)
            first = i == origins.index(origin)
            share = 1.0 if copies == 1 else keep if first else (1 - keep) / (copies - 1)
            with torch.no_grad():
                for weight in (
                    layer.self_attn.o,
                    layer.wo,
                    *([layer.cross_attn.o] if layer.cross_attn else []),
                ):
                    weight.mul_(share)
            layers.append(layer)
        setattr(grown, side, layers)
    for name in ("embed", "final_norms", "encoder_bias", "decoder_bias"):
        setattr(grown, name, nn.Parameter(getattr(model, name).detach().clone()))
    return grown
