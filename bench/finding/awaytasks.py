"""Tasks away from home: small ones on real data that the package does not contain, half of them known, half an exam.

Settings of a search may be chosen by the known ones. The exam was not looked at while they were; `bench/results/away_exam.json`
says how often it was run. The second exam came when the first was used up: its tasks, from data that no other task has, were
written down with their rates and lengths before any was trained. So was the third: numbers as they come, all positive, and
metrics of relative or one-sided errors, for which no loss was on the shelf. Each task has a small train, valid and test split,
which a search may use, and an audit split of all other items up to `MOST_AUDITED`, which none does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

import autoloss
from autoloss.space.form import Activation
from awaydata import (
    Items,
    compose,
    divide_by_mean,
    read_affairs,
    read_apartments,
    read_cells,
    read_clarity,
    read_credit,
    read_cuts,
    read_dragons,
    read_fair_cuts,
    read_frequent_visitors,
    read_handwriting,
    read_housing,
    read_long_tail,
    read_party,
    read_players,
    read_prices,
    read_sales,
    read_small_digits,
    read_staff,
    read_titanic,
    read_transplants,
    read_tumours,
    read_visits,
    read_wages,
)
from awaymetrics import METRICS, Measure

MOST_AUDITED = 3000
"""Items of an audit split at most."""
HIDDEN = 32
"""Hidden units of the network of a table."""
CHANNELS = 8
"""Hidden channels of the network of pictures."""
Part = Literal["known", "exam", "second exam", "third exam"]


@dataclass(frozen=True, slots=True)
class AwayTask:
    """One task: what it reads, how it is judged and trained, and what makes it hard.

    Args:
        train: Training items; `held` the items of the valid split, and of the test split.
        spoilt: Share of the training targets that are replaced: classes by another class, values by far ones.
    """

    name: str
    part: Part
    metric: str
    read: Callable[[], Items]
    activation: Activation
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    epochs: int
    train: int
    held: int
    spoilt: float = 0.0

    @property
    def measure(self) -> Measure:
        return METRICS[self.metric]

    def split(self) -> dict[str, Items]:
        """Return the splits train, valid, test and audit; equal calls give equal splits."""
        items, rng = self.read(), torch.Generator().manual_seed(0)
        order = torch.randperm(len(items.target), generator=rng)
        sizes = (self.train, self.held, self.held)
        audited = min(MOST_AUDITED, len(order) - sum(sizes))
        parts = order[: sum(sizes) + audited].split([*sizes, audited])
        found = {name: items[rows] for name, rows in zip(("train", "valid", "test", "audit"), parts, strict=True)}
        found["train"] = spoil(found["train"], self.spoilt, self.activation, rng)
        return found

    def make(self, *, audit: bool = False, steps_share: float = 1.0) -> autoloss.SupervisedTask:
        """Return the task for a search.

        Args:
            audit: Whether the audit split takes the place of the test split, which searches compare losses on.
            steps_share: Share of the epochs.
        """
        splits = self.split()
        train, valid, test = (splits[name] for name in ("train", "valid", "audit" if audit else "test"))
        return autoloss.SupervisedTask(
            lambda: self.make_network(train),
            train=(train.inputs, train.target),
            valid=(valid.inputs, valid.target),
            test=(test.inputs, test.target),
            activation=self.activation,
            metric=self.measure,
            recipe=autoloss.Recipe(
                epochs=max(1, round(self.epochs * steps_share)),
                batch_size=16 if train.inputs.ndim == 4 else 64,
                optimizer=self.optimizer,
                learning_rate=self.learning_rate,
                evaluation_batch=1000,
            ),
            data=autoloss.Data(rows_per_sample=128),
            name=self.name,
        )

    def make_network(self, train: Items) -> nn.Module:
        """Return a network of the task with new weights."""
        make = _make_picture_network if train.inputs.ndim == 4 else _make_table_network
        return make(train.inputs.shape[1], _count_outputs(self.activation, train.target))


def spoil(items: Items, share: float, activation: Activation, rng: torch.Generator) -> Items:
    """Replace a share of the targets: of classes by the next one, of values by ones that lie 3 to 8 deviations above."""
    if not share:
        return items
    chosen = torch.rand(len(items.target), generator=rng) < share
    target = items.target.clone()
    if activation == "none":
        far = 3 + 5 * torch.rand(target[chosen].shape, generator=rng)
        target[chosen] = far * target.std()
    elif activation == "sigmoid":
        target[chosen] = 1 - target[chosen]
    else:
        classes = int(target.max()) + 1
        moves = torch.randint(1, classes, target[chosen].shape, generator=rng)
        target[chosen] = (target[chosen] + moves) % classes
    return Items(items.inputs, target)


def _count_outputs(activation: Activation, target: Tensor) -> int:
    return int(target.max()) + 1 if activation == "softmax" else 1


def _make_table_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def _make_picture_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, outputs, 3, padding=1),
    )


SPECKS = compose(("brick", "gravel"), 16, 0.7, 2, one_channel=True)
DOTS = compose(("grass", "camera"), 16, 0.8, 2)
BORDERS = compose(("grass", "gravel"), 16, 0.5, 1)
STROKES = compose(("moon", "coins"), 16, 0.6, 2, one_channel=True)
TASKS: tuple[AwayTask, ...] = (
    AwayTask("fair-cuts", "known", "F1", read_fair_cuts, "sigmoid", "sgd", 0.2, 6, 1200, 800, spoilt=0.02),
    AwayTask("affairs", "known", "F2", read_affairs, "sigmoid", "adam", 0.01, 6, 1000, 500),
    AwayTask("long-tail", "known", "macro-F1", read_long_tail, "softmax", "sgd", 0.2, 15, 450, 300),
    AwayTask("titanic", "known", "MCC", read_titanic, "sigmoid", "sgd", 0.1, 25, 250, 200, spoilt=0.15),
    AwayTask("cuts", "known", "kappa", read_cuts, "softmax", "sgd", 0.2, 7, 1000, 500, spoilt=0.1),
    AwayTask("housing", "known", "minus MAE", read_housing, "none", "sgd", 0.02, 8, 800, 400, spoilt=0.08),
    AwayTask("cells", "known", "Spearman", read_cells, "none", "adam", 0.01, 16, 400, 300, spoilt=0.05),
    AwayTask("specks", "known", "IoU", SPECKS, "sigmoid", "sgd", 0.5, 4, 400, 150),
    AwayTask("credit", "exam", "F2", read_credit, "sigmoid", "sgd", 0.1, 25, 250, 150),
    AwayTask("visitors", "exam", "AUC", read_frequent_visitors, "sigmoid", "sgd", 0.1, 5, 1500, 800),
    AwayTask(
        "digits-worst", "exam", "worst recall", read_handwriting, "softmax", "adam", 0.01, 9, 700, 500, spoilt=0.3
    ),
    AwayTask("clarity", "exam", "top-2 accuracy", read_clarity, "softmax", "sgd", 0.2, 7, 1000, 600, spoilt=0.2),
    AwayTask("visits", "exam", "minus 0.9-quantile loss", read_visits, "none", "sgd", 0.02, 6, 1200, 600),
    AwayTask("players", "exam", "minus MAE", read_players, "none", "adam", 0.01, 8, 800, 500, spoilt=0.08),
    AwayTask("dots", "exam", "Dice", DOTS, "softmax", "adam", 0.02, 4, 400, 150),
    AwayTask("borders", "exam", "BF1", BORDERS, "softmax", "sgd", 0.5, 4, 400, 150),
    AwayTask("transplants", "second exam", "geometric mean", read_transplants, "sigmoid", "sgd", 0.1, 25, 300, 130),
    AwayTask("party", "second exam", "minus grade error", read_party, "softmax", "adam", 0.01, 20, 300, 130),
    AwayTask("staff", "second exam", "several MCC", read_staff, "softmax", "sgd", 0.2, 8, 800, 400, spoilt=0.2),
    AwayTask(
        "dragons", "second exam", "share within 0.2", read_dragons, "none", "sgd", 0.02, 15, 700, 300, spoilt=0.05
    ),
    AwayTask(
        "apartments", "second exam", "minus RMSE", read_apartments, "none", "adam", 0.01, 8, 800, 400, spoilt=0.08
    ),
    AwayTask(
        "noisy-digits", "second exam", "accuracy", read_small_digits, "softmax", "sgd", 0.2, 10, 600, 300, spoilt=0.4
    ),
    AwayTask("tumours", "second exam", "F0.5", read_tumours, "sigmoid", "sgd", 0.1, 25, 150, 80, spoilt=0.15),
    AwayTask("strokes", "second exam", "F2", STROKES, "sigmoid", "sgd", 0.5, 4, 400, 150),
    AwayTask("prices", "third exam", "minus MAPE", read_prices, "none", "adam", 0.01, 10, 800, 400),
    AwayTask("wages", "third exam", "share within a quarter", read_wages, "none", "adam", 0.01, 10, 1000, 500),
    AwayTask(
        "stays",
        "third exam",
        "minus cost of 3 to 1",
        partial(read_visits, divide_by_mean),
        "none",
        "adam",
        0.01,
        8,
        1200,
        600,
    ),
    AwayTask("sales", "third exam", "minus RMSLE", read_sales, "none", "adam", 0.01, 10, 800, 400),
    AwayTask(
        "dragon-years",
        "third exam",
        "minus MAPE",
        partial(read_dragons, divide_by_mean),
        "none",
        "sgd",
        0.02,
        15,
        700,
        300,
        spoilt=0.05,
    ),
    AwayTask(
        "square-metres",
        "third exam",
        "minus relative RMSE",
        partial(read_apartments, divide_by_mean),
        "none",
        "sgd",
        0.02,
        15,
        800,
        400,
        spoilt=0.05,
    ),
)
"""All tasks; the split into known and exam was drawn before any was searched, the second and third exam added later."""
BY_NAME = {task.name: task for task in TASKS}
