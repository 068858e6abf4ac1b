"""Statistical assertions with their odds written down."""

from collections.abc import Hashable, Mapping
from math import inf

import numpy as np

from specbench.statistics import p_value, pearson

FALSE_ALARM = 1e-4
# Chi-square needs about this many expected counts in a cell (Cochran 1954).
SMALLEST_EXPECTED_COUNT = 5.0


def assert_same_distribution(
    counts: Mapping[Hashable, int],
    law: Mapping[Hashable, float],
    false_alarm: float = FALSE_ALARM,
) -> None:
    """Fail if `counts`, drawn with a fixed seed, are unlikely under `law`.

    counts: outcome -> how often it was seen. law: outcome -> probability, 0 where left out. With
    independent draws and the right law one seed in 1 / false_alarm fails; an outcome that is
    impossible under the law always does.
    """
    outcomes = sorted({*counts, *law})
    p = fit(
        np.array([counts.get(outcome, 0) for outcome in outcomes], float),
        np.array([law.get(outcome, 0.0) for outcome in outcomes], float),
    )
    assert p >= false_alarm, f"p = {p:.1e} under the law, alarm below {false_alarm:g}"


def fit(counts: np.ndarray, law: np.ndarray) -> float:
    """Pearson's p-value of counts (n,) under probabilities (n,).

    Cells that expect fewer than 5 counts are pooled into one, with the next smallest if even the
    pool expects fewer. A count where the law has none gives 0, a law of a single cell 1.
    """
    assert counts.sum() > 0, "nothing was counted"
    assert abs(law.sum() - 1.0) < 1e-5, f"probabilities sum to {law.sum():g}"
    assert law.min() >= 0.0, "a negative probability"
    if np.any(counts[law == 0.0] > 0.0):
        return p_value(inf, len(law) - 1)
    order = np.argsort(law)
    counts, law = counts[order], law[order] / law.sum()
    expected = law * counts.sum()
    small = int(np.sum(expected < SMALLEST_EXPECTED_COUNT))
    if 0.0 < expected[:small].sum() < SMALLEST_EXPECTED_COUNT:
        small = min(small + 1, len(law))
    counts, law = (np.append(values[small:], values[:small].sum()) for values in (counts, law))
    counts, law = counts[law > 0.0], law[law > 0.0]
    return p_value(pearson(counts, law), len(law) - 1)
