"""The losses that take part in a comparison, how each is trained and on which seeds, and the outcomes side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import TypeVar, final

from autoloss.comparison.noise import Estimate, estimate_mean, subtract_replicates
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.records import Outcome, Train
from autoloss.settings import SearchSettings, StepRule
from autoloss.showing import plot, to_html
from autoloss.space.loss_text import split_branches
from autoloss.store.run_settings import Comparison
from autoloss.training.training import ItemWeights, Replicates, Training
from autoloss.zoo.entries import say_loss

Item = TypeVar("Item")

CONFIRMATION = "confirmation"
COMPARISON = "comparison"
"""Purposes of training seeds: the best again on the valid split, and beside the baselines on the test split."""
TUNING, TUNING_SEEDS = "tuning", 2
"""Likewise of the choice of learning rates on the valid split, and their number."""
VALIDATION, VALIDATION_SEEDS = "validation", 3
"""Likewise of the comparison on the valid split, at the rates that were chosen."""
LADDER, LADDER_SEEDS = "ladder", 3
"""Likewise of the ladder, where the budget has room for so many."""
TEST = "test"
"""The split of final figures; no search looks at it."""
STEP_RULES: Mapping[StepRule, str] = {
    "recipe": "",
    "clipped": "clipped gradients",
    "one_norm": "steps of one norm",
    "adamw": "AdamW",
    "warmup": "warm-up",
    "cosine": "cosine schedule",
}
"""Step rule → its name in texts."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A loss and how it is trained.

    Args:
        label: As tables show it.
        loss: A formula, a loss of several branches, or a name in the zoo.
        learning_rate: Factor on the learning rate of the task's schedule.
        scale: Factor on the loss of every branch.
        baseline: Whether it is a baseline rather than a loss that was found.
        step_rule: As of a `Training`; likewise `length` and `tuned_threshold`.
        weights: Further factors on the losses of single branches, by name.
        paced_by: As of a `Training`; likewise `item_weights`.
        known: Whether it is a candidate that the search started from: a known loss, not one that was found.
    """

    label: str
    loss: str
    learning_rate: float = 1.0
    scale: float = 1.0
    baseline: bool = False
    step_rule: StepRule = "recipe"
    length: float = 1.0
    tuned_threshold: bool = False
    weights: tuple[tuple[str, float], ...] = ()
    known: bool = False
    paced_by: str = ""
    item_weights: tuple[ItemWeights, ...] = ()

    def __post_init__(self) -> None:
        # Lists, as JSON has them, cannot be hashed.
        object.__setattr__(self, "weights", tuple((name, factor) for name, factor in self.weights))
        items = tuple(ItemWeights(branch, grouping, tuple(each)) for branch, grouping, each in self.item_weights)
        object.__setattr__(self, "item_weights", items)

    @property
    def number(self) -> int | None:
        """The number of the candidate that its label begins with; None for another loss.

        >>> Entrant("#39 (3 × the learning rate)", "mul(y, p)", learning_rate=3.0).number
        39
        """
        found = None if self.baseline else re.match(r"#(\d+)\b", self.label)
        return int(found[1]) if found else None

    @property
    def name(self) -> str:
        """What it is called without how it is trained.

        >>> Entrant("#1 Dice (AdamW)", "…", step_rule="adamw").name, Entrant("ce", "baseline/ce", baseline=True).name
        ('#1 Dice', 'cross entropy')
        """
        return say_loss(self.loss) if self.number is None else self.label.partition(" (")[0]

    @property
    def loss_name(self) -> str:
        """The name without a candidate's number: a known loss is the same under its name and as a candidate."""
        return self.name.removeprefix(f"#{self.number} ")

    @property
    def way(self) -> Entrant:
        """The loss and how it is trained but for the learning rate: what is tuned on one grid."""
        return replace(self, label="", learning_rate=1.0, scale=1.0)

    def count_changes(self, standard: str) -> int:
        """Count what differs from training with the standard loss as the recipe says; another rate is no more complicated."""
        others = self.loss != standard, self.tuned_threshold, bool(self.weights), self.length != 1
        return sum((self.step_rule != "recipe", *others))

    def follow(self, settings: SearchSettings) -> Entrant:
        """Return it trained as the candidates of a search are."""
        rule, threshold = settings.step_rule, settings.tuned_threshold
        return replace(self, learning_rate=settings.learning_rate, step_rule=rule, tuned_threshold=threshold)

    def spell_out(self) -> Entrant:
        """Return it with a label that says how it is trained, where that is not as the recipe says.

        >>> Entrant("#39", "mul(y, p)", learning_rate=3.0, step_rule="one_norm").spell_out().label
        '#39 (steps of one norm, 3 × the learning rate)'
        """
        named = ", ".join(self.list_changes())
        return replace(self, label=f"{self.label} ({named})") if named else self

    def list_changes(self) -> Iterator[str]:
        """Describe each change of the recipe in words."""
        rate = "Adam's usual rate" if self.step_rule == "adamw" else "the learning rate"
        if self.step_rule != "recipe":
            yield STEP_RULES[self.step_rule]
        factors = ((rate, self.learning_rate), ("the loss", self.scale), ("the epochs", self.length))
        factors += tuple((f"the loss of {name}", factor) for name, factor in self.weights)
        yield from (f"{factor:g} × {what}" for what, factor in factors if factor != 1)
        if self.tuned_threshold:
            yield "tuned threshold"

    def job(self, seed: int, split: str, schedule: str = "proxy", fidelity: float = 1.0) -> Train:
        """Return its training with a seed."""
        weights = dict(self.weights)
        scale = {branch: self.scale * weights.get(branch, 1.0) for branch in split_branches(self.loss)}
        training = Training(
            seed=seed,
            split=split,
            schedule=schedule,
            fidelity=fidelity,
            learning_rate=self.learning_rate,
            scale=scale,
            step_rule=self.step_rule,
            length=self.length,
            tuned_threshold=self.tuned_threshold,
            # Short trainings are measured on a part of the split; nothing asks how uncertain they are.
            resampled=fidelity == 1,
            paced_by=self.paced_by,
            item_weights=self.item_weights,
        )
        return Train(self.loss, training)


