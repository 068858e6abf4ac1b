"""Where a model lives and in what precision: names a user types to torch's device and dtype.

Owns too how host numbers get to a device without waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specbench.models.errors import ModelError, UnknownName

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """The device of auto, cpu, cuda, cuda:N or mps; auto is the first CUDA device or the CPU.

    Raises UnknownName for another name, ModelError for what this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UnknownName(f"--device {name}: allowed are auto, cpu, cuda, cuda:N, mps")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ModelError(f"--device {name}: this machine has {count} CUDA devices")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError(f"--device {name}: not available here")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of auto, float32, bfloat16 or float16; auto is float32, on CUDA bfloat16.

    Raises UnknownName for another name.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise UnknownName(f"--dtype {name}: allowed are auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def placed(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Host integers as an int64 tensor of the same shape on `device`.

    A copy from ordinary memory to a CUDA device first waits until its queue is empty; from
    pinned memory it joins the queue, and torch keeps that memory until the copy is done.
    """
    if device.type == "cpu":
        return torch.from_numpy(np.array(values, dtype=np.int64))  # half of torch.tensor's time
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long, device=device)
    pinned = torch.tensor(values, dtype=torch.long, pin_memory=True)
    return pinned.to(device, non_blocking=True)
