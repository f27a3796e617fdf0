"""The GPUs of this machine, dealt out to its worker processes."""

from __future__ import annotations

import os
from collections.abc import Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable that lists the GPUs of a process; ROCm reads it as well."""


def deal_gpus(device: str | None, workers: int) -> tuple[str, ...]:
    """Return the GPU of each worker, by index or id; empty if the device is not `cuda` or there is at most one GPU.

    Workers take the GPUs in turn, and share them if there are fewer GPUs than workers. A task that names one GPU, such as
    `cuda:1`, keeps it for all workers.

    Args:
        device: The task's device; None where it has none.

    >>> deal_gpus("cpu", 2)
    ()
    """
    if device != "cuda":
        return ()
    gpus = list_gpus()
    return tuple(gpus[worker % len(gpus)] for worker in range(workers)) if len(gpus) > 1 else ()


def list_gpus() -> tuple[str, ...]:
    """Return the index or id of each GPU that this process may use, without initializing any."""
    # Imported here: every worker imports this file, and not every worker needs torch.
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get(VARIABLE)
    names = map(str, range(count)) if named is None else (name.strip() for name in named.split(","))
    return tuple(names)[:count]


def describe_gpus(gpus: Sequence[str]) -> list[str]:
    """Describe how workers share GPUs.

    Args:
        gpus: As from `deal_gpus`.

    >>> describe_gpus(["0", "1", "0", "1"])
    ['4 workers train on 2 GPUs, at most 2 on each: 0, 1.']
    """
    used = list(dict.fromkeys(gpus))
    if not used:
        return []
    each = "one on each" if len(used) == len(gpus) else f"at most {-(-len(gpus) // len(used))} on each"
    return [f"{len(gpus)} workers train on {len(used)} GPUs, {each}: {', '.join(used)}."]
