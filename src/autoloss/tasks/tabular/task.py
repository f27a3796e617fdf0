"""`tabular`: losses for tables, scikit-learn's real ones or any CSV file, and a small network (Section 4, reduced)."""

from __future__ import annotations

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

from autoloss.errors import RequestError, nearest, unknown
from autoloss.settings import convert
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.tabular.data.rows import Table, add_noise, build_table, split_rows, standardise, subsample
from autoloss.tasks.tabular.data.table import read_csv
from autoloss.tasks.tabular.metrics import TABULAR_METRICS, Kind
from autoloss.tasks.tabular.network import mlp
from autoloss.tasks.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class BundledData:
    """A function of `sklearn.datasets`, and the options that its data set is used with unless others are given."""

    load: str
    options: Mapping[str, Any] = field(default_factory=dict)


BUNDLED = {
    "breast_cancer": BundledData("load_breast_cancer"),
    # For benchmarks, which need losses that differ at every learning rate. Here cross entropy's F1 on valid is 0.77 to
    # 0.80 at 0.3 to 3 times the rate, and -y * log(p) / mean_nhw(y) reaches 0.84 at 0.1 of it (10 seeds, sd 0.02).
    # Wrong labels do not serve: a third of the rate, which is to stop early, makes up for them.
    "breast_cancer_hard": BundledData("load_breast_cancer", {"imbalance": 10.0, "input_noise": 1.0}),
    "wine": BundledData("load_wine"),
    "digits": BundledData("load_digits"),
    "iris": BundledData("load_iris"),
    "diabetes": BundledData("load_diabetes"),
}
NOISE_SEED = 0
"""Which rows are left out or get a wrong label; fixed, since it belongs to the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularOptions:
    """What else can be set of the task `tabular`; text, as from a command line, is read as the number it stands for.

    Raises:
        RequestError: A value is of the wrong type or outside its range.
    """

    drop: str = ""
    """Columns of a CSV file to leave out, with commas between."""
    positive: str = ""
    """The class that F1 and average precision count as positive; of two, the last in order when empty."""
    train_rows: int | None = None
    """Rows to train on, each class in its share; all of the train split without it."""
    imbalance: float = 1.0
    """Rows of the first class of the train split to one of the last, where both were equally many before."""
    label_noise: float = 0.0
    """Share of the training rows that get another class; of values, the sd of what is added, in the target's own sd."""
    input_noise: float = 0.0
    """Standard deviation of the normal errors added to the inputs of all rows, in that of each column."""
    hidden: int = 32
    layers: int = 2
    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 0.05
    rows_per_sample: int = 64

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            object.__setattr__(self, option.name, convert(option.name, value, option.type))
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
    """Build the task of a table: predict one column from the others.

    Args:
        metric: A name in `TABULAR_METRICS`; those of its kind are reported beside it.
        data: One of scikit-learn's bundled data sets, or the path of a CSV file.
        target: Name of the column to predict; only, and always, for a CSV file.
        options: The fields of `TabularOptions`.

    Raises:
        RequestError: An unknown name, a value out of range, a faulty file, or a metric that does not fit the target.
    """
    if metric not in TABULAR_METRICS:
        raise unknown("metric of the task tabular", metric, TABULAR_METRICS)
    for name in options:
        if name not in SIGNATURE.parameters:
            raise unknown("option of the task tabular", name, SIGNATURE.parameters)
    standing = BUNDLED[str(data)].options if str(data) in BUNDLED else {}
    chosen = TabularOptions(**{**standing, **options})
    measure = TABULAR_METRICS[metric]
    table = load_table(str(data), None if target is None else str(target), measure.kind, chosen)
    parts = prepare_splits(table, chosen)
    width, rows = parts["train"][0].shape[1], len(parts["train"][0])
    recipe = Recipe(
        epochs=math.ceil(chosen.steps / max(1, rows // chosen.batch_size)),
        batch_size=chosen.batch_size,
        learning_rate=chosen.learning_rate,
    )
    return SupervisedTask(
        partial(mlp, width, max(1, len(table.classes)), hidden=chosen.hidden, layers=chosen.layers),
        parts["train"],
        parts["valid"],
        "softmax" if table.classes else "none",
        measure.function,
        test=parts["test"],
        recipe=recipe,
        rows_per_sample=chosen.rows_per_sample,
        name="tabular",
        also={
            name: row.function for name, row in TABULAR_METRICS.items() if row.kind == measure.kind and name != metric
        },
    )


def _make_signature() -> Signature:
    """Spell out the options, for `help` and for the catalogue."""
    written = [found for found in signature(tabular).parameters.values() if found.kind is not Parameter.VAR_KEYWORD]
    options = signature(TabularOptions).parameters.values()
    return Signature([*written, *options], return_annotation=SupervisedTask)


SIGNATURE = _make_signature()
tabular.__signature__ = SIGNATURE  # pyright: ignore[reportFunctionMemberAccess]


def load_table(data: str, target: str | None, kind: Kind, options: TabularOptions) -> Table:
    """Read one of the bundled data sets or a CSV file."""
    if data in BUNDLED:
        if target is not None or options.drop:
            raise RequestError(f"The bundled data set {data!r} has its own target; leave out target and drop.")
        # Imported here: it takes a second, and a CSV file does without.
        bunch = getattr(import_module("sklearn.datasets"), BUNDLED[data].load)()
        names = getattr(bunch, "target_names", None)
        labels = bunch.target.tolist() if names is None else [str(names[index]) for index in bunch.target]
        place = f"the data set {data!r}"
        return build_table(
            bunch.data, bunch.feature_names, labels, kind, positive=options.positive or None, place=place
        )
    path = Path(data)
    if not path.suffix and not path.exists():
        raise RequestError(
            f"There is no data set named {data!r}.{nearest(data, BUNDLED)} Known: {', '.join(BUNDLED)}, "
            "or the path of a CSV file with target=<its column>."
        )
    drop = [name.strip() for name in options.drop.split(",") if name.strip()]
    return read_csv(path, target, kind, drop=drop, positive=options.positive or None)


def prepare_splits(table: Table, options: TabularOptions) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Split a table, spoil its train split as asked for, and standardise all by what is left of it.

    Valid and test keep all of their rows and their true targets. Values are standardised like inputs: their metrics do
    not depend on unit and origin, but a network that starts near 0 and takes steps of a fixed size does.
    """
    train, valid, test = split_rows(table)
    train = subsample(table, train, options.train_rows, options.imbalance, NOISE_SEED)
    noisy = add_noise(table, train, options.label_noise, NOISE_SEED)
    inputs = standardise(table.inputs, table.inputs[train])
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
