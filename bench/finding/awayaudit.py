"""Ways of training judged on the audit split, and differences of two of them, paired over training seeds and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import autoloss
from autoloss.comparison.entrant import Entrant, Measurements, training_seeds
from autoloss.comparison.noise import Estimate
from autoloss.evaluation.evaluator import Evaluator
from autoloss.settings import Configuration
from autoloss.training.training import Replicates
from awaytasks import AwayTask

AUDIT_SEEDS = 5
DIGITS = 5
"""Digits of the scores on resamples that are kept."""


class Trainer:
    """Trains on a task, each training once.

    Args:
        split: `valid`, or `test`, in whose place the audit split is for `AwayTask.make(audit=True)`.
    """

    def __init__(self, task: autoloss.SupervisedTask, split: str) -> None:
        self._evaluator = Evaluator(task, {}, Configuration())
        self._split = split
        self._known: dict[tuple[Entrant, int, float], tuple[float | None, Replicates | None]] = {}

    def measure(self, entrant: Entrant, seeds: Sequence[int], fidelity: float = 1.0) -> Measurements:
        """Return the scores of a way of training, one for each seed; on the audit split on resamples of its items, too."""
        found = [self._train(entrant, seed, fidelity) for seed in seeds]
        return Measurements(tuple(score for score, _ in found), tuple(replicates for _, replicates in found))

    def _train(self, entrant: Entrant, seed: int, fidelity: float) -> tuple[float | None, Replicates | None]:
        key = drop_names(entrant), seed, fidelity
        if key not in self._known:
            job = entrant.job(seed, self._split, fidelity=fidelity)
            outcome = self._evaluator.train(job.loss, replace(job.training, resampled=self._split == "test"))
            self._known[key] = outcome.score, outcome.replicates
        return self._known[key]


class Auditor:
    """Judges ways of training on the audit split of a task, which no search sees, all with the same training seeds."""

    def __init__(self, task: AwayTask, seeds: int = AUDIT_SEEDS, *, steps_share: float = 1.0) -> None:
        self._trainer = Trainer(task.make(audit=True, steps_share=steps_share), "test")
        self._seeds = training_seeds(0, "away: audit", seeds)

    def judge(self, entrant: Entrant) -> Measurements:
        return self._trainer.measure(entrant, self._seeds)


def write_audit(audit: Measurements) -> dict[str, Any]:
    """Return an audit as plain values, from which `read_audit` makes it again; resamples as their means over the seeds."""
    known = [one for one in audit.replicates if one is not None]
    resampled: list[float | None] = []
    if len(known) == len(audit.values):
        columns = zip(*(one.scores for one in known), strict=True)
        resampled = [None if None in column else round(fmean(column), DIGITS) for column in columns]
    return {"scores": audit.values, "examples": known[0].examples if known else None, "resampled": resampled}


def read_audit(row: Mapping[str, Any]) -> Measurements:
    """Return the audit of a row; differences of two have the same noise as with the resamples of each seed."""
    replicates = (Replicates(row["examples"], tuple(row["resampled"])),) if row["resampled"] else ()
    return Measurements(tuple(row["scores"]), replicates)


def find_p(estimate: Estimate | None) -> float:
    """Return the two-sided p of a difference: 0 where a training failed, 1 where both are equal."""
    if estimate is None:
        return 0.0
    return 1.0 if estimate.p_value is None else estimate.p_value


def drop_names(entrant: Entrant) -> Entrant:
    """Return an entrant that is equal for all that are trained alike."""
    return replace(entrant, label="", baseline=False, known=False)


def make_entrant(found: Any) -> Entrant | None:
    """Return what a search recommends, as it is to be trained."""
    chosen = found.recommendation
    if chosen is None:
        return None
    # The threshold's value is chosen anew in each training.
    recipe = {name: value for name, value in chosen.recipe.items() if name != "threshold"}
    changes = {**recipe, "weights": tuple(recipe.get("weights", {}).items())}
    return Entrant(chosen.origin, chosen.loss, learning_rate=chosen.learning_rate, **changes)


def describe_entrant(entrant: Entrant) -> dict[str, Any]:
    """Return what differs from the recipe as it is, as plain values."""
    plain = asdict(Entrant("", ""))
    return {name: value for name, value in asdict(entrant).items() if value != plain[name]}


def rank_means(scores: Mapping[Entrant, Measurements]) -> list[Entrant]:
    """Return the entrants all of whose trainings have a score, the highest mean first."""
    whole = {one: fmean(found.finite) for one, found in scores.items() if found.mean is not None}
    return sorted(whole, key=lambda one: whole[one], reverse=True)
