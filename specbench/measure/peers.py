"""Another engine beside ours: the same models, prompts and settings, measured in turns.

Owns which arm of a peer stands beside which of ours, and what the two are compared in. A ratio
above 1 says that ours is the faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench.measure.collection import Collected, shared_prompts
from specbench.measure.metrics import speedup
from specbench.measure.summary import CellSummary
from specbench.records import OWN_ENGINE, Cell, TokenDifference
from specbench.statistics import Estimate


@dataclass(frozen=True)
class PeerComparison:
    """One arm of a peer and the same of ours.

    own: None where ours was not measured. speed_ratio: peer seconds per committed token / ours,
    end to end, paired by prompt; None where nothing was timed in both. num_compared: outputs
    whose ids were compared, None at T > 0, where equal laws give different texts; num_same:
    those that were equal. differences: where the others parted first.
    """

    peer: CellSummary
    own: CellSummary | None
    speed_ratio: Estimate | None
    num_compared: int | None
    differences: tuple[TokenDifference, ...]

    @property
    def num_same(self) -> int | None:
        """Outputs with the ids that ours has."""
        return None if self.num_compared is None else self.num_compared - len(self.differences)


def compare_peers(collected: Collected, summaries: Sequence[CellSummary]) -> list[PeerComparison]:
    """One comparison for each arm of a peer, in the order of the grid."""
    by_cell = {one.cell: one for one in summaries}
    return [_compare(collected, by_cell, one) for one in summaries if one.cell.arm.is_peer]


def _compare(
    collected: Collected, by_cell: dict[Cell, CellSummary], peer: CellSummary
) -> PeerComparison:
    own_cell = replace(peer.cell, arm=replace(peer.cell.arm, engine=OWN_ENGINE))
    own, theirs = (collected.tallies.get(cell.key) for cell in (own_cell, peer.cell))
    ratio, num_compared = None, None
    if own is not None and theirs is not None:
        both = shared_prompts(own, theirs)
        ratio = speedup(collected.resampler, both)
        if peer.cell.group.sampling.temperature == 0:
            num_compared = sum(map(len, both.prompts))
    return PeerComparison(
        peer=peer,
        own=by_cell.get(own_cell),
        speed_ratio=ratio,
        num_compared=num_compared,
        differences=collected.differences.get(peer.cell.key, ()),
    )
