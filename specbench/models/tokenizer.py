"""Text to token ids and back, the same way for target and draft.

Owns the explicit flags of encoding. Knows nothing of prompts or prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.models.errors import ModelError
from specbench.models.family import family_of
from specbench.models.quiet import quiet
from specbench.models.sources import locate


@dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer with fixed flags, and the facts of its model's configuration.

    vocab_size: its pieces, added tokens included. logits_size: rows of the model's output,
    padded or not. eos_token, start_token: ids, None where the model has none; a causal model
    has no start token. max_positions: tokens that its position table or its training had room
    for, None where the configuration sets no bound, as T5's. family: of its checkpoint, see
    `family_of`. flags: how text is encoded, as recorded.
    """

    name: str
    backend: Any
    vocab_size: int
    logits_size: int
    eos_token: int | None
    start_token: int | None
    max_positions: int | None
    family: str | None
    flags: tuple[tuple[str, bool], ...] = (("add_special_tokens", True), ("truncation", False))

    def lacks_room_for(self, num_prompt: int, num_output: int) -> bool:
        """Whether a prompt and an output of so many tokens are more than `max_positions`.

        A causal model has both in one sequence, where the last token is never read.
        """
        if self.max_positions is None:
            return False
        if self.start_token is None:
            return num_prompt + num_output - 1 > self.max_positions
        return max(num_prompt, num_output) > self.max_positions

    def encode(self, text: str) -> list[int]:
        """Ids of `text` with the special tokens of the model, for T5 an EOS; never truncated."""
        return list(self.backend(text, verbose=False, **dict(self.flags))["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return str(
            self.backend.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def piece(self, token: int) -> str | None:
        """The piece of an id; None beyond the vocabulary."""
        if not 0 <= token < self.vocab_size:
            return None
        return str(self.backend.convert_ids_to_tokens(token))

    def pieces(self) -> list[str]:
        """All pieces in the order of their ids."""
        return list(self.backend.convert_ids_to_tokens(list(range(self.vocab_size))))


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model name; its weights are neither needed nor fetched.

    Raises ModelError when its files are missing, or when sentencepiece is missing for it.
    """
    source = locate(name, weights=False)
    config = load_config(name, str(source.folder))
    with quiet():
        from transformers import AutoTokenizer

        try:
            backend = AutoTokenizer.from_pretrained(
                str(source.folder), trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # noqa: BLE001  transformers raises whatever its backend did
            raise ModelError(_reason(name, error)) from None
    _check_files(name, source.folder, backend)
    return Tokenizer(
        name=name,
        backend=backend,
        vocab_size=len(backend),
        logits_size=config.get_text_config().vocab_size,
        eos_token=_eos(config, backend),
        start_token=_start(config),
        max_positions=getattr(config.get_text_config(), "max_position_embeddings", None),
        family=family_of(name, config),
    )


def load_config(name: str, folder: str) -> Any:
    """The transformers configuration in `folder`. Raises ModelError for an unknown architecture."""
    with quiet():
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # noqa: BLE001  a missing key, unknown model type, broken JSON, ...
            line = _first_line(error)
            raise ModelError(f"model {name!r}: config.json cannot be used: {line}") from None


def _check_files(name: str, folder: Path, backend: Any) -> None:
    """Without any file transformers makes up a tokenizer that has only special tokens."""
    files = list(backend.vocab_files_names.values())
    if files and not any((folder / file).is_file() for file in files):
        raise ModelError(
            f"model {name!r}: no tokenizer in {folder}; none of {', '.join(files)} is there"
        )


def _eos(config: Any, backend: Any) -> int | None:
    eos: int | list[int] | None = config.get_text_config().eos_token_id
    own: int | None = backend.eos_token_id
    if isinstance(eos, list):
        return own if own in eos else eos[0]
    return own if eos is None else eos


def _start(config: Any) -> int | None:
    if not config.is_encoder_decoder:
        return None
    start: int | None = getattr(config, "decoder_start_token_id", None)
    padding: int | None = config.pad_token_id
    # T5 configurations older than that field start decoding from the padding piece
    return padding if start is None else start


def _reason(name: str, error: Exception) -> str:
    text = str(error).lower()
    for package in ("sentencepiece", "tiktoken", "protobuf"):
        if package in text and isinstance(error, (ImportError, ValueError)):
            return f"model {name!r}: its tokenizer needs {package}: pip install {package}"
    return f"model {name!r}: no usable tokenizer: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
