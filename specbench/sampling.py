"""Logits to the one distribution that is sampled from, and what speculative sampling does with it.

Owns four pure functions of distributions: drawing, overlap, residual, and the test of drafts,
beside `standardize`, the only place that divides by a temperature or filters (Leviathan et al.
2023, Sec. 2.2). The same float32 array that a draft was drawn from is the q of its test and of
its residual, so the rule is exact whatever rounding made that array. At T = 0 distributions are
one-hot and their ids say all there is: `largest` and `accept_largest` decide the same from ids,
without making the arrays. Knows nothing of models, rounds or clocks.

Letters: p is the target's distribution, q the draft's; V tokens in the vocabulary, B rows, G
drafted positions, "..." any leading dimensions. These functions run inside the timed loop: a
few tensor operations each, nothing waits for the device, and randomness is an argument. Between
two model calls caches are cold, and an operation on 8,000 floats takes 10 to 50 microseconds
where it takes 3 to 20 alone: what counts is how few there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specbench.records import Sampling

# Below this, logits / temperature may overflow float32; the limit law is the argmax anyway.
SMALLEST_TEMPERATURE = 1e-20
# A cumulative float32 probability this close to top_p has reached it: .5 + .3 reaches .8.
TOP_P_ROUNDING = 1e-6


class Verdict(NamedTuple):
    """What `accept` decided, one entry per row.

    num_accepted: (B,) int64, drafts kept, 0..num_drafted. next_token: (B,) int64, the target's
    own token behind them. fell_back: (B,) bool, the residual was zero everywhere and p was drawn
    from instead. impossible: (B,) bool, a drafted token has q = 0: it was not drawn from q, and
    the caller must raise.
    """

    num_accepted: torch.Tensor
    next_token: torch.Tensor
    fell_back: torch.Tensor
    impossible: torch.Tensor


def standardize(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that is sampled from, (..., V) float32, whatever the logits' dtype.

    Leviathan et al. 2023, Sec. 2.2: softmax(logits / T) after temperature, then top-k, then
    top-p on what top-k left (the order of transformers). T = 0 is one-hot at the largest logit,
    the lowest id on exact ties. Top-k keeps exactly k tokens and top-p the smallest set, in
    descending order, whose cumulative probability reaches top_p, at least one token; where
    tokens tie at the edge of the set, the lowest ids are kept.

    logits: (..., V). -inf forbids a token; logits that define no law give NaN, never a law that
    looks sound: see `evidence`.
    Raises ValueError when there is no vocabulary dimension or it is empty.
    """
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits {tuple(logits.shape)}: allowed are shapes (..., V), V >= 1")
    logits = logits.float()
    if sampling.temperature < SMALLEST_TEMPERATURE:
        return _one_hot_at_largest(logits)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1] or sampling.top_p < 1.0:
        logits = _filtered(logits, sampling.top_k, sampling.top_p)
    return torch.softmax(logits, dim=-1)


def evidence(probs: torch.Tensor) -> torch.Tensor:
    """A number, (...) float32, that is finite where the logits behind an answer of `standardize`
    defined a distribution: the sum of that answer.

    NaN anywhere, +inf anywhere, or -inf everywhere gives NaN. probs: (..., V).
    """
    return probs.sum(dim=-1)


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The law of T = 0 as an id: of the largest logit, (...) int64, and that logit, (...)
    float32.

    The lowest id of exact ties, as `standardize`; the logit is finite where `evidence` would be.
    logits: (..., V).
    """
    values, ids = logits.float().max(dim=-1)
    return ids, values


def draw(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Token ids drawn from `probs`, (...) int64; never an id of probability zero.

    Inverse transform in float64: the first id whose cumulative probability exceeds
    uniform * total, so that rows need not sum to exactly 1. A row that is NaN gives an id inside
    the vocabulary that means nothing: ask for `evidence`.

    probs: (..., V), each row with a positive sum. uniform: (...) float64 in [0, 1).
    Raises ValueError when the leading dimensions differ.
    """
    if probs.shape[:-1] != uniform.shape:
        raise ValueError(
            f"probs {tuple(probs.shape)}, uniform {tuple(uniform.shape)}: allowed are (..., V) "
            "and (...)"
        )
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    # The largest uniform, 1 - 2^-53, times a total is the float64 just below that total: the
    # search ends at an id of positive probability, and past the last one only if a row is NaN.
    point = uniform.unsqueeze(-1) * cumulative.narrow(-1, -1, 1)
    ids = torch.searchsorted(cumulative, point, right=True).squeeze(-1)
    return ids.clamp_(max=probs.shape[-1] - 1)


