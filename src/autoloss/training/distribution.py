"""Distributed training: each process takes an equal share of every batch, and gradients are averaged over processes.

The gradients are averaged after the backward pass instead of by a wrapper around the network, so that a criterion may be
called anywhere inside it. Without a process group, every function here behaves as for a single process.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoloss.errors import RequestError

Value = TypeVar("Value")

TIMEOUT = timedelta(hours=4)
"""Time for which processes wait for the first one, which evaluates the trained network alone."""


def size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; only rank 0 writes files."""
    return dist.get_rank() if size() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process on its machine, which is the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def started_by_torchrun() -> bool:
    """Return True if torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the process group of torchrun for the duration of the context; without torchrun, do nothing.

    A numbered GPU, on which all processes would train, is refused.
    """
    if not started_by_torchrun() or size() > 1:
        yield
        return
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu and torch.device(device).index is not None:
        raise RequestError(f"device is {device}; started by torchrun, expected cuda.", argument="device")
    if on_gpu:
        torch.cuda.set_device(local_rank())
    # This module binds the process group of the time of its import as default arguments, and optimizers import it. A group
    # that it holds lives until the interpreter ends, where its threads may abort the process.
    from torch.distributed.nn import functional  # noqa: F401

    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield
        # No process closes its connections while another is still inside the last collective.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def take_shares(order: Sequence[Tensor]) -> list[Tensor]:
    """Return the share of this process in the indices of each batch; a batch that cannot be divided evenly is refused."""
    count = size()
    for indices in order:
        if len(indices) % count:
            raise RequestError(
                f"A batch of {len(indices)} cannot be shared evenly by {count} processes. "
                f"Choose a batch size that {count} divides, or start another number of processes."
            )
    return [indices[rank() :: count] for indices in order]


def synchronize(network: nn.Module) -> None:
    """Copy the weights of the first process to all others, then give each process its own random numbers."""
    if size() == 1:
        return
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor, src=0)
    if rank():
        seed = torch.initial_seed() + rank()
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in one reduction."""
    if size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= size()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def mean(value: float, device: torch.device) -> float:
    """Return the mean of a number over all processes; NaN in one is NaN in all."""
    if size() == 1:
        return value
    values = torch.tensor([value], dtype=torch.float64, device=device)
    average([values])
    return values.item()


def run_on_first(make: Callable[[], Value]) -> Value:
    """Call a function in the first process only, and return its result in every process."""
    if size() == 1:
        return make()
    results: list[Any] = [make() if rank() == 0 else None]
    dist.broadcast_object_list(results, src=0)
    return results[0]


def gather(value: Value) -> list[Value]:
    """Return the values of all processes, in the order of their ranks."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values
