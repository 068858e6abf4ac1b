"""The words: frozen records of what happened, with units in their names.

Owns the meaning of every count and second that is stored, and the schema version of the raw
lines. Knows nothing of how a record is stored (`experiment`) or shown (`report`).

Counting rule, one for every arm. *Committed* tokens are those kept in the output: EOS is
included, the decoder start token is not, nothing after EOS or after the limit is. *Tested*
drafts are the accepted ones plus the one that was rejected; a draft after EOS is neither tested
nor accepted. A round commits its accepted drafts and one token of the target's own, unless EOS
or the limit ends it earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA_VERSION = 1

OK = "ok"
FAILED = "failed"

OWN_ENGINE = "specbench"
PEER_ENGINES = ("transformers",)


@dataclass(frozen=True)
class Sampling:
    """How logits become the distribution that is sampled from, the same for target and draft.

    temperature: 0 is argmax, 1 is the model's own law; finite and >= 0.
    top_k: keep the k most probable tokens; 0 keeps all.
    top_p: keep the smallest set of tokens whose probability reaches top_p; 1.0 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature {self.temperature}: allowed are finite numbers >= 0")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k}: allowed are 0 (off) and positive integers")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p {self.top_p}: allowed are numbers in (0, 1]")


@dataclass(frozen=True)
class Limits:
    """When a generation ends: at EOS once `min_new_tokens` are there, or at `max_new_tokens`."""

    max_new_tokens: int
    min_new_tokens: int = 0


@dataclass(frozen=True)
class Arm:
    """One way of decoding the same prompts; gamma = 0 without a draft is the baseline.

    replica: 1 marks the null arm, the baseline decoded a second time to see what the
    instrument reports when nothing differs. engine: whose loop decodes, ours or a peer's.
    """

    draft: str | None = None
    gamma: int = 0
    replica: int = 0
    engine: str = OWN_ENGINE

    @property
    def is_peer(self) -> bool:
        """Whether another engine decodes: measured for comparison, never chosen or explained."""
        return self.engine != OWN_ENGINE

    @property
    def is_baseline(self) -> bool:
        """Whether this is the autoregressive baseline itself (no null arm, no peer)."""
        return self.draft is None and self.replica == 0 and not self.is_peer

    @property
    def label(self) -> str:
        """Short name for progress lines and figures."""
        engine = f"{self.engine} " if self.is_peer else ""
        if self.draft is None:
            return f"{engine}null" if self.replica else f"{engine}baseline"
        return f"{engine}{self.draft} gamma={self.gamma}"


@dataclass(frozen=True)
class Group:
    """The cells that share a baseline and are measured together on one device."""

    task: str
    target: str
    sampling: Sampling
    limits: Limits
    batch: int
    dtype: str
    device: str
    seed: int


