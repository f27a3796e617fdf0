"""The examples of a split, pairs of input and target, from tensors, arrays or a torch `Dataset`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autoloss.errors import RequestError

Example = TypeVar("Example")

SeededIndex = tuple[int, tuple[int, int, int]]
"""Index of an example, and the key of its random numbers: seed, number of the batch, row in the batch."""


class Split:
    """Pairs of input and target, accessible by index.

    Args:
        data: A pair (inputs, targets) of tensors or arrays with one row per example, or a `Dataset` of such pairs.
        name: Name of the split in messages.
        loaders: Worker processes that load the examples of a `Dataset` ahead; 0 loads each batch when it is needed.

    Raises:
        RequestError: The data has another form, is empty, or has different numbers of inputs and targets.
    """

    def __init__(self, data: Any, name: str, loaders: int = 0) -> None:
        self.name = name
        self._loaders = loaders
        tensors = data.tensors if isinstance(data, TensorDataset) else data
        self._dataset: Dataset[Any] | None = None
        if isinstance(tensors, tuple | list) and len(tensors) == 2:
            self._inputs, self._targets = (_to_tensor(part, name) for part in tensors)
            if len(self._inputs) != len(self._targets):
                raise RequestError(
                    f"The {name} data has {len(self._inputs)} inputs and {len(self._targets)} targets; "
                    "each input needs one target, in the same row."
                )
        elif isinstance(data, Dataset) and isinstance(data, Sized) and not isinstance(data, IterableDataset):
            self._dataset = data
        else:
            raise RequestError(
                f"The {name} data is {_describe(data)}; expected a pair (inputs, targets) of tensors or arrays, or a "
                "torch Dataset with a length whose items are such pairs."
            )
        if not len(self):
            raise RequestError(f"The {name} data holds no examples; give it at least one.")

    def __len__(self) -> int:
        return len(self._inputs) if self._dataset is None else len(self._dataset)  # type: ignore[arg-type]

    def batches(self, order: Sequence[Tensor], seed: int = 0, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, targets) for each tensor of indices; 64-bit inputs are converted to 32 bits.

        Args:
            seed: Seed of what a data set draws for an example, such as its augmentation, together with batch and row.
            first: Number of the first batch, in a resumed training.
        """
        if self._dataset is None:
            batches: Iterable[Any] = ((self._inputs[indices], self._targets[indices]) for indices in order)
        else:
            batches = _make_loader(self._dataset, order, seed, first, self._loaders)
        for batch in batches:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise RequestError(
                    f"An item of the {self.name} data is {_describe(batch)}; expected a pair (input, target)."
                )
            inputs, targets = (torch.as_tensor(part) for part in batch)
            yield inputs.float() if inputs.dtype == torch.float64 else inputs, targets

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every example once, in the order of the data."""
        return self.batches(torch.arange(len(self)).split(batch_size))

    def targets(self) -> Tensor:
        """Return all targets if they are tensors, and those of the first two examples of a `Dataset`."""
        return self._targets if self._dataset is None else self.first(2)[1]

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first `count` examples, or all if there are fewer."""
        return next(self.in_order(count))


def load_batches(
    dataset: Dataset[Example], order: Sequence[Tensor], seed: int, first: int = 0, loaders: int = 0
) -> Iterable[Sequence[Example]]:
    """Yield each batch as a list of examples, which may differ in size; arguments as for `Split.batches`."""
    return _make_loader(dataset, order, seed, first, loaders, collate=list)


def _make_loader(
    dataset: Dataset[Any],
    order: Sequence[Tensor],
    seed: int,
    first: int,
    loaders: int,
    collate: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    indices_of_batches: list[list[SeededIndex]] = [
        [(index, (seed, batch, row)) for row, index in enumerate(indices.tolist())]
        for batch, indices in enumerate(order, start=first)
    ]
    # Not fork: a copy of a process with threads, as torch starts them, may hang.
    ahead = (
        {"num_workers": min(loaders, len(indices_of_batches)), "multiprocessing_context": "forkserver"}
        if loaders
        else {}
    )
    return DataLoader(
        _SeededDataset(dataset),
        batch_sampler=indices_of_batches,  # type: ignore[arg-type]
        # A loader draws a seed when it starts; drawn from the global generator, it would change a resumed training.
        generator=torch.Generator().manual_seed(torch.initial_seed()),
        collate_fn=collate,
        **ahead,
    )


class _SeededDataset(Dataset[Any]):
    """A data set that seeds the global generators for each example, whichever process loads it and when."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, seeded_index: SeededIndex) -> Any:
        index, key = seeded_index
        python, numpy = random.getstate(), np.random.get_state()
        seed = int(np.random.SeedSequence([*key, index]).generate_state(1)[0])
        with torch.random.fork_rng(devices=[]):
            # The CPU's generator alone: torch.manual_seed would also set that of a GPU, and takes longer than many an example.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            try:
                return self._dataset[index]
            finally:
                random.setstate(python)
                np.random.set_state(numpy)


def _to_tensor(part: Any, name: str) -> Tensor:
    try:
        # torch cannot share memory that is read-only or runs backwards; only such arrays are copied.
        found = part.detach() if isinstance(part, Tensor) else np.require(part, requirements=["C", "W"])
        tensor = torch.as_tensor(found)
    except TypeError as error:
        raise RequestError(
            f"The {name} data holds {_describe(part)}, which is not numeric; encode text and categories first."
        ) from error
    if not tensor.ndim:
        raise RequestError(f"The {name} data holds a single number; expected one row per example.")
    return tensor


def _describe(found: Any) -> str:
    length = f" of {len(found)}" if isinstance(found, tuple | list) else ""
    kind = f" of {found.dtype}" if isinstance(found, np.ndarray) else ""
    return f"a {type(found).__name__}{length}{kind}"
