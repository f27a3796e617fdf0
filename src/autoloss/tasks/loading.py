"""Batches of a data set by index, loaded on demand or ahead by other processes.

Random draws of a data set for a batch, such as its augmentation, follow from a seed and the number of the batch alone: they are the
same in every loading process and in a resumed training.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from autoloss.errors import RequestError
from autoloss.training import distribution
from autoloss.training.loop import seed_generators

Collate = Callable[[list[Any]], Any]
Reseed = Callable[[Any, int], object]
"""Called with a data set and a seed; seeds the data set's own generators."""


def load_batches(
    dataset: Any,
    order: Sequence[Tensor],
    seed: int,
    first: int = 0,
    *,
    collate: Collate = list,
    loaders: int = 0,
    reseed: Reseed | None = None,
) -> Iterator[Any]:
    """Yield the batch of each tensor of indices; `dataset` has `__getitem__` for one, or `__getitems__` for several.

    Random draws follow from the seed and the number of the batch; `first` is that of the first one, in a resumed training.
    `collate` makes a batch of a list of examples, worker processes (`loaders`) load batches ahead, and `reseed` is for a data
    set with its own generators.
    """
    batches = [(number, indices.tolist()) for number, indices in enumerate(order, start=first)]
    source = _Batches(dataset, seed, distribution.rank(), collate, reseed)
    if not loaders or len(batches) < 2:
        yield from map(source.__getitem__, batches)
        return
    # Not fork: a copy of a process with threads, as torch starts them, may hang. The server imports torch once for all workers.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    ahead: Iterable[Any] = DataLoader(
        source,
        batch_size=None,
        sampler=batches,
        collate_fn=_keep,
        num_workers=min(loaders, len(batches)),
        multiprocessing_context=processes,
        # A loader draws a seed when it starts; drawn from the global generator, it would change a resumed training.
        generator=torch.Generator().manual_seed(torch.initial_seed()),
    )
    with _hide_main():
        ahead = iter(ahead)
    yield from ahead


def collate_columns(items: list[Any]) -> Any:
    """Stack the parts of examples of one structure: numbers and tensors of one shape become a tensor, anything else a list."""
    one = items[0]
    if isinstance(one, Mapping):
        return {key: collate_columns([item[key] for item in items]) for key in one}
    if isinstance(one, tuple | list):
        return tuple(collate_columns(list(column)) for column in zip(*items, strict=True))
    try:
        if isinstance(one, Tensor):
            return torch.stack(items)
        if isinstance(one, np.ndarray | np.generic) and one.dtype.kind in "biuf":
            return torch.as_tensor(np.stack(items))
    except (RuntimeError, ValueError):
        # They differ in size.
        return [torch.as_tensor(item) for item in items]
    if isinstance(one, int | float):
        return torch.tensor(items, dtype=torch.float64 if isinstance(one, float) else None)
    return items


@dataclass(frozen=True, slots=True)
class _Batches(Dataset[Any]):
    """Loads a batch by its number and the indices of its examples."""

    dataset: Any
    seed: int
    rank: int
    collate: Collate
    reseed: Reseed | None

    def __reduce__(self) -> tuple[Any, ...]:
        # By value: another process cannot import definitions of a user's file or notebook.
        return _rebuild, (cloudpickle.dumps((self.dataset, self.seed, self.rank, self.collate, self.reseed)),)

    def __getitem__(self, batch: tuple[int, list[int]]) -> Any:
        number, indices = batch
        seed = int(np.random.SeedSequence([self.seed, number, self.rank]).generate_state(1)[0])
        with seed_generators(seed, on_gpus=False):
            if self.reseed is not None:
                self.reseed(self.dataset, seed)
            several = getattr(self.dataset, "__getitems__", None)
            items = [self.dataset[index] for index in indices] if several is None else several(indices)
            return self.collate(items)


def _rebuild(content: bytes) -> _Batches:
    return _Batches(*cloudpickle.loads(content))


@contextmanager
def _hide_main() -> Iterator[None]:
    """Prevent processes that start meanwhile from running the user's script again; their arguments are sent by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _keep(batch: Any) -> Any:
    return batch


def list_examples(loader: DataLoader[Any]) -> Tensor:
    """Return the indices of the examples that a loader draws in an epoch, in the order of the data."""
    with seed_generators(0):
        batches = _copy_sampler(loader, 0)
        # A sampler of single examples also draws those of a last batch that the loader drops.
        drawn = batches.sampler if type(batches) is BatchSampler else (index for batch in batches for index in batch)
        return torch.tensor(sorted(drawn), dtype=torch.long)


def draw_epochs(loader: DataLoader[Any], epochs: int, seed: int) -> list[Tensor]:
    """Return the indices of all batches that a loader draws in some epochs."""
    sampler = _copy_sampler(loader, seed)
    order: list[Tensor] = []
    for epoch in range(epochs):
        for part in _list_samplers(sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        order += [torch.as_tensor(batch) for batch in sampler]
    return order


def _copy_sampler(loader: DataLoader[Any], seed: int) -> Any:
    """Return a seeded copy of the batch sampler of a loader, independent of its earlier draws."""
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        raise RequestError(
            "A DataLoader needs a data set whose examples have indices, and a batch size: a resumed training draws the same "
            "batches again. Give list(…) of an iterable data set."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise RequestError(
            f"The DataLoader is a {type(loader).__name__}, which makes its batches in an __iter__ of its own; a training draws "
            "batches by their indices. Do in the Dataset or in collate_fn what it does."
        )
    shared = {id(part): part for part in (loader.dataset, getattr(loader.dataset, "tensors", None))}
    sampler = copy.deepcopy(loader.batch_sampler, shared)
    for part in _list_samplers(sampler):
        for name, value in vars(part).items():
            if isinstance(value, torch.Generator):
                value.manual_seed(seed)
            elif isinstance(value, np.random.Generator):
                setattr(part, name, np.random.default_rng(seed))
        # As of a DistributedSampler, which draws from a generator of its seed and epoch.
        if hasattr(part, "set_epoch") and hasattr(part, "seed"):
            part.seed = seed % 2**31
    return sampler


def _list_samplers(sampler: Any) -> list[Any]:
    """Return the batch sampler and what it takes single examples from, as far as they have attributes."""
    return [part for part in (sampler, getattr(sampler, "sampler", None)) if hasattr(part, "__dict__")]
