"""Machine and date of a measurement, without the name of the host."""

from __future__ import annotations

import datetime
import os
import platform

import torch


def describe_machine() -> dict[str, str]:
    """Return processor, cores, date and versions."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def describe_device(device: str) -> str:
    """Return the name of a device of torch: that of the GPU, or cpu."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; a clock reads nothing of it before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
