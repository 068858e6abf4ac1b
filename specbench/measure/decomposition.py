"""Why a measured speedup differs from the paper's formula, in steps that multiply to it.

Owns the chain from walltime_improvement (Thm 3.8) to the measured speedup. Each value of the
chain replaces one idealisation of the formula by what was measured; a step is the ratio of two
neighbouring values, so that predicted * product of the steps = measured, exactly.

Seconds per round: D drafting, V verifying, R the rest; subscript b the baseline's rounds, a the
arm's rounds of full width. E tokens per round; g = gamma.

    predicted                 E(alpha) / (g c + 1)
    acceptance by position    E / (g c + 1)                 E = 1 + sum_j prod_{i<=j} alpha_i
    verification              E / (g c + v)                 v = T_p(g+1) / T_p(1), both alone
    draft in the loop         E / (D_a/V_b + v)
    verification in the loop  E / (D_a/V_b + V_a/V_b)
    drawing and rollback      E (V_b + R_b) / (D_a + V_a + R_a)
    cut last rounds           round seconds per committed token, baseline / arm, all rounds
    unexplained               decode seconds per committed token, baseline / arm: measured S
    encoder and prefill       total seconds per committed token, baseline / arm: end-to-end S

alpha_i is pooled over prompts: accepted at i / tested at i given that all before were accepted.
It holds both that acceptance depends on the position and that prompts differ (the survivors at
position i come more from easy prompts). A model alone keeps its weights in the caches; in the
loop two models push each other out, which is what the two steps "in the loop" see. A cut round
is one that ended early at EOS or drafted less at the limit; in a batch the same step holds what
rows lose that wait for longer ones. Unexplained is time after prefill that no round's clock saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np

from specbench import theory
from specbench.measure.collection import Collected, Shared, baseline_of, collect, shared_prompts
from specbench.measure.metrics import speedup, speedup_replicates
from specbench.measure.repeats import over_sessions
from specbench.measure.steps import NotMeasured
from specbench.measure.tally import Tally
from specbench.records import Cell, Record
from specbench.statistics import Estimate, estimate, ratio

VERIFICATION = "verification"
CUT = "cut last rounds"
ENCODER = "encoder and prefill"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class GapStep:
    """One idealisation given up. factor: by how much it moves S; after: S behind it.

    because: what was measured, in words.
    """

    name: str
    factor: Estimate
    after: float
    because: str


@dataclass(frozen=True)
class Decomposition:
    """From the paper's formula to what was measured, for one cell with a draft.

    predicted: walltime_improvement. steps: to `measured` (decode only), the unexplained one
    last. alone: the value after the verification step, the last that was measured outside the
    loop and so still a prediction. refined: the value before the unexplained step, an account
    of the loop's own clocks. encoder: the step from there to
    `measured_total` (end to end).
    """

    cell: Cell
    predicted: Estimate
    steps: tuple[GapStep, ...]
    alone: Estimate
    refined: Estimate
    measured: Estimate
    encoder: GapStep
    measured_total: Estimate

    @property
    def all_steps(self) -> tuple[GapStep, ...]:
        """Every step from the formula to the end-to-end speedup."""
        return (*self.steps, self.encoder)

    @property
    def sentence(self) -> str:
        """The largest step in words."""
        largest = max(self.all_steps, key=lambda step: abs(log(step.factor.value)))
        before = largest.after / largest.factor.value
        verb = "falls" if largest.factor.value < 1 else "rises"
        sure = "" if largest.factor.excludes(1.0) else ", which may be chance"
        return (
            f"Largest step: {largest.name}, because {largest.because}; S {verb} from "
            f"{before:.2f} to {largest.after:.2f} (factor {interval(largest.factor)}{sure})."
        )


def interval(value: Estimate) -> str:
    """A value and its interval as sentences show them."""
    if value.low is None or value.high is None:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def decompose(cells: Sequence[Cell], records: Iterable[Record], seed: int) -> list[Decomposition]:
    """The decomposition of every own cell with a draft for which each step was measured."""
    return decompose_collected(collect(cells, records, seed))


def decompose_collected(collected: Collected) -> list[Decomposition]:
    """As `decompose`, for records that are already sorted by cell."""
    own = (cell for cell in collected.cells if cell.arm.draft and not cell.arm.is_peer)
    found = (_decompose(collected, cell) for cell in own)
    return [one for one in found if one is not None]


@dataclass(frozen=True)
class _Parts:
    """What the chain is made of, each as replicates (1 + resamples,)."""

    alpha: np.ndarray
    expected: np.ndarray
    cost: np.ndarray
    verify: np.ndarray
    base_verify_s: np.ndarray
    base_rest_s: np.ndarray
    draft_s: np.ndarray
    verify_s: np.ndarray
    rest_s: np.ndarray
    rounds: np.ndarray
    measured: np.ndarray
    measured_total: np.ndarray


def _decompose(collected: Collected, cell: Cell) -> Decomposition | None:
    arm, baseline = collected.tallies.get(cell.key), collected.baseline(cell)
    if arm is None or baseline is None or cell.arm.gamma == 0:
        return None
    both = shared_prompts(arm, baseline)
    parts = _parts(collected, arm, baseline, both)
    if parts is None:
        return None
    chain = _chain(parts, cell.arm.gamma)
    if not all(np.isfinite(values[0]) and values[0] > 0 for values in chain.values()):
        return None
    num_prompts = len(both.prompts)
    # What verification costs alone was seen in calls, not in prompts.
    num_seen = {VERIFICATION: collected.steps.num_calls(baseline.cell)}
    estimates = {name: _sure(estimate(values, num_prompts)) for name, values in chain.items()}
    names, reasons = list(chain), _reasons(parts, cell.arm.gamma)
    steps = [
        GapStep(
            name,
            _sure(estimate(chain[name] / chain[before], num_seen.get(name, num_prompts))),
            estimates[name].value,
            reasons[name],
        )
        for before, name in pairwise(names)
    ]
    return Decomposition(
        cell=cell,
        predicted=estimates[names[0]],
        steps=tuple(steps[:-1]),
        alone=estimates[VERIFICATION],
        refined=estimates[CUT],
        # What sessions add is known of the measured values alone.
        measured=_sure(speedup(collected.resampler, both, decode_only=True)),
        encoder=steps[-1],
        measured_total=_sure(speedup(collected.resampler, both)),
    )


def _sure(found: Estimate | None) -> Estimate:
    assert found is not None  # `_decompose` has looked at the values
    return found


def _parts(collected: Collected, arm: Tally, baseline: Tally, both: Shared) -> _Parts | None:
    overlaps, base_cell = collected.overlaps_of(arm.cell), baseline_of(arm.cell)
    if overlaps is None:
        return None
    try:
        cost = collected.steps.cost_coefficient(base_cell, arm.cell.arm.draft or "")
        verify = collected.steps.verify_ratio(base_cell, arm.cell.arm.gamma)
    except NotMeasured:
        return None
    # Every column is over the same batches in the same order, overlaps over their prompts: the
    # bootstrap stays paired. Parts
    # are shares of the seconds that the measured speedup is made of, so that noise which the
    # comparison within repeats has taken out does not come back in one of the steps.
    base_s, own_s = over_sessions(both.rounds.second_s), over_sessions(both.rounds.first_s)
    base = collected.resampler.totals(
        base_s * baseline.full_verify_share[both.second],
        base_s * baseline.full_rest_share[both.second],
        baseline.num_full_rounds[both.second],
    )
    own = collected.resampler.totals(
        own_s * arm.full_draft_share[both.first],
        own_s * arm.full_verify_share[both.first],
        own_s * arm.full_rest_share[both.first],
        arm.num_full_rounds[both.first],
    )
    return _Parts(
        alpha=ratio(*collected.resampler.totals(overlaps.sums, overlaps.counts)),
        expected=_expected_by_position(collected, arm, both.first),
        cost=cost,
        verify=verify,
        base_verify_s=ratio(base[0], base[2]),
        base_rest_s=ratio(base[1], base[2]),
        draft_s=ratio(own[0], own[3]),
        verify_s=ratio(own[1], own[3]),
        rest_s=ratio(own[2], own[3]),
        rounds=speedup_replicates(collected.resampler, both, both.rounds),
        measured=speedup_replicates(collected.resampler, both, both.decode),
        measured_total=speedup_replicates(collected.resampler, both, both.total),
    )


def _expected_by_position(collected: Collected, arm: Tally, chosen: np.ndarray) -> np.ndarray:
    """1 + sum_j prod_{i<=j} alpha_i with the acceptance at each position, as replicates."""
    tested = np.array(collected.resampler.totals(*arm.tested_at[chosen].T))
    accepted = np.array(collected.resampler.totals(*arm.accepted_at[chosen].T))
    pooled = ratio(accepted.sum(axis=0), tested.sum(axis=0))
    # A position that no round reached has no rate of its own. Where all before were rejected it
    # does not matter; where EOS or the limit came first, the pooled rate stands in.
    alphas = np.where(tested > 0, ratio(accepted, tested), pooled)
    return _expected_tokens(alphas)


def _expected_tokens(alphas: np.ndarray) -> np.ndarray:
    """`theory.expected_tokens_by_position` for many replicates at once; alphas (gamma, R)."""
    return np.asarray(1.0 + np.cumprod(alphas, axis=0).sum(axis=0))


def _chain(parts: _Parts, gamma: int) -> dict[str, np.ndarray]:
    """S after each step, by the step's name; the first is the prediction."""
    formula = _expected_tokens(np.tile(parts.alpha, (gamma, 1)))
    draft, verify = parts.draft_s / parts.base_verify_s, parts.verify_s / parts.base_verify_s
    base_s = parts.base_verify_s + parts.base_rest_s
    round_s = parts.draft_s + parts.verify_s + parts.rest_s
    return {
        "predicted": formula / (gamma * parts.cost + 1.0),
        "acceptance by position": parts.expected / (gamma * parts.cost + 1.0),
        VERIFICATION: parts.expected / (gamma * parts.cost + parts.verify),
        "draft in the loop": parts.expected / (draft + parts.verify),
        "verification in the loop": parts.expected / (draft + verify),
        "drawing and rollback": parts.expected * base_s / round_s,
        CUT: parts.rounds,
        UNEXPLAINED: parts.measured,
        ENCODER: parts.measured_total,
    }


