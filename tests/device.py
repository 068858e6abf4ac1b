"""A scripted device: models whose every call takes a planted time on a clock that we hold.

What a real machine does to a measurement is an argument here: noise, stalls, drift, work that
finishes behind the host, sessions that differ. The truth is known, so that the whole instrument
(bench, sweep, store, metrics) can be asked to give it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from fakes import EOS, VirtualClock

from specbench.experiment.config import Config
from specbench.experiment.plan import plan
from specbench.experiment.prepare import Prepared
from specbench.experiment.run import Sweep
from specbench.experiment.store import Store
from specbench.measure.harness import Bench
from specbench.measure.timing import Stopwatch
from specbench.models.protocol import State
from specbench.prompts import EncodedPrompt

GOOD, BAD, VOCABULARY = 2, 3, 4


@dataclass(frozen=True)
class Kind:
    """A kind of prompt: how long its output is, and where the draft agrees with the target."""

    length: int
    agrees: tuple[bool, ...]


def kinds(num_kinds: int = 12, alpha: float = 0.75, seed: int = 0) -> list[Kind]:
    """A population of prompts that differ in length and in how well the draft does."""
    random = np.random.default_rng(seed)
    found = []
    for length in random.integers(4, 10, num_kinds):
        own = random.beta(8 * alpha, 8 * (1 - alpha))
        found.append(Kind(int(length), tuple(bool(v) for v in random.random(length) < own)))
    return found


@dataclass
class Device:
    """Planted seconds, and what disturbs them.

    verify_s, draft_s: of a call, by tokens per row. encoder_s: of each model's prompt pass.
    rest_s: per round of a draft's arm, half of it at each of its two rollbacks. noise: half
    width of a uniform factor about 1 on each call. stall_rate: share of calls that meet a stall
    of 8 ms. drift: share by which each generation is slower than the first than the one before.
    tilt: factor on calls of several tokens, which only drafts' arms make. cold_s: more for a call
    that finds another model's weights in the caches. behind: work finishes
    behind the host, which needs 0.1 ms to launch it.
    """

    verify_s: Callable[[int], float] = lambda num_tokens: 0.020 + 0.001 * (num_tokens - 1)
    draft_s: float = 0.002
    encoder_s: float = 0.010
    rest_s: float = 0.001
    noise: float = 0.0
    stall_rate: float = 0.0
    drift: float = 0.0
    tilt: float = 1.0
    cold_s: float = 0.0
    behind: bool = False
    seed: int = 0
    clock: VirtualClock = field(default_factory=VirtualClock)
    num_generations: int = 0

    def __post_init__(self) -> None:
        self._random, self._busy_until = np.random.default_rng(self.seed), 0.0
        self._held: object = None

    def work(self, seconds: float) -> None:
        """Take so long, as far as nothing disturbs it."""
        if self.noise:
            seconds *= 1.0 + self.noise * (2.0 * self._random.random() - 1.0)
        if self.stall_rate and self._random.random() < self.stall_rate:
            seconds += 0.008
        seconds *= 1.0 + self.drift * self.num_generations
        if self.behind:
            self.clock.sleep(1e-4)
            self._busy_until = max(self._busy_until, self.clock.now - 1e-4) + seconds
        else:
            self.clock.sleep(seconds)

    def fetched(self, weights: object) -> float:
        """Seconds until the weights of a call are in the caches."""
        held, self._held = self._held, weights
        return 0.0 if held is weights else self.cold_s

    def synchronize(self) -> None:
        """Wait for what was launched."""
        self.clock.now = max(self.clock.now, self._busy_until)


class DeviceModel:
    """A model that says what its script says, at any position, and takes its time on a device.

    A prompt is one number, the index of its kind. The target says GOOD until EOS ends the
    output; the draft says BAD where it does not agree.
    """

    eos_token: int | None = EOS
    device = torch.device("cpu")
    dtype = "float32"
    vocab_size = VOCABULARY

    def __init__(self, device: Device, population: Sequence[Kind], is_draft: bool) -> None:
        self._on, self._is_draft = device, is_draft
        self.name = "d" if is_draft else "t"
        self._scripts = [_script(kind, is_draft) for kind in population]

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> State:
        if not self._is_draft:
            self._on.num_generations += 1
        self._on.work(self._on.encoder_s)
        return State(torch.tensor([GOOD] * len(prompts)), [0] * len(prompts), prompts[0][0])

    def extend(self, state: State, tokens: torch.Tensor) -> torch.Tensor:
        begin, width = state.lengths[0], tokens.shape[1]
        if self._is_draft:
            seconds = width * self._on.draft_s
        else:
            seconds = self._on.verify_s(width) * (self._on.tilt if width > 1 else 1.0)
        self._on.work(seconds + self._on.fetched(self))
        state.lengths = [begin + width]
        return self._scripts[state.memory][None, begin : begin + width]

    def rollback(self, state: State, lengths: Sequence[int]) -> None:
        if self._is_draft:
            self._on.work(self._on.rest_s / 2.0)
        state.lengths = list(lengths)


def _script(kind: Kind, is_draft: bool) -> torch.Tensor:
    """Logits of every position, (positions, V)."""
    tokens = [GOOD] * (kind.length - 1) + [EOS] * 60
    if is_draft:
        tokens = [
            token if position >= kind.length or kind.agrees[position] else BAD
            for position, token in enumerate(tokens)
        ]
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCABULARY).float() * 10.0


def baseline_seconds(device: Device, kind: Kind) -> float:
    """What decoding with the target alone takes on the undisturbed device."""
    return device.encoder_s + kind.length * device.verify_s(1)


def arm_seconds(device: Device, kind: Kind, gamma: int, limit: int) -> float:
    """What speculative decoding takes on the undisturbed device, round by round."""
    seconds, done = 2.0 * device.encoder_s, 0
    fed = 0
    while done < kind.length:
        width = min(gamma, limit - done - 1)
        run = 0
        while run < width and done + run < kind.length and kind.agrees[done + run]:
            run += 1
        if width:
            # The first draft call also takes what the draft has not seen yet.
            seconds += (width - 1 + done + 1 - fed) * device.draft_s + device.rest_s / 2.0
        seconds += device.verify_s(width + 1) + device.rest_s / 2.0
        fed = min(done + width, done + run + 1 - 1 + (1 if run < width else 0)) if width else fed
        done += min(run + 1, kind.length - done)
    return seconds


def prepared(
    device: Device, population: Sequence[Kind], prompts: Sequence[int], **options
) -> Prepared:
    """A sweep of one draft on the device, over prompts of the kinds given by index."""
    given = {"target": "t", "draft": ("d",), "task": ("x",), "gamma": (3,), "turns": 1}
    given |= {"temperature": (0.0,), "max_new_tokens": 12, "warmup": 0, **options}
    config = Config(**given).resolved()
    models = {
        "t": DeviceModel(device, population, is_draft=False),
        "d": DeviceModel(device, population, is_draft=True),
    }
    stopwatch = Stopwatch(device.clock, device.synchronize)
    return Prepared(
        config=config,
        groups=plan(config, "float32", "cpu"),
        bench=Bench(models, stopwatch, device.synchronize, device.clock),
        prompts={"x": [EncodedPrompt(f"p{i}", (kind,), False) for i, kind in enumerate(prompts)]},
        info={"host": {}, "config": config.as_dict(), "prompts": {}, "models": {}},
        notes=[],
    )


def sweep(ready: Prepared, folder, session: int = 0) -> Sweep:
    """The sweep, measured into the folder."""
    store = Store(folder)
    earlier = store.open(ready.info, [cell for cells in ready.groups for cell in cells])
    found = Sweep(ready, store, lambda done, total, text: None, earlier, session)
    assert found.run() == 0
    return found
