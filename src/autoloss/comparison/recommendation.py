"""What to train with after a search: the loss found only where it is ahead of everything that was known before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from autoloss.comparison.entrant import Entrant, Row, compare_paired, sort_by_mean
from autoloss.comparison.judgement import SIGNIFICANT, describe_noise, judge_comparison
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.noise import Estimate, combine
from autoloss.numbers import plus_minus, signed
from autoloss.training.training import THRESHOLD
from autoloss.zoo.entries import say_loss

Origin = Literal["found", "shelf", "standard"]
ORIGINS: Mapping[Origin, str] = {"found": "newly found", "shelf": "a known loss", "standard": "the standard loss"}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to train with.

    Args:
        loss: A formula, a loss of several branches, or a name in the zoo.
        name: What tables call it.
        learning_rate: Factor on the recipe's, or with `adamw` on Adam's usual one.
        origin: `found` by the search, on the `shelf` of known losses, or the task's `standard` loss.
        reason: Why, in a sentence.
        recipe: What to change in the recipe besides its rate: `step_rule`, `length`, the weights of branches, and
            `tuned_threshold` with the `threshold` itself, where they are not as the recipe says.
    """

    loss: str
    learning_rate: float
    origin: Origin
    reason: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def describe(self) -> str:
        """Describe it in a line.

        >>> Recommendation("baseline/ce", 3.0, "standard", "Nothing is better.", {"step_rule": "one_norm"}).describe()
        'cross entropy, steps of one norm, 3 × the learning rate (the standard loss). Nothing is better.'
        """
        others = {name: value for name, value in self.recipe.items() if name not in ("threshold", "weights")}
        weights = tuple(self.recipe.get("weights", {}).items())
        entrant = Entrant(self.name, self.loss, self.learning_rate, weights=weights, **others)
        threshold = [f"which is {value:g}" for name, value in self.recipe.items() if name == "threshold"]
        parts = [self.name or entrant.name, *entrant.list_changes(), *threshold]
        return f"{', '.join(parts)} ({ORIGINS[self.origin]}). {self.reason}"


def recommend(rows: Sequence[Row], number: int | None, ladder: Ladder | None, standard: str) -> Recommendation | None:
    """Recommend a loss, by a comparison over the same training seeds.

    Of the standard loss at its best learning rate, its recipe as given, the best of the ladder and the known losses, it is the best
    on the valid and the test split together; of equal ones the standard loss at its best rate. The loss found takes its place only
    where the verdict is that it beats the best of these on the test split, which did not choose it: what is new needs more evidence
    than what others have used.

    Args:
        rows: Of the comparison on the test split; empty where there is none.
        number: The candidate that is best on the valid split.
        ladder: The expert's; None where it was left out.
        standard: The standard loss.

    Returns:
        None where the task has no standard loss and nothing was compared.
    """
    whole = [row for row in rows if row.mean is not None]
    rungs = [] if ladder is None else [rung for rung in (ladder.best, ladder.set_aside) if rung is not None]
    ways = [rung.entrant.way for rung in rungs]
    own = [row for row in whole if row.entrant.baseline and (row.entrant.loss == standard or row.entrant.way in ways)]
    if not own:
        reason = "No loss was compared with it on held-out data yet."
        if not rungs:
            return None
        origin = _find_origin(rungs[0].entrant, standard, ladder)
        return make_recommendation(rungs[0].entrant, origin, reason, rungs[0].threshold)
    first = max(own, key=_is_tuned)
    known = [row for row in whole if row.entrant.number is None or row.entrant.known]
    # The first of equal ones stays.
    known.sort(key=lambda row: row is not first)
    # What is known is chosen by its mean alone: a margin for the standard loss lost on tasks (docs/measurements.md).
    chosen = max(known, key=lambda row: _weigh_lead(row, first))
    origin = _find_origin(chosen.entrant, standard, ladder)
    reason = "On valid and test data together nothing else that was known before is ahead of it."
    # The strongest of the others, as the verdict names it, not what the choice began with; the same at another rate says little.
    others = [row for row in sort_by_mean(known) if row is not chosen and _subtract(chosen, row).value]
    others.sort(key=lambda row: row.entrant.way == chosen.entrant.way)
    reason = " ".join([reason, *(_describe(chosen, row, chosen) for row in others[:1])])
    found = next((row for row in whole if row.entrant.number == number and not row.entrant.known), None)
    if found is not None:
        closest = sort_by_mean(known)[0]
        if judge_comparison(rows, number).is_win:
            chosen, origin, reason = found, "found", _describe(found, closest, found)
        elif _subtract(found, closest).value > 0:
            reason = f"{reason} {_describe(found, closest, chosen)}"
    return make_recommendation(chosen.entrant, origin, reason, chosen.also.get(THRESHOLD))


