"""The target's own word, from fresh states: logits along a given output, in two ways.

Owns teacher forcing for the gate. One call over the whole output (as in verification) and one
call a token (as the target alone decodes) are the same mathematics in different kernels; how far
apart they come out is what rounding does on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.models.protocol import LanguageModel


def forced_logits(
    model: LanguageModel,
    prompt: Sequence[int],
    outputs: Sequence[Sequence[int]],
    one_by_one: bool = False,
) -> torch.Tensor:
    """Logits before each token of the outputs and behind the last, (B, n + 1, V) float32.

    prompt: token ids, the same for all rows. outputs: B rows of n token ids, n >= 0.
    one_by_one: one call a token instead of one for all of them.
    """
    given = torch.tensor(outputs, dtype=torch.long, device=model.device).view(len(outputs), -1)
    state = model.start([prompt] * len(outputs), given.shape[1] + 1)
    tokens = torch.cat((state.first_tokens[:, None], given), dim=1)
    if not one_by_one:
        return model.extend(state, tokens)
    return torch.cat([model.extend(state, column) for column in tokens.split(1, dim=1)], dim=1)
