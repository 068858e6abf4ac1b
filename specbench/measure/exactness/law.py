"""T > 0: speculative draws against the target's own law, at prefixes from real prompts.

Owns the choice of prefixes, the draws and the verdict. Texts are not compared: two decoders of
equal law give different texts. At each prefix the law of the next tokens is computed by the
target alone, from a fresh state; draws come from the decoder itself, and the tokens judged are
those that went through accept and reject.

The statistics of all prefixes are summed: one test, one stated rate of false alarms,
and a stated total variation that it would have caught.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from specbench.decoding import AcceptRule
from specbench.measure.exactness.cells import Cells
from specbench.measure.exactness.draws import GAMMAS, Draws
from specbench.measure.exactness.laws import reference
from specbench.measure.exactness.prefixes import choose_prefixes
from specbench.measure.exactness.status import EXACT, UNDERPOWERED, WRONG
from specbench.measure.exactness.wrong_rules import WRONG_RULES
from specbench.models.protocol import LanguageModel
from specbench.prompts import EncodedPrompt
from specbench.records import Sampling
from specbench.sampling import accept
from specbench.statistics import detectable_variation, p_value, pearson

POWER = 0.99


@dataclass(frozen=True)
class Fit:
    """Draws at one prefix against the law there. rounding: the noncentrality allowed to it;
    num_impossible: drawn although the target gives them no probability, which makes the
    statistic infinite."""

    num_cells: int
    statistic: float
    rounding: float
    num_impossible: int
    p_value: float


@dataclass(frozen=True)
class PrefixCheck:
    """One prefix. num_tokens: its length; overlap: sum_x min(p(x), q(x)) of the next token."""

    prompt_id: str
    num_tokens: int
    overlap: float
    fit: Fit


@dataclass(frozen=True)
class Control:
    """A decoder that is wrong on purpose, under the same test."""

    rule: str
    p_value: float
    caught: bool


@dataclass(frozen=True)
class LawCheck:
    """Draws at T > 0. num_draws: at each prefix; num_accepted, num_rejected: drafts tested.

    p_value below false_alarm is a failure. detectable_variation: a root mean square total
    variation over the prefixes that would have failed with probability `power`;
    detectable_at_one: the same at a single prefix.
    """

    target: str
    draft: str
    sampling: Sampling
    false_alarm: float
    gammas: tuple[int, ...] = GAMMAS
    num_draws: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    prefixes: tuple[PrefixCheck, ...] = ()
    p_value: float = 1.0
    power: float = POWER
    detectable_variation: float = 1.0
    detectable_at_one: float = 1.0
    controls: tuple[Control, ...] = ()

    @property
    def status(self) -> str:
        """ "exact", "wrong" or "underpowered"."""
        if self.p_value < self.false_alarm:
            return WRONG
        if self.prefixes and all(control.caught for control in self.controls):
            return EXACT
        return UNDERPOWERED

    @property
    def sentence(self) -> str:
        """What was found, in one sentence with its numbers."""
        if not self.prefixes:
            return (
                "no position found where drafts are both accepted and rejected: nothing was "
                "tested; more prompts may have one"
            )
        drawn = (
            f"{len(self.prefixes)} prefixes with {self.num_draws} draws each "
            f"({self.num_accepted} drafts accepted, {self.num_rejected} rejected)"
        )
        p, alarm = _p_text(self.p_value), f"alarm below {self.false_alarm:.1g}"
        if self.status == WRONG:
            num_impossible = sum(prefix.fit.num_impossible for prefix in self.prefixes)
            unlike = f", {num_impossible} impossible tokens" if num_impossible else ""
            return f"draws do not follow the target's own law: {p} ({alarm}) at {drawn}{unlike}"
        found = (
            f"draws follow the target's own law at {drawn}: {p} ({alarm}); a total variation of "
            f"{self.detectable_variation:.3f} is caught with probability {self.power:g}"
        )
        missed = [control for control in self.controls if not control.caught]
        if missed:
            names = ", ".join(f"{item.rule} ({_p_text(item.p_value)})" for item in missed)
            return f"{found}; but a wrong decoder passed as well: {names}: more draws"
        caught = ", ".join(f"{item.rule} ({_p_text(item.p_value)})" for item in self.controls)
        return f"{found}; wrong decoders were caught: {caught}"


def check_law(
    target: LanguageModel,
    draft: LanguageModel,
    items: Sequence[EncodedPrompt],
    outputs: Sequence[Sequence[int]],
    sampling: Sampling,
    num_prefixes: int,
    num_draws: int,
    false_alarm: float,
    seed: int = 0,
    rule: AcceptRule = accept,
) -> LawCheck:
    """Test draws of the pair at the most telling prefixes of the target's own `outputs`.

    items: prompts; outputs: one of the target alone for each. num_draws: at each prefix, rounded
    up to full calls. rule: the rule under test.
    """
    prefixes = choose_prefixes(target, draft, items, outputs, sampling, num_prefixes)
    if not prefixes:
        return LawCheck(target.name, draft.name, sampling, false_alarm)
    draws = Draws(target, draft, prefixes, sampling, num_draws, seed)
    laws = [reference(target, draft, prefix, sampling, draws.num_draws) for prefix in prefixes]
    drawn = draws.take("right", rule)
    fits = _fits(laws, drawn.outcomes)
    controls = []
    for name, wrong in WRONG_RULES.items():
        p = _together(_fits(laws, draws.take(name, wrong).outcomes))
        controls.append(Control(name, p, p < false_alarm))
    freedom, rounding = _freedom(fits), sum(fit.rounding for fit in fits)
    whole, single = (
        detectable_variation(num, freedom, rounding, false_alarm, POWER)
        for num in (draws.num_draws * len(prefixes), draws.num_draws)
    )
    return LawCheck(
        target.name,
        draft.name,
        sampling,
        false_alarm,
        num_draws=draws.num_draws,
        num_accepted=drawn.num_accepted,
        num_rejected=drawn.num_rejected,
        prefixes=tuple(
            PrefixCheck(prefix.prompt_id, len(prefix.tokens), prefix.overlap, fit)
            for prefix, fit in zip(prefixes, fits, strict=True)
        ),
        p_value=_together(fits),
        detectable_variation=whole,
        detectable_at_one=single,
        controls=tuple(controls),
    )


def _fits(
    laws: Sequence[tuple[Cells, float]], outcomes: Sequence[Sequence[Sequence[int]]]
) -> list[Fit]:
    """How the draws of each prefix fit its law."""
    return [_fit(*law, rows) for law, rows in zip(laws, outcomes, strict=True)]


def _fit(cells: Cells, rounding: float, outcomes: Sequence[Sequence[int]]) -> Fit:
    counts, num_impossible = cells.count(outcomes)
    statistic = inf if num_impossible else pearson(counts, cells.probs)
    num_cells = len(cells.probs)
    p = p_value(statistic, num_cells - 1, rounding)
    return Fit(num_cells, statistic, rounding, num_impossible, p)


def _together(fits: Sequence[Fit]) -> float:
    """The p-value of all prefixes: independent chi-squares add up, and so do their cells."""
    statistic, rounding = (
        sum(values) for values in zip(*((f.statistic, f.rounding) for f in fits), strict=True)
    )
    return p_value(statistic, _freedom(fits), rounding)


def _freedom(fits: Sequence[Fit]) -> int:
    return sum(fit.num_cells - 1 for fit in fits)


def _p_text(p: float) -> str:
    return "p < 1e-12" if p < 1e-12 else f"p = {p:.2g}"