def exact(value: float) -> str:
    """A number as short as may be while no other number is written alike."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


@dataclass(frozen=True)
class Cell:
    """One point of the grid: a group and one of its arms."""

    group: Group
    arm: Arm

    @property
    def key(self) -> str:
        """A readable string that differs whenever anything that changes the tokens differs."""
        group, sampling, limits = self.group, self.group.sampling, self.group.limits
        parts = [
            f"task={group.task}",
            f"target={group.target}",
            f"T={exact(sampling.temperature)}",
            f"top_k={sampling.top_k}",
            f"top_p={exact(sampling.top_p)}",
            f"tokens={limits.min_new_tokens}..{limits.max_new_tokens}",
            f"batch={group.batch}",
            f"dtype={group.dtype}",
            f"device={group.device}",
            f"seed={group.seed}",
            f"draft={self.arm.draft or 'none'}",
            f"gamma={self.arm.gamma}",
        ]
        if self.arm.replica:
            parts.append(f"replica={self.arm.replica}")
        if self.arm.is_peer:
            parts.append(f"engine={self.arm.engine}")
        return " ".join(parts)


@dataclass(frozen=True)
class Round:
    """Draft, verify once, emit: the counts of each row of the batch and the seconds of the round.

    num_drafted, num_accepted, num_tested, num_committed: one integer per row; all four are 0
    for a row that had finished before this round.
    draft_s, verify_s, rest_s: seconds in the draft model, in the target model, and in drawing,
    accepting, rolling back and counting. None where nobody held a clock.
    num_residual_fallbacks: rows whose residual rounded to zero, so that the target's own
    distribution was drawn from instead.
    """

    num_drafted: tuple[int, ...]
    num_accepted: tuple[int, ...]
    num_tested: tuple[int, ...]
    num_committed: tuple[int, ...]
    num_residual_fallbacks: int = 0
    draft_s: float | None = None
    verify_s: float | None = None
    rest_s: float | None = None


@dataclass(frozen=True)
class Generation:
    """One timed call of a decoder on one batch of prompts.

    cell: `Cell.key`. prompt_ids, num_prompt_tokens, tokens, stop_reasons: one entry per row;
    `tokens` are the committed ids; a stop reason is "eos" or "length".
    repeat: 0, 1, ... for identical work timed again; negative for warm-up, never counted.
    session: which of the run's processes timed it, from 0; tokens do not depend on it.
    total_s: seconds from handing over the prompt ids to holding the last token.
    target_prefill_s, draft_prefill_s: seconds of the encoder (or prompt pass) of each model.
    ttft_s: seconds until the first round's tokens were on the host.
    load_average, steal_fraction, others_fraction: disturbance around this generation, None where
    unknown (see `measure.disturbance`).
    gpu_clock_mhz, gpu_slowdown: the GPU's clock as it ended, and the driver's bits for why it is
    not higher (see `measure.gpu_meter`); None without a GPU.
    """

    cell: str
    prompt_ids: tuple[str, ...]
    repeat: int
    status: str
    num_prompt_tokens: tuple[int, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    stop_reasons: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    total_s: float | None = None
    target_prefill_s: float | None = None
    draft_prefill_s: float | None = None
    ttft_s: float | None = None
    load_average: float | None = None
    steal_fraction: float | None = None
    others_fraction: float | None = None
    gpu_clock_mhz: int | None = None
    gpu_slowdown: int | None = None
    error: str | None = None
    session: int = 0

    @property
    def num_committed(self) -> int:
        """Committed tokens over all rows."""
        return sum(len(row) for row in self.tokens)

    @property
    def decode_s(self) -> float | None:
        """Seconds after prefill: total_s less both prefills; None for a failed generation."""
        if self.total_s is None:
            return None
        return self.total_s - (self.target_prefill_s or 0.0) - (self.draft_prefill_s or 0.0)


@dataclass(frozen=True)
class OverlapTrace:
    """sum_x min(p(x), q(x)) at each position of the target's own output for one prompt.

    The paper's acceptance probability (Leviathan et al. 2023, Cor. 3.6), measured along tokens
    that the target generated alone, under the group's sampling. cell: the baseline's `Cell.key`.
    """

    cell: str
    draft: str
    prompt_id: str
    overlaps: tuple[float, ...]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of single decoder calls, alone and outside any loop, at lengths of the run.

    cell: the baseline's `Cell.key` of the group. model: its name; role: "target" or "draft".
    num_tokens: tokens per row of the call (K). num_cached: decoder tokens already in the cache.
    seconds: one entry per call, warm-up excluded, in the order they were taken. session: which
    of the run's processes took them, from 0.
    """

    cell: str
    model: str
    role: str
    num_tokens: int
    num_cached: int
    seconds: tuple[float, ...] = field(default=())
    session: int = 0


@dataclass(frozen=True)
class TokenDifference:
    """Where a peer's greedy output left ours: the first position at which the ids differ.

    cell: the peer's `Cell.key`. token, peer_token: ids, None where that output had ended. gap:
    how far the target's logits of the two lie apart, None where one had ended. verdict: "tie",
    "near tie" (a gap that rounding explains) or "wrong".
    """

    cell: str
    prompt_id: str
    position: int
    token: int | None
    peer_token: int | None
    gap: float | None
    verdict: str


Record = Generation | OverlapTrace | StepTimes | TokenDifference
