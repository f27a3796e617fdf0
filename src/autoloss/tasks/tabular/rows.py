"""The rows of a table, with a target of classes or values: splitting, subsampling, noise and standardisation.

The split is 60/20/20 into train, valid and test; it depends on the table alone, not on the seed of a training.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloss.errors import RequestError, join_names, unknown
from autoloss.tasks.tabular.metrics import TABULAR_METRICS, Kind

Labels = Sequence[str] | Sequence[float]
Rows = NDArray[np.int64]

DISTINCT_NUMBERS = 20
"""Maximum number of distinct numbers in a target of classes."""
LEAST_PER_CLASS = 3
"""Rows of a class, at least: one for each of train, valid and test."""
LEAST_ROWS = 10
HELD_OUT = 0.2
"""Share of the rows in valid, and in test."""
SPLIT_SEED = 0
CLASSES_SHOWN = 5
LARGEST = 1e30
"""Standardised numbers above this leave no room for computing with them in 32 bits."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a data set: inputs (N, F), NaN where one is imputed later, with names, and a target (N,), classes or values.

    `columns` has `color=red` for one-hot columns. The second of two classes is the positive one; a regression has none.
    `used` maps a column of the file to how it is used as an input; it is empty where all are numbers. `left_out` counts the
    rows of the file that lack a value that they need.
    """

    inputs: NDArray[np.float64]
    target: Rows | NDArray[np.float64]
    columns: tuple[str, ...]
    classes: tuple[str, ...] = ()
    used: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0

    def describe(self, data: str, target: str | None) -> str:
        """Describe the table in a sentence: rows, classes with their shares, and the use of each column.

        >>> Table(np.zeros((4, 1)), np.array([0, 0, 0, 1]), ("x",), ("no", "yes")).describe("a.csv", "left")
        'Read a.csv: 4 rows. Target left: no 75 %, yes 25 % (positive class; to change it: positive=no). Inputs: x (number).'
        """
        shares = np.bincount(self.target, minlength=len(self.classes)) / len(self.target) if self.classes else ()
        written = [f"{share:.1%}".replace(".0%", "%").replace("%", " %") for share in shares]
        named = [f"{name} {share}" for name, share in zip(self.classes, written, strict=True)]
        found = join_names(named)
        found += f" (positive class; to change it: positive={self.classes[0]})" if len(named) == 2 else ""
        name, used = f" {target}" if target else "", self.used or dict.fromkeys(self.columns, "number")
        return describe_rows(data, len(self.target), self.left_out, f"Target{name}: {found or 'values'}", used)


def describe_rows(data: str, rows: int, left_out: int, target: str, used: Mapping[str, str]) -> str:
    """Describe in a sentence what was read: the number of rows, the target, and the use of each column."""
    lacking = f", without {left_out} that lack a value" if left_out else ""
    inputs = join_names([f"{column} ({kind})" for column, kind in used.items()])
    return f"Read {data}: {rows} rows{lacking}. {target}. Inputs: {inputs}."


def build_table(
    inputs: NDArray[np.float64],
    columns: Sequence[str],
    labels: Labels,
    kind: Kind,
    *,
    positive: str | None = None,
    place: str = "the target",
    lines: Sequence[int] | None = None,
) -> Table:
    """Build a table from inputs (N, F) with names and N labels of a target of classes (text or numbers) or values.

    The positive class is the last in order when None. `place`, the name of the target, and the lines of the rows are for
    messages.
    """
    counts = Counter(labels)
    if len(counts) < 2:
        raise RequestError(f"Every row in {place} is {_to_name(labels[0])!r}; expected at least two values.")
    if kind == "regression":
        if positive is not None:
            raise RequestError(f"The option positive is {positive!r}, but {place} holds values. Remove it.")
        _check_values(counts, place)
        return Table(inputs, np.array(labels, dtype=np.float64), tuple(columns))
    _check_classes(counts, labels, place, lines)
    ordered = sorted(counts)  # pyright: ignore[reportArgumentType]
    if positive is not None:
        if not any(_is_named(label, positive) for label in ordered):
            raise unknown(f"class in {place}", positive, map(_to_name, ordered))
        if len(ordered) > 2:
            raise RequestError(
                f"The option positive is {positive!r}, but {place} has {len(ordered)} classes. Remove it."
            )
        ordered.sort(key=lambda label: _is_named(label, positive))
    indices = {label: index for index, label in enumerate(ordered)}
    target = np.array([indices[label] for label in labels])
    return Table(inputs, target, tuple(columns), tuple(map(_to_name, ordered)))


def split_rows(table: Table) -> tuple[Rows, Rows, Rows]:
    """Return the rows of train, valid and test, 60/20/20, stratified by class, with at least one row of each class."""
    rng = random.Random(SPLIT_SEED)
    groups = [np.flatnonzero(table.target == index) for index in range(len(table.classes))]
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for group in groups or [np.arange(len(table.target))]:
        rows = group.tolist()
        rng.shuffle(rows)
        held = max(1, round(HELD_OUT * len(rows)))
        for part, chosen in zip(parts, (rows[2 * held :], rows[:held], rows[held : 2 * held]), strict=True):
            part.extend(chosen)
    train, valid, test = (np.array(sorted(part)) for part in parts)
    return train, valid, test


def subsample(table: Table, rows: Rows, count: int | None, imbalance: float, seed: int) -> Rows:
    """Return `count` of the rows, stratified by class with at least one row each; all of them when `count` is None.

    First the imbalance is applied: class k of C keeps imbalance^(−k/(C−1)) of its rows, the usual long tail.
    """
    if imbalance != 1 and not table.classes:
        raise RequestError(f"The option imbalance is {imbalance}, but this target has no classes; leave it at 1.")
    rng = random.Random(seed)
    ranked: list[tuple[float, int, int]] = []
    for index in range(max(1, len(table.classes))):
        group = (rows[table.target[rows] == index] if table.classes else rows).tolist()
        rng.shuffle(group)
        kept = max(1, round(len(group) * imbalance ** (-index / max(1, len(table.classes) - 1))))
        ranked += [(place / kept, index, row) for place, row in enumerate(group[:kept])]
    if count is not None and count > len(ranked):
        raise RequestError(f"The option train_rows is {count}; there are {len(ranked)} rows to train on.")
    return np.array(sorted(row for _, _, row in sorted(ranked)[:count]))


def add_noise(table: Table, rows: Rows, noise: float, seed: int) -> Rows | NDArray[np.float64]:
    """Return the target of the rows with noise: a share gets another class; values get normal noise, in their deviation."""
    rng = random.Random(seed)
    target = table.target[rows].copy()
    if not table.classes:
        return target + noise * target.std() * np.array([rng.gauss(0, 1) for _ in rows])
    for row in rng.sample(range(len(rows)), round(noise * len(rows))):
        target[row] = (target[row] + rng.randrange(1, len(table.classes))) % len(table.classes)
    return target


def impute(values: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace NaN by the median of its column in a reference; by 0 where all of that is NaN."""
    if not np.isnan(values).any():
        return values
    known = [column[~np.isnan(column)] for column in reference.T]
    medians = [np.median(column) if len(column) else 0.0 for column in known]
    return np.where(np.isnan(values), medians, values)


