"""Statistical assertions with their odds written down."""

from collections.abc import Hashable, Mapping

from specbench.statistics import chi_square

FALSE_ALARM = 1e-4


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
    p_value = chi_square(
        [counts.get(outcome, 0) for outcome in outcomes],
        [law.get(outcome, 0.0) for outcome in outcomes],
    )
    assert p_value >= false_alarm, f"p = {p_value:.1e} under the law, alarm below {false_alarm:g}"
