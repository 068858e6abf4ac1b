"""Whether a draft can speak for a target, and whether either speaks at all.

Owns the checks before anything is measured. Tokenizers are compared without any weights.
"""

from __future__ import annotations

from specbench.models.errors import BROKEN, ModelError, explain
from specbench.models.protocol import LanguageModel
from specbench.models.tokenizer import Tokenizer

_SAMPLES = (
    "The house is wonderful.",
    "  two  spaces, 1,234.5 and tab\t",
    "Übergrößenträger naïve \u2013 \u201cquoted\u201d \u2026",
    "A <extra_id_0> walks",
    "line\nbreak",
)


def check_pair(target: Tokenizer, draft: Tokenizer) -> list[str]:
    """Notes on a usable pair, empty where there is nothing to say.

    A padded vocabulary of another length is noted: padding pieces never leave either model.
    Raises ModelError naming the first id whose pieces differ, or what else does: the end or
    start token, or how a text is encoded.
    """
    _check_pieces(target, draft)
    for what in ("eos_token", "start_token"):
        ours, theirs = getattr(target, what), getattr(draft, what)
        if ours != theirs:
            raise ModelError(
                f"{_pair(target, draft)}: {what.replace('_', ' ')} is {ours} in the target "
                f"and {theirs} in the draft"
            )
    for sample in _SAMPLES:
        if target.encode(sample) != draft.encode(sample):
            raise ModelError(f"{_pair(target, draft)}: they encode {sample!r} differently")
    if target.logits_size == draft.logits_size:
        return []
    note = (
        f"padded vocabularies differ ({target.logits_size} and {draft.logits_size}): "
        f"only the {target.vocab_size} pieces of the tokenizer are used"
    )
    return [note]


def probe(model: LanguageModel) -> None:
    """Run one token through `model`. Raises ModelError when it breaks, or is not finite."""
    prompt = [model.eos_token if model.eos_token is not None else 0]
    try:
        state = model.start([prompt], capacity=1)
        logits = model.extend(state, state.first_tokens[:, None])
    except BROKEN as error:
        raise ModelError(
            f"model {model.name!r}: its first step breaks ({explain(error)})"
        ) from None
    if not bool(logits.isfinite().all()):
        cause = "are damaged"
        if model.dtype != "float32":
            cause += ", or need --dtype float32"
        raise ModelError(
            f"model {model.name!r}: non-finite logits in its first step ({model.dtype}); its "
            f"weights {cause}"
        )


def _check_pieces(target: Tokenizer, draft: Tokenizer) -> None:
    ours, theirs = target.pieces(), draft.pieces()
    if ours == theirs:
        return
    shorter = min(len(ours), len(theirs))
    first = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    raise ModelError(
        f"{_pair(target, draft)}: their tokenizers differ first at id {first}: "
        f"{_shown(target, first)} in the target ({len(ours)} pieces), "
        f"{_shown(draft, first)} in the draft ({len(theirs)} pieces)"
    )


def _pair(target: Tokenizer, draft: Tokenizer) -> str:
    return f"target {target.name!r} and draft {draft.name!r}"


def _shown(tokenizer: Tokenizer, token: int) -> str:
    piece = tokenizer.piece(token)
    return "nothing" if piece is None else repr(piece)
