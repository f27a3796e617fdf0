"""Tasks on the rows of a table: their common options, the reading of their data, and the training of a small network."""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from autoloss.errors import RequestError, suggest
from autoloss.options import Count, Positive, declare
from autoloss.space.form import LARGEST_LIMIT
from autoloss.space.pairs import PairBranch
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.tabular.rows import describe_rows, impute, standardise
from autoloss.tasks.tabular.table import ColumnsRead, Missing, parse_number, read_columns, read_header
from autoloss.training.recipe import Recipe


def mlp(inputs: int, outputs: int, *, hidden: int = 32, layers: int = 2) -> nn.Sequential:
    """Build a perceptron (N, inputs) → (N, outputs), raw, with ReLU between its layers of `hidden` units; 0 layers: linear."""
    stages: list[nn.Module] = []
    for entering, leaving in pairwise([inputs, *[hidden] * layers]):
        stages += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*stages, nn.Linear(hidden if layers else inputs, outputs))


Rows = NDArray[np.int64]


@declare()
class TableOptions:
    """Options of every task on a table."""

    drop: str = ""
    """Columns of a CSV file to drop, separated by commas; a name that holds a comma in double quotes."""
    missing: Missing = "refuse"
    """Handling of missing values of a CSV file: refuse lists them; impute takes the median of the training rows and adds
    a column that says where, or a category of its own for text; drop drops their rows."""
    hidden: Count = 32
    """Units of each hidden layer."""
    layers: Annotated[int, Field(ge=0, le=16)] = 2
    """Number of hidden layers; 0 gives a linear model."""
    steps: Count = 300
    """Optimizer steps, rounded up to whole epochs."""
    learning_rate: Positive = 0.05
    """Initial learning rate."""

    def list_dropped(self) -> list[str]:
        """Return the names of the columns to drop."""
        rows = csv.reader([self.drop], skipinitialspace=True)
        return [name.strip() for row in rows for name in row if name.strip()]

    def build_network(self, inputs: int, outputs: int) -> Callable[[], nn.Module]:
        """Return a function that builds the network."""
        return partial(mlp, inputs, outputs, hidden=self.hidden, layers=self.layers)

    def make_recipe(self, rows: int, batch_size: int, **further: Any) -> Recipe:
        """Return the recipe for some training rows, with as many steps in whole epochs."""
        epochs = math.ceil(self.steps / max(1, rows // batch_size))
        return Recipe(epochs=epochs, batch_size=batch_size, learning_rate=self.learning_rate, **further)


@declare()
class ScoreOptions(TableOptions):
    """Options of every task that scores rows."""

    pairs: Annotated[int, Field(ge=1, le=LARGEST_LIMIT)] = 2**17
    """Maximum number of pairs per batch; if there are more, this many are drawn at random."""
    split_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the split into train, valid and test."""


@dataclass(frozen=True, slots=True)
class BundledTable:
    """A table that another package, which is not imported, installs: its file, option → column, and columns that are no inputs."""

    package: str
    file: str
    columns: Mapping[str, str]
    drop: tuple[str, ...] = ()


def read_table(
    data: str, bundled: Mapping[str, BundledTable], wanted: Mapping[str, str | None], options: ScoreOptions, extra: str
) -> tuple[ColumnsRead, Mapping[str, str]]:
    """Read a bundled table, which an `extra` of autoloss installs, or a CSV file: its columns, and option → column.

    `wanted` is option → the column that a person gave for it; None if it may be missing, and empty if it may not.
    """
    if data in bundled:
        table = bundled[data]
        if options.drop or any(wanted.values()):
            raise RequestError(f"The data set {data!r} has its own columns; leave out {', '.join((*wanted, 'drop'))}.")
        found = importlib.util.find_spec(table.package)
        if found is None or found.origin is None:
            raise RequestError(
                f"The data set {data!r} is a file of the package {table.package}, which is not installed: pip install "
                f"autoloss[{extra}]. Or give the path of a CSV file."
            )
        path = Path(found.origin).parent / table.file
        return read_columns(path, [*table.columns.values()], drop=table.drop, missing="impute"), table.columns
    path = find_csv(data, bundled)
    for option, column in wanted.items():
        if column == "":
            raise RequestError(
                f"Which column of {path.name} is the {option}? Give {option}=<one of {', '.join(read_header(path))}>."
            )
    columns = {option: column for option, column in wanted.items() if column}
    if len(set(columns.values())) < len(columns):
        raise RequestError(
            f"A column of {path.name} is named twice: {', '.join(f'{o}={c}' for o, c in columns.items())}. Name different columns."
        )
    return read_columns(path, [*columns.values()], drop=options.list_dropped(), missing=options.missing), columns


def find_csv(data: str, bundled: Iterable[str]) -> Path:
    """Return the path of a CSV file, unless it looks like the name of a bundled data set."""
    path = Path(data)
    if not path.suffix and not path.exists():
        raise RequestError(f"No data set {data!r}.{suggest(data, bundled)} Known: {', '.join(bundled)}, or a CSV file.")
    return path


def get_numbers(table: ColumnsRead, column: str) -> NDArray[np.float64]:
    """Return a column of numbers, none of them below 0."""
    values = table.targets[column]
    for line, value in zip(table.lines, values, strict=True):
        number = parse_number(str(value))
        if number is None:
            raise RequestError(f"Line {line}, column {column!r}: {value!r} is text; this column needs numbers.")
        if number < 0:
            raise RequestError(f"Line {line}, column {column!r}: {number:g} is below the minimum 0.")
    return np.array(values, dtype=np.float64)


def split_groups(members: Rows, seed: int, strata: NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
    """Return the rows of train, valid and test, 60/20/20; the rows of a group stay together.

    `members` is the group of each row, counted from 0. Every part gets its share of the groups that `strata` marks.
    """
    rng = np.random.default_rng(seed)
    parts = np.zeros(members.max() + 1, dtype=np.int64)
    for stratum in (False, True):
        groups = rng.permutation(np.flatnonzero(strata == stratum))
        held = max(1, round(0.2 * len(groups)))
        parts[groups[:held]], parts[groups[held : 2 * held]] = 1, 2
    train, valid, test = (np.flatnonzero(parts[members] == part) for part in range(3))
    return train, valid, test


def build_score_task(
    table: ColumnsRead,
    columns: Mapping[str, str],
    target: NDArray[np.float64],
    splits: tuple[Rows, Rows, Rows],
    branch: PairBranch,
    also: Mapping[str, Callable[[Tensor, Tensor], float]],
    options: ScoreOptions,
    *,
    batch_size: int,
    sample_size: int,
    name: str,
    standard: str,
    lists: Rows | None = None,
) -> SupervisedTask:
    """Build the task of scoring the rows of a table, in which NaN is imputed by the median of the training rows; target (N, K).

    `columns` maps each option to its column.
    An example is a row, or with `lists`, the group of each row counted from 0, the list of a group's rows; batches and
    samples of the rejection protocol have so many examples.
    """
    filled = impute(table.inputs, table.inputs[splits[0]])
    filled = standardise(filled, filled[splits[0]])

    def take(rows: Rows) -> Any:
        x, y = torch.from_numpy(filled[rows]), torch.from_numpy(target[rows])
        if lists is None:
            return x, y
        order = np.argsort(lists[rows], kind="stable")
        sizes = np.unique(lists[rows], return_counts=True)[1].tolist()
        return list(zip(x[order].split(sizes), y[order].split(sizes), strict=True))

    train, valid, test = map(take, splits)
    examples = len(train[0]) if lists is None else len(train)
    task = SupervisedTask(
        options.build_network(filled.shape[1], 1),
        train,
        valid,
        test=test,
        branch=branch,
        recipe=options.make_recipe(examples, min(batch_size, examples), evaluation_batch=4096),
        data=Data(rows_per_sample=min(sample_size, examples), collate_fn=None if lists is None else join_lists),
        name=name,
        standard=standard,
        also=also,
    )
    named = ", ".join(f"{option} {column}" for option, column in columns.items())
    named = named[:1].upper() + named[1:]
    task.describe_data(describe_rows(table.file, len(target), table.left_out, named, table.used))
    return task


def join_lists(items: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the rows of several lists, one below the other."""
    inputs, targets = zip(*items, strict=True)
    return torch.cat(inputs), torch.cat(targets)
