"""The losses that take part in a comparison, how each is trained, and their training seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from autoloss.proposing.chance import derive_seed
from autoloss.proposing.jobs import Train
from autoloss.settings import SearchSettings, StepRule
from autoloss.space.loss_text import split_branches
from autoloss.training.training import ItemWeights, Training

CONFIRMATION = "confirmation"
COMPARISON = "comparison"
"""Purposes of training seeds: the best again on the valid split, and beside the baselines on the test split."""
TUNING, TUNING_SEEDS = "tuning", 2
"""Likewise of the choice of learning rates on the valid split, and their number."""
LADDER, LADDER_SEEDS = "ladder", 3
"""Likewise of the ladder, where the budget has room for so many."""
TEST = "test"
"""The split of final figures; no search looks at it."""
STEP_RULES: Mapping[StepRule, tuple[str, str]] = {
    "recipe": ("", ""),
    "clipped": ("clipped", "its gradient clipped at norm 0.5"),
    "one_norm": ("one norm", "its gradient scaled to norm 1 in every step"),
    "adamw": ("AdamW", "AdamW in place of SGD"),
    "warmup": ("warm-up", "a learning rate that rises over the first tenth of the steps"),
    "cosine": ("cosine", "a learning rate that falls as a cosine"),
}
"""Step rule → its name in a label, and in a sentence."""


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
        """The number of the candidate that its label begins with, as in `#39 (lr × 3)`; None for another loss.

        >>> Entrant("#39 (lr × 3)", "mul(y, p)", learning_rate=3.0).number
        39
        """
        found = None if self.baseline else re.match(r"#(\d+)\b", self.label)
        return int(found[1]) if found else None

    @property
    def name(self) -> str:
        """What it is called without how it is trained.

        >>> Entrant("#1 shelf/dice (lr × 3)", "…", 3.0).name, Entrant("ce (lr × 3)", "baseline/ce", 3.0, baseline=True).name
        ('#1 shelf/dice', 'baseline/ce')
        """
        return self.loss if self.number is None else self.label.partition(" (")[0]

    def count_changes(self, standard: str) -> int:
        """Count what differs from training with the standard loss as the recipe says; another rate is no more complicated."""
        others = self.loss != standard, self.tuned_threshold, bool(self.weights), self.length != 1
        return sum((self.step_rule != "recipe", *others))

    def follow(self, settings: SearchSettings) -> Entrant:
        """Return it trained as the candidates of a search are."""
        rule, threshold = settings.step_rule, settings.tuned_threshold
        return replace(self, learning_rate=settings.learning_rate, step_rule=rule, tuned_threshold=threshold)

    def name_factor(self, short: str = "lr") -> Entrant:
        """Return it with a label that says how it is trained, where that is not as the recipe says.

        >>> Entrant("#39", "mul(y, p)", learning_rate=3.0, step_rule="one_norm").name_factor().label
        '#39 (one norm, lr × 3)'
        """
        factor = self.learning_rate * self.scale
        parts = [STEP_RULES[self.step_rule][0], f"{short} × {factor:g}" if factor != 1 else "", *self._list_others()]
        named = ", ".join(filter(None, parts))
        return replace(self, label=f"{self.label} ({named})") if named else self

    def describe_training(self) -> str:
        """Describe in words how it is trained.

        >>> Entrant("ce", "baseline/ce", learning_rate=3.0, step_rule="clipped").describe_training()
        "its gradient clipped at norm 0.5, at 3 × the recipe's learning rate"
        """
        base = "Adam's usual rate" if self.step_rule == "adamw" else "the recipe's learning rate"
        rate = f"at {base}" if self.learning_rate == 1 else f"at {self.learning_rate:g} × {base}"
        scale = "" if self.scale == 1 else f"multiplied by {self.scale:g}"
        return ", ".join(filter(None, [STEP_RULES[self.step_rule][1], scale, rate, *self._list_others()]))

    def _list_others(self) -> Iterator[str]:
        if self.length != 1:
            yield f"{self.length:g} × the epochs"
        yield from (f"{name} × {factor:g}" for name, factor in self.weights)
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
            resampled=True,
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