def _find_origin(entrant: Entrant, standard: str, ladder: Ladder | None) -> Origin:
    """Return whether a loss that was known is the standard one; with class weights it is another one."""
    # A search has the standard loss as a candidate, too, under a number.
    names = {standard, f"#{entrant.number} {say_loss(standard)}"} | (set() if ladder is None else {ladder.standard})
    return "standard" if {entrant.loss, entrant.name} & names else "shelf"


def _is_tuned(row: Row) -> int:
    """Rank the standard loss whose rate alone was chosen before that of the recipe, and that before any other change."""
    others = replace(row.entrant.way, loss="", baseline=False) != Entrant("", "")
    return 0 if others else 1 + ((row.entrant.learning_rate, row.entrant.scale) != (1.0, 1.0))


def _weigh_lead(row: Row, than: Row) -> float:
    """Return a row's lead on the valid and test splits, which both may choose between known losses."""
    pairs = compare_paired(row.score, than.score), compare_paired(row.valid, than.valid)
    return combine([pair for pair in pairs if pair is not None])[0]


def _subtract(row: Row, than: Row) -> Estimate:
    """Return the difference of two rows on the test split."""
    found = compare_paired(row.score, than.score)
    assert found is not None, "only rows with a mean are compared"
    return found


def _is_better(lead: Estimate) -> bool:
    return lead.value > 0 and lead.p_value is not None and lead.p_value < SIGNIFICANT


def _describe(row: Row, than: Row, chosen: Row | None = None) -> str:
    """Describe which of two rows is ahead on the test split, and by how much; `chosen` is called "it"."""
    lead = _subtract(row, than)
    if lead.value < 0:
        return _describe(than, row, chosen)
    ahead, behind = ("it" if one is chosen else _write_label(one, chosen) for one in (row, than))
    chance = "" if _is_better(lead) else " That may be chance."
    return (
        f"On held-out data {ahead} is ahead of {behind} by {signed(lead.value)}{plus_minus(lead.half_width)} (95 % confidence "
        f"interval over {describe_noise(lead)}).{chance}"
    )


def _write_label(row: Row, chosen: Row | None) -> str:
    is_same = chosen is not None and row.entrant.loss == chosen.entrant.loss and not any(row.entrant.list_changes())
    return f"{row.entrant.label}{' with the recipe as given' if is_same else ''}"


def make_recommendation(entrant: Entrant, origin: Origin, reason: str, threshold: float | None) -> Recommendation:
    """Return the recommendation of a loss, as an entrant trains it; `threshold`: the mean of those that its trainings chose."""
    plain = Entrant("", "")
    names = ("step_rule", "length", "tuned_threshold", "scale")
    values = {name: getattr(entrant, name) for name in names}
    recipe: dict[str, Any] = {name: value for name, value in values.items() if value != getattr(plain, name)}
    if threshold is not None:
        recipe["threshold"] = round(threshold, 3)
    if entrant.weights:
        recipe["weights"] = dict(entrant.weights)
    return Recommendation(entrant.loss, entrant.learning_rate, origin, reason, recipe, entrant.name)
