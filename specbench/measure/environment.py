"""Where a measurement was made: captured before it starts, compared before results are joined.

Owns what is recorded of host, device, software, source and variables, and which differences
between two captures forbid joining their results: two runs of the same code on unlike processors
are two experiments, and a ratio between them means nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.measure import host
from specbench.measure.gpu_meter import GpuMeter

if TYPE_CHECKING:
    import torch

__all__ = [
    "capture",
    "differences",
    "set_threads",
    "source",
    "synchronizer",
    "variables",
]

_PACKAGE = Path(__file__).resolve().parents[1]
# Rooms that show what was measured; a change there changes no measurement.
_SHOWING = ("cli", "report")
# Distributions whose version can change a token or a second.
_MEASURING = ("torch", "transformers", "tokenizers", "sentencepiece", "safetensors", "numpy")
_OTHERS = ("specbench", "datasets", "huggingface-hub", "scipy", "pandas", "matplotlib")
_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|DNNL|ONEDNN|ATEN|TORCH|PYTORCH|CUDA|CUBLAS"
    r"|CUDNN|NVIDIA|NCCL|HIP|ROCR|MALLOC|HF|TRANSFORMERS|TOKENIZERS|SPECBENCH)_"
    r"|(PYTHONHASHSEED|PYTHONMALLOC|LD_PRELOAD)$"
)
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|KEY|PASSWORD|PASSWD|CREDENTIALS?|AUTH)(_|$)")
# Where files come from and how they are fetched changes neither tokens nor seconds.
_FETCHING = re.compile(r"(HF|TRANSFORMERS)_")


def capture(device: torch.device | str, threads: int) -> dict[str, Any]:
    """Everything about this machine and installation that a reader of a number may ask for.

    Plain values, ready for JSON; None where unknown. `state` is what may differ from one minute
    to the next; all else is fixed. Values of secret variables and folders are left out.

    device: where the models run. threads: CPU threads of the models.
    """
    import torch

    fixed, state = _device(torch.device(device))
    memory = host.memory()
    return {
        "platform": f"{platform.system()} {re.sub(r'[^0-9.].*', '', platform.release())}",
        "cpu": host.cpu(),
        "memory_bytes": memory["total_bytes"],
        "device": fixed,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in (*_MEASURING, *_OTHERS)},
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "source": source(),
        "threads": {"model": threads, "interop": torch.get_num_interop_threads()},
        "variables": variables(os.environ),
        "state": {
            "load_average": host.load_average(),
            "memory_available_bytes": memory["available_bytes"],
            **state,
        },
    }


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(field, value in a, value in b) of each difference that forbids joining results.

    Fields are dotted paths. What cannot change tokens or times (load, the showing packages, a
    commit that left the measuring code alone) is passed over.
    """
    flat_a, flat_b = _flat(a), _flat(b)
    return [
        (name, flat_a.get(name), flat_b.get(name))
        for name in sorted({*flat_a, *flat_b})
        if _matters(name) and flat_a.get(name) != flat_b.get(name)
    ]


def set_threads(threads: int | None) -> int:
    """The number of CPU threads torch now uses inside one operation; None leaves its default."""
    import torch

    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads {threads}: allowed are integers >= 1")
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def synchronizer(device: torch.device | str) -> Callable[[], None]:
    """A function that waits until the device has nothing left to do.

    A GPU's calls return before their work is done; a clock read without waiting times the launch.
    """
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    if device.type == "cpu":
        return lambda: None
    raise ValueError(f"device {device}: allowed are cpu, cuda and mps")


def source() -> dict[str, Any]:
    """Which code this is: git commit, whether it was edited since, hash of the measuring rooms.

    commit and dirty are None for an installed package, even inside somebody else's repository.
    """
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        name = path.relative_to(_PACKAGE)
        if name.parts[0] not in _SHOWING:
            digest.update(f"{name.as_posix()}\x00".encode() + path.read_bytes() + b"\x00")
    git = ["git", "-C", str(_PACKAGE)]
    tracked = host.run([*git, "ls-files", "--error-unmatch", "__init__.py"]) is not None
    status = host.run([*git, "status", "--porcelain", "--", "."]) if tracked else None
    return {
        "commit": host.run([*git, "rev-parse", "HEAD"]) if tracked else None,
        "dirty": None if status is None else bool(status),
        "code_sha256": digest.hexdigest(),
    }


def variables(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The environment variables that can change results, without secrets and folders."""
    return {
        name: "(hidden)" if _SECRET.search(name) else _without_folders(value)
        for name, value in sorted(environ.items())
        if _VARIABLES.match(name)
    }


def _without_folders(value: str) -> str:
    value = re.sub(r"//[^/@\s]*@", "//(hidden)@", value)
    if "://" in value:
        return value
    return re.sub(r"(?:~|[A-Za-z]:)?[/\\](?:[^/\\:\s]+[/\\])*([^/\\:\s]*)", r".../\1", value)


def _matters(name: str) -> bool:
    room, _, rest = name.partition(".")
    if room == "packages":
        return rest in _MEASURING
    if room == "variables":
        return not _FETCHING.match(rest)
    if room == "source":
        return rest == "code_sha256"
    return room in {"cpu", "device", "python", "instruction_set", "threads"}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def gpu_meter(device: torch.device) -> GpuMeter | None:
    """What reads the clock of a CUDA device; None on another one, or where no driver answers."""
    if device.type != "cuda":
        return None
    import torch

    try:
        return GpuMeter(_uuid(torch.cuda.get_device_properties(device)))
    except OSError:
        return None


def _uuid(properties: Any) -> str:
    return f"GPU-{properties.uuid}"


def _device(device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    if device.type != "cuda":
        return {"type": device.type}, {}
    import torch

    properties = torch.cuda.get_device_properties(device)
    fixed, state = host.gpu(_uuid(properties))
    facts = {
        "type": "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "num_multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        **fixed,
    }
    return facts, state


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
