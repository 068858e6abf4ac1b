"""The gate on a prepared sweep: no pair is timed that does not decode exactly.

Owns which prompts and temperatures are proved, and the refusal. How is in `measure.exactness`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest

from specbench.experiment.prepare import Prepared, Refused, Say, silent
from specbench.experiment.store import Store
from specbench.measure.exactness import SHORT, UNDERPOWERED, WRONG, Effort, Report, check
from specbench.models import BROKEN, explain
from specbench.prompts import EncodedPrompt
from specbench.records import Limits, Sampling


def prove(prepared: Prepared, effort: Effort, say: Say = silent) -> Report:
    """What the gate finds for every draft at every temperature of the configuration.

    Raises Refused where the target cannot be followed by itself.
    """
    config, models = prepared.config, prepared.bench.models
    try:
        return check(
            models[config.target],
            [models[name] for name in config.draft],
            _in_turn(list(prepared.prompts.values())),
            [Sampling(t, config.top_k, config.top_p) for t in config.temperature],
            Limits(config.max_new_tokens, config.min_new_tokens),
            effort,
            config.seed,
            say,
        )
    except BROKEN as error:
        raise Refused(f"{config.target}: {explain(error)}") from None


def gated(prepared: Prepared, store: Store, say: Say = silent) -> Prepared:
    """The same sweep with the short form of the proof in its description, where one is wanted.

    A run that goes on was proved when it began. A check that could not have noticed anything (a
    draft that equals its target, say) is noted, and so is a model that cannot be followed: its
    cells will fail by themselves. Raises Refused for a pair that decodes wrongly; the message is
    one line with pair, temperature and numbers.
    """
    if store.has_begun or not prepared.config.verify or not any(prepared.config.gamma):
        return prepared
    try:
        report = prove(prepared, SHORT, say)
    except Refused as error:
        notes = [*prepared.notes, f"exactness not checked: {error}"]
        return replace(prepared, info={**prepared.info, "notes": notes}, notes=notes)
    wrong = report.lines(WRONG)
    if wrong:
        raise Refused(
            f"{wrong[0]} (nothing was timed; `specbench verify` looks closer, --no-verify "
            "measures all the same)"
        )
    unsure = [
        *(f"exactness not checked: {line}" for line in report.unfollowed),
        *(f"exactness not proved: {line}" for line in report.lines(UNDERPOWERED)),
    ]
    notes = [*prepared.notes, *unsure]
    info = {**prepared.info, "exactness": report.as_dict(), "notes": notes}
    return replace(prepared, info=info, notes=notes)


def _in_turn(tasks: list[list[EncodedPrompt]]) -> list[EncodedPrompt]:
    """The prompts of all tasks, one of each in turn, so that the first few are of every task."""
    return [item for item in chain.from_iterable(zip_longest(*tasks)) if item is not None]
