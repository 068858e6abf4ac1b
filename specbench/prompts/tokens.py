"""From the prompts of a set to token ids, cut only where a cut was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.prompts.items import EncodedPrompt, Encoder, PromptError, PromptSet


def encode(
    prompt_set: PromptSet, tokenizer: Encoder, max_prompt_tokens: int | None = None
) -> list[EncodedPrompt]:
    """The token ids of every prompt, in order; nothing is cut unless a maximum is given.

    max_prompt_tokens: longest prompt in tokens, >= 2. A cut prompt keeps the tokens that the
    tokenizer ends every text with (EOS), since an encoder has never seen a text without them.
    Raises PromptError for a maximum with no room for a token, and for a prompt without tokens.
    """
    # What an empty text still gets is what the tokenizer adds by itself.
    added = tokenizer.encode("")
    encoded = []
    for prompt in prompt_set.prompts:
        token_ids = list(tokenizer.encode(prompt.text))
        if not token_ids:
            raise PromptError(f"task {prompt_set.task}: prompt {prompt.id} has no tokens")
        truncated = max_prompt_tokens is not None and len(token_ids) > max_prompt_tokens
        if max_prompt_tokens is not None and truncated:
            token_ids = _cut(token_ids, added, max_prompt_tokens)
        encoded.append(EncodedPrompt(prompt.id, tuple(token_ids), truncated))
    return encoded


def _cut(token_ids: list[int], added: Sequence[int], length: int) -> list[int]:
    ending = 0
    while ending < len(added) and token_ids[-1 - ending] == added[-1 - ending]:
        ending += 1
    if length <= ending:
        raise PromptError(f"--max-prompt-tokens {length}: allowed are integers >= {ending + 1}")
    return token_ids[: length - ending] + token_ids[len(token_ids) - ending :]
