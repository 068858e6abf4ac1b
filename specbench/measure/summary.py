"""What a cell came to: the numbers that tables, figures and sentences are made of.

Owns the names and denominators of derived numbers. `measure.metrics` computes them from
records; `report` only shows them. A ratio with an empty denominator is None, never 0 or NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.records import Cell
from specbench.statistics import Estimate

SHORT_OUTPUT_TOKENS = 8


@dataclass(frozen=True)
class CellSummary:
    """All numbers of one cell; measured unless the name says predicted.

    Counts are totals over all prompts that ended well (first repeat only: repeats time identical
    work). num_failed: prompts that did not; error: the first reason. num_short: outputs below
    SHORT_OUTPUT_TOKENS. num_sessions: processes that timed it; the interval of a speedup covers
    differences between sessions where there are two or more.
    alpha_overlap: mean of sum min(p,q) over the target's own tokens (paper Cor. 3.6).
    acceptance_rate: accepted / tested. accepted_fraction: accepted / drafted.
    block_efficiency: committed tokens / target calls after prefill, per row (all rounds pooled);
    block_efficiency_macro: the mean over prompts of the same ratio within each prompt.
    acceptance_by_position: accepted at position i / tested at position i, i = 1..gamma; None
    where nothing was tested.
    accepted_histogram: rounds of full width whose drafts were all tested or met a rejection, by
    number of accepted drafts, 0..gamma. drafted_histogram: rounds by number of drafted tokens
    (effective gamma).
    cost_coefficient: seconds of one draft call / one target call of one token, both alone, this
    pair, dtype and device. verify_ratio: target call of gamma+1 tokens / target call of one.
    speedup, decode_speedup: baseline seconds per committed token / this arm's, same prompts,
    end to end and after prefill (ratio of totals; repeats are compared one by one, so that with
    several it is not the quotient of two tokens_per_s). speedup_geomean: geometric mean of the
    per-prompt end-to-end ratios. speedup_without_short: as speedup, over the prompts where no
    output of either arm is short; None where no prompt is left out.
    expected_tokens, walltime_improvement: predicted by Eq. 1 and Thm 3.8 from alpha_overlap,
    gamma and cost_coefficient.
    tokens_per_s, decode_tokens_per_s: committed tokens / total and / decode seconds.
    ttft_s, tpot_s: medians over prompts; tpot_s = (total - ttft) / (tokens - 1).
    flags: short words a reader must see; `measure.flags` says when each is raised.
    """

    cell: Cell
    num_prompts: int
    num_sessions: int = 0
    num_failed: int = 0
    error: str | None = None
    num_committed: int = 0
    min_committed: int | None = None
    max_committed: int | None = None
    num_short: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    alpha_overlap: Estimate | None = None
    acceptance_rate: Estimate | None = None
    accepted_fraction: float | None = None
    block_efficiency: Estimate | None = None
    block_efficiency_macro: float | None = None
    acceptance_by_position: tuple[float | None, ...] = ()
    accepted_histogram: tuple[int, ...] = ()
    drafted_histogram: dict[int, int] = field(default_factory=dict)
    cost_coefficient: Estimate | None = None
    verify_ratio: Estimate | None = None
    speedup: Estimate | None = None
    decode_speedup: Estimate | None = None
    speedup_geomean: Estimate | None = None
    speedup_without_short: Estimate | None = None
    expected_tokens: float | None = None
    walltime_improvement: float | None = None
    tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def mean_committed(self) -> float | None:
        """Committed tokens per prompt; None where no prompt finished."""
        return self.num_committed / self.num_prompts if self.num_prompts else None
