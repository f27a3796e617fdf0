"""What to train with after a search: the loss found only where it is ahead of everything that was known before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autoloss.comparison.entrant import Entrant
from autoloss.comparison.judgement import SIGNIFICANT, describe_noise
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.noise import Estimate
from autoloss.comparison.table import Row, compare_paired, sort_by_mean
from autoloss.numbers import figure, signed

Origin = Literal["found", "shelf", "standard"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to train with.

    Args:
        loss: A formula, a loss of several branches, or a name in the zoo.
        learning_rate: Factor on the recipe's, or with `adamw` on Adam's usual one.
        origin: `found` by the search, on the `shelf` of known losses, or the task's `standard` loss.
        reason: Why, in a sentence.
        recipe: What to change in the recipe besides its rate: `step_rule`, `length`, `tuned_threshold` and the weights of
            branches, where they are not as the recipe says.
    """

    loss: str
    learning_rate: float
    origin: Origin
    reason: str
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe it in a line.

        >>> Recommendation("baseline/ce", 3.0, "standard", "Nothing is better.", {"step_rule": "one_norm"}).describe()
        'baseline/ce (standard), learning rate × 3, step_rule one_norm. Nothing is better.'
        """
        rate = [] if self.learning_rate == 1 else [f"learning rate × {self.learning_rate:g}"]
        changes = [f"{name} {value}" for name, value in self.recipe.items()]
        return f"{', '.join([f'{self.loss} ({self.origin})', *rate, *changes])}. {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("loss", "learning_rate", "origin", "reason")
        return {**{name: getattr(self, name) for name in names}, "recipe": dict(self.recipe)}


def recommend(rows: Sequence[Row], number: int | None, ladder: Ladder | None, standard: str) -> Recommendation | None:
    """Recommend a loss, by a comparison on held-out data over the same training seeds.

    The first choice is the standard loss as it does best there: as the recipe says, at its best learning rate, or as the best of
    the ladder, which was chosen on few trainings. A known loss takes its place only where it is significantly better
    (paired over training seeds and examples, corrected by Bonferroni for the number of known losses), and the loss found
    theirs only where it is significantly better than the first choice and than the best of the known ones: what is new needs more
    evidence than what others have used. A difference is significant where p < 0.05 over training seeds and examples together.

    Args:
        rows: Of the comparison on the test split; empty where there is none.
        number: The candidate that is best on the valid split.
        ladder: The expert's; None where it was left out.
        standard: The standard loss.

    Returns:
        None where the task has no standard loss and nothing was compared.
    """
    whole = [row for row in rows if row.mean is not None]
    first = _find_standard(whole, ladder, standard)
    if first is None:
        best = None if ladder is None else ladder.best
        if best is None:
            return None
        return make_recommendation(best.entrant, "standard", "No loss was compared with it on held-out data yet.")
    known = [row for row in whole if row.entrant.number is None or row.entrant.known]
    found = next((row for row in whole if row.entrant.number == number and not row.entrant.known), None)
    chosen, origin, reason = first, "standard", "No other loss is significantly better than it on held-out data."
    if better := _find_better(known, first):
        chosen, origin, reason = better[0], "shelf", _describe(better[0], first, better[1])
    if found is None:
        return make_recommendation(chosen.entrant, origin, reason)
    rivals = {id(row): row for row in (first, chosen, *sort_by_mean(known)[:1])}.values()
    leads = [(row, pair) for row in rivals if (pair := compare_paired(found.score, row.score)) is not None]
    closest, lead = min(leads, key=lambda one: one[1].value)
    if all(_is_better(pair) for _, pair in leads):
        return make_recommendation(found.entrant, "found", _describe(found, closest, lead))
    if lead.value > 0:
        reason = f"{reason} {_describe(found, closest, lead)} That may be chance."
    return make_recommendation(chosen.entrant, origin, reason)


def _find_standard(rows: Sequence[Row], ladder: Ladder | None, standard: str) -> Row | None:
    best = None if ladder is None or ladder.best is None else ladder.best.entrant.label
    own = [row for row in rows if row.entrant.baseline and (row.entrant.loss == standard or row.entrant.label == best)]
    return next(iter(sort_by_mean(own)), None)


def _find_better(rows: Sequence[Row], than: Row) -> tuple[Row, Estimate] | None:
    """Return the best of the rows that are significantly better than another, with the difference."""
    rivals = [row for row in sort_by_mean(list(rows)) if row is not than]
    for row in rivals:
        pair = compare_paired(row.score, than.score)
        if pair is not None and _is_better(pair, len(rivals)):
            return row, pair
    return None


def _is_better(pair: Estimate, tests: int = 1) -> bool:
    """Return True if a difference is significantly above 0 among so many tests (Bonferroni)."""
    return pair.value > 0 and pair.p_value is not None and pair.p_value * tests < SIGNIFICANT


def _describe(row: Row, than: Row, paired: Estimate) -> str:
    interval = "" if paired.half_width is None else f" ± {figure(paired.half_width)}"
    return (
        f"On held-out data {row.entrant.label} is ahead of {than.entrant.label} by {signed(paired.value)}{interval} (95 % "
        f"confidence interval over {describe_noise(paired)})."
    )


def make_recommendation(entrant: Entrant, origin: Origin, reason: str) -> Recommendation:
    """Return the recommendation of a loss, as an entrant trains it."""
    plain = Entrant("", "")
    names = ("step_rule", "length", "tuned_threshold", "scale")
    recipe: dict[str, Any] = {
        name: getattr(entrant, name) for name in names if getattr(entrant, name) != getattr(plain, name)
    }
    if entrant.weights:
        recipe["weights"] = dict(entrant.weights)
    return Recommendation(entrant.loss, entrant.learning_rate, origin, reason, recipe)
