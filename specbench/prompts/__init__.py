"""From a task's name to prompts: text with its prefix, a reference, an id, and token ids.

Owns the inputs: where each task's items come from, which prefix a checkpoint family was trained
with, which items a limit selects, and how they become token ids. The only importer of `datasets`.
Knows nothing of models; a tokenizer is anything that encodes a text.
"""

from specbench.prompts.items import (
    EncodedPrompt,
    Encoder,
    Prompt,
    PromptError,
    PromptSet,
    UnknownTask,
)
from specbench.prompts.jsonl import read_jsonl
from specbench.prompts.load import PREFIXES, TASKS, load_prompts
from specbench.prompts.tokens import encode

__all__ = [
    "PREFIXES",
    "TASKS",
    "EncodedPrompt",
    "Encoder",
    "Prompt",
    "PromptError",
    "PromptSet",
    "UnknownTask",
    "encode",
    "load_prompts",
    "read_jsonl",
]
