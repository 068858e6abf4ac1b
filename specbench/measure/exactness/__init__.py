"""The gate before the clock: proof, on the user's own pair, that this code decodes exactly.

At T = 0 token ids are compared (`greedy`); at T > 0 equal laws give different texts, so draws are
tested against the target's own law (`law`). In the same call a wrong decoder (`wrong_rules`) must
fail, or nothing was proved. Knows nothing of clocks, files and tables.
"""

from specbench.measure.exactness.gate import FULL, SHORT, Check, Effort, Report, check, name
from specbench.measure.exactness.greedy import Difference, GreedyCheck, check_greedy
from specbench.measure.exactness.law import LawCheck, check_law
from specbench.measure.exactness.status import EXACT, UNDERPOWERED, WRONG

__all__ = [
    "EXACT",
    "FULL",
    "SHORT",
    "UNDERPOWERED",
    "WRONG",
    "Check",
    "Difference",
    "Effort",
    "GreedyCheck",
    "LawCheck",
    "Report",
    "check",
    "check_greedy",
    "check_law",
    "name",
]
