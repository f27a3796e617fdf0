"""Tasks that score the rows of a table: their common options, the reading of their data, and the training of a small network."""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from autoloss.errors import RequestError, suggest
from autoloss.options import Count, Positive, declare
from autoloss.space.loss import MAIN
from autoloss.space.pairs import PairBranch
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.tabular.data.rows import impute, standardise
from autoloss.tasks.tabular.data.table import ColumnsRead, Missing, read_columns, read_header
from autoloss.tasks.tabular.network import mlp
from autoloss.training.recipe import Recipe

Rows = NDArray[np.int64]
PAIRWISE = ("baseline/ranknet", "baseline/auc_hinge", "baseline/auc_square", "baseline/auc_exponential")
"""Losses over pairs in common use, with which every comparison on such a task is made."""
WEIGHTED = "baseline/lambdarank"
"""Likewise where the pairs have weights."""


@declare()
class ScoreOptions:
    """Options of every task that scores rows."""

    drop: str = ""
    """Columns of a CSV file to drop, separated by commas; a name that holds a comma in double quotes."""
    missing: Missing = "refuse"
    """Handling of missing values of a CSV file: refuse lists them; impute takes the median of the training rows and adds
    a column that says where, or a category of its own for text; drop drops their rows."""
    hidden: Count = 32
    """Units of each hidden layer."""
    layers: Annotated[int, Field(ge=0, le=16)] = 2
    """Number of hidden layers."""
    steps: Count = 300
    """Optimizer steps, rounded up to whole epochs."""
    learning_rate: Positive = 0.05
    """Initial learning rate."""
    pairs: Count = 2**17
    """Largest number of pairs of a batch; if there are more, so many are drawn."""
    split_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the split into train, valid and test."""


@dataclass(frozen=True, slots=True)
class BundledTable:
    """A table that another package installs.

    Args:
        package: The package, which is not imported.
        file: Path of the table inside it.
        columns: Option → column of the table.
        drop: Columns that are no inputs.
    """

    package: str
    file: str
    columns: Mapping[str, str]
    drop: tuple[str, ...] = ()


def read_table(
    data: str, bundled: Mapping[str, BundledTable], wanted: Mapping[str, str | None], options: ScoreOptions, extra: str
) -> tuple[ColumnsRead, Mapping[str, str]]:
    """Read a bundled table or a CSV file.

    Args:
        wanted: Option → the column that a person gave for it; None if it may be missing, and empty if it may not.
        extra: Extra of autoloss that installs the bundled tables.

    Returns:
        The columns, and option → column.

    Raises:
        RequestError: The data are unknown or faulty, or a column is not given.
    """
    if data in bundled:
        table = bundled[data]
        if options.drop or any(wanted.values()):
            raise RequestError(
                f"The bundled data set {data!r} has its own columns; leave out the options {', '.join((*wanted, 'drop'))}."
            )
        found = importlib.util.find_spec(table.package)
        if found is None or found.origin is None:
            raise RequestError(
                f"The data set {data!r} is a file of the package {table.package}, which is not installed: pip install "
                f"autoloss[{extra}]. Or give the path of a CSV file."
            )
        path = Path(found.origin).parent / table.file
        return read_columns(path, [*table.columns.values()], drop=table.drop, missing="impute"), table.columns
    path = Path(data)
    if not path.suffix and not path.exists():
        raise RequestError(
            f"There is no data set named {data!r}.{suggest(data, bundled)} Known: {', '.join(bundled)}, or the path of a CSV file."
        )
    for option, column in wanted.items():
        if column == "":
            raise RequestError(
                f"Which column of {path.name} is the {option}? Give {option}=<one of {', '.join(read_header(path))}>."
            )
    columns = {option: column for option, column in wanted.items() if column}
    if len(set(columns.values())) < len(columns):
        raise RequestError(
            f"One column of {path.name} stands for two of {', '.join(f'{o}={c}' for o, c in columns.items())}; give each its own."
        )
    drop = [name.strip() for row in csv.reader([options.drop], skipinitialspace=True) for name in row if name.strip()]
    return read_columns(path, [*columns.values()], drop=drop, missing=options.missing), columns


def get_numbers(table: ColumnsRead, column: str, least: float = -math.inf) -> NDArray[np.float64]:
    """Return a column of numbers.

    Raises:
        RequestError: It holds text, or a number below the least.
    """
    values = table.targets[column]
    for line, value in zip(table.lines, values, strict=True):
        if isinstance(value, str):
            raise RequestError(f"Line {line}, column {column!r}: {value!r} is text; this column needs numbers.")
        if value < least:
            raise RequestError(
                f"Line {line}, column {column!r}: {value:g} is below {least:g}, the least that it can be."
            )
    return np.array(values, dtype=np.float64)


def split_groups(members: Rows, seed: int, strata: Rows | None = None) -> tuple[Rows, Rows, Rows]:
    """Return the rows of train, valid and test, 60/20/20; the rows of a group stay together.

    Args:
        members: Group of each row, counted from 0.
        strata: Stratum of each group, counted from 0, of each of which every part gets its share; one for all if None.
    """
    rng = np.random.default_rng(seed)
    parts = np.zeros(members.max() + 1, dtype=np.int64)
    strata = np.zeros_like(parts) if strata is None else strata
    for stratum in range(strata.max() + 1):
        groups = rng.permutation(np.flatnonzero(strata == stratum))
        held = max(1, round(0.2 * len(groups)))
        parts[groups[:held]], parts[groups[held : 2 * held]] = 1, 2
    train, valid, test = (np.flatnonzero(parts[members] == part) for part in range(3))
    return train, valid, test


def build_score_task(
    inputs: NDArray[np.float64],
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
    baselines: Sequence[str] = (),
    lists: Rows | None = None,
) -> SupervisedTask:
    """Build the task of scoring rows.

    Args:
        inputs: (N, F); NaN is imputed by the median of the training rows.
        target: (N, K), with the columns of the branch.
        splits: Rows of train, valid and test.
        batch_size: Examples of a batch: rows, or the groups of `lists`.
        sample_size: Examples of a sample of the rejection protocol.
        baselines: Losses of the kind of task in common use besides those over pairs.
        lists: Group of each row, counted from 0, if an example is the list of a group's rows.
    """
    filled = standardise(impute(inputs, inputs[splits[0]]), impute(inputs, inputs[splits[0]])[splits[0]])

    def take(rows: Rows) -> Any:
        x, y = torch.from_numpy(filled[rows]), torch.from_numpy(target[rows])
        if lists is None:
            return x, y
        order = np.argsort(lists[rows], kind="stable")
        sizes = np.unique(lists[rows], return_counts=True)[1].tolist()
        return list(zip(x[order].split(sizes), y[order].split(sizes), strict=True))

    train, valid, test = map(take, splits)
    examples = len(train[0]) if lists is None else len(train)
    size = min(batch_size, examples)
    task = SupervisedTask(
        partial(mlp, inputs.shape[1], 1, hidden=options.hidden, layers=options.layers),
        train,
        valid,
        test=test,
        branch=branch,
        recipe=Recipe(
            epochs=math.ceil(options.steps / max(1, examples // size)),
            batch_size=size,
            learning_rate=options.learning_rate,
            evaluation_batch=4096,
        ),
        data=Data(rows_per_sample=min(sample_size, examples), collate_fn=None if lists is None else join_lists),
        name=name,
        standard=standard,
        also=also,
    )
    weighted = () if branch.weigh == "none" else (WEIGHTED,)
    task.baselines = tuple({MAIN: other} for other in (*PAIRWISE, *weighted, *baselines) if other != standard)
    return task


def join_lists(items: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the rows of several lists, one below the other."""
    inputs, targets = zip(*items, strict=True)
    return torch.cat(inputs), torch.cat(targets)
