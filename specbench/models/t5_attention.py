"""Attention as T5 does it, on layouts that need no copy: bias table, norm and products.

Owns the arithmetic of one attention. Knows nothing of weights' origin or of states. Batch and
heads are one dimension, (B * H), because that is what `bmm` takes; positions come first in
every activation, (K, B, ...), so that K tokens of B equally long rows are one contiguous slot
of the cache and the projection can write straight into it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def unit_rows(hidden: Tensor, floor: Tensor, gain: Tensor | None) -> Tensor:
    """Rows of `hidden` (R, d_model) over sqrt(|row|^2 + floor^2), times `gain` (d_model).

    The RMS norm but for its sqrt(d_model), which is in `gain` or, with the norm's weight, in
    the matrix that follows. floor: () sqrt(d_model * epsilon). Three or four cheap kernels;
    `rms_norm` has no fused one for the CPU and takes two to three times as long.
    """
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=floor.dtype)
    unit = torch.div(hidden, torch.hypot(length, floor)).to(hidden.dtype)
    return unit if gain is None else unit.mul_(gain)


def bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each non-negative distance: exact when small, logarithmic when large.

    Raffel et al. 2020, section 2.1, in mesh-tensorflow's rounding: the lower half of the
    buckets are single distances, the rest grow up to max_distance and then stay.
    """
    exact = num_buckets // 2
    log_ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    large = (exact + (log_ratio * (num_buckets - exact)).to(torch.long)).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, large)


def encoder_bias(table: Tensor, length: int, max_distance: int) -> Tensor:
    """Bias (H, S, S) that each encoder query adds to each key; table: (num_buckets, H)."""
    half = table.shape[0] // 2
    place = torch.arange(length, device=table.device)
    relative = place[None, :] - place[:, None]
    ids = bucket(relative.abs(), half, max_distance) + (relative > 0).long() * half
    return table[ids].permute(2, 0, 1).contiguous()


class DecoderBias:
    """Causal relative bias for blocks of up to `block` queries within `capacity` positions.

    The bias depends on query minus key only, so one strip per query of a block, shifted, holds
    the bias of every position: a block at any length is a slice of it, without arithmetic.
    Keys after a query are -inf.
    """

    def __init__(self, table: Tensor, capacity: int, block: int, max_distance: int) -> None:
        self.capacity, self.block = capacity, block
        column = torch.arange(2 * capacity + block, device=table.device)
        query = torch.arange(block, device=table.device)[:, None]
        distance = capacity - 1 + query - column  # of query k from key j at column capacity-1-p+j
        ids = bucket(distance.clamp(min=0), table.shape[0], max_distance)
        strip = table[ids].masked_fill((distance < 0)[..., None], -math.inf)
        self.strip = strip.permute(2, 0, 1).contiguous()  # (H, block, columns)

    def at(self, length: int, num_queries: int, num_keys: int) -> Tensor:
        """View (H, K, num_keys): K queries that stand after `length` tokens, keys from 0 on."""
        first = self.capacity - 1 - length
        return self.strip[:, :num_queries, first : first + num_keys]

    def gathered(self, lengths: Tensor, num_queries: int) -> Tensor:
        """Copy (B * H, K, capacity): K queries of each row that stand after its `lengths` (B,).

        The lengths stay on the device, and no shape depends on them.
        """
        query = torch.arange(num_queries, device=lengths.device)[:, None]
        key = torch.arange(self.capacity, device=lengths.device)
        columns = self.capacity - 1 - query + key - lengths[:, None, None]  # (B, K, capacity)
        bias = self.strip[:, 0].index_select(1, columns.reshape(-1))
        return bias.view(-1, *columns.shape).transpose(0, 1).flatten(0, 1)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, num_rows: int
) -> Tensor:
    """softmax(q k + bias) v as num_rows = K * B rows of H * d_kv, positions first.

    queries: (B * H, K, d_kv); keys: (B * H, d_kv, N), already transposed; values: (B * H, N,
    d_kv); bias: broadcastable to (B * H, K, N). T5 does not divide by sqrt(d_kv).
    """
    scores = torch.bmm(queries, keys) if bias is None else torch.baddbmm(bias, queries, keys)
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
    return mixed.transpose(0, 1).reshape(num_rows, -1)
