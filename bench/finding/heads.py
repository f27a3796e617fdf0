"""Two heads: does the search find more at the rate and the balance of the best known loss than at those of the standard one?

python bench/finding/heads.py --out bench/results/heads.json

A network with a head for classes and one for amounts is searched twice, as by default and with `follow_known_loss` left out. Each
search ends with its own comparison on the test split: the loss found, and the known losses on one head at a time at their own best
rates. The tables come with scikit-learn; `outliers` is drawn, with amounts that have rare large errors.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import f1_score
from torch import Tensor, nn

import autoloss
from autoloss.run import beginning
from output import Figure, emit, parse_arguments
from searches import make_search_parser, tell

ARMS = ("balance of a known loss", "balance of the standard loss")
FIGURES = {
    **{f"{arm}: found less best known, mean": Figure(("means", {"arm": arm}, "lead"), 4) for arm in ARMS},
    **{f"{arm}: found, mean": Figure(("means", {"arm": arm}, "found"), 4) for arm in ARMS},
}
RECIPE = autoloss.Recipe(epochs=15, batch_size=20, learning_rate=0.1)


def load(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (N, F), classes (N,) and amounts (N, 1), shuffled; inputs and amounts are standardised."""
    generator = torch.Generator().manual_seed(0)
    match name:
        case "outliers":
            inputs = torch.randn(700, 10, generator=generator)
            noise = [torch.randn(700, generator=generator) for _ in range(3)]
            classes = (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] + 0.5 * noise[0]) > 1
            # A quotient of normal variables has the tails of a Cauchy distribution.
            errors = 0.3 * noise[1] / noise[2].abs().clamp_min(0.02)
            return inputs, classes.long(), (inputs[:, 3] * inputs[:, 0] + torch.sin(2 * inputs[:, 4]) + errors)[:, None]
        case "diabetes":
            table, amounts = map(torch.tensor, load_diabetes(return_X_y=True))
            kept, classes = [0, *range(2, table.shape[1])], table[:, 1] > 0
        case "wine":
            table, classes = map(torch.tensor, load_wine(return_X_y=True))
            kept, amounts = list(range(12)), table[:, 12]
        case _:
            table, classes = map(torch.tensor, load_breast_cancer(return_X_y=True))
            # Smoothness to fractal dimension; the amount is the worst area, which few large tumours decide.
            kept, amounts = list(range(4, 10)), table[:, 23]
    order = torch.randperm(len(table), generator=generator)
    inputs, values = ((one - one.mean(0)) / one.std(0) for one in (table[:, kept], amounts[:, None].double()))
    return inputs[order].float(), classes[order].long(), values[order].float()