def count_after_search(jobs: Iterable[Train], seed: int) -> int:
    """Return how many of the trainings beside a search were done after it: those of the ladder came before."""
    before = training_seeds(seed, LADDER, LADDER_SEEDS)
    return sum(job.training.seed not in before for job in jobs)


def training_seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Derive training seeds from a run's seed; those of different purposes differ.

    >>> training_seeds(0, COMPARISON, 3)[:2] == training_seeds(0, COMPARISON, 2)
    True
    """
    return tuple(derive_seed(seed, purpose, number) for number in range(count))


@dataclass(frozen=True, slots=True)
class Measurements:
    """One figure of a loss, measured once for each training seed.

    Args:
        values: One per seed; None where a training has no such figure.
        replicates: The figure on resamples of the split, by seed; empty where it was not measured on them.

    >>> Measurements((0.5, 0.7)).mean
    0.6
    """

    values: tuple[float | None, ...]
    replicates: tuple[Replicates | None, ...] = ()

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Measurements:
        """Return the scores of trainings."""
        return cls(tuple(one.score for one in outcomes), tuple(one.replicates for one in outcomes))

    @property
    def finite(self) -> list[float]:
        """The values that were measured."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None when any training lacks the figure, since the mean of the others would flatter."""
        return mean(self.finite) if self.values and None not in self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None where there is no mean, or one seed only."""
        return stdev(self.finite) if self.mean is not None and len(self.finite) > 1 else None

    @property
    def estimate(self) -> Estimate | None:
        """The mean with its noise."""
        return None if self.mean is None else estimate_mean(self.finite, self.replicates)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean, over seeds and, where it was resampled, examples."""
        return None if self.estimate is None else self.estimate.half_width

    def subtract(self, other: Measurements) -> Measurements:
        """Return the differences from another loss over the same seeds and resamples."""
        pairs = zip(self.values, other.values, strict=True)
        resamples = zip(self.replicates, other.replicates, strict=False)
        values = tuple(None if mine is None or theirs is None else mine - theirs for mine, theirs in pairs)
        return Measurements(values, tuple(subtract_replicates(*pair) for pair in resamples))


