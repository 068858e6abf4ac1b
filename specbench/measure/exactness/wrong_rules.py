"""Ways of testing drafts that are wrong on purpose: what a check must catch to prove anything.

Owns the built-in wrong decoders. Both are faults that have been seen in practice; the second is
the harder one to see, since most of its tokens are right.
"""

from __future__ import annotations

import torch

from specbench.decoding import AcceptRule
from specbench.sampling import Verdict, accept, draw


def accept_always(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafted: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    last_uniform: torch.Tensor,
) -> Verdict:
    """Every draft is kept: the output follows the draft's law. Arguments as `sampling.accept`."""
    right = accept(target_probs, draft_probs, drafts, num_drafted, accept_uniforms, last_uniform)
    row = torch.arange(len(drafts), device=drafts.device)
    every = torch.full_like(row, drafts.shape[1]) if num_drafted is None else num_drafted
    next_token = draw(target_probs[row, every], last_uniform)
    return right._replace(num_accepted=every, next_token=next_token)


def residual_is_target(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    drafts: torch.Tensor,
    num_drafted: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    last_uniform: torch.Tensor,
) -> Verdict:
    """A rejected position is drawn from p: its law is min(p, q) + (1 - beta) p instead of p.

    Arguments as `sampling.accept`.
    """
    right = accept(target_probs, draft_probs, drafts, num_drafted, accept_uniforms, last_uniform)
    row = torch.arange(len(drafts), device=drafts.device)
    next_probs = target_probs[row, right.num_accepted]
    return right._replace(next_token=draw(next_probs, last_uniform))


# What a verdict calls them.
WRONG_RULES: dict[str, AcceptRule] = {
    "accept every draft": accept_always,
    "residual replaced by p": residual_is_target,
}
