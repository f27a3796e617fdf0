"""How often a verdict is wrong where nothing can be found, and how often it is right where a gain was planted.

python bench/finding/calibration.py --out results/calibration.json

Each trial has data of its own, drawn from its number, 300 rows for each split; a linear network is trained in twelve steps. All
candidates are trained once. The best are confirmed, raced and compared with the standard loss and Dice by the code that ends a
search, and the verdict and the recommendation are those of a search. Of the nulls, `labels` has random labels judged by AUC;
`gaussians` two normal classes judged by accuracy, for which cross entropy is right; in `standard` all candidates are cross entropy
times a factor. A verdict is false where the loss is not better on 20,000 further rows. A planted gain is added to the scores of one
candidate, in standard deviations of a single score of the standard loss over seeds and test splits.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev

import torch
from scipy.stats import beta
from torch import Tensor

from autoloss import __version__
from autoloss.comparison.confirm import confirm_and_compare
from autoloss.comparison.entrant import COMPARISON, TEST, Entrant, collect_rows, sort_by_mean, training_seeds
from autoloss.comparison.judgement import judge_comparison, recommend
from autoloss.comparison.racing import follow_race
from autoloss.comparison.record import Record
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.proposing.records import Job, Outcome, Train
from autoloss.run.request import make_request, prepare
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Store
from autoloss.tasks.metric import measure_resamples
from autoloss.tasks.task import Task
from autoloss.training.loop import Execution
from autoloss.training.training import Diverged, Observe, Scored, Training
from autoloss.workers.pool import InlineWorkers
from output import Figure, emit, make_parser, make_pool, parse_arguments

ROWS, TRUTH, WIDTH = 300, 20_000, 8
STEPS, BATCH = 12, 100
FINAL = {"final.confirm": 3, "final.finalists": 2, "final.finalist_seeds": 2}
"""Fewer candidates are confirmed than after a search; what decides the verdict is as there."""
GAINS = (1.0, 2.0)
"""Planted gains, in standard deviations."""
FORMULAS = (
    "(y - p) * (y - p)",
    "-y * p",
    "-y * sqrt(p)",
    "-y * log(p) * (1 - p)",
    "abs(y - p)",
    "y * inv(p)",
)
FACTORS = (0.6, 0.75, 0.9, 1.1, 1.3, 1.6)
STANDARD = tuple(f"{factor:g} * y * -log(p)" for factor in FACTORS)
FIGURES = {
    "nulls": Figure(("nulls",)),
    "false better": Figure(("false_better",)),
    "upper bound": Figure(("upper95",), digits=1, percent=True),
    "found at one standard deviation": Figure(("planted", {"gain": 1.0}, "found")),
    "found at two": Figure(("planted", {"gain": 2.0}, "found")),
    "worse of random labels": Figure(("standings", {"kind": "labels", "noise": "seeds and examples"}, "WORSE")),
    "the same by the seeds alone": Figure(("standings", {"kind": "labels", "noise": "seeds alone"}, "WORSE")),
}


def auc(prediction: Tensor, target: Tensor) -> float:
    """Return the share of pairs of a row of each class that are in order; ties count half."""
    higher = prediction[:, 1]
    pairs = higher[target == 1][:, None] - higher[target == 0][None]
    return (pairs.sign().mean().item() + 1) / 2


def accuracy(prediction: Tensor, target: Tensor) -> float:
    """Return the share of rows whose class is right."""
    return (prediction.argmax(dim=1) == target).double().mean().item()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of trial.

    Args:
        candidates: Formulas of all candidates.
        distance: Distance of the means of the two classes from the origin; 0 for random labels.
    """

    candidates: Sequence[str]
    metric: Callable[[Tensor, Tensor], float]
    distance: float


NULLS: Mapping[str, Kind] = {
    "labels": Kind(FORMULAS, auc, 0.0),
    "gaussians": Kind(FORMULAS, accuracy, 0.7),
    "standard": Kind(STANDARD, accuracy, 0.7),
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, nulls=405, planted=40, processes=2)
    arguments = parse_arguments(asked, argv, nulls=6, planted=1, processes=0)
    deviation = measure_deviation(NULLS["standard"], 8 if arguments.quick else 40)
    kinds = list(NULLS)
    trials = [(kinds[number % len(kinds)], number, 0.0) for number in range(arguments.nulls)]
    trials += [("standard", 10**6 + number, gain * deviation) for gain in GAINS for number in range(arguments.planted)]
    with make_pool(arguments.processes, partial(torch.set_num_threads, 1)) as pool:
        rows = list(pool.map(run_trial, *zip(*trials, strict=True)))
    emit(summarize(rows, arguments, deviation), arguments, show)