@dataclass(frozen=True, slots=True)
class Row:
    """An entrant with the outcomes of its trainings.

    Args:
        outcomes: One per seed.
        reference: The scores of the standard loss over the same seeds; None for that loss itself.
        valid: The scores on the valid split, over seeds that chose no learning rate; without values where there are none.
    """

    entrant: Entrant
    outcomes: tuple[Outcome, ...]
    reference: Measurements | None = None
    valid: Measurements = Measurements(())

    @property
    def score(self) -> Measurements:
        """The task's metric."""
        return Measurements.of(self.outcomes)

    def figure(self, name: str) -> Measurements:
        """Return a further metric by its name."""
        return Measurements(tuple(outcome.also.get(name) for outcome in self.outcomes))

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The scores by seed; None for a training without one."""
        return self.score.values

    @property
    def mean(self) -> float | None:
        """The mean score; None when a training has none."""
        return self.score.mean

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean score."""
        return self.score.interval

    @property
    def failed(self) -> int:
        """The number of trainings without a score."""
        return self.scores.count(None)

    @property
    def also(self) -> dict[str, float]:
        """The means of the further metrics that every training has."""
        columns = {name: self.figure(name).mean for outcome in self.outcomes for name in outcome.also}
        return {name: value for name, value in columns.items() if value is not None}

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for missing scores, each once."""
        found = (f"{outcome.state.value}: {outcome.reason}" for outcome in self.outcomes if outcome.reason)
        return tuple(dict.fromkeys(found))

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of the paired differences from the standard loss, or None where there is none."""
        found = None if self.reference is None else compare_paired(self.score, self.reference)
        return None if found is None else found.p_value


def compare_paired(first: Measurements, second: Measurements) -> Estimate | None:
    """Return the mean difference of two losses over the same seeds and examples, with its noise; None where a score is missing.

    >>> compare_paired(Measurements((0.5,)), Measurements((0.25,))).value
    0.25
    """
    return first.subtract(second).estimate if len(first.values) == len(second.values) else None


def find_simplest(ranked: Sequence[Item], measure: Callable[[Item], Measurements], cost: Callable[[Item], int]) -> Item:
    """Return the simplest of those that are not behind the first by more than the standard error of the difference.

    What seeds and examples cannot tell apart, the simpler or better known one wins.

    Args:
        ranked: At least one, the best first, all with a mean.
        cost: How complicated one is; of equal ones the better stays.

    Source: Breiman et al., 1984, Classification and Regression Trees (the rule of one standard error).

    >>> scores = {"plain": Measurements((0.5, 0.7)), "weighted": Measurements((0.6, 0.61)), "new": Measurements((0.9, 0.91))}
    >>> find_simplest(["weighted", "plain"], scores.__getitem__, len), find_simplest(["new", "plain"], scores.__getitem__, len)
    ('plain', 'new')
    """
    best = measure(ranked[0])

    def is_near(one: Item) -> bool:
        mine = measure(one)
        common = min(len(best.values), len(mine.values))
        first, second = (Measurements(found.values[:common], found.replicates[:common]) for found in (best, mine))
        lead = compare_paired(first, second)
        return lead is not None and lead.value <= lead.least_error

    simplest = min(cost(one) for at, one in enumerate(ranked) if not at or is_near(one))
    # Not the one that is near: with other noise, one that is ahead of it and as simple may not be.
    return next(one for one in ranked if cost(one) <= simplest)


def collect_rows(
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    split: str,
    recorded: Mapping[Train, Outcome],
    schedule: str = "proxy",
    fidelity: float = 1.0,
) -> list[Row]:
    """Return the rows of the entrants whose trainings are all recorded; the first baseline is the reference of the others."""
    found: list[Row] = []
    for entrant in entrants:
        outcomes = [recorded.get(entrant.job(seed, split, schedule, fidelity)) for seed in seeds]
        whole = tuple(outcome for outcome in outcomes if outcome is not None)
        if whole and len(whole) == len(outcomes):
            found.append(Row(entrant, whole))
    reference = next((row for row in found if row.entrant.baseline), None)
    if reference is None:
        return found
    return [row if row is reference else replace(row, reference=reference.score) for row in found]


@final
class Rows(list[Row]):
    """The rows of a comparison; a notebook shows them as a table, and `plot()` draws them."""

    _repr_html_, plot = to_html, plot


def sort_by_mean(rows: Sequence[Row]) -> Rows:
    """Sort rows by their mean, the best first, those without one last."""
    return Rows(sorted(rows, key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True))


def read_comparison(compared: Comparison, seed: int, recorded: Mapping[Train, Outcome]) -> Rows:
    """Return the rows of a comparison on the test split as far as it is, the best first, with their scores on the valid split.

    Args:
        seed: The run's.
    """
    entrants = [Entrant(**entrant) for entrant in compared.entrants]
    valid = collect_rows(entrants, training_seeds(seed, VALIDATION, VALIDATION_SEEDS), "valid", recorded)
    scores = {row.entrant: row.score for row in valid}
    rows = collect_rows(entrants, training_seeds(seed, COMPARISON, compared.seeds), TEST, recorded)
    return sort_by_mean([replace(row, valid=scores.get(row.entrant, row.valid)) for row in rows])