def standardise(values: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float32]:
    """Standardise each column by the mean and standard deviation of a reference; constant columns become 0."""
    mean, deviation = reference.mean(axis=0), reference.std(axis=0)
    # A column whose deviation is tiny relative to its mean is constant up to rounding in 64 bits.
    varies = deviation > 1e-13 * np.abs(mean)
    found = np.where(varies, values - mean, 0.0) / np.where(varies, deviation, 1.0)
    if (largest := np.abs(found).max(initial=0)) > LARGEST:
        raise RequestError(
            f"A number lies {largest:.3g} standard deviations from the mean of its column in the train rows; expected at most "
            f"{LARGEST:g}. Correct the outlier, or leave its column out with --set drop=<column>."
        )
    return found.astype(np.float32)


def _to_name(label: str | float) -> str:
    return f"{label:.12g}" if isinstance(label, float) else str(label)


def _is_named(label: str | float, name: str) -> bool:
    """Return True if a class has a name; a number has several, such as 1 and 1.0."""
    if isinstance(label, float):
        with suppress(ValueError):
            return float(name) == label
    return _to_name(label) == name


def _list_metrics(kind: Kind) -> str:
    return "--metric with one of: " + ", ".join(TABULAR_METRICS[kind])


def _check_values(counts: Counter[str | float], place: str) -> None:
    shown = ", ".join(_to_name(label) for label in list(counts)[:3])
    if any(isinstance(label, str) for label in counts):
        raise RequestError(f"Found text ({shown}) in {place}; expected numbers. Use {_list_metrics('classification')}.")
    if len(counts) == 2:
        raise RequestError(f"Two values ({shown}) in {place} are classes. Use {_list_metrics('classification')}.")
    if counts.total() < LEAST_ROWS:
        raise RequestError(f"Found {counts.total()} rows in {place}; a regression needs at least {LEAST_ROWS}.")


def _check_classes(
    counts: Counter[str | float], labels: Sequence[str | float], place: str, lines: Sequence[int] | None
) -> None:
    if len(counts) > DISTINCT_NUMBERS and not any(isinstance(label, str) for label in counts):
        raise RequestError(
            f"Found {len(counts)} different numbers in {place}: this is a quantity, not a set of classes. "
            f"Use {_list_metrics('regression')}, or write classes as text."
        )
    few = [label for label, count in counts.items() if count < LEAST_PER_CLASS]
    if few:
        listed = "; ".join(f"{_to_name(label)!r}{_list_lines(label, labels, lines)}" for label in few[:CLASSES_SHOWN])
        more = f"; and {len(few) - CLASSES_SHOWN} more" if len(few) > CLASSES_SHOWN else ""
        raise RequestError(
            f"Found classes with fewer than {LEAST_PER_CLASS} rows in {place}: {listed}{more}. "
            "Each of train, valid and test needs one; add rows, or remove the class. If these are names of rows, predict another "
            "column: --set target=<column>."
        )


def _list_lines(label: str | float, labels: Sequence[str | float], lines: Sequence[int] | None) -> str:
    if lines is None:
        return ""
    return " in line " + " and ".join(str(line) for line, found in zip(lines, labels, strict=True) if found == label)