def run_trial(kind: str, number: int, gain: float) -> dict:
    """Run what ends a search on data of its own, and return its verdict beside the truth."""
    form = NULLS[kind]
    task, candidates = Rows(form, number, ROWS), [Entrant(f"#{at}", one) for at, one in enumerate(form.candidates)]
    planted = candidates[number % len(candidates)] if gain else None
    configuration = Configuration().changed({"seed": number, **FINAL})
    request = make_request(task, configuration)
    evaluator = prepare(request, samples=False)
    function = partial(perform, evaluator.perform, planted and planted.loss, gain)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), write=True) as store:
        store.write_settings(
            RunSettings(
                configuration=configuration,
                task=request.reference,
                title=task.name,
                branches={},
                release=__version__,
            )
        )
        dispatcher = Dispatcher(InlineWorkers(function), configuration.limits)
        record = Record(dispatcher, store)
        searched = record.compare_losses(candidates, [evaluator.make_training().seed], "valid")
        count = configuration.final.confirm
        best = [row.entrant for row in sort_by_mean(searched) if row.mean is not None][:count]
        confirm_and_compare(best, task, configuration, dispatcher, store, lambda text: None)
        recorded, compared = store.trainings(), store.settings().comparison
    rows = collect_rows(
        [Entrant(**one) for one in compared.entrants],
        training_seeds(number, COMPARISON, compared.seeds),
        TEST,
        recorded,
    )
    winner = follow_race(best, number, configuration.final, recorded)[0][0].entrant
    judgement = judge_comparison(rows, winner.number)
    recommendation = recommend(rows, winner.number, None, "baseline/ce")
    alone = judge_comparison([drop_replicates(row) for row in rows], winner.number)
    found = {
        "kind": kind,
        "number": number,
        "gain": gain,
        "standing": judgement.standing.name,
        "origin": recommendation.origin if recommendation else None,
        "difference": judgement.paired and judgement.paired.value,
        "resolution": judgement.paired and judgement.paired.resolution,
        "seeds_alone": alone.standing.name,
        "is_planted": planted is not None and winner.number == planted.number,
    }
    if not (judgement.is_win or alone.is_win) or gain:
        return found
    assert judgement.found is not None
    assert judgement.rival is not None
    return {**found, "truth": measure_truth(form, number, judgement.found.entrant, judgement.rival.entrant)}


def perform(run: Callable[[Job], object], planted: str | None, gain: float, job: Job) -> object:
    """Run a job; the scores of the planted loss are raised by a gain, on resamples too."""
    outcome = run(job)
    if not (isinstance(job, Train) and isinstance(outcome, Outcome)) or job.loss != planted or outcome.score is None:
        return outcome
    replicates = outcome.replicates
    if replicates is not None:
        raised = tuple(None if score is None else score + gain for score in replicates.scores)
        replicates = replace(replicates, scores=raised)
    return replace(outcome, score=outcome.score + gain, replicates=replicates)


def drop_replicates(row):
    """Return a row as it was when only training seeds were counted."""
    return replace(row, outcomes=tuple(replace(outcome, replicates=None) for outcome in row.outcomes))


class Rows(Task):
    """Linear classification of rows, trained by a few whole steps: a training takes some milliseconds."""

    name = "calibration"
    standard = {"main": "baseline/ce"}
    tunes_learning_rate = True

    def __init__(self, form: Kind, number: int, test_rows: int) -> None:
        self._form = form
        self._data = {
            name: draw_rows(form, rows, 4 * number + at)
            for at, (name, rows) in enumerate((("train", ROWS), ("valid", ROWS), ("test", test_rows)))
        }
        self._branch = ActivatedBranch(activation="softmax", measure=form.metric, channels=2)

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {"main": self._branch}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        inputs, labels = self._data["train"]
        weights = draw_weights(seed)
        return {"main": [Sample(spread(inputs @ weights), {"target": labels}) for _ in range(count)]}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        generator = torch.Generator().manual_seed(training.seed % 2**32)
        weights = draw_weights(training.seed % 2**32).requires_grad_()
        inputs, labels = self._data["train"]
        for step in range(STEPS):
            batch = torch.randperm(ROWS, generator=generator)[:BATCH]
            loss = criterion["main"](spread(inputs[batch] @ weights), {"target": labels[batch]})
            (slope,) = torch.autograd.grad(loss, weights)
            if not bool(torch.isfinite(slope).all()):
                return Diverged(step + 1, "the gradient is not finite")
            with torch.no_grad():
                weights -= training.learning_rate * slope
        inputs, labels = self._data[training.split]
        with torch.no_grad():
            prediction = (inputs @ weights).softmax(dim=1)
        replicates = None
        if training.resampled:
            replicates = measure_resamples(len(labels), lambda rows: self._form.metric(prediction[rows], labels[rows]))
        return Scored(self._form.metric(prediction, labels), replicates=replicates)


