"""Models by name: found, checked, loaded, and described for the record.

Owns the way from a name to a `LanguageModel`, and what is recorded of it. T5 checkpoints get
the lean decoder; every other architecture runs through transformers' own forward.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from specbench.models.adapter import TransformersModel
from specbench.models.errors import ModelError
from specbench.models.family import family_of, task_prefixes
from specbench.models.graphs import recorders_for
from specbench.models.placement import resolve_device, resolve_dtype
from specbench.models.quiet import quiet
from specbench.models.sources import Source, fingerprint, locate
from specbench.models.t5 import LeanT5
from specbench.models.t5_weights import fold
from specbench.models.tokenizer import Tokenizer, load_config, load_tokenizer
from specbench.models.tuning import tune

_LEAN = ("t5", "mt5")

LoadedModel = LeanT5 | TransformersModel


def load_model(
    name: str,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    tokenizer: Tokenizer | None = None,
    lean: bool = True,
) -> LoadedModel:
    """The model `name`, ready to decode; its `facts` are what `describe` returns.

    device, dtype: as `resolve_device` and `resolve_dtype` take them, or torch's own objects.
    tokenizer: the model's own where it is loaded already. lean: False runs a T5 through
    transformers' forward as well, for comparison.
    Raises ModelError, in one line, for anything that makes the model unusable.
    """
    place = resolve_device(device) if isinstance(device, str) else device
    precision = resolve_dtype(dtype, place) if isinstance(dtype, str) else dtype
    source = locate(name)
    config = load_config(name, str(source.folder))
    lean = lean and config.model_type in _LEAN
    _check_dtype(name, config, precision)
    tokenizer = tokenizer or load_tokenizer(name)
    network = _network(source, config, precision).to(place)
    model = _lean(name, network, tokenizer) if lean else _adapted(name, network, tokenizer)
    model.facts = _facts(source, config, network, model, tokenizer)
    return model


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Raises ModelError where the model `name` cannot decode in `dtype`; reads no weights."""
    _check_dtype(name, load_config(name, str(locate(name, weights=False).folder)), dtype)


def describe(model: LoadedModel) -> dict[str, Any]:
    """What a record says of a model: name, family, files, sizes, dtypes, layouts. JSON-ready."""
    return dict(model.facts)


def _check_dtype(name: str, config: Any, dtype: torch.dtype) -> None:
    if config.model_type in _LEAN and dtype == torch.float16:
        raise ModelError(
            f"--dtype float16 with {name!r}: activations of T5 overflow in half precision; "
            "use bfloat16 or float32"
        )


def _lean(name: str, network: Any, tokenizer: Tokenizer) -> LeanT5:
    vocab_size = _real_vocab(tokenizer, network.config)
    weights = fold(network, vocab_size)
    layouts = tune(weights.decoder_linears()) if network.device.type == "cpu" else {}
    return LeanT5(
        name,
        weights,
        layouts=layouts,
        new_recorder=recorders_for(network.device),
        vocab_size=vocab_size,
        eos_token=tokenizer.eos_token,
        start_token=_start_token(tokenizer),
        dtype=_dtypes(network),
    )


def _adapted(name: str, network: Any, tokenizer: Tokenizer) -> TransformersModel:
    return TransformersModel(
        name,
        network,
        vocab_size=_real_vocab(tokenizer, network.config),
        eos_token=tokenizer.eos_token,
        start_token=tokenizer.start_token,
        dtype=_dtypes(network),
    )


def _start_token(tokenizer: Tokenizer) -> int:
    if tokenizer.start_token is None:
        raise ModelError(f"model {tokenizer.name!r}: config.json has no decoder_start_token_id")
    return tokenizer.start_token


def _real_vocab(tokenizer: Tokenizer, config: Any) -> int:
    logits_size = config.get_text_config().vocab_size
    if tokenizer.vocab_size > logits_size:
        raise ModelError(
            f"model {tokenizer.name!r}: {tokenizer.vocab_size} pieces in its tokenizer, but only "
            f"{logits_size} logits"
        )
    return tokenizer.vocab_size


def _network(source: Source, config: Any, dtype: torch.dtype) -> Any:
    """The transformers model, in evaluation mode; every one of its weights came from the files."""
    with quiet():
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        try:
            network, report = auto.from_pretrained(
                str(source.folder),
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
        except Exception as error:  # noqa: BLE001  corrupt file, unknown architecture, out of memory, ...
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(f"model {source.name!r}: cannot be loaded: {line}") from None
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if report.get(problem):
            first = min(map(str, report[problem]))
            raise ModelError(f"model {source.name!r}: {problem.replace('_', ' ')}: {first}")
    return network.eval().requires_grad_(False)


def _dtypes(network: Any) -> str:
    """The parameters' dtypes, most parameters first: "float32", "float16+float32", ..."""
    sizes: Counter[str] = Counter()
    for parameter in network.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return "+".join(name for name, _ in sizes.most_common())


def _facts(
    source: Source, config: Any, network: Any, model: LoadedModel, tokenizer: Tokenizer
) -> dict[str, Any]:
    text = config.get_text_config()
    return {
        "name": source.name,
        "family": family_of(source.name, config),
        "architecture": type(network).__name__,
        "engine": "lean" if isinstance(model, LeanT5) else "transformers",
        "commit": source.commit,
        "weights_sha256": fingerprint(source),
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "dtype": model.dtype,
        "device": str(model.device),
        "num_layers": text.num_hidden_layers,
        "num_decoder_layers": getattr(text, "num_decoder_layers", None)
        or getattr(text, "decoder_layers", None)
        or text.num_hidden_layers,
        "width": text.hidden_size,
        "vocab_size": model.vocab_size,
        "logits_size": tokenizer.logits_size,
        "eos_token": model.eos_token,
        "start_token": tokenizer.start_token,
        "layouts": model.layouts if isinstance(model, LeanT5) else {},
        "tokenizer_flags": dict(tokenizer.flags),
        "task_prefixes": task_prefixes(config),
    }
