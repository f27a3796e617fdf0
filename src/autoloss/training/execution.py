"""Execution of a training on a machine: device, threads, precision, memory format and checkpoints.

A `Recipe` decides the result of a training and belongs to its record; an `Execution` may differ between machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, unknown
from autoloss.training import distribution
from autoloss.training.checkpoints import Checkpoints
from autoloss.training.structures import map_tensors


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the context, because sums on several threads round differently and would change scores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Network = TypeVar("Network", bound=nn.Module)
Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Device, precision, memory format and checkpoints of a training.

    Args:
        device: Device of torch. Under torchrun, `cuda` is the GPU of this process.
        precision: Precision of the network's arithmetic; weights, losses and metrics stay float32.
        channels_last: Use the memory format (N, H, W, C) for images and weights; on GPUs, 16-bit convolutions are faster with it.
        checkpoints: Place of checkpoints and of the trained network; None saves nothing.

    Raises:
        RequestError: An unknown precision, or a device that this machine does not have.

    >>> Execution(precision="bfloat16").torch_device
    device(type='cpu')
    """

    device: str = "cpu"
    precision: Precision = "float32"
    channels_last: bool = False
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown("precision", str(self.precision), PRECISIONS)
        try:
            kind = torch.device(self.device).type
        except RuntimeError as error:
            raise RequestError(f"There is no device {self.device!r}: {error}. Name cpu, cuda or cuda:1.") from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise RequestError(f"device is {self.device}, and torch finds no GPU here. Use cpu.", argument="device")

    @property
    def torch_device(self) -> torch.device:
        """The device of this process."""
        device = torch.device(self.device)
        if device.type == "cuda" and device.index is None and distribution.size() > 1:
            return torch.device("cuda", distribution.local_rank())
        return device

    def place(self, network: Network) -> Network:
        """Move a network to the device and memory format; on several GPUs, its batch normalisation is synchronised."""
        if self.torch_device.type == "cuda" and distribution.size() > 1:
            network = cast(Network, nn.SyncBatchNorm.convert_sync_batchnorm(network))
        network = network.to(self.torch_device)
        return network.to(memory_format=torch.channels_last) if self.channels_last else network  # type: ignore[call-overload]

    def move(self, inputs: Any) -> Any:
        """Move a network's inputs, in any structure, to the device and memory format."""
        return map_tensors(self._move, inputs)

    def _move(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.ndim == 4:
            return inputs.to(self.torch_device, memory_format=torch.channels_last)
        return inputs.to(self.torch_device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a network is called; losses are computed outside it, in float32."""
        return torch.autocast(self.torch_device.type, PRECISIONS[self.precision], enabled=self.precision != "float32")
