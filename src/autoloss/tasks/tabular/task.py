"""The task `tabular`: a small network on a data set of scikit-learn or any CSV file (Section 4, reduced)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.numbers import figure
from autoloss.options import Amount, Count, ShareBelowOne, declare
from autoloss.tasks.data import Data
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.metric import Metric, Pair, measure_sample
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.table_task import TableOptions, find_csv
from autoloss.tasks.tabular.metrics import TABULAR_METRICS, Kind
from autoloss.tasks.tabular.rows import Table, add_noise, build_table, impute, split_rows, standardise, subsample
from autoloss.tasks.tabular.table import read_csv

HARD = "_hard"
BUNDLED: Mapping[str, Mapping[str, Any]] = {
    "breast_cancer": {},
    # For benchmarks, which need losses that differ at every learning rate. The validation F1 of cross entropy is 0.77 to 0.80 at
    # 0.3 to 3 times the learning rate, and that of -y * log(p) / mean_nhw(y) 0.84 at 0.1 of it (10 seeds, sd 0.02). Wrong labels
    # are no alternative: a third of the learning rate, which acts as early stopping, compensates for them.
    "breast_cancer_hard": {"imbalance": 10.0, "input_noise": 1.0},
    "wine": {},
    "digits": {},
    "iris": {},
    "diabetes": {},
}
"""Data set of scikit-learn, `HARD` aside → default options."""
NOISE_SEED = 0
"""Seed of the rows that are dropped or get a wrong label; fixed, as part of the data."""


@declare()
class TabularOptions(TableOptions):
    """Options of the task `tabular`."""

    data: str | Path = "breast_cancer"
    """One of scikit-learn's bundled data sets, or the path of a CSV file."""
    target: str | None = None
    """Column to predict; required for a CSV file, and not allowed otherwise."""
    positive: str = ""
    """Positive class of F1 and average precision; if empty, the last of two classes in order."""
    train_rows: Annotated[int, Field(ge=4)] | None = None
    """Number of training rows, stratified by class; all of the train split if None."""
    imbalance: Annotated[float, Field(ge=1)] = 1.0
    """Factor by which the last class of the train split is made rarer relative to the first."""
    label_noise: ShareBelowOne = 0.0
    """Share of training rows with a wrong class; for a regression, noise added to the target, in its standard deviations."""
    input_noise: Amount = 0.0
    """Standard deviation of the noise added to the inputs of all rows, in that of each column."""
    batch_size: Count = 32
    """Rows per optimizer step."""
    rows_per_sample: Annotated[int, Field(ge=4)] = 64
    """Rows of a sample of the rejection protocol."""
    folds: Count = 1
    """Parts into which the rows outside the test split are divided: each is the valid split of some training seeds. 1 keeps one
    valid split."""

    def __post_init__(self) -> None:
        if self.folds > 1 and (self.label_noise or self.imbalance > 1):
            raise RequestError(
                f"folds is {self.folds} with label_noise or imbalance, which are for rows that are trained on only; each of the "
                "rows is in the valid split of some fold. Leave folds out, or both of these."
            )


def build_task(metric: str, options: TabularOptions) -> SupervisedTask:
    """Build the task of predicting one column of a table from the others."""
    kind: Kind = next(kind for kind, metrics in TABULAR_METRICS.items() if metric in metrics)
    further = dict(TABULAR_METRICS[kind])
    measure = further.pop(metric)
    table = load_table(str(options.data), options.target, kind, options)
    splits = prepare_splits(table, options)
    train, valid = splits["train"], splits["valid"]
    if options.folds > 1:
        train, valid = tuple(torch.cat(pair) for pair in zip(train, valid, strict=True)), None
    width, rows = train[0].shape[1], len(train[0]) - (len(train[0]) // options.folds if valid is None else 0)
    task = SupervisedTask(
        options.build_network(width, max(1, len(table.classes))),
        train,
        valid,
        "softmax" if table.classes else "none",
        measure,
        test=splits["test"],
        recipe=options.make_recipe(rows, options.batch_size),
        data=Data(rows_per_sample=options.rows_per_sample, folds=options.folds if valid is None else None),
        name="tabular",
        also=further,
    )
    task.describe_reference = partial(_describe_reference, splits, len(table.classes), measure=measure)
    task.describe_data(table.describe(Path(options.data).name, options.target))
    return task


def _describe_reference(splits: Mapping[str, Pair], classes: int, split: str, *, measure: Metric) -> str:
    # `SupervisedTask.with_metric` gives another metric.
    return describe_boosting(splits, measure, classes, split)


def describe_boosting(splits: Mapping[str, Pair], measure: Metric, classes: int, split: str) -> str:
    """Fit on the train split and say what the metric of the predictions on another one is.

    Args:
        splits: Inputs (N, F) and targets (N,) by name.
        measure: Metric of probabilities (N, C), or of values (N, 1).
        classes: Their number; 0 for a regression.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    inputs, target = (tensor.numpy() for tensor in splits["train"])
    held_out, truth = splits[split]
    if classes:
        model = HistGradientBoostingClassifier(random_state=0).fit(inputs, target)
        found = np.zeros((len(held_out), classes), dtype=np.float32)
        found[:, model.classes_.astype(int)] = model.predict_proba(held_out.numpy())
    else:
        model = HistGradientBoostingRegressor(random_state=0).fit(inputs, target)
        found = model.predict(held_out.numpy()).astype(np.float32)[:, None]
    return (
        f"For reference, scikit-learn's gradient boosting with its defaults, the usual alternative on a table, has "
        f"{figure(measure_sample(measure, torch.from_numpy(found), truth))} on the {split} split."
    )


tabular = TaskFactory(
    name="tabular",
    options=TabularOptions,
    build=build_task,
    preset=lambda options: BUNDLED.get(str(options.get("data")), {}),
)


def load_table(data: str, target: str | None, kind: Kind, options: TabularOptions) -> Table:
    """Read a bundled data set or a CSV file."""
    positive = options.positive or None
    if data in BUNDLED:
        if target is not None or options.drop:
            raise RequestError(f"The bundled data set {data!r} has a fixed target and inputs. Remove target and drop.")
        # Imported here: it takes a second, and a CSV file does not need it.
        bunch = getattr(import_module("sklearn.datasets"), f"load_{data.removesuffix(HARD)}")()
        names = bunch.get("target_names")
        labels = bunch.target.tolist() if names is None else [str(names[index]) for index in bunch.target]
        place = f"the data set {data!r}"
        return build_table(bunch.data, bunch.feature_names, labels, kind, positive=positive, place=place)
    path = find_csv(data, BUNDLED)
    return read_csv(path, target, kind, drop=options.list_dropped(), positive=positive, missing=options.missing)


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
    scaled = not table.classes
    return {
        name: (torch.from_numpy(inputs[rows]), torch.from_numpy(standardise(target, noisy) if scaled else target))
        for name, rows, target in (
            ("train", train, noisy),
            ("valid", valid, table.target[valid]),
            ("test", test, table.target[test]),
        )
    }
