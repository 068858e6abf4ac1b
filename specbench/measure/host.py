"""What the machine is, read from the operating system: CPU, memory, GPU. None where unknown.

Owns the reading and its units. Knows nothing of runs, and says nothing about what is good.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_SYSTEM = Path("/sys/devices/system/cpu")
_GPU_FIELDS = {
    "driver_version": "driver",
    "clocks.max.sm": "max_clock_mhz",
    "power.limit": "power_limit_w",
    "persistence_mode": "persistence_mode",
    "clocks.sm": "clock_mhz",
    "temperature.gpu": "temperature_c",
    "clocks_throttle_reasons.active": "throttle_reasons",
}
_GPU_STATE = ("clock_mhz", "temperature_c", "throttle_reasons")


def cpu() -> dict[str, Any]:
    """Name, cores, cache sizes and frequency governor of the processor.

    num_usable: cores this process may run on. quota: cores' worth of time that a container
    allows. num_physical: cores without their hardware threads.
    """
    return {
        "name": _cpu_name(),
        "architecture": platform.machine(),
        "num_logical": os.cpu_count(),
        "num_physical": _num_physical(),
        "num_usable": num_usable_cores(),
        "quota": _quota(),
        "caches_bytes": _caches_bytes(),
        "governor": _text(_SYSTEM / "cpu0/cpufreq/scaling_governor"),
    }


def num_usable_cores() -> int:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> dict[str, int | None]:
    """Total and available memory in bytes."""
    table = _text(Path("/proc/meminfo")) or ""
    found = {name: int(kb) * 1024 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", table)}
    total = found.get("MemTotal")
    if total is None and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"total_bytes": total, "available_bytes": found.get("MemAvailable")}


def load_average() -> float | None:
    """Processes that ran or waited to run, averaged over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def gpu(uuid: str) -> tuple[dict[str, str], dict[str, str]]:
    """What an NVIDIA GPU is and what it is doing: (fixed facts, present state).

    uuid: "GPU-...", since indices change meaning with CUDA_VISIBLE_DEVICES. State includes
    `num_compute_processes`, this one included. Both are empty where no driver answers.
    """
    query = ["nvidia-smi", f"--id={uuid}", "--format=csv,noheader,nounits"]
    line = run([*query, f"--query-gpu={','.join(_GPU_FIELDS)}"])
    if line is None:
        return {}, {}
    values = [value.strip() for value in line.split(",")]
    found = dict(zip(_GPU_FIELDS.values(), values, strict=False))
    state = {name: found.pop(name) for name in _GPU_STATE if name in found}
    processes = run([*query, "--query-compute-apps=pid"])
    if processes is not None:
        state["num_compute_processes"] = str(len(processes.split()))
    return found, state


def run(command: list[str]) -> str | None:
    """What a command prints, stripped; None when it is missing, fails or takes over 5 seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    if found:
        return found[1].strip()
    name = run(["sysctl", "-n", "machdep.cpu.brand_string"]) if platform.system() != "Linux" else ""
    return name or platform.processor() or platform.machine()


def _num_physical() -> int | None:
    topologies = [
        _text(folder / "topology/thread_siblings_list") for folder in _SYSTEM.glob("cpu[0-9]*")
    ]
    return len({*topologies} - {None}) or None


def _quota() -> float | None:
    quota, _, period = (_text(Path("/sys/fs/cgroup/cpu.max")) or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _caches_bytes() -> dict[str, int]:
    """Bytes of each cache that the first core sees, by level: L1 data, L2, L3."""
    sizes: dict[str, int] = {}
    for folder in sorted((_SYSTEM / "cpu0/cache").glob("index[0-9]*")):
        level, kind, size = (_text(folder / name) for name in ("level", "type", "size"))
        found = re.fullmatch(r"(\d+)([KM])", size or "")
        if found and kind != "Instruction":
            sizes[f"L{level}"] = int(found[1]) * {"K": 1 << 10, "M": 1 << 20}[found[2]]
    return sizes
