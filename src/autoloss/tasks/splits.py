"""The examples of a split: tensors, arrays, dictionaries, lists, a `Dataset` or a `DataLoader`, all converted to one `Dataset`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from autoloss.errors import RequestError, join_names
from autoloss.space.activated import ActivatedBranch, spatial
from autoloss.space.branch import Branch
from autoloss.tasks.data import Data
from autoloss.tasks.loading import collate_columns, draw_epochs, list_examples, load_batches
from autoloss.training.loop import shuffle_batches
from autoloss.training.recipe import Recipe, require
from autoloss.training.structures import Inputs, describe, list_tensors, map_tensors

FOLDS, FOLDS_OF_FEW, FEW_EXAMPLES = 5, 10, 200
"""Parts into which training data are split where neither validation data nor a number is given; more of few examples."""

CHUNK = 2**20
"""Values of a column that are looked at together."""
MOST_CHANNELS = 256
"""Number of channels up to which each is looked at by itself: their sizes may differ."""


class Columns(Dataset[Any]):
    """Tensors with one row per example, in a tuple or a dictionary (or both); several examples are read at once, as a batch."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(list_tensors(self.columns)[0])

    def __getitem__(self, rows: Any) -> Any:
        return map_tensors(lambda column: column[rows], self.columns)


class Split:
    """Examples with their targets, accessible by index: the `indices` of a `dataset` that belong to the split.

    The data has one of the forms that `SupervisedTask` accepts; of a `DataLoader`, the batches, the `collate_fn` and the
    number of workers are used too. The name is for messages.
    """

    def __init__(self, data: Any, name: str, reading: Data = Data()) -> None:  # noqa: B008 - frozen
        self.name = name
        self.reading = reading
        self._loader = data if isinstance(data, DataLoader) else None
        collate, loaders = reading.collate_fn, reading.loaders
        if self._loader is not None:
            data, loaders = self._loader.dataset, loaders or self._loader.num_workers
            if collate is None and self._loader.collate_fn is not default_collate:
                collate = self._loader.collate_fn
        self.dataset = _to_dataset(data, name, as_items=collate is not None)
        options = {"collate": collate or collate_columns, "loaders": loaders, "reseed": reading.reseed}
        self._load = functools.partial(load_batches, self.dataset, **options)
        if not len(self.dataset):
            raise RequestError(f"The {name} data holds no examples; give it at least one.")
        self.indices = torch.arange(len(self.dataset)) if self._loader is None else list_examples(self._loader)
        if self._loader is not None and name == "train" and not len(self._loader):
            raise RequestError(
                f"The DataLoader of the train data gives no batch: {len(self.dataset)} examples, "
                f"batch_size={self._loader.batch_size}, drop_last={self._loader.drop_last}. Lower batch_size."
            )

    def __len__(self) -> int:
        return len(self.indices)

    def choose_numbers(self, recipe: Recipe, length: float = 1.0) -> Recipe:
        """Return the recipe with the batch size of the `DataLoader` and all numbers that it leaves out; epochs times `length`."""
        batches = None if self._loader is None else len(self._loader)
        return self.adopt_batches(recipe).choose(len(self), batches=batches, length=length)

    def adopt_batches(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the batch size of the `DataLoader`, if there is one."""
        size = None if self._loader is None else self._loader.batch_size
        return recipe if size is None else dataclasses.replace(recipe, batch_size=size)

    def evaluation_batch(self, recipe: Recipe) -> int:
        """Return the batch size of an evaluation."""
        return recipe.evaluation_batch or require(self.adopt_batches(recipe).batch_size)

    def draw_order(self, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
        """Draw the indices of all batches of a training, by the `DataLoader`'s sampler if there is one."""
        if self._loader is None:
            return [self.indices[rows] for rows in shuffle_batches(len(self), recipe, generator)]
        seed = int(torch.randint(2**62, (), generator=generator))
        return draw_epochs(self._loader, require(recipe.epochs), seed)

    def count_batches(self, recipe: Recipe) -> int:
        """Return the number of batches of a training."""
        return recipe.steps(len(self)) if self._loader is None else require(recipe.epochs) * len(self._loader)

    def batches(self, order: Sequence[Tensor], seed: int = 0, first: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield (inputs, targets) for each tensor of indices; 64-bit inputs are converted to 32 bits.

        Seed and first number of the batches as for `load_batches`.
        """
        # Reading rows of tensors draws no random numbers, so no generator is seeded.
        raw = (
            map(self.dataset.__getitem__, order)
            if isinstance(self.dataset, Columns)
            else self._load(order, seed, first)
        )
        for batch in raw:
            yield self.reading.split_batch(batch, self.name)

    def in_order(self, batch_size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield every example once, in the order of the data."""
        return self.batches(self.indices.split(batch_size))

    def first(self, count: int) -> tuple[Inputs, Tensor]:
        """Return the first `count` examples, or all if there are fewer."""
        return next(self.in_order(count))

    def whole(self) -> tuple[Inputs, Tensor] | None:
        """Return all inputs and targets if they are tensors, otherwise None."""
        return self.reading.split_batch(self.dataset.columns, self.name) if isinstance(self.dataset, Columns) else None

    def fingerprint(self) -> list[float]:
        """Return a weighted mean of each channel of the inputs and targets, if they are tensors.

        Its unit is how large chance makes it, whose logarithm is before it. A digest would depend on how a processor rounds; these
        hardly do.
        """
        found: list[float] = []
        for column in list_tensors(self.whole() or ()):
            values = torch.view_as_real(column) if column.is_complex() else column
            channels = values.shape[1] if values.ndim > 1 and values.shape[1] <= MOST_CHANNELS else 1
            rows = values.detach().reshape(len(values), channels, -1)
            squares, weighted, seen = torch.zeros(channels).double(), torch.zeros(channels).double(), 0
            for part in rows.split(max(1, CHUNK // max(1, rows[0].numel()))):
                known = part.cpu().double()
                weights = _scatter(seen, known[:, 0].numel()).reshape(len(part), 1, -1)
                squares += known.square().sum(dim=(0, 2))
                weighted += (known * weights).sum(dim=(0, 2))
                seen += weights.numel()
            count = max(1, seen)
            sizes = squares.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
            found += torch.stack([(sizes / count).log(), weighted / sizes], dim=1).flatten().tolist()
        return found

    def check_repeats(self) -> None:
        """Check on a few examples that the random draws of a data set follow from the seed."""
        if isinstance(self.dataset, Columns):
            return
        batches = (self._load([self.indices[:4]], 0) for _ in range(2))
        first, again = (list_tensors(next(loaded)) for loaded in batches)
        if len(first) != len(again) or not all(map(torch.equal, first, again)):
            raise RequestError(
                f"The {self.name} data draws from its own random generator: examples differ when they are loaded again, so a "
                "training cannot be repeated. Give Data(reseed=…), a function of (data set, seed) that seeds it, or let it draw "
                "from the global generators of torch, NumPy or Python, which are seeded for each batch."
            )

    def make_folds(self, count: int | None) -> list[dict[str, Split]]:
        """Split the examples into parts; each fold has one part as `valid` and the others as `train`.

        If the number of parts is None, it is chosen, and a class with fewer examples is missing from some parts.
        """
        from sklearn.model_selection import KFold, StratifiedKFold

        parts = count or (FOLDS_OF_FEW if len(self) < FEW_EXAMPLES else FOLDS)
        if self._loader is not None or parts > len(self):
            found = f"{len(self)} examples" if self._loader is None else "a DataLoader, which draws its own batches"
            asked = f"folds is {parts}" if count else f"No valid data is given, so that {parts} folds would be made"
            raise RequestError(
                f"{asked}, and the {self.name} data is {found}; expected data with at least one example for each fold. "
                + ("Lower folds." if count else "Give valid=….")
            )
        _, target = self.first(1)
        are_classes = target.ndim == 1 and not target.is_floating_point()
        # Two classes may come as 0.0 and 1.0 or in a column. So do values, which are not all read unless the first may be a class.
        read = self.in_order(1024) if are_classes or (target.numel() == 1 and target.item() in (0, 1)) else ()
        labels = torch.cat([torch.zeros(0).double(), *(targets.reshape(-1).double() for _, targets in read)])
        values, numbers = labels.unique(return_counts=True)
        if not len(labels) or not (are_classes or {*values.tolist()} <= {0, 1}):
            drawn = KFold(parts, shuffle=True, random_state=0).split(self.indices)
        else:
            if (rare := values[numbers < parts]).numel() and count:
                raise RequestError(
                    f"The class {int(rare[0])} has {int(numbers[numbers < parts][0])} of the {self.name} examples, so it is "
                    f"missing from a fold; folds is {count}. Lower folds, or remove the class."
                )
            # A class with too few examples for all parts is divided as if it were a part of the most frequent one.
            labels = torch.where(torch.isin(labels, rare), values[numbers.argmax()], labels)
            drawn = StratifiedKFold(parts, shuffle=True, random_state=0).split(self.indices, labels)
        return [{"train": self._select(kept, "train"), "valid": self._select(held, "valid")} for kept, held in drawn]

    def _select(self, rows: np.ndarray, name: str) -> Split:
        part = copy.copy(self)
        part.name, part.indices = name, self.indices[torch.as_tensor(rows)]
        return part


def _scatter(first: int, count: int) -> Tensor:
    """Return numbers in [-1, 1) that depend on the positions from `first` on without any order, as those of a generator do."""
    mixed = torch.arange(first, first + count) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 32)) * 0x3F58476D1CE4E5B9
    return (mixed >> 40).double() / 2**23


def read_splits(
    proxy_data: Mapping[str, Any], full_data: Mapping[str, Any], data: Data
) -> Mapping[str, list[dict[str, Split]]]:
    """Return the splits of each schedule, fold by fold; `full_data` are those that differ, None for what it cannot evaluate."""
    proxy = {label: Split(part, label, data) for label, part in proxy_data.items() if part is not None}
    others = {label: None if part is None else Split(part, label, data) for label, part in full_data.items()}
    if "train" not in proxy or others.get("train", True) is None:
        raise RequestError("The train data are None; expected tensors, a Dataset or a DataLoader.")
    folded = "valid" not in proxy if data.folds is None else data.folds > 1
    if ("valid" in proxy) == folded or (folded and others.keys() & {"train", "valid"}):
        raise RequestError(
            f"Data(folds={data.folds}) with{'' if 'valid' in proxy else 'out'} valid data{' and data for `full`' * bool(others)}; "
            "expected either valid data, or at least 2 folds of the training data and neither valid data nor data for `full`."
        )
    folds = proxy["train"].make_folds(data.folds) if folded else [{}]
    parts = [{**fold, **{label: split for label, split in proxy.items() if label not in fold}} for fold in folds]
    whole = [{label: split for label, split in {**part, **others}.items() if split is not None} for part in parts]
    return {"proxy": parts, "full": whole}


def holds_classes(target: Tensor, branch: Branch, shape: Sequence[int]) -> bool:
    """Return True if targets are class indices: integers that are neither counts nor in the prediction's shape (N, C, H, W)."""
    has_channels = shape[1] > 1 or (isinstance(branch, ActivatedBranch) and branch.activation == "none")
    is_value = has_channels and (shape[1] == 1 or spatial(target).shape[1:] == shape[1:])
    return not target.is_floating_point() and target.dtype != torch.bool and not is_value


def add_shares(branch: Branch, train: Split) -> Branch:
    """Return the branch with the shares of the classes in the training data where these are tensors of single items, without space.

    Of several labels at once, each has its share of the rows where it is not missing.
    """
    whole = train.whole()
    if not isinstance(branch, ActivatedBranch) or branch.shares or branch.activation == "none" or whole is None:
        return branch
    channels, target = branch.channels or 1, whole[1][train.indices]
    kept = target[target != branch.ignore_index] if branch.ignore_index is not None else target
    if target[0].numel() == 1 and (channels == 1 or branch.activation == "softmax"):
        classes = max(channels, 2)
        known = kept[(kept >= 0) & (kept < classes)].double()
        found = known.long().bincount(minlength=classes) / max(1, len(known))
    elif branch.activation == "sigmoid" and target.shape[1:].numel() == channels:
        known, labels = kept.double(), target.double().flatten(1)
        if branch.ignore_index is not None:
            labels = labels.where(labels != branch.ignore_index, math.nan)
        found = labels.nanmean(dim=0).nan_to_num()
    else:
        return branch
    are_shares = len(known) > 0 and bool((known == known.round()).all()) and bool(((found >= 0) & (found <= 1)).all())
    return dataclasses.replace(branch, shares=tuple(found.tolist())) if are_shares else branch


def describe_splits(splits: Mapping[str, Split], branch: Branch, shape: Sequence[int]) -> str:
    """Describe the splits in a sentence: examples, size of the inputs, frequencies of classes; `shape` is a prediction's."""
    train = splits["train"]
    inputs, target = train.first(1)
    size = "; ".join(" × ".join(map(str, one.shape[1:])) or "one number" for one in list_tensors(inputs)[:3])
    counts = join_names([f"{len(split)} {name}" for name, split in splits.items()])
    whole = train.whole()
    if whole is None or not holds_classes(target, branch, shape):
        return f"Data: {counts} examples, inputs of size {size}."
    classes, numbers = whole[1].unique(return_counts=True)
    ignored = branch.ignore_index if isinstance(branch, ActivatedBranch) else None
    kept = classes != ignored if ignored is not None else torch.ones_like(classes, dtype=torch.bool)
    classes, shares = classes[kept], numbers[kept] / numbers[kept].sum()
    # Of two equal shares, each is named once.
    places = shares.argmax(), len(shares) - 1 - shares.flip(0).argmin()
    most, least = (f"{classes[at]} ({shares[at]:.1%})".replace("%", " %") for at in places)
    return (
        f"Data: {counts} examples, inputs of size {size}; {len(classes)} classes in train, {most} the most frequent and {least} "
        "the rarest."
    )


def describe_folds(folds: Sequence[Mapping[str, Split]], data: Data) -> list[str]:
    """Describe the automatic split of the training data in a sentence."""
    if len(folds) == 1 or data.folds is not None:
        return []
    train, valid = (len(folds[0][part]) for part in ("train", "valid"))
    return [
        f"No validation data given: each training holds out {valid} of the {train + valid} train examples, one of {len(folds)} "
        "folds (Data(folds=…))."
    ]


def _to_dataset(data: Any, name: str, as_items: bool) -> Any:
    """Return columns of tensors, or items accessible by index."""
    # One of another class may have items of its own.
    if type(data) is TensorDataset:
        data = data.tensors
    if isinstance(data, Mapping) or _is_pair_of_columns(data):
        columns = _map_columns(lambda column: _to_column(column, name, as_items), data)
        rows = _count_rows(columns, name)
        kinds: set[type] = set()
        _map_columns(lambda column: kinds.add(type(column)), columns)
        if as_items or list in kinds:
            return [_map_columns(lambda column, row=row: column[row], columns) for row in range(rows)]
        return Columns(columns)
    is_sequence = isinstance(data, Sized) and hasattr(data, "__getitem__") and not isinstance(data, str | bytes)
    if isinstance(data, IterableDataset | Tensor | np.ndarray) or hasattr(data, "iloc") or not is_sequence:
        raise RequestError(
            f"The {name} data is {describe(data)}; expected a pair (inputs, targets) of tensors or arrays, a list or a torch "
            "Dataset with a length whose items are such pairs or dictionaries, or a DataLoader of one."
        )
    return data


def _is_pair_of_columns(data: Any) -> bool:
    """Return True for (inputs, targets), False for a list of two examples, which are tuples or dictionaries."""
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
    """Return the common number of rows of all columns."""
    labels = ("inputs", "targets", *["further values"] * len(columns))
    parts = columns.items() if isinstance(columns, Mapping) else zip(labels, columns, strict=False)
    sizes = [(_count_rows(part, name) if isinstance(part, Mapping) else len(part), label) for label, part in parts]
    if len({size for size, _ in sizes}) != 1:
        listed = " and ".join(f"{size} {label}" for size, label in sizes)
        raise RequestError(f"The {name} data has {listed}; each input needs one target, in the same row.")
    return sizes[0][0]


def _to_column(part: Any, name: str, as_items: bool) -> Tensor | list[Any]:
    """Return a tensor with one row for each example, or a list if examples differ in size or a function collates them."""
    if isinstance(part, list) and part and (as_items or all(isinstance(item, Tensor | np.ndarray) for item in part)):
        if as_items or len({tuple(item.shape) for item in part}) > 1:
            return part
        return torch.stack([torch.as_tensor(item) for item in part])
    try:
        # torch cannot share memory that is read-only or has negative strides; only such arrays are copied.
        found = part.detach() if isinstance(part, Tensor) else np.require(part, requirements=["C", "W"])
        # pandas makes objects of columns whose numbers are of several kinds.
        if found.dtype == object and all(kind.kind in "biuf" for kind in getattr(part, "dtypes", [np.dtype(object)])):
            found = part.to_numpy(dtype=float, na_value=math.nan)  # pyright: ignore[reportAttributeAccessIssue]
        tensor = torch.as_tensor(found)
    except (TypeError, ValueError) as error:
        if as_items and isinstance(part, Sequence | np.ndarray):
            return list(part)
        raise RequestError(
            f"The {name} data holds {describe(part)}, which is not numeric; encode text and categories first, or give "
            "Data(collate_fn=…), which makes a batch of a list of examples."
        ) from error
    if not tensor.ndim:
        raise RequestError(f"The {name} data holds a single number; expected one row per example.")
    return tensor
