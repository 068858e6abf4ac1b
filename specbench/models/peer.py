"""Transformers' own `generate` and assisted generation, watched from outside.

Owns how it is called and heard. Knows nothing of seconds: a listener is told what begins.
Nothing of transformers is replaced. Hooks before and behind the forward passes say what runs,
and a streamer hears what is kept.

Without a decoder mask transformers 5.24 feeds an encoder-decoder's draft its whole sequence
again in each round, on top of what its cache holds: the output stays exact, the drafts do not.
A mask of one token prevents it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from specbench.models.adapter import TransformersModel
from specbench.models.peer_rounds import Ear, Listener, PeerError, PeerRound, Rows, Task
from specbench.models.peer_settings import draft_settings, pad_token, processors, target_settings
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
    assistant = None if task.draft is None else _beside(network, task.draft.network)
    with ExitStack() as undo:
        undo.enter_context(quiet())
        settings = target_settings(task)
        options: dict[str, Any] = {"generation_config": settings, "streamer": ear}
        undo.enter_context(_seeded(task))
        undo.enter_context(_configured(network, settings))
        undo.enter_context(_hooked(network, "target_prefill", "verify", listener, ear))
        if assistant is not None:
            options["assistant_model"] = assistant
            undo.enter_context(_configured(assistant, draft_settings(task)))
            undo.enter_context(_hooked(assistant, "draft_prefill", "draft", listener, None))
        options["logits_processor"] = processors(task)
        yield lambda prompts: _generate(task, prompts, ear, options)


def _generate(task: Task, prompts: Rows, ear: Ear, options: dict[str, Any]) -> list[PeerRound]:
    network = task.target.network
    ids, mask = _padded(prompts, task.target)
    masks = {"attention_mask": mask}
    if task.draft is not None and network.config.is_encoder_decoder:
        masks["decoder_attention_mask"] = torch.ones_like(mask[:, :1])
    ear.begin(len(prompts))
    try:
        network.generate(ids, **masks, **options)
    except (PeerError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers raises whatever it met inside
        raise PeerError(_reason(task, error)) from error
    return ear.rounds


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
    pad, longest = pad_token(target) or 0, max(map(len, prompts))
    in_front = not target.network.config.is_encoder_decoder
    ids, mask = [], []
    for prompt in prompts:
        filler = [pad] * (longest - len(prompt))
        off, on = [0] * len(filler), [1] * len(prompt)
        ids.append([*filler, *prompt] if in_front else [*prompt, *filler])
        mask.append([*off, *on] if in_front else [*on, *off])
    return torch.tensor(ids, device=target.device), torch.tensor(mask, device=target.device)


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
