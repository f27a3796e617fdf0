"""Checkpoints of a training, from which it resumes after a kill, and the weights of the trained network.

A checkpoint is one file of tensors, numbers and text, read with `weights_only`. It is written under another name, synced and
renamed; its name holds its digest, so that damage is detected. The last two are kept.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from autoloss.errors import RequestError, RunError
from autoloss.files import commit_file, file_digest
from autoloss.training import distribution

KEPT = 2
"""Number of checkpoints kept; if the last is damaged, the one before it is used."""
NETWORK = "network.safetensors"
"""File of the trained network's weights and buffers."""

Metadata = Mapping[str, str | int | float | bool]

METADATA = "belongs"
"""Key of the metadata in a checkpoint."""
_NAME = re.compile(r"checkpoint-(\d{9})-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Place, a folder for one training only, and steps at which it saves its checkpoints and its trained network.

    The last step always writes one. A training resumes only from a checkpoint with equal metadata, such as the text of its
    loss.
    """

    directory: Path
    is_due: Callable[[int], bool]
    metadata: Metadata = field(default_factory=dict)

    def with_metadata(self, metadata: Metadata) -> Checkpoints:
        """Return a copy with further metadata."""
        return replace(self, metadata={**self.metadata, **metadata})


@dataclass(slots=True)
class TrainingState:
    """Everything that changes while a network trains, except the global generators."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint, and delete those beyond `KEPT`."""
        generators = distribution.gather(_get_generators(self._device))
        if distribution.rank():
            return
        state = {
            METADATA: dict(checkpoints.metadata),
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "curve": self.curve,
            "generators": generators,
        }
        partial = checkpoints.directory / "checkpoint.partial"
        _write_file(lambda: torch.save(state, partial), partial)
        commit_file(partial, checkpoints.directory / f"checkpoint-{self.step:09}-{file_digest(partial)}.pt")
        for old in list_checkpoints(checkpoints.directory)[KEPT:]:
            old.unlink(missing_ok=True)

    def restore(self, checkpoints: Checkpoints) -> None:
        """Load the newest intact checkpoint, if there is one; a RequestError if it is another training's, or all are damaged."""
        path = distribution.run_on_first(lambda: _find_newest(checkpoints.directory))
        if path is None:
            return
        state = _read(path)
        if state is None:
            raise RequestError(
                f"{path} cannot be read by every process. Use a folder that all machines share.", argument="out"
            )
        if differing := describe_differences(state[METADATA], checkpoints.metadata):
            raise RequestError(
                f"{path} belongs to another training: {differing}. Repeat that training, or use another folder.",
                argument="out",
            )
        try:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise RequestError(
                f"{path} does not fit this network or optimizer: {error}. Restore the task, or use another folder.",
                argument="out",
            ) from None
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        self.curve[:] = [(step, loss) for step, loss in state["curve"]]
        _set_generators(state["generators"][distribution.rank()], self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device


def save_network(network: nn.Module, checkpoints: Checkpoints) -> None:
    """Write a trained network's weights and buffers, with the metadata of its training, as safetensors."""
    if distribution.rank():
        return
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    # One entry: safetensors writes several in arbitrary order, and equal networks should give equal files.
    metadata = {"training": json.dumps(checkpoints.metadata, sort_keys=True)}
    partial = checkpoints.directory / f"{NETWORK}.partial"
    _write_file(lambda: save_file(tensors, partial, metadata=metadata), partial)
    commit_file(partial, checkpoints.directory / NETWORK)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first, damaged ones included."""
    return sorted((path for path in directory.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name)), reverse=True)


def delete_checkpoints(directory: Path) -> None:
    """Delete the checkpoints of a finished training."""
    for path in (*directory.glob("checkpoint-*.pt"), *directory.glob("*.partial")):
        path.unlink(missing_ok=True)


def _write_file(write: Callable[[], None], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    # torch reports a full disk as a RuntimeError, safetensors as its own type of error.
    except Exception as error:
        raise RunError(
            f"{path} cannot be written: {error}. Earlier checkpoints are unchanged; free space or fix permissions, then resume."
        ) from error


def _find_newest(directory: Path) -> Path | None:
    """Return the newest intact checkpoint, or None if there is no checkpoint, damaged or not."""
    paths = list_checkpoints(directory)
    newest = next((path for path in paths if _read(path) is not None), None)
    if newest is None and paths:
        raise RequestError(
            f"All checkpoints in {directory} are damaged: {', '.join(path.name for path in paths)}. Restore one from a copy, "
            "or delete that folder to train from the start."
        )
    return newest


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a checkpoint, or None if it is damaged."""
    name = _NAME.fullmatch(path.name)
    try:
        if name is None or file_digest(path) != name[2]:
            return None
        # To the CPU first: optimizers and networks copy what they load to their own device.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError):
        # A forged file may have the right name.
        return None
    return state if isinstance(state, dict) and METADATA in state else None


def describe_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say which values a folder holds in another way than they are now; empty where none."""
    differing = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
    return "; ".join(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in differing)


def _get_generators(device: torch.device) -> dict[str, Any]:
    """Return the states of all global generators as tensors, numbers and text."""
    kind, keys, *others = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": random.getstate(),
        "numpy": (str(kind), keys.tolist(), *others),  # pyright: ignore[reportAttributeAccessIssue]
    }


def _set_generators(states: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