def _reasons(parts: _Parts, gamma: int) -> dict[str, str]:
    """What was measured for each step, in words."""
    ideal = theory.expected_tokens(float(parts.alpha[0]), gamma)
    draft = parts.draft_s[0] / parts.base_verify_s[0]
    verify = parts.verify_s[0] / parts.base_verify_s[0]
    rest = (parts.rest_s[0] - parts.base_rest_s[0]) * 1e3
    return {
        "acceptance by position": f"acceptance at each position and prompt gives "
        f"{parts.expected[0]:.2f} tokens per full round where one alpha gives {ideal:.2f}",
        VERIFICATION: f"the target's call of {gamma + 1} tokens costs {parts.verify[0]:.2f} "
        f"times its call of one",
        "draft in the loop": f"drafting costs {draft:.2f} target calls per round where "
        f"{gamma} c = {gamma * parts.cost[0]:.2f} were expected",
        "verification in the loop": f"between drafts the target's call costs {verify:.2f} "
        f"baseline calls where {parts.verify[0]:.2f} were measured alone",
        "drawing and rollback": f"drawing, accepting and rolling back take {rest:.2f} ms more "
        f"per round than the baseline's drawing",
        CUT: "rounds that end at EOS or the limit commit fewer tokens for what they cost",
        UNEXPLAINED: "some time after prefill lies outside the rounds' clocks",
        ENCODER: "encoder and prompt pass take their time in both arms, those of the draft only "
        "in one",
    }
