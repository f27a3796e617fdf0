"""The B samples of a run, in a safetensors file in its directory: a resumed run tests on the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from autoloss.errors import RunError
from autoloss.files import commit_file, file_digest
from autoloss.space.branch import Sample

FILE = "samples.safetensors"
Samples = Mapping[str, Sequence[Sample]]


def save(directory: Path, samples: Samples) -> str:
    """Write the tensors of all samples, atomically, and return the digest of the file."""
    tensors = {}
    for branch, found in samples.items():
        for number, sample in enumerate(found):
            context = {f"context/{name}": tensor for name, tensor in sample.context.items()}
            for name, tensor in {"prediction": sample.prediction, **context}.items():
                tensors[f"{branch}/{number}/{name}"] = tensor.detach().cpu().contiguous().clone()
    partial = directory / f"{FILE}.partial"
    try:
        save_file(tensors, partial)
        digest = file_digest(partial)
        commit_file(partial, directory / FILE)
    # safetensors has errors of its own.
    except Exception as error:
        raise RunError(f"{partial} cannot be written: {error}. Make room on its disk and start again.") from error
    return digest


def load(directory: Path, expected: str) -> Samples:
    """Read what `save` wrote.

    Args:
        expected: What `save` returned.
    """
    path = directory / FILE
    try:
        found = file_digest(path)
        if found == expected:
            return _to_samples(load_file(path))
    # safetensors has errors of its own.
    except Exception as error:
        raise RunError(f"{path} cannot be read: {error}. Restore it from a copy of the run.") from error
    raise RunError(f"{path} is damaged: its digest is {found}, not {expected}. Restore it from a copy of the run.")


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
