"""From a configuration to the grid: groups that share a baseline, and their cells.

Owns which cells exist and in which order. Knows nothing of loaded models.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from specbench.experiment.config import Config
from specbench.records import Arm, Cell, Group, Limits, Sampling


def plan(config: Config, dtype: str, device: str) -> list[list[Cell]]:
    """The cells of a sweep, one list for each group: baseline, null arm, every draft and gamma,
    then the same of each peer but for the null arm.

    dtype, device: as resolved, since they are part of a cell's identity.
    """
    arms = [Arm(), Arm(replica=1)]
    arms += [Arm(draft, gamma) for draft, gamma in product(config.draft, config.gamma) if gamma]
    arms += [
        replace(arm, engine=engine) for engine in config.arm for arm in arms if not arm.replica
    ]
    return [[Cell(group, arm) for arm in arms] for group in _groups(config, dtype, device)]


def _groups(config: Config, dtype: str, device: str) -> list[Group]:
    return [
        Group(
            task=task,
            target=config.target,
            sampling=Sampling(temperature, config.top_k, config.top_p),
            limits=Limits(config.max_new_tokens, config.min_new_tokens),
            batch=batch,
            dtype=dtype,
            device=device,
            seed=config.seed,
        )
        for task, temperature, batch in product(config.task, config.temperature, config.batch)
    ]
