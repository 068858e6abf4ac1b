"""The published numbers, as data, each with its table and row, and how to compare with them.

Owns every number of Leviathan, Kalman and Matias, *Fast Inference from Transformers via
Speculative Decoding*, arXiv 2211.17192v2 (ICML 2023), that this project quotes. Knows nothing of
measurements made here. Printed numbers are rounded: a comparison has to ask whether any value
that rounds to the printed one would do, never whether the printed digits agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from specbench.theory import expected_tokens, walltime_improvement

CITATION = (
    "Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, "
    "arXiv 2211.17192v2, ICML 2023"
)

AGREES = "agrees"
DISAGREES = "disagrees"
EXCEEDS_CEILING = "exceeds c=0 ceiling"

# Half a unit of the last printed digit: alpha and c have two decimals, EXP and EMP one.
HALF_CENT = 0.005
HALF_TENTH = 0.05


@dataclass(frozen=True)
class SpeedRow:
    """One row of Tables 2 and 4: T5-XXL 11B decoding on one TPU-v4 at batch 1.

    row: from 1, in printed order. expected: EXP, Thm 3.8 as printed; empirical: EMP, the
    measured speed relative to T5X.
    """

    row: int
    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    c: float
    expected: float
    empirical: float

    @property
    def source(self) -> str:
        """Where the row is printed."""
        return f"Tables 2 and 4, row {self.row}"


@dataclass(frozen=True)
class TheoryRow:
    """One row of Table 1: c = c_hat = 0, growth of operations and of speed."""

    row: int
    alpha: float
    gamma: int
    operations: float
    speed: float


@dataclass(frozen=True)
class AlphaRow:
    """One row of Table 3: alpha = E[sum min(p, q)] over 10,000 tokens of the target's own."""

    row: int
    target: str
    draft: str
    alpha_t0: float
    alpha_t1: float


@dataclass(frozen=True)
class LenienceRow:
    """One row of Table 5 (appendix A.5): alpha of T5-XXL, EnDe, T=1, at each of LENIENCES.

    Lenience changes the output distribution: these are not speculative decoding proper.
    """

    row: int
    draft: str
    alphas: tuple[float, float, float, float]


TABLE_1 = (
    TheoryRow(1, 0.6, 2, 1.53, 1.96),
    TheoryRow(2, 0.7, 3, 1.58, 2.53),
    TheoryRow(3, 0.8, 2, 1.23, 2.44),
    TheoryRow(4, 0.8, 5, 1.63, 3.69),
    TheoryRow(5, 0.9, 2, 1.11, 2.71),
    TheoryRow(6, 0.9, 10, 1.60, 6.86),
)

TABLES_2_AND_4 = (
    SpeedRow(1, "EnDe", "T5-small", 0.0, 7, 0.75, 0.02, 3.2, 3.4),
    SpeedRow(2, "EnDe", "T5-base", 0.0, 7, 0.80, 0.04, 3.3, 2.8),
    SpeedRow(3, "EnDe", "T5-large", 0.0, 7, 0.82, 0.11, 2.5, 1.7),
    SpeedRow(4, "EnDe", "T5-small", 1.0, 7, 0.62, 0.02, 2.3, 2.6),
    SpeedRow(5, "EnDe", "T5-base", 1.0, 5, 0.68, 0.04, 2.4, 2.4),
    SpeedRow(6, "EnDe", "T5-large", 1.0, 3, 0.71, 0.11, 2.0, 1.4),
    SpeedRow(7, "CNN/DM", "T5-small", 0.0, 5, 0.65, 0.02, 2.4, 3.1),
    SpeedRow(8, "CNN/DM", "T5-base", 0.0, 5, 0.73, 0.04, 2.6, 3.0),
    SpeedRow(9, "CNN/DM", "T5-large", 0.0, 3, 0.74, 0.11, 2.0, 2.2),
    SpeedRow(10, "CNN/DM", "T5-small", 1.0, 5, 0.53, 0.02, 1.9, 2.3),
    SpeedRow(11, "CNN/DM", "T5-base", 1.0, 3, 0.55, 0.04, 1.8, 2.2),
    SpeedRow(12, "CNN/DM", "T5-large", 1.0, 3, 0.56, 0.11, 1.6, 1.7),
)

