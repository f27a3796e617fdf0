"""How a training runs on a machine: device, precision, memory format, and where it is kept; nothing of it is the paper's.

A `Recipe` says what is trained, and belongs to the result. An `Execution` says how, and may differ from machine to machine.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, unknown
from autoloss.tasks.training import distribution
from autoloss.tasks.training.checkpoints import Checkpoints

Network = TypeVar("Network", bound=nn.Module)
Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a training runs.

    Args:
        device: Of torch. Started by torchrun, `cuda` is the GPU of this process.
        precision: Of the network's arithmetic; weights, losses and metrics stay float32.
        channels_last: Lay images and weights out as (N, H, W, C), which GPUs convolve faster in 16 bits.
        keep: Where checkpoints and the trained network go; nothing is kept when left out.

    Raises:
        RequestError: An unknown precision, or a device that this machine does not have.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    channels_last: bool = False
    keep: Checkpoints | None = None

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
    def where(self) -> torch.device:
        """The device of this process."""
        asked = torch.device(self.device)
        if asked.type == "cuda" and asked.index is None and distribution.size() > 1:
            return torch.device("cuda", distribution.local_rank())
        return asked

    def placed(self, network: Network) -> Network:
        """Return a network as this execution trains it; statistics of several GPUs are those of the whole batch."""
        if self.where.type == "cuda" and distribution.size() > 1:
            network = cast(Network, nn.SyncBatchNorm.convert_sync_batchnorm(network))
        network = network.to(self.where)
        return network.to(memory_format=torch.channels_last) if self.channels_last else network  # type: ignore[call-overload]

    def moved(self, inputs: Tensor) -> Tensor:
        """Return a network's inputs where and as they are needed."""
        if self.channels_last and inputs.ndim == 4:
            return inputs.to(self.where, memory_format=torch.channels_last)
        return inputs.to(self.where)

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context that a network is called in; a loss is computed outside it, in float32."""
        return torch.autocast(self.where.type, PRECISIONS[self.precision], enabled=self.precision != "float32")

    def scaler(self) -> torch.amp.GradScaler:
        """Return what keeps gradients within the range of float16; it does nothing in any other precision."""
        return torch.amp.GradScaler(self.where.type, enabled=self.precision == "float16")
