"""What a long training keeps on disk: its state every so often, so that a killed one goes on, and the trained network.

A checkpoint is one file of tensors, numbers and text, read with `weights_only`. It is written beside its place, synced and
renamed, and its name holds its digest: a file of that name is whole or is known to be damaged. The last two are kept.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from autoloss.errors import RequestError, RunError
from autoloss.tasks.training import distribution
from autoloss.tasks.training.whole_files import commit_file, file_digest

FORMAT = 1
KEPT = 2
"""Of the last checkpoints; the one before the last serves when the last is damaged."""
NETWORK = "network.safetensors"
"""The trained network's weights and buffers."""

Metadata = Mapping[str, str | int | float | bool]

STATE = frozenset({"format", "belongs"})
"""What every checkpoint holds, of whatever release."""
_NAME = re.compile(r"checkpoint-(\d{9})-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where a training keeps what it must not lose.

    Args:
        directory: Of this one training.
        due: A step → whether its state is written now. The last step's always is.
        belongs: Facts that a checkpoint shares with the training that it belongs to, such as the text of its loss.
    """

    directory: Path
    due: Callable[[int], bool]
    belongs: Metadata = field(default_factory=dict)

    def of(self, facts: Metadata) -> Checkpoints:
        """Return the same with further facts."""
        return dataclasses.replace(self, belongs={**self.belongs, **facts})


@dataclass(slots=True)
class TrainingState:
    """All that changes while a network trains; between two steps it is the whole state, with the global generators."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def save(self, keep: Checkpoints) -> None:
        """Write a checkpoint, and delete those that are too old."""
        everyones = distribution.gather(_get_generators(self._device))
        if distribution.rank() == 0:
            state = {
                "format": FORMAT,
                "belongs": dict(keep.belongs),
                "step": self.step,
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "curve": self.curve,
                "generators": everyones,
            }
            _write(keep.directory, self.step, state)

    def restore(self, keep: Checkpoints) -> None:
        """Take over the newest whole checkpoint; where there is none, nothing changes.

        Raises:
            RequestError: It belongs to another training, or all of them are damaged.
        """
        found = distribution.run_on_first(lambda: _find_newest(keep.directory))
        if found is None:
            return
        state = _read(found)
        if state is None:
            raise RequestError(
                f"{found} cannot be read by every process. Train in a folder that all machines share.", argument="out"
            )
        _check(state, keep, found)
        try:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise RequestError(
                f"{found} does not fit this network or optimizer: {error}. Restore the task as it was when the training began, "
                "or train in another folder.",
                argument="out",
            ) from None
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        self.curve[:] = [(step, loss) for step, loss in state["curve"]]
        _set_generators(state["generators"][distribution.rank()], self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device


def save_network(network: nn.Module, keep: Checkpoints) -> None:
    """Write a trained network's weights and buffers, with the facts of its training, as safetensors."""
    if distribution.rank():
        return
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    # One entry: safetensors writes several in any order, and equal networks should be equal files.
    facts = {"training": json.dumps(keep.belongs, sort_keys=True)}
    partial = keep.directory / f"{NETWORK}.partial"
    _write_file(lambda: save_file(tensors, partial, metadata=facts), partial)
    commit_file(partial, keep.directory / NETWORK)


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints of a training, the newest first; whether they are whole shows when they are read."""
    return sorted((path for path in directory.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name)), reverse=True)


def delete_checkpoints(directory: Path) -> None:
    """Delete the checkpoints of a finished training."""
    for path in (*directory.glob("checkpoint-*.pt"), *directory.glob("*.partial")):
        path.unlink(missing_ok=True)


def _write(directory: Path, step: int, state: Mapping[str, Any]) -> None:
    partial = directory / "checkpoint.partial"
    _write_file(lambda: torch.save(state, partial), partial)
    commit_file(partial, directory / f"checkpoint-{step:09}-{file_digest(partial)}.pt")
    for old in list_checkpoints(directory)[KEPT:]:
        old.unlink(missing_ok=True)


def _write_file(write: Callable[[], None], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    # torch reports a full disk as a RuntimeError, safetensors as an error of its own.
    except Exception as error:
        raise RunError(f"{path} cannot be written: {error}. What was kept before is untouched.") from error


def _find_newest(directory: Path) -> Path | None:
    """Return the newest checkpoint that is whole, or None where there is none at all."""
    found = list_checkpoints(directory)
    for path in found:
        if _read(path) is not None:
            return path
    if not found:
        return None
    raise RequestError(
        f"All checkpoints in {directory} are damaged: {', '.join(path.name for path in found)}. Restore one from a copy, "
        "or delete that folder to train from the start."
    )


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a checkpoint holds, or None when it is not what was written."""
    named = _NAME.fullmatch(path.name)
    try:
        if named is None or file_digest(path) != named[2]:
            return None
        # To the CPU first: optimizers and networks move what they take over to where they are.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError):
        # Whoever writes a file can give it the name that fits.
        return None
    return found if isinstance(found, dict) and found.keys() >= STATE else None


def _check(state: Mapping[str, Any], keep: Checkpoints, path: Path) -> None:
    if state["format"] != FORMAT:
        raise RequestError(
            f"{path} has format {state['format']}; this release reads {FORMAT}. Go on with the release that wrote it."
        )
    there, here = state["belongs"], dict(keep.belongs)
    differing = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
    if differing:
        listed = "; ".join(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in differing)
        raise RequestError(
            f"{path} belongs to another training: {listed}. Ask for the same one again, or train in another folder.",
            argument="out",
        )


def _get_generators(device: torch.device) -> dict[str, Any]:
    """Return the states of all global generators as tensors and numbers."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), position, has_gauss, cached],
    }


def _set_generators(states: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
