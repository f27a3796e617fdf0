"""The task `tabular`: a small network on a data set of scikit-learn or any CSV file (Section 4, reduced)."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoloss.conversion import convert
from autoloss.errors import RequestError, suggest, unknown
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.tabular.data.rows import Table, add_noise, build_table, impute, split_rows, standardise, subsample
from autoloss.tasks.tabular.data.table import MISSING_VALUES, Missing, read_csv
from autoloss.tasks.tabular.metrics import TABULAR_METRICS, Kind
from autoloss.tasks.tabular.network import mlp
from autoloss.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class BundledData:
    """A function of `sklearn.datasets`, and default options for its data set."""

    load: str
    options: Mapping[str, Any] = field(default_factory=dict)


BUNDLED = {
    "breast_cancer": BundledData("load_breast_cancer"),
    # For benchmarks, which need losses that differ at every learning rate. The validation F1 of cross entropy is 0.77 to 0.80 at
    # 0.3 to 3 times the learning rate, and that of -y * log(p) / mean_nhw(y) 0.84 at 0.1 of it (10 seeds, sd 0.02). Wrong labels
    # are no alternative: a third of the learning rate, which acts as early stopping, compensates for them.
    "breast_cancer_hard": BundledData("load_breast_cancer", {"imbalance": 10.0, "input_noise": 1.0}),
    "wine": BundledData("load_wine"),
    "digits": BundledData("load_digits"),
    "iris": BundledData("load_iris"),
    "diabetes": BundledData("load_diabetes"),
}
NOISE_SEED = 0
"""Seed of the rows that are dropped or get a wrong label; fixed, as part of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularOptions:
    """Further options of the task `tabular`; text is converted to numbers.

    Raises:
        RequestError: A value is of the wrong type or outside its range.
    """

    drop: str = ""
    """Columns of a CSV file to drop, separated by commas; a name that holds a comma in double quotes."""
    missing: Missing = "refuse"
    """What is done about missing values of a CSV file: refuse lists them; impute takes the median of the training rows and adds
    a column that says where, or a category of its own for text; drop drops their rows."""
    positive: str = ""
    """Positive class of F1 and average precision; if empty, the last of two classes in order."""
    train_rows: int | None = None
    """Number of training rows, stratified by class; all of the train split if None."""
    imbalance: float = 1.0
    """Factor by which the last class of the train split is made rarer relative to the first."""
    label_noise: float = 0.0
    """Share of training rows with a wrong class; for a regression, noise added to the target, in its standard deviations."""
    input_noise: float = 0.0
    """Standard deviation of the noise added to the inputs of all rows, in that of each column."""
    hidden: int = 32
    """Units of each hidden layer."""
    layers: int = 2
    """Number of hidden layers."""
    steps: int = 300
    """Optimizer steps, rounded up to whole epochs."""
    batch_size: int = 32
    """Rows per optimizer step."""
    learning_rate: float = 0.05
    """Initial learning rate."""
    rows_per_sample: int = 64
    """Rows of a sample of the rejection protocol."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            object.__setattr__(self, option.name, convert(option.name, value, option.type))
        if self.missing not in MISSING_VALUES:
            raise unknown("choice of missing", str(self.missing), MISSING_VALUES)
        for name, holds, expected in (
            ("train_rows", self.train_rows is None or self.train_rows >= 4, "at least 4"),
            ("imbalance", 1 <= self.imbalance < math.inf, "at least 1"),
            ("label_noise", 0 <= self.label_noise < 1, "in [0, 1)"),
            ("input_noise", 0 <= self.input_noise < math.inf, "at least 0"),
            ("hidden", self.hidden >= 1, "at least 1"),
            ("layers", 0 <= self.layers <= 16, "in 0 to 16"),
            ("steps", self.steps >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("rows_per_sample", self.rows_per_sample >= 4, "at least 4"),
        ):
            if not holds:
                raise RequestError(f"The option {name} is {getattr(self, name)}; it needs to be {expected}.")


def tabular(
    metric: str = "f1", data: str | Path = "breast_cancer", target: str | None = None, **options: Any
) -> SupervisedTask:
    """Build the task of predicting one column of a table from the others.

    Args:
        metric: A name in `TABULAR_METRICS`; the others of its kind are reported with it.
        data: One of scikit-learn's bundled data sets, or the path of a CSV file.
        target: Column to predict; required for a CSV file, and not allowed otherwise.
        options: The fields of `TabularOptions`.

    Raises:
        RequestError: An unknown name, a value out of range, a faulty file, or a metric that does not fit the target.
    """
    if metric not in TABULAR_METRICS:
        raise unknown("metric of the task tabular", metric, TABULAR_METRICS)
    for name in options:
        if name not in SIGNATURE.parameters:
            raise unknown("option of the task tabular", name, SIGNATURE.parameters)
    defaults = BUNDLED[str(data)].options if str(data) in BUNDLED else {}
    chosen = TabularOptions(**{**defaults, **options})
    measure = TABULAR_METRICS[metric]
    table = load_table(str(data), None if target is None else str(target), measure.kind, chosen)
    splits = prepare_splits(table, chosen)
    width, rows = splits["train"][0].shape[1], len(splits["train"][0])
    recipe = Recipe(
        epochs=math.ceil(chosen.steps / max(1, rows // chosen.batch_size)),
        batch_size=chosen.batch_size,
        learning_rate=chosen.learning_rate,
    )
    return SupervisedTask(
        partial(mlp, width, max(1, len(table.classes)), hidden=chosen.hidden, layers=chosen.layers),
        splits["train"],
        splits["valid"],
        "softmax" if table.classes else "none",
        measure.function,
        test=splits["test"],
        recipe=recipe,
        data=Data(rows_per_sample=chosen.rows_per_sample),
        name="tabular",
        also={
            name: row.function for name, row in TABULAR_METRICS.items() if row.kind == measure.kind and name != metric
        },
    )


def _make_signature() -> Signature:
    """Return a signature with all options, for `help` and for the catalogue."""
    explicit = [one for one in signature(tabular).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    options = signature(TabularOptions).parameters.values()
    return Signature([*explicit, *options], return_annotation=SupervisedTask)


SIGNATURE = _make_signature()
tabular.__signature__ = SIGNATURE  # pyright: ignore[reportFunctionMemberAccess]


def load_table(data: str, target: str | None, kind: Kind, options: TabularOptions) -> Table:
    """Read a bundled data set or a CSV file."""
    if data in BUNDLED:
        if target is not None or options.drop:
            raise RequestError(
                f"The bundled data set {data!r} has its own target and columns; leave out the options target and drop."
            )
        # Imported here: it takes a second, and a CSV file does not need it.
        bunch = getattr(import_module("sklearn.datasets"), BUNDLED[data].load)()
        names = bunch.get("target_names")
        labels = bunch.target.tolist() if names is None else [str(names[index]) for index in bunch.target]
        place = f"the data set {data!r}"
        return build_table(
            bunch.data, bunch.feature_names, labels, kind, positive=options.positive or None, place=place
        )
    path = Path(data)
    if not path.suffix and not path.exists():
        raise RequestError(
            f"There is no data set named {data!r}.{suggest(data, BUNDLED)} Known: {', '.join(BUNDLED)}, "
            "or the path of a CSV file with the option target, the column to predict."
        )
    drop = [name.strip() for row in csv.reader([options.drop], skipinitialspace=True) for name in row if name.strip()]
    return read_csv(path, target, kind, drop=drop, positive=options.positive or None, missing=options.missing)


def prepare_splits(table: Table, options: TabularOptions) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Split a table, subsample and add noise to its train split, and standardise all splits by the train split.

    Valid and test keep all of their rows and their true targets. The target of a regression is standardised like the inputs: its
    metrics do not depend on unit and origin, but training does.
    """
    train, valid, test = split_rows(table)
    train = subsample(table, train, options.train_rows, options.imbalance, NOISE_SEED)
    noisy = add_noise(table, train, options.label_noise, NOISE_SEED)
    filled = impute(table.inputs, table.inputs[train])
    inputs = standardise(filled, filled[train])
    errors = np.random.default_rng(NOISE_SEED).standard_normal(inputs.shape, dtype=np.float32)
    inputs += options.input_noise * errors
    return {
        name: (torch.from_numpy(inputs[rows]), torch.from_numpy(_scale_target(target, noisy, table)))
        for name, rows, target in (
            ("train", train, noisy),
            ("valid", valid, table.target[valid]),
            ("test", test, table.target[test]),
        )
    }


def _scale_target(target: NDArray[Any], train: NDArray[Any], table: Table) -> NDArray[Any]:
    return target if table.classes else standardise(target, train)
