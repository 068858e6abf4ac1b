"""Transformers' own `generate` and assisted generation, watched from outside.

Owns the settings under which transformers decodes as we do: same law, same limits, a draft
length that stays what was asked. Knows nothing of seconds: a listener is told what begins.

What shortens drafts in transformers (5.24, `candidate_generator.py`) is switched off on the
assistant's own generation config, where it is looked up: the schedule (a heuristic one would
even outlive the call) and the cut-off by confidence (0.4 by default, moved by an ROC curve where
scikit-learn is installed). A draft still ends at its own EOS, behind which nothing is kept.
One thing cannot be switched off: at a temperature other than 0 and 1 transformers divides the
draft's logits by it twice. The output's law stays right, the drafts are not ours.

Nothing of transformers is replaced. Hooks before and behind the forward passes say what runs,
and a streamer hears what is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from specbench.models.adapter import TransformersModel
from specbench.models.peer_rounds import Ear, Listener, PeerError, PeerRound, Rows, Task
from specbench.models.quiet import quiet

__all__ = ["Listener", "PeerError", "PeerRound", "Task", "ready"]

Generate = Callable[[Rows], list[PeerRound]]


@contextmanager
def ready(task: Task, listener: Listener) -> Iterator[Generate]:
    """A function from B prompts of token ids to the rounds in which transformers decodes them.

    Settings are made before it is called, so that a clock around it sees transformers alone;
    behind the context everything is as it was. It raises PeerError where transformers cannot.
    """
    network, ear = task.target.network, Ear(task, listener)
    settings = _target_settings(task)
    options: dict[str, Any] = {"generation_config": settings, "streamer": ear}
    with ExitStack() as undo:
        undo.enter_context(quiet())
        undo.enter_context(_seeded(task))
        undo.enter_context(_configured(network, settings))
        undo.enter_context(_hooked(network, "target_prefill", "verify", listener, ear))
        if task.draft is not None:
            options["assistant_model"] = assistant = _beside(network, task.draft.network)
            undo.enter_context(_configured(assistant, _draft_settings(task)))
            undo.enter_context(_hooked(assistant, "draft_prefill", "draft", listener, None))
        if network.config.get_text_config().vocab_size > task.target.vocab_size:
            options["logits_processor"] = [_WithoutPadding(task.target.vocab_size)]
        yield lambda prompts: _generate(task, prompts, ear, options)


def _generate(task: Task, prompts: Rows, ear: Ear, options: dict[str, Any]) -> list[PeerRound]:
    ids, mask = _padded(prompts, task.target)
    ear.begin(len(prompts))
    try:
        task.target.network.generate(ids, attention_mask=mask, **options)
    except (PeerError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001  transformers raises whatever it met inside
        raise PeerError(_reason(task, error)) from error
    return ear.rounds


class _WithoutPadding:
    """Forbids the pieces of a padded vocabulary that the tokenizer does not have."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (B, V) in place; input_ids is there because transformers passes it."""
        scores[:, self._vocab_size :] = -torch.inf
        return scores


def _target_settings(task: Task) -> Any:
    """Every setting that changes the law or the length, so that no checkpoint's own remains."""
    from transformers import GenerationConfig

    target, sampling, limits = task.target, task.sampling, task.limits
    settings: dict[str, Any] = {
        "max_new_tokens": limits.max_new_tokens,
        "num_beams": 1,
        "use_cache": True,
        "do_sample": sampling.temperature > 0,
        "eos_token_id": target.eos_token,
        "pad_token_id": _pad_token(target),
        "decoder_start_token_id": target.start_token,
    }
    if limits.min_new_tokens:
        settings["min_new_tokens"] = limits.min_new_tokens
    if sampling.temperature > 0:
        settings |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    return GenerationConfig(**settings)


def _draft_settings(task: Task) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        num_assistant_tokens=task.gamma,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
        eos_token_id=task.target.eos_token,
        pad_token_id=_pad_token(task.target),
        decoder_start_token_id=task.target.start_token,
    )


@contextmanager
def _configured(network: Any, settings: Any) -> Iterator[None]:
    """The network with these settings instead of its checkpoint's own."""
    own, network.generation_config = network.generation_config, settings
    try:
        yield
    finally:
        network.generation_config = own


@contextmanager
def _seeded(task: Task) -> Iterator[None]:
    device = task.target.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(task.seed)
        yield


@contextmanager
def _hooked(
    network: Any, prefill: str, step: str, listener: Listener, ear: Ear | None
) -> Iterator[None]:
    """The listener hears of every forward pass, the ear sees the decoder's blocks."""

    def before(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        del module, args
        if ear is not None:
            ear.see(inputs[block])
        listener.begin(step)

    def behind(*of_the_call: Any) -> None:
        del of_the_call
        listener.begin("rest")

    seq2seq = network.config.is_encoder_decoder
    block = "decoder_input_ids" if seq2seq else "input_ids"
    hooks = [network.register_forward_pre_hook(before, with_kwargs=True)]
    hooks.append(network.register_forward_hook(behind))
    if seq2seq:
        encoder = network.get_encoder()
        hooks.append(encoder.register_forward_pre_hook(lambda *_: listener.begin(prefill)))
        hooks.append(encoder.register_forward_hook(behind))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _beside(network: Any, draft: Any) -> Any:
    """The draft's network; a second one on the same weights where a target drafts for itself."""
    if draft is not network:
        return draft
    return copy.deepcopy(draft, {id(weight): weight for weight in draft.parameters()})


def _padded(prompts: Rows, target: TransformersModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask (B, S); a causal model continues at the end, so it is padded in front."""
    pad, longest = _pad_token(target) or 0, max(map(len, prompts))
    in_front = not target.network.config.is_encoder_decoder
    ids, mask = [], []
    for prompt in prompts:
        filler = [pad] * (longest - len(prompt))
        off, on = [0] * len(filler), [1] * len(prompt)
        ids.append([*filler, *prompt] if in_front else [*prompt, *filler])
        mask.append([*off, *on] if in_front else [*on, *off])
    return torch.tensor(ids, device=target.device), torch.tensor(mask, device=target.device)


def _pad_token(target: TransformersModel) -> int | None:
    pad: int | None = target.network.config.get_text_config().pad_token_id
    return target.eos_token if pad is None else pad


def _reason(task: Task, error: Exception) -> str:
    """Transformers' own words in one line, and what lies behind those that say nothing."""
    from transformers import __version__

    models = [model for model in (task.target, task.draft) if model is not None]
    text = f"transformers {__version__}: {type(error).__name__}: {' '.join(str(error).split())}"
    for model in models:
        config = model.network.config
        decoder = getattr(config, "num_decoder_layers", None) or 0
        if isinstance(error, IndexError) and decoder > config.num_hidden_layers:
            text += (
                f" (its cache has a layer for each of the {config.num_hidden_layers} of the encoder"
                f" of {model.name}, whose decoder has {decoder})"
            )
    return text
