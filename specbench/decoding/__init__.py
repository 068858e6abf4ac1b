"""The algorithm: autoregressive and speculative decoding of a batch of prompts.

Owns rounds: what is drafted, tested, committed and rolled back. Knows nothing of text, files,
clocks and tables.
"""

from specbench.decoding.loop import Decoded, capacity_for, decode, widths_for
from specbench.decoding.outcome import DecodingError, ImpossibleDraft, NonFiniteLogits
from specbench.decoding.phases import SILENT, Phase, Phases
from specbench.decoding.rounds import AcceptRule, Rules, law
from specbench.decoding.streams import torch_seed, uniforms

__all__ = [
    "SILENT",
    "AcceptRule",
    "Decoded",
    "DecodingError",
    "ImpossibleDraft",
    "NonFiniteLogits",
    "Phase",
    "Phases",
    "Rules",
    "capacity_for",
    "decode",
    "law",
    "torch_seed",
    "uniforms",
    "widths_for",
]
