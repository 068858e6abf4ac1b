"""One call that proves a target and its drafts, at every temperature of a run.

Owns how much is done (`Effort`), the rate of false alarms of all tests together, and the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from specbench.decoding import decode, uniforms
from specbench.measure.exactness.greedy import GreedyCheck, check_greedy
from specbench.measure.exactness.law import LawCheck, check_law
from specbench.measure.exactness.status import EXACT, NOT_CHECKED, UNDERPOWERED, WRONG
from specbench.models import BROKEN, explain
from specbench.models.protocol import LanguageModel
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling

Check = GreedyCheck | LawCheck

# Of all statistical tests of one call together.
FALSE_ALARM = 1e-4


@dataclass(frozen=True)
class Effort:
    """How much is done. num_prompts: compared at T = 0, and looked through for prefixes;
    num_draws: at each of num_prefixes; gammas, max_new_tokens: of the outputs at T = 0. tries:
    where a wrong decoder was not caught the test is made again with four times the draws.
    """

    num_prompts: int
    num_prefixes: int
    num_draws: int
    gammas: tuple[int, ...]
    max_new_tokens: int
    tries: int = 2


FULL = Effort(num_prompts=20, num_prefixes=8, num_draws=500, gammas=(2, 5), max_new_tokens=128)
SHORT = Effort(num_prompts=4, num_prefixes=4, num_draws=128, gammas=(4,), max_new_tokens=32)


@dataclass(frozen=True)
class Report:
    """What was found for each draft at each temperature.

    unfollowed: one line for each draft and temperature at which a model gave no law to follow.
    """

    target: str
    dtype: str
    effort: Effort
    checks: tuple[Check, ...]
    unfollowed: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """One line for each check that found a fault, was not to be made, or proved nothing."""
        return [*self.lines(WRONG), *self.unfollowed, *self.lines(UNDERPOWERED)]

    def lines(self, status: str) -> list[str]:
        """One line for each check that ended so."""
        return [
            f"{name(check)}: {check.sentence}" for check in self.checks if check.status == status
        ]

    @property
    def status(self) -> str:
        """The worst of the checks'."""
        found = [check.status for check in self.checks]
        if WRONG not in found and self.unfollowed:
            return NOT_CHECKED
        return WRONG if WRONG in found else next((s for s in found if s != EXACT), EXACT)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.failures:
            return (
                f"exact: {len(self.checks)} of {len(self.checks)} checks passed on this pair, and "
                "wrong decoders failed them"
            )
        return f"{self.status}: {self.failures[0]}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "status": self.status,
            "verdict": self.verdict,
            "target": self.target,
            "dtype": self.dtype,
            "effort": asdict(self.effort),
            "unfollowed": list(self.unfollowed),
            "checks": [
                {
                    "name": name(check),
                    "status": check.status,
                    "sentence": check.sentence,
                    **_plain(check),
                }
                for check in self.checks
            ],
        }


def name(check: Check) -> str:
    """The pair and the temperature of a check."""
    return _pair(check.target, check.draft, check.sampling)


def _pair(target: str, draft: str, sampling: Sampling) -> str:
    return f"{target} with {draft} at T={sampling.temperature:g}"


def check(
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    items: Sequence[EncodedPrompt],
    samplings: Sequence[Sampling],
    limits: Limits,
    effort: Effort = FULL,
    seed: int = 0,
    say: Callable[[str], object] = str,
) -> Report:
    """Prove every draft at every sampling, or say why not.

    items: prompts of the run, in order. limits: of the run's outputs. Raises one of BROKEN
    where the target cannot be followed by itself; a draft that cannot leaves the others theirs.
    """
    num_tests = len(drafts) * sum(not _leaves_one_token(sampling) for sampling in samplings)
    length = min(limits.max_new_tokens, effort.max_new_tokens)
    effort = replace(effort, max_new_tokens=length)
    limits = Limits(length, min(limits.min_new_tokens, length))
    checks: list[Check] = []
    unfollowed: list[str] = []
    with torch.inference_mode():
        for sampling in samplings:
            greedy = _leaves_one_token(sampling)
            chosen = items[: effort.num_prompts]
            outputs = [] if greedy else _outputs(target, chosen, sampling, length, seed)
            for draft in drafts:
                say(f"exactness of {draft.name} at T={sampling.temperature:g}")
                try:
                    found: Check = (
                        check_greedy(
                            target, draft, items, sampling, limits, effort.gammas,
                            effort.num_prompts, seed,
                        )
                        if greedy
                        else _check_law(
                            target, draft, chosen, outputs, sampling, effort,
                            FALSE_ALARM / num_tests, seed,
                        )
                    )  # fmt: skip
                except BROKEN as error:
                    pair = _pair(target.name, draft.name, sampling)
                    unfollowed.append(f"{pair}: {explain(error)}")
                else:
                    checks.append(found)
    return Report(target.name, target.dtype, effort, tuple(checks), tuple(unfollowed))


def _check_law(
    target: LanguageModel,
    draft: LanguageModel,
    items: Sequence[EncodedPrompt],
    outputs: Sequence[Sequence[int]],
    sampling: Sampling,
    effort: Effort,
    false_alarm: float,
    seed: int,
) -> LawCheck:
    """The first try that tells something, or the last; they share the rate of false alarms."""
    for attempt in range(effort.tries):
        found = check_law(
            target, draft, items, outputs, sampling, effort.num_prefixes,
            effort.num_draws * 4**attempt, false_alarm / effort.tries, seed + attempt,
        )  # fmt: skip
        if found.status != UNDERPOWERED or not found.prefixes:
            break
    return found


def _leaves_one_token(sampling: Sampling) -> bool:
    """Whether every law is one-hot, so that ids can be compared."""
    return sampling.temperature == 0.0 or sampling.top_k == 1


def _outputs(
    target: LanguageModel,
    items: Sequence[EncodedPrompt],
    sampling: Sampling,
    length: int,
    seed: int,
) -> list[list[int]]:
    """One output of the target alone for each prompt, in which prefixes are looked for."""
    prompts = [item.token_ids for item in items]
    ids = [item.id for item in items]
    uniform = uniforms(seed, f"exactness {sampling}", ids, length, 0)
    return decode(target, None, 0, prompts, sampling, Limits(length), uniform).tokens


def _plain(check: Check) -> dict[str, Any]:
    """A check's fields; an infinite statistic (an impossible token) has no JSON and is None."""
    values = asdict(check)
    for prefix in values.get("prefixes", ()):
        if prefix["fit"]["num_impossible"]:
            prefix["fit"]["statistic"] = None
    return values