_GPT, _ENDE, _CNN = "GPT-like 97M, lm1b", "T5-XXL 11B, EnDe", "T5-XXL 11B, CNN/DM"
_LAMDA = "LaMDA 137B, dialog, top-40"
TABLE_3 = (
    AlphaRow(1, _GPT, "unigram", 0.03, 0.03),
    AlphaRow(2, _GPT, "bigram", 0.05, 0.05),
    AlphaRow(3, _GPT, "GPT-like 6M", 0.88, 0.89),
    AlphaRow(4, _ENDE, "unigram", 0.08, 0.07),
    AlphaRow(5, _ENDE, "bigram", 0.20, 0.19),
    AlphaRow(6, _ENDE, "T5-small", 0.75, 0.62),
    AlphaRow(7, _ENDE, "T5-base", 0.80, 0.68),
    AlphaRow(8, _ENDE, "T5-large", 0.82, 0.71),
    AlphaRow(9, _CNN, "unigram", 0.13, 0.08),
    AlphaRow(10, _CNN, "bigram", 0.23, 0.16),
    AlphaRow(11, _CNN, "T5-small", 0.65, 0.53),
    AlphaRow(12, _CNN, "T5-base", 0.73, 0.55),
    AlphaRow(13, _CNN, "T5-large", 0.74, 0.56),
    AlphaRow(14, _LAMDA, "LaMDA 100M", 0.61, 0.57),
    AlphaRow(15, _LAMDA, "LaMDA 2B", 0.71, 0.71),
    AlphaRow(16, _LAMDA, "LaMDA 8B", 0.75, 0.74),
)

LENIENCES = (1.0, 0.5, 0.3, 0.1)
TABLE_5 = (
    LenienceRow(1, "unigram", (0.07, 0.10, 0.11, 0.16)),
    LenienceRow(2, "bigram", (0.19, 0.23, 0.25, 0.32)),
    LenienceRow(3, "T5-small", (0.62, 0.71, 0.76, 0.84)),
    LenienceRow(4, "T5-base", (0.68, 0.80, 0.83, 0.90)),
)
# Appendix A.5, T5-small on EnDe at T=0, and the speeds the text gives at c = .015, gamma = 8.
LENIENCE_ARGMAX_ALPHAS = (0.75, 0.75, 0.80, 0.87)
LENIENCE_ARGMAX_SPEEDS = (3.3, 3.3, 3.9, 4.9)

# Figure 3: c -> the optimal gamma at both ends of the plotted range of alpha.
FIGURE_3_ALPHAS = (0.5, 0.9)
FIGURE_3 = {0.01: (5, 24), 0.02: (4, 19), 0.05: (3, 13), 0.1: (2, 10)}

SETUP = {
    "hardware": "one TPU-v4, batch 1, T5X baseline",
    "models": "T5 v1.1 small 77M, base 250M, large 800M, XXL 11B, fine-tuned on each task; "
    "GPT-like 97M (width 768, 12 layers) and 6M (width 256, 2 layers), 8k BERT tokens",
    "alpha": "mean of sum min(p, q) over 10,000 tokens generated by the target",
    "not stated": "prompts, lengths, precision, repeats, splits, how gamma was picked, "
    "n-gram training data",
}


def rows_for(
    task: str | None = None, draft: str | None = None, temperature: float | None = None
) -> tuple[SpeedRow, ...]:
    """The rows of Tables 2 and 4 that match; None matches everything.

    task: "EnDe" or "CNN/DM". draft: "T5-small", "T5-base" or "T5-large". temperature: 0 or 1.
    """
    return tuple(
        row
        for row in TABLES_2_AND_4
        if task in (None, row.task)
        and draft in (None, row.draft)
        and temperature in (None, row.temperature)
    )


def predicted_range(row: SpeedRow) -> tuple[float, float]:
    """The least and greatest speed of Thm 3.8 for inputs that round to the printed ones."""
    return (
        walltime_improvement(row.alpha - HALF_CENT, row.gamma, row.c + HALF_CENT),
        walltime_improvement(row.alpha + HALF_CENT, row.gamma, row.c - HALF_CENT),
    )


def ceiling(row: SpeedRow) -> float:
    """The greatest speed of Thm 3.8 for any c >= 0 and an alpha that rounds to the printed one."""
    return expected_tokens(row.alpha + HALF_CENT, row.gamma)


def prediction_is_reproduced(row: SpeedRow) -> bool:
    """Whether Thm 3.8 at inputs that round to the printed ones can give the printed EXP."""
    low, high = predicted_range(row)
    return low - HALF_TENTH <= row.expected <= high + HALF_TENTH


def classify_row(row: SpeedRow) -> str:
    """How the measured EMP stands to Thm 3.8: "agrees", "disagrees" or "exceeds c=0 ceiling".

    Agrees: some inputs that round to the printed alpha and c predict a speed that rounds to the
    printed EMP. Exceeds the ceiling: no c >= 0 and no alpha that rounds to the printed one
    explain it. Disagrees: the rest.
    """
    low, high = predicted_range(row)
    if row.empirical - HALF_TENTH > ceiling(row):
        return EXCEEDS_CEILING
    if low - HALF_TENTH <= row.empirical <= high + HALF_TENTH:
        return AGREES
    return DISAGREES
