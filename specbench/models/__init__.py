"""Models as decoders see them: weights, caches, rollback, and loading by name.

The only room that imports transformers. Knows nothing of decoding methods or timing.
"""

from specbench.models.adapter import TransformersModel
from specbench.models.errors import BROKEN, ModelError, UnknownName, explain
from specbench.models.family import family_of, task_prefixes
from specbench.models.loading import LoadedModel, check_dtype, describe, load_model
from specbench.models.pairing import check_pair, probe
from specbench.models.placement import resolve_device, resolve_dtype
from specbench.models.protocol import LanguageModel, State
from specbench.models.sources import locate, num_parameters, pocket_names
from specbench.models.t5 import LeanT5
from specbench.models.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "BROKEN",
    "LanguageModel",
    "LeanT5",
    "LoadedModel",
    "ModelError",
    "State",
    "Tokenizer",
    "TransformersModel",
    "UnknownName",
    "check_dtype",
    "check_pair",
    "describe",
    "explain",
    "family_of",
    "load_model",
    "load_tokenizer",
    "locate",
    "num_parameters",
    "pocket_names",
    "probe",
    "resolve_device",
    "resolve_dtype",
    "task_prefixes",
]
