"""The examples of a split, from tensors, arrays, dictionaries, lists, a torch `Dataset` or a `DataLoader`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset, default_collate

from autoloss.errors import RequestError
from autoloss.tasks.loading import Collate, Loading, Reseed, collate_columns, load_batches
from autoloss.training.batches import Inputs, Reading, describe, list_tensors, map_tensors
from autoloss.training.loop import seed_generators, shuffle_batches
from autoloss.training.recipe import Recipe


class Split:
    """Examples with their targets, accessible by index.

    Args:
        data: A pair (inputs, targets), of which each is a tensor, an array, a list or a dictionary of tensors, with one row for
            each example; a dictionary of such columns; a `Dataset` or a list, of which each item is a pair, a longer tuple or a
            dictionary; or a `DataLoader` of a `Dataset`, which brings its batches, its `collate_fn` and its workers along.
        name: Name of the split in messages.
        loaders: Worker processes that load the examples of a `Dataset` ahead; 0 loads each batch when it is needed.
        collate_fn: List of items → batch; otherwise the parts of items are stacked.
        reading: Which parts of a batch are inputs and target.
        reseed: Called with (data set, seed) before each batch; for a data set that keeps generators of its own.

    Raises:
        RequestError: The data has another form, is empty, or has different numbers of inputs and targets.
    """

    def __init__(
        self,
        data: Any,
        name: str,
        loaders: int = 0,
        *,
        collate_fn: Collate | None = None,
        reading: Reading = Reading(),  # noqa: B008 - frozen
        reseed: Reseed | None = None,
    ) -> None:
        self.name = name
        self.reading = reading
        self._loader = data if isinstance(data, DataLoader) else None
        if self._loader is not None:
            data, loaders = self._loader.dataset, loaders or self._loader.num_workers
            if collate_fn is None and self._loader.collate_fn is not default_collate:
                collate_fn = self._loader.collate_fn
        self._loading = Loading(collate=collate_fn or collate_columns, loaders=loaders, reseed=reseed)
        self._columns, self._items = _read_data(data, name, as_items=collate_fn is not None)
        total = len(self._items) if self._columns is None else _count_rows(self._columns, name)
        if not total:
            raise RequestError(f"The {name} data holds no examples; give it at least one.")
        self.indices = torch.arange(total) if self._loader is None else _list_examples(self._loader)
        """Index of each example."""

    def __len__(self) -> int:
        return len(self.indices)

    def adopt_batches(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the batch size of the `DataLoader`, if there is one."""
        size = None if self._loader is None else self._loader.batch_size
        return recipe if size is None else dataclasses.replace(recipe, batch_size=size)

    def evaluation_batch(self, recipe: Recipe) -> int:
        """Return the number of examples that are evaluated at once."""
        return recipe.evaluation_batch or self.adopt_batches(recipe).batch_size

    def draw_order(self, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
        """Draw the indices of all batches of a training: those of the `DataLoader`, if there is one."""
        if self._loader is None:
            return shuffle_batches(len(self), recipe, generator)
        sampler = _copy_sampler(self._loader, int(torch.randint(2**62, (), generator=generator)))
        return [torch.as_tensor(batch) for _ in range(recipe.epochs) for batch in sampler]

    def count_batches(self, recipe: Recipe) -> int:
        """Return the number of batches of a training."""
        if self._loader is None:
            return recipe.steps(len(self))
        return recipe.epochs * len(self._loader)

    def batches(self, order: Sequence[Tensor], seed: int = 0, first: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, targets) for each tensor of indices; 64-bit inputs are converted to 32 bits.

        Args:
            seed: Seed of what a data set draws for a batch, such as its augmentation, together with the batch's number.
            first: Number of the first batch, in a resumed training.
        """
        if self._columns is None:
            batches: Iterable[Any] = load_batches(self._items, order, seed, first, self._loading)
        else:
            columns = self._columns
            batches = (map_tensors(lambda column, rows=rows: column[rows], columns) for rows in order)
        for batch in batches:
            yield self.reading.split(batch, self.name)

    def in_order(self, batch_size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield every example once, in the order of the data."""
        return self.batches(self.indices.split(batch_size))

    def whole(self) -> tuple[Inputs, Tensor] | None:
        """Return all inputs and targets if they are tensors; None of items."""
        return None if self._columns is None else self.reading.split(self._columns, self.name)

    def first(self, count: int) -> tuple[Inputs, Tensor]:
        """Return the first `count` examples, or all if there are fewer."""
        return next(self.in_order(count))

    def check_repeats(self) -> None:
        """Check that what a data set draws follows from the seed, on a few examples.

        Raises:
            RequestError: They differ when they are loaded again.
        """
        if self._columns is not None:
            return
        first, again = (
            list_tensors(next(load_batches(self._items, [self.indices[:4]], 0, loading=self._loading)))
            for _ in range(2)
        )
        if len(first) != len(again) or not all(map(torch.equal, first, again)):
            raise RequestError(
                f"The {self.name} data draws from a random generator of its own: the same examples differ when they are "
                "loaded again, so no training could be repeated. Give reseed=…, a function of (data set, seed) that seeds it, or "
                "let it draw from the global generators of torch, NumPy or Python, which are seeded for each batch."
            )


def _read_data(data: Any, name: str, as_items: bool) -> tuple[Any, Any]:
    """Return columns of tensors, or items that are accessible by index; the other one is None."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Mapping) or _is_pair_of_columns(data):
        columns = _map_columns(lambda column: _to_column(column, name, as_items), data)
        kinds: set[type] = set()
        _map_columns(lambda column: kinds.add(type(column)), columns)
        if list not in kinds and not as_items:
            return columns, None
        rows = range(_count_rows(columns, name))
        return None, [_map_columns(lambda column, row=row: column[row], columns) for row in rows]
    is_sequence = isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, str | bytes)
    if isinstance(data, IterableDataset | Tensor | np.ndarray) or not is_sequence:
        raise RequestError(
            f"The {name} data is {describe(data)}; expected a pair (inputs, targets) of tensors or arrays, a list or a torch "
            "Dataset with a length whose items are such pairs or dictionaries, or a DataLoader of one."
        )
    return None, data


def _is_pair_of_columns(data: Any) -> bool:
    """Tell (inputs, targets) from a list of two examples: of examples, items are tuples or dictionaries."""
    if isinstance(data, list):
        return len(data) == 2 and not all(isinstance(item, tuple | Mapping) for item in data)
    if isinstance(data, tuple) and len(data) > 2:
        return all(isinstance(part, Tensor | np.ndarray) for part in data)
    return isinstance(data, tuple) and len(data) == 2


def _map_columns(function: Callable[[Any], Any], data: Any, depth: int = 0) -> Any:
    """Apply a function to each column of a dictionary, or of a pair whose parts may be dictionaries."""
    if isinstance(data, Mapping):
        return {key: _map_columns(function, part, depth + 1) for key, part in data.items()}
    if isinstance(data, tuple | list) and not depth:
        return tuple(_map_columns(function, part, depth + 1) for part in data)
    return function(data)


def _count_rows(columns: Any, name: str) -> int:
    """Return the number of rows of all columns.

    Raises:
        RequestError: It differs.
    """
    names = ("inputs", "targets", *(f"values of part {number}" for number in range(2, 99)))
    parts = columns if isinstance(columns, Mapping) else dict(zip(names, columns, strict=False))
    sizes = {key: _count_rows(part, name) if isinstance(part, Mapping) else len(part) for key, part in parts.items()}
    if len(set(sizes.values())) != 1:
        listed = " and ".join(f"{size} {key}" for key, size in sizes.items())
        raise RequestError(f"The {name} data has {listed}; each input needs one target, in the same row.")
    return next(iter(sizes.values()))


def _to_column(part: Any, name: str, as_items: bool) -> Tensor | list[Any]:
    """Return a tensor with one row for each example; a list where examples differ in size, or a function collates them."""
    if isinstance(part, list) and part and (as_items or all(isinstance(item, Tensor | np.ndarray) for item in part)):
        if as_items or len({tuple(item.shape) for item in part}) > 1:
            return part
        return torch.stack([torch.as_tensor(item) for item in part])
    try:
        # torch cannot share memory that is read-only or runs backwards; only such arrays are copied.
        found = part.detach() if isinstance(part, Tensor) else np.require(part, requirements=["C", "W"])
        tensor = torch.as_tensor(found)
    except (TypeError, ValueError) as error:
        if as_items and isinstance(part, Sequence | np.ndarray):
            return list(part)
        raise RequestError(
            f"The {name} data holds {describe(part)}, which is not numeric; encode text and categories first, or give "
            "collate_fn=…, which makes a batch of a list of examples."
        ) from error
    if not tensor.ndim:
        raise RequestError(f"The {name} data holds a single number; expected one row per example.")
    return tensor


def _list_examples(loader: DataLoader[Any]) -> Tensor:
    """Return the indices of the examples that a loader draws in an epoch, in the order of the data."""
    with seed_generators(0):
        batches = _copy_sampler(loader, 0)
        # A sampler of single examples also draws those of a last batch that the loader drops.
        drawn = batches.sampler if type(batches) is BatchSampler else (index for batch in batches for index in batch)
        return torch.tensor(sorted(drawn), dtype=torch.long)


def _copy_sampler(loader: DataLoader[Any], seed: int) -> Any:
    """Return a copy of what draws the batches of a loader, seeded: what it drew before does not matter.

    Raises:
        RequestError: The loader has none.
    """
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        raise RequestError(
            "A DataLoader needs a data set whose examples have indices, and a batch size: what a training drew must be drawn again "
            "when it is resumed. Give list(…) of an iterable data set."
        )
    shared = {id(part): part for part in (loader.dataset, getattr(loader.dataset, "tensors", None))}
    sampler = copy.deepcopy(loader.batch_sampler, shared)
    for part in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)
    return sampler