class Heads(nn.Module):
    """A hidden layer with a head for classes and one for an amount."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 32), nn.ReLU())
        self.kind, self.amount = nn.Linear(32, classes), nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden = self.body(inputs)
        return {"kind": self.kind(hidden), "amount": self.amount(hidden)}


def measure_kinds(prediction: Tensor, target: Tensor) -> float:
    return float(f1_score(target.flatten(), prediction.argmax(1).flatten(), average="macro", zero_division=0))


def measure_amounts(prediction: Tensor, target: Tensor) -> float:
    """Return how much closer predictions are than the median, as a share of the mean absolute error of that."""
    far = (target - target.median()).abs().mean().clamp_min(1e-6)
    return 1 - ((prediction.flatten() - target.flatten()).abs().mean() / far).item()


class TwoHeads(autoloss.Task):
    """A table of `load`: a quarter for validation, two fifths for the test; the score is the mean of both heads' metrics."""

    standard = {"kind": "baseline/ce", "amount": "baseline/mse"}
    schedules = ("proxy",)
    splits = ("valid", "test")
    tunes_learning_rate = True

    def __init__(self, table: str) -> None:
        self.name = f"two-heads-{table}"
        self._inputs, kinds, amounts = load(table)
        self._targets = {"kind": kinds, "amount": amounts}
        self._classes = int(kinds.max()) + 1
        rows = torch.arange(len(kinds))
        sizes = [round(0.35 * len(rows)), round(0.25 * len(rows))]
        parts = rows.split([*sizes, len(rows) - sum(sizes)])
        self._rows = dict(zip(("train", "valid", "test"), parts, strict=True))
        self._branches = {
            "kind": autoloss.ActivatedBranch(activation="softmax", channels=self._classes, measure=measure_kinds),
            "amount": autoloss.ActivatedBranch(activation="none", channels=1, measure=measure_amounts),
        }

    @property
    def branches(self) -> Mapping[str, autoloss.Branch]:
        return self._branches

    def _make_network(self) -> Heads:
        return Heads(self._inputs.shape[1], self._classes)

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[autoloss.Sample]]:
        with autoloss.seed_generators(seed) as generator, torch.no_grad():
            network, rows = self._make_network().eval(), self._rows["train"]
            parts = [rows[torch.randperm(len(rows), generator=generator)[:40]] for _ in range(count)]
            return {
                name: [
                    autoloss.Sample(network(self._inputs[part])[name][:, :, None, None], {"target": target[part]})
                    for part in parts
                ]
                for name, target in self._targets.items()
            }

    def train(self, criterion: Any, training: Any, execution: Any = None, observe: Any = None) -> Any:
        autoloss.check_training(self, criterion, training)
        rows, recipe = self._rows["train"], replace(RECIPE, learning_rate=0.1 * training.learning_rate)

        def compute(part: Tensor) -> Tensor:
            predicted = network(self._inputs[part])
            return sum(criterion[name](predicted[name], {"target": self._targets[name][part]}) for name in predicted)

        with autoloss.seed_generators(training.seed) as generator:
            network = self._make_network()
            order = autoloss.shuffle_batches(len(rows), recipe, generator)
            curve = autoloss.fit(network, (rows[part] for part in order), compute, recipe, len(order), observe=observe)
        if isinstance(curve, autoloss.Diverged):
            return curve
        held = self._rows[training.split]
        with torch.no_grad():
            predicted = network.eval()(self._inputs[held])
        found = {
            name: branch.metric(predicted[name], {"target": self._targets[name][held]})
            for name, branch in self._branches.items()
        }
        return autoloss.Scored(fmean(found.values()), found, curve)


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_search_parser(__doc__, evaluations=40, seeds=3)
    names = ("outliers", "diabetes", "wine", "cancer")
    asked.add_argument("--tasks", nargs="+", choices=names, default=names)
    arguments = parse_arguments(asked, argv, tasks=["wine"], evaluations=10, seeds=1, workers=0)
    rows = list(_measure(arguments))
    means = [
        {
            "arm": arm,
            **{name: fmean(row[name] for row in rows if row["arm"] == arm) for name in ("found", "known", "lead")},
        }
        for arm in ARMS
    ]
    emit({"rows": rows, "means": means}, arguments, _print)


def _measure(arguments: Any) -> Iterator[dict[str, Any]]:
    for table, seed, arm in itertools.product(arguments.tasks, range(arguments.seeds), ARMS):
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(
                beginning,
                "follow_known_loss",
                beginning.follow_known_loss if arm == ARMS[0] else lambda one, losses, *_: (one, losses, None),
            ),
        ):
            search = autoloss.search(
                TwoHeads(table),
                evaluations=arguments.evaluations,
                workers=arguments.workers,
                seed=seed,
                directory=Path(folder) / "run",
            )
            scores = {row.entrant: row.mean for row in search.comparison if row.mean is not None}
            found = max(score for one, score in scores.items() if one.number == search.best.id)
            known = max(score for one, score in scores.items() if one.baseline)
            origin = search.recommendation.origin if search.recommendation else ""
            settings = search.configuration.search
        tell(f"{table}, {arm}, seed {seed}: found {found:.4f}, best known {known:.4f}")
        yield {
            "task": table,
            "seed": seed,
            "arm": arm,
            "found": found,
            "known": known,
            "lead": found - known,
            "origin": origin,
            "rate": settings.learning_rate,
            "weights": list(settings.weights),
        }


def _print(result: Mapping[str, Any]) -> None:
    print(f"{'table':<10} seed  {'arm':<30} {'found':>8} {'known':>8} {'lead':>8}  recommended  rate, weights")
    for row in result["rows"]:
        print(
            f"{row['task']:<10} {row['seed']:>4}  {row['arm']:<30} {row['found']:>8.4f} {row['known']:>8.4f} {row['lead']:>+8.4f}  "
            f"{row['origin']:<11}  {row['rate']:g}, {' '.join(row['weights']) or '–'}"
        )
    for row in result["means"]:
        print(f"mean of {row['arm']}: found {row['found']:.4f}, best known {row['known']:.4f}, lead {row['lead']:+.4f}")


if __name__ == "__main__":
    main()
