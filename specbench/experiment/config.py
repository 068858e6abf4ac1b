"""What the user asked for: one frozen configuration from defaults, a TOML file and flags.

Owns the options of a sweep, their defaults, their allowed values and the range syntax. Knows
nothing of models and prompts beyond their names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from specbench.records import PEER_ENGINES

POCKET_TARGET = "pocket/target"
POCKET_DRAFTS = ("pocket/small", "pocket/small-distilled", "pocket/base", "pocket/large")
POCKET_TASKS = ("pocket-ende", "pocket-summary")
LARGEST_DEFAULT_GAMMA = 8


class UsageError(ValueError):
    """An option has a value that is not allowed; the message names option, value and allowed."""


# A slip of the finger must not fill the memory.
MOST_VALUES = 1000  # of a range
MOST_NEW_TOKENS = 100_000


@dataclass(frozen=True)
class Config:
    """Every option of a sweep. Names are those of the flags, and of the keys in a TOML file.

    gamma: none given means 1 to 8, or to what an output has room for.
    limit: prompts per task. max_prompt_tokens: cut longer prompts to this many tokens; None
    never cuts. repeats: how often identical work is timed. warmup: untimed generations of each
    arm before the first timed one. turns: calls per step time. threads: CPU threads of the
    models; None takes torch's default. prefix: overrides the one of the checkpoint family.
    verify: prove every pair exact before anything is timed.
    sessions: how often the whole measurement is made, each time in a fresh process.
    max_minutes: budget for timing unsure cells again once the grid is done, an equal share for
    each session; None does not. target_width: an interval of a speedup is unsure above this half
    width / speedup (0.03 is plus or minus 3 %); None asks for stable repeats only.
    arm: engines whose own decoding is measured beside ours.
    """

    target: str = POCKET_TARGET
    draft: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    gamma: tuple[int, ...] = ()
    temperature: tuple[float, ...] = (0.0, 1.0)
    top_k: int = 0
    top_p: float = 1.0
    batch: tuple[int, ...] = (1,)
    limit: int = 6
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    max_prompt_tokens: int | None = None
    prefix: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    seed: int = 0
    verify: bool = True
    repeats: int = 1
    warmup: int = 1
    turns: int = 30
    sessions: int = 1
    max_minutes: float | None = None
    target_width: float | None = None
    arm: tuple[str, ...] = ()

    def resolved(self) -> Config:
        """The same with the defaults that depend on other options; raises UsageError.

        A pocket target brings its own drafts and tasks; any other needs them named.
        """
        self._check_texts()
        gamma = self.gamma or range(1, min(LARGEST_DEFAULT_GAMMA, self._most_drafts) + 1)
        gamma, arm = tuple(sorted({*gamma})), tuple(dict.fromkeys(self.arm))
        draft, task = tuple(dict.fromkeys(self.draft)), tuple(dict.fromkeys(self.task))
        config = replace(self, gamma=gamma, arm=arm, draft=draft, task=task)
        if config.target.startswith("pocket/"):
            # Gamma 0 alone needs none.
            known = POCKET_DRAFTS if any(config.gamma) else ()
            drafts = tuple(name for name in known if name != config.target)
            config = replace(config, draft=config.draft or drafts, task=config.task or POCKET_TASKS)
        if any(config.gamma) and not config.draft:
            raise UsageError(
                f"--draft: none given for target {config.target}; {_MODELS} (or --gamma 0 for "
                "the target alone)"
            )
        if not config.task:
            raise UsageError(
                f"--task: none given for target {config.target}; allowed are wmt-ende, cnn-dm, "
                "pocket-ende, pocket-summary or file:PATH.jsonl"
            )
        config._check()
        return config

    @property
    def _most_drafts(self) -> int:
        """One token of a round is the target's own; gamma 1 stays allowed, and never drafts."""
        return max(self.max_new_tokens - 1, 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to the run folder."""
        return asdict(self)

    def _check_texts(self) -> None:
        texts = {"target": (self.target,), "draft": self.draft, "task": self.task}
        for name, values in {**texts, "prefix": (self.prefix or "",)}.items():
            for value in values:
                if "\0" in value or _has_surrogate(value):
                    raise UsageError(f"{flag(name)} {value!r}: allowed is text")
        if not self.target:
            raise UsageError(f"--target '': {_MODELS}")

    def _check(self) -> None:
        least = {
            "limit": 1, "max_new_tokens": 1, "min_new_tokens": 0, "max_prompt_tokens": 2,
            "threads": 1, "repeats": 1, "warmup": 0, "turns": 1, "top_k": 0, "seed": 0,
            "sessions": 1,
        }  # fmt: skip
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise UsageError(f"{flag(name)} {value}: allowed are integers >= {lowest}")
        for name in self.arm:
            if name not in PEER_ENGINES:
                raise UsageError(f"--arm {name!r}: allowed are {', '.join(PEER_ENGINES)}")
        for name, lowest in {"gamma": 0, "batch": 1}.items():
            for value in getattr(self, name):
                if value < lowest:
                    raise UsageError(f"{flag(name)} {value}: allowed are integers >= {lowest}")
        widest = max(self.gamma, default=0)
        if widest > self._most_drafts:
            raise UsageError(
                f"--gamma {widest}: allowed are integers up to {self._most_drafts}, for no round "
                f"of outputs of up to {self.max_new_tokens} tokens (--max-new-tokens) drafts more"
            )
        self._check_lengths()
        self._check_fractions()

    def _check_lengths(self) -> None:
        if self.max_new_tokens > MOST_NEW_TOKENS:
            raise UsageError(
                f"--max-new-tokens {self.max_new_tokens}: allowed are 1 to {MOST_NEW_TOKENS}"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise UsageError(
                f"--min-new-tokens {self.min_new_tokens}: allowed are integers up to "
                f"--max-new-tokens {self.max_new_tokens}"
            )

    def _check_fractions(self) -> None:
        for value in self.temperature:
            if not 0.0 <= value < float("inf"):
                raise UsageError(f"--temperature {value}: allowed are finite numbers >= 0")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"--top-p {self.top_p}: allowed are numbers in (0, 1]")
        for name in ("max_minutes", "target_width"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise UsageError(f"{flag(name)} {value}: allowed are finite numbers > 0")
        if self.target_width is not None and self.max_minutes is None:
            raise UsageError(
                f"--target-width {self.target_width}: allowed is only together with "
                "--max-minutes, the time it may take"
            )


_MODELS = "allowed are pocket/NAME, a local folder or a Hugging Face id"


def _has_surrogate(text: str) -> bool:
    """Whether a text holds half a surrogate pair, as bytes on a command line that are no UTF-8."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def read_config(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """A configuration from a TOML file (or none) overridden by the flags that were given.

    flags: field names to values; None means "not given". Raises UsageError.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values = _from_toml(path)
    values.update({name: value for name, value in flags.items() if value is not None})
    return Config(**values).resolved()


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {path}: not valid TOML ({error})") from None
    known = {field.name: field for field in fields(Config)}
    for name in table:
        if name not in known:
            raise UsageError(f"--config {path}: key {name!r}: allowed are {', '.join(known)}")
    return {name: _value(path, name, value) for name, value in table.items()}


def _value(path: Path, name: str, value: Any) -> Any:
    """One TOML value as the field's type; lists may be written as ranges, as on the line."""
    where = f"--config {path}: {name}"
    if name in {"gamma", "batch"}:
        return int_range(where, value if isinstance(value, str) else _joined(value))
    if name == "temperature":
        return float_range(where, value if isinstance(value, str) else _joined(value))
    if name in {"draft", "task", "arm"}:
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{where} {value!r}: allowed are a string or a list of strings")
        return tuple(value)
    kinds: dict[str, type] = dict.fromkeys(("top_p", "max_minutes", "target_width"), float)
    kinds |= dict.fromkeys(("target", "dtype", "device", "prefix"), str)
    allowed: type = {**kinds, "verify": bool}.get(name, int)
    if allowed is float and isinstance(value, int):
        with suppress(OverflowError):
            value = float(value)
    if not isinstance(value, allowed) or isinstance(value, bool) != (allowed is bool):
        raise UsageError(f"{where} {value!r}: allowed is a value of type {allowed.__name__}")
    return value


def _joined(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    return ",".join(str(item) for item in items)


def int_range(option: str, text: str) -> tuple[int, ...]:
    """The integers of "1..8", "1..9:2", "1,3,5" or a mixture; raises UsageError."""
    allowed = f"{option} {text!r}: allowed are integers, ranges like 1..8 or 1..9:2, and lists"
    values: list[int] = []
    for part in text.split(","):
        try:
            bounds, _, step = part.partition(":")
            low, dots, high = bounds.partition("..")
            stride = int(step) if step else 1
            if not dots and step:
                raise ValueError(part)
            span = range(int(low), int(high if dots else low) + 1, stride)
        except ValueError:
            raise UsageError(f"{allowed}; {part!r} is none of them") from None
        if stride < 1 or not span:
            raise UsageError(f"{allowed}; {part!r} is empty")
        if span[MOST_VALUES:]:
            raise UsageError(f"{allowed}, of at most {MOST_VALUES} values")
        values.extend(span)
    return tuple(dict.fromkeys(values))


def float_range(option: str, text: str) -> tuple[float, ...]:
    """The numbers of a list like "0,0.5,1"; raises UsageError."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"{option} {text!r}: allowed are numbers and lists like 0,1") from None