def draw_weights(seed: int) -> Tensor:
    return 0.3 * torch.randn(WIDTH, 2, generator=torch.Generator().manual_seed(seed))


def spread(prediction: Tensor) -> Tensor:
    """Return (N, C) as (N, C, 1, 1)."""
    return prediction[:, :, None, None]


def draw_rows(form: Kind, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows,), generator=generator)
    inputs = torch.randn(rows, WIDTH, generator=generator)
    inputs[:, 0] += form.distance * (2 * labels - 1)
    return inputs, labels


def measure_deviation(form: Kind, trials: int) -> float:
    """Return the standard deviation of a score of the standard loss on test, over seeds and splits."""
    scores = []
    for number in range(trials):
        evaluator = prepare(make_request(Rows(form, 10**7 + number, ROWS), Configuration()), samples=False)
        scores.append(evaluator.train("baseline/ce", Training(seed=number, split=TEST)).score)
    return stdev(scores)


def measure_truth(form: Kind, number: int, found: Entrant, rival: Entrant) -> float:
    """Return the difference of two losses on many rows, with the training data and the seeds of their comparison."""
    if form.distance == 0:
        return 0.0
    evaluator = prepare(make_request(Rows(form, number, TRUTH), Configuration()), samples=False)
    jobs = [[one.job(seed, TEST) for seed in training_seeds(number, COMPARISON, 8)] for one in (found, rival)]
    means = [fmean(evaluator.train(job.loss, job.training).score for job in turn) for turn in jobs]
    return means[0] - means[1]


def summarize(rows: Sequence[dict], arguments: argparse.Namespace, deviation: float) -> dict:
    nulls = [row for row in rows if not row["gain"]]
    false = [row for row in nulls if row["standing"] == "BEATS" and row["truth"] <= 0]
    alone = [row for row in nulls if row["seeds_alone"] == "BEATS" and row["truth"] <= 0]
    planted = []
    for gain in GAINS:
        trials = [row for row in rows if row["gain"] == gain * deviation]
        found = [row for row in trials if row["is_planted"] and row["standing"] == "BEATS"]
        taken = sum(row["origin"] == "found" for row in found)
        planted.append({"gain": gain, "found": len(found), "recommended": taken, "trials": len(trials)})
    return {
        "nulls": len(nulls),
        "false_better": len(false),
        "upper95": find_upper_bound(len(false), len(nulls)),
        "seeds_alone": len(alone),
        "false_recommended": sum(row["origin"] == "found" and row.get("truth", 0.0) <= 0 for row in nulls),
        "standings": [
            {"kind": kind, "noise": noise, **{name: _count(nulls, kind, key, name) for name in STANDINGS}}
            for kind in NULLS
            for noise, key in NOISES.items()
        ],
        "deviation": deviation,
        "planted": planted,
        "rows": list(rows),
    }


def _count(rows: Sequence[dict], kind: str, key: str, standing: str) -> int:
    return sum(row["kind"] == kind and row[key] == standing for row in rows)


STANDINGS = ("BEATS", "AHEAD", "EQUAL", "BEHIND", "WORSE")
NOISES = {"seeds and examples": "standing", "seeds alone": "seeds_alone"}
"""Noise that a verdict counts → where a row has it."""


def find_upper_bound(hits: int, trials: int) -> float:
    """Return the upper end of the one-sided 95 % confidence interval of a share (Clopper-Pearson)."""
    return 1.0 if hits == trials else float(beta.ppf(0.95, hits + 1, trials - hits))


def show(result: dict) -> None:
    print(
        f"{result['false_better']} of {result['nulls']} nulls are called better (at most {result['upper95']:.1%}); by the training "
        f"seeds alone {result['seeds_alone']}."
    )
    for one in result["standings"]:
        counts = ", ".join(f"{name} {one[name]}" for name in STANDINGS)
        print(f"  {one['kind']}, {one['noise']}: {counts}")
    for one in result["planted"]:
        print(f"A gain of {one['gain']:g} standard deviations is found in {one['found']} of {one['trials']} trials.")


if __name__ == "__main__":
    main()
