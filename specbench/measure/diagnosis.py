"""What may spoil a measurement on this machine, each with a piece of advice.

Owns the checks behind `specbench doctor` and their limits. Knows nothing of how they are shown.

The bandwidth probe is here because decoding one token reads every weight once: weights in bytes
over bytes per second is a floor under the time per token that no software goes below, and the
reason why verifying a few tokens at once costs little more than one.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from specbench.measure import host

OK = "ok"
WARN = "warn"
FAIL = "fail"

_POCKET = Path(__file__).resolve().parents[1] / "pocket"
_PROBE_BYTES = 256 << 20
_GIB = 1 << 30


@dataclass(frozen=True)
class Check:
    """One finding. status: "ok", "warn" (results may suffer) or "fail" (nothing will run).

    advice: what to do about it; empty when there is nothing to do.
    """

    name: str
    status: str
    detail: str
    advice: str = ""


def diagnose() -> list[Check]:
    """Every check, in the order a reader wants them; a few seconds, nothing is changed.

    A check that itself breaks is a finding that says so, and the others go on.
    """
    checks: list[Callable[[], Check]] = [
        python,
        versions,
        importable,
        pocket,
        device,
        threads,
        memory,
        bandwidth,
        load,
        governor,
        hub,
    ]
    return [_guarded(check) for check in checks]


def python() -> Check:
    """Which interpreter runs; an older one than 3.11 does not get this far."""
    where = f"{platform.system()} {platform.machine()}"
    return Check("python", OK, f"{platform.python_version()} on {where}")


def versions() -> Check:
    """Whether what is installed lies in the ranges that the package was tried with."""
    try:
        outside = list(_outside(metadata.requires("specbench") or []))
    except metadata.PackageNotFoundError:
        return Check("versions", WARN, "specbench is not installed", "run pip install -e .")
    if outside:
        return Check("versions", FAIL, "; ".join(outside), "run scripts/setup, or pip install -e .")
    named = ("torch", "transformers", "datasets")
    return Check("versions", OK, ", ".join(f"{name} {metadata.version(name)}" for name in named))


def _outside(requirements: list[str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield f"{requirement.name} {found} is not {requirement.specifier}"


def importable() -> Check:
    """Whether the packages with compiled parts do load, which an installed version does not say."""
    names = ("torch", "sentencepiece", "datasets")
    broken = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken wheel fails in any way it likes
            broken.append(f"{name} ({type(error).__name__})")
    if broken:
        return Check("imports", FAIL, f"cannot load {', '.join(broken)}", "install them again")
    return Check("imports", OK, f"{', '.join(names)} load")


def pocket() -> Check:
    """Whether the embedded models and prompts are there."""
    models = sorted(path.parent.name for path in _POCKET.rglob("*.safetensors"))
    prompts = sorted(path.name for path in _POCKET.rglob("*.jsonl"))
    if not models or not prompts:
        missing = " and ".join(
            word for word, found in (("models", models), ("prompts", prompts)) if not found
        )
        return Check("pocket family", FAIL, f"no embedded {missing}", "install specbench again")
    return Check("pocket family", OK, f"models {', '.join(models)}; prompts {', '.join(prompts)}")


def device() -> Check:
    """The accelerator, and whether somebody else computes on it."""
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        _, state = host.gpu(f"GPU-{properties.uuid}")
        others = max(0, int(state.get("num_compute_processes", "0")) - 1)
        detail = f"cuda: {properties.name}, {properties.total_memory / _GIB:.0f} GiB"
        if others:
            return Check("device", WARN, f"{detail}, {others} other processes", "wait for them")
        return Check("device", OK, detail)
    if torch.backends.mps.is_available():
        return Check("device", WARN, "mps", "compare with --device cpu before trusting tokens")
    return Check("device", OK, f"cpu: {host.cpu()['name']}")


def threads() -> Check:
    """Whether torch has more threads than cores, which makes times jump."""
    import torch

    cpu = host.cpu()
    cores = min(cpu["num_usable"], cpu["quota"] or cpu["num_usable"])
    used = torch.get_num_threads()
    named = os.environ.get("OMP_NUM_THREADS")
    detail = f"{used} threads, {cores:g} usable cores" + (
        f", OMP_NUM_THREADS={named}" if named else ""
    )
    if used > cores:
        return Check("threads", WARN, detail, f"use --threads {max(1, int(cores))}")
    if cpu["num_physical"] is not None and used > cpu["num_physical"]:
        return Check("threads", WARN, detail, f"use --threads {cpu['num_physical']} (real cores)")
    return Check("threads", OK, detail)


def memory() -> Check:
    """Whether the embedded models fit; a larger model needs four bytes a parameter in float32."""
    available = host.memory()["available_bytes"]
    if available is None:
        return Check("memory", OK, "free memory is not known")
    detail = f"{available / _GIB:.1f} GiB free"
    if available < 0.5 * _GIB:
        return Check("memory", FAIL, detail, "close something")
    if available < 2 * _GIB:
        return Check("memory", WARN, detail, "enough for the pocket family only")
    return Check("memory", OK, detail)


def bandwidth() -> Check:
    """Bytes per second that torch reads from memory, the best of five passes over 256 MiB."""
    import torch

    available = host.memory()["available_bytes"]
    if available is not None and available < 2 * _PROBE_BYTES:
        return Check("bandwidth", WARN, "too little free memory to probe", "close something")
    values = torch.ones(_PROBE_BYTES // 4)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - started)
    rate = _PROBE_BYTES / min(seconds)
    detail = (
        f"{rate / 1e9:.1f} GB/s read with {torch.get_num_threads()} threads: "
        f"100 M float32 parameters take {4e8 / rate * 1e3:.0f} ms a token"
    )
    return Check("bandwidth", OK, detail)


def load() -> Check:
    """Whether other processes keep the cores busy."""
    average, cores = host.load_average(), host.num_usable_cores()
    if average is None:
        return Check("load", OK, "not known on this system")
    detail = f"load average {average:.2f} on {cores} cores"
    if average > 0.25 * cores:
        return Check("load", WARN, detail, "stop other programs, or read times with care")
    return Check("load", OK, detail)


def governor() -> Check:
    """Whether the processor may change its clock while it is being timed."""
    found = host.cpu()["governor"]
    if found is None:
        return Check("governor", OK, "not known (a virtual machine sets none)")
    if found != "performance":
        return Check("governor", WARN, found, "cpupower frequency-set -g performance")
    return Check("governor", OK, found)


def hub() -> Check:
    """Where hub downloads are kept, and whether an offline variable forbids new ones."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    kept = len([*cache.glob("models--*"), *cache.glob("datasets--*")])
    detail = f"{kept} repositories in {cache}"
    if constants.HF_HUB_OFFLINE:
        return Check("hub", OK, f"{detail}; offline mode: only these can be used")
    return Check("hub", OK, detail)


def _guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the doctor reports what is broken and goes on
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Check(check.__name__, FAIL, f"the check itself failed: {reason}")
