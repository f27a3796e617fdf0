"""The B samples of a run, in a safetensors file in its directory: a resumed run tests on the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from autoloss.atomic_files import commit_file, file_digest
from autoloss.errors import RequestError, RunError, unknown
from autoloss.space.branch import Sample
from autoloss.store.crash_points import crash_point
from autoloss.store.migrations import SAMPLES as FILE
from autoloss.tasks.task import Task
from autoloss.training.threads import one_thread

Samples = Mapping[str, tuple[Sample, ...]]


def draw_samples(task: Task, count: int, seed: int) -> Samples:
    """Draw a task's samples and check that every branch has them.

    Raises:
        RequestError: A branch lacks samples, or a prediction is not finite or not (N, C, H, W).
    """
    with one_thread():
        found = task.samples(count, seed)
    for name in task.branches:
        if name not in found:
            raise unknown("set of samples for branch", name, found)
        if len(found[name]) != count:
            raise RequestError(f"Task {task.name!r} gave {len(found[name])} samples for {name}; asked for {count}.")
        for sample in found[name]:
            if sample.prediction.ndim not in (4, 5) or not bool(sample.prediction.isfinite().all()):
                raise RequestError(
                    f"A sample of branch {name} has a prediction of shape {tuple(sample.prediction.shape)}, finite: "
                    f"{bool(sample.prediction.isfinite().all())}; expected finite raw predictions (N, C, H, W), or (N, C, D, H, W)."
                )
    return {name: tuple(found[name]) for name in task.branches}


def save(directory: Path, samples: Samples) -> None:
    """Write the tensors of all samples, atomically.

    Raises:
        RunError: There is no room for them.
    """
    tensors = {}
    for branch, found in samples.items():
        for number, sample in enumerate(found):
            tensors[f"{branch}/{number}/prediction"] = _detach(sample.prediction)
            for name, tensor in sample.context.items():
                tensors[f"{branch}/{number}/context/{name}"] = _detach(tensor)
    partial = directory / f"{FILE}.partial"
    try:
        save_file(tensors, partial)
        crash_point("samples-written")
        commit_file(partial, directory / FILE)
    # safetensors has errors of its own.
    except Exception as error:
        raise RunError(f"{partial} cannot be written: {error}. Make room on its disk and start again.") from error
    crash_point("samples-named")


def load(directory: Path, expected: str | None) -> Samples:
    """Read what `save` wrote.

    Args:
        expected: The digest of the file, from the run's settings; None in a run of schema 1 that is only read.

    Raises:
        RunError: The file is missing or damaged.
    """
    path = directory / FILE
    try:
        found = file_digest(path)
        tensors = load_file(path) if expected in (None, found) else None
        samples = None if tensors is None else _to_samples(tensors)
    except Exception as error:
        raise RunError(f"{path} cannot be read: {error}. Restore it from a copy of the run.") from error
    if samples is None:
        raise RunError(f"{path} is damaged: its digest is {found}, not {expected}. Restore it from a copy of the run.")
    return samples


def _to_samples(tensors: Mapping[str, Tensor]) -> Samples:
    """Put tensors, named as `save` names them, together as samples."""
    numbers: dict[str, dict[int, Sample]] = {}
    for key in tensors:
        branch, number, kind = key.split("/", 2)
        if kind == "prediction":
            prefix = f"{branch}/{number}/context/"
            context = {other.removeprefix(prefix): tensors[other] for other in tensors if other.startswith(prefix)}
            numbers.setdefault(branch, {})[int(number)] = Sample(tensors[key], context)
    return {branch: tuple(numbered[number] for number in sorted(numbered)) for branch, numbered in numbers.items()}


def _detach(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().clone()
