"""Transformers' caches: made, measured and cut in this one place.

Owns the only knowledge of transformers' cache interface (5.17 to 5.24): its keyword, named
`past_key_values` before 5.24 and `cache` since, and `crop`, which both take as a negative count
of tokens to remove. Nothing else in the package looks inside a cache.
"""

from __future__ import annotations

import inspect
from typing import Any

from specbench.models.errors import ModelError

_CROPPABLE = ("DynamicLayer", "DynamicIndexedLayer")
_POSITIONED = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


def new_cache(name: str, network: Any) -> Any:
    """An empty cache for a model, with a cross-attention part for an encoder-decoder.

    Raises ModelError where a layer keeps something that cannot be cut back exactly: a sliding
    window has let go of old tokens, a recurrent state has mixed them.
    """
    from transformers import DynamicCache, EncoderDecoderCache

    both = network.config.is_encoder_decoder
    # the decoder's own configuration: it alone counts right where the depths are unequal
    config = network.get_decoder().config if both else network.config
    own = DynamicCache(config=config)
    for layer in own.layers:
        if type(layer).__name__ not in _CROPPABLE:
            raise ModelError(
                f"model {name!r}: its cache has a {type(layer).__name__}, which cannot be rolled "
                "back exactly; models with full attention in every layer are supported"
            )
    return EncoderDecoderCache(own, DynamicCache(config=config)) if both else own


def cache_keyword(network: Any) -> str:
    """The name under which this transformers' forward takes a cache."""
    known = inspect.signature(network.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def ignores_columns(network: Any) -> bool:
    """Whether only its positions and its mask say where a token is, not the cache's columns.

    Known by name, from comparing ragged batches with single rows: a signature does not tell
    (GPT-Neo takes positions, and counts its local windows in columns). Frequencies that follow
    the longest row (dynamic, longrope) would let one row change another.
    """
    rope = getattr(network.config, "rope_parameters", None) or {}
    by_length = rope.get("rope_type", "default") in ("dynamic", "longrope")
    return network.config.model_type in _POSITIONED and not by_length


def cache_length(cache: Any) -> int:
    """Decoder tokens in the cache; the encoder's part is not asked."""
    return int(cache.get_seq_length())


def crop(name: str, cache: Any, length: int) -> None:
    """Cut the decoder's part back to `length` tokens; an encoder-decoder's cross part stays.

    Raises ModelError when the cache does not come out at that length.
    """
    surplus = cache_length(cache) - length
    if surplus:
        cache.crop(-surplus)
    if cache_length(cache) != length:
        raise ModelError(
            f"model {name!r}: its cache kept {cache_length(cache)} tokens when cut to {length}"
        )