def overlap(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The probability that a draft is accepted, sum_x min(p(x), q(x)), (...), at most 1.

    Leviathan et al. 2023, Thm 3.5: beta = sum min(p, q) = 1 - total variation. A sum that
    rounding carried above 1 is cut to 1.

    p, q: (..., V) distributions. Raises ValueError when their shapes differ.
    """
    if p.shape != q.shape:
        raise ValueError(f"p {tuple(p.shape)}, q {tuple(q.shape)}: allowed are equal shapes")
    return torch.minimum(p, q).sum(dim=-1).clamp_(max=1.0)


def residual(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rejected position is drawn from but for its norm, (..., V), and the sum that is its
    norm, (...).

    Leviathan et al. 2023, Sec. 2.3: max(0, p - q) and, to divide it by, its sum. `draw` does
    not ask for the division. Where p <= q everywhere (p and q equal up to rounding) the sum is
    0 and the limit is ill-defined: p has to stand in.

    p, q: (..., V) distributions. Raises ValueError when their shapes differ.
    """
    if p.shape != q.shape:
        raise ValueError(f"p {tuple(p.shape)}, q {tuple(q.shape)}: allowed are equal shapes")
    excess = (p - q).clamp_(min=0.0)
    return excess, excess.sum(dim=-1)


def accept(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafted: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    last_uniform: torch.Tensor,
) -> Verdict:
    """How many drafts of each row are kept, and the target's own token behind them.

    Leviathan et al. 2023, Sec. 2.3 and Algorithm 1: draft x at position i is accepted if
    u < p_i(x) / q_i(x), tested as u q < p so that p = 0 is always rejected and nothing is
    divided by zero; the first rejection ends the row, and its token is drawn from the residual
    norm(max(0, p_i - q_i)). Where all drafts are accepted it is drawn from the next p. With
    one-hot distributions (T = 0) this keeps the drafts that equal the target's argmax.

    target_probs: (B, G + 1, V). draft_probs: (B, G, V), what each draft was drawn from.
    drafts: (B, G) int64 ids, G >= 1. num_drafted: (B,) int64; row b's positions from
    num_drafted[b] on are padding (any ids of the vocabulary) and never looked at. None where no
    position is, which spares a few operations.
    accept_uniforms: (B, G) and last_uniform: (B,) float64 in [0, 1), independent of what the
    drafts were drawn with.
    Raises ValueError when the shapes do not fit together.
    """
    (rows, width), vocab = drafts.shape, target_probs.shape[-1]
    inputs = (target_probs, draft_probs, accept_uniforms, last_uniform)
    shapes = tuple(tensor.shape for tensor in inputs)
    wanted = ((rows, width + 1, vocab), (rows, width, vocab), (rows, width), (rows,))
    if width == 0 or shapes != wanted or (num_drafted is not None and len(num_drafted) != rows):
        raise ValueError(
            f"drafts {(rows, width)} with {[*map(tuple, shapes)]}: allowed are (B, G >= 1) with "
            "(B, G + 1, V), (B, G, V), (B, G), (B,), and a count for each row or none"
        )
    ids = drafts.unsqueeze(-1)
    p = target_probs.gather(-1, ids)  # (B, G, 1): the position behind the last draft has none
    q = draft_probs.gather(-1, ids)
    kept, zero = accept_uniforms.unsqueeze(-1) * q < p, q == 0.0
    if num_drafted is not None:
        drafted = torch.arange(width, device=drafts.device) < num_drafted.unsqueeze(-1)
        kept, zero = kept & drafted.unsqueeze(-1), zero & drafted.unsqueeze(-1)
    num_accepted = kept.cumprod(dim=1).sum(dim=(1, 2))  # those before the first that is not kept
    rejected = num_accepted < (width if num_drafted is None else num_drafted)
    next_probs, fell_back = _behind_accepted(target_probs, draft_probs, num_accepted, rejected)
    next_token = draw(next_probs, last_uniform)
    return Verdict(num_accepted, next_token, fell_back, zero.any(dim=1).squeeze(-1))


def _behind_accepted(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    num_accepted: torch.Tensor,
    rejected: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last token is drawn from, (B, V): the residual at the first rejection, p itself
    where nothing was rejected; and where p stands in for a residual of nothing, (B,)."""
    p = _rows_at(target_probs, num_accepted)
    q = _rows_at(draft_probs, num_accepted.clamp(max=draft_probs.shape[1] - 1))
    excess, total = residual(p, q)
    nothing = total == 0.0
    corrected = rejected > nothing  # rejected, and not nothing
    # where: a tenth of masked_fill's time, and a padding draft's NaN stays out.
    return torch.where(corrected.unsqueeze(-1), excess, p), rejected & nothing


def _rows_at(probs: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """probs[b, columns[b]] for each b, (B, V), from (B, K, V)."""
    rows, width, vocab = probs.shape
    if rows > 1:
        columns = columns + width * torch.arange(rows, device=columns.device)
    # On CPU index_select of flat rows takes a third of [row, column]'s time.
    return probs.reshape(-1, vocab).index_select(0, columns)


def accept_largest(target_ids: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts of a row `accept` keeps at T = 0: those up to the first that is not the
    target's own token.

    target_ids: G + 1 or more ids, `largest` of the target. drafts: G ids, `largest` of the draft.
    One-hot laws leave nothing to chance: the token behind the kept ones is the target's own
    there, rejected or not, and no draft is impossible. On the host, since ids are what it is
    told anyway.
    """
    for index, draft in enumerate(drafts):
        if draft != target_ids[index]:
            return index
    return len(drafts)


def _one_hot_at_largest(logits: torch.Tensor) -> torch.Tensor:
    # torch.max returns the first index of several equal maxima, and NaN as the largest.
    largest, ids = logits.max(dim=-1, keepdim=True)
    # 0 * largest is 0, or NaN where no finite number is largest.
    return torch.zeros_like(logits).scatter_(-1, ids, 1.0 + 0.0 * largest)


def _filtered(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The logits with all but the most probable tokens set to -inf; top_k = 0 keeps all."""
    vocab = logits.shape[-1]
    values = torch.topk(logits, min(top_k, vocab) or vocab, dim=-1).values
    probs = torch.softmax(values, dim=-1)
    before = probs.cumsum(dim=-1, dtype=torch.float64) - probs
    # The most probable token stays, and NaN, which compares false, is never filtered away.
    num_kept = (before < top_p - TOP_P_ROUNDING).sum(dim=-1, keepdim=True).clamp_(min=1)
    edge = values.gather(-1, num_kept - 1)
    at_edge = logits == edge
    room = num_kept - (values > edge).sum(dim=-1, keepdim=True)
    beyond = at_edge & (at_edge.cumsum(dim=-1) > room)
    return logits.masked_fill(beyond | (logits < edge), float("-inf"))
