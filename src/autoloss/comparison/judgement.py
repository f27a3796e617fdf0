"""The judgement whether the best loss found is better than the best baseline, which every report repeats, and what to train with.

A loss found is recommended only where it is ahead of everything that was known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from autoloss.comparison.entrant import Entrant, Row, compare_paired, sort_by_mean
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.noise import Estimate, combine
from autoloss.numbers import difference
from autoloss.training.training import THRESHOLD
from autoloss.zoo.entries import say_loss

SIGNIFICANT = 0.05
"""A corrected p-value below this is called significant."""


class Standing(Enum):
    """The best loss found compared with the best baseline."""

    BEATS = "beats the best baseline"
    AHEAD = "ahead, but not significantly"
    EQUAL = "equal"
    BEHIND = "behind, but not significantly"
    WORSE = "worse than the best baseline"
    ONE_SEED = "one seed tells nothing"
    NO_SCORE = "not trained on every seed"
    NO_BASELINE = "no baseline to compare with"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best loss found and the best baseline, on the test split and over the same training seeds.

    Args:
        standing: The answer. Only `Standing.BEATS` makes the loss a winner.
        found: Of the loss; None where it was not compared.
        rival: Of the baseline with the highest mean; None where no baseline has a score on every seed.
        paired: Their differences; its p-value is not corrected.
        p_values: Label of a baseline → p-value of the difference from it: paired over training seeds and examples, two-sided,
            corrected by Holm for the number of baselines.
        baselines: Their number; the same loss trained in several ways is one.
    """

    standing: Standing
    found: Row | None = None
    rival: Row | None = None
    paired: Estimate | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    baselines: int = 0

    @property
    def is_win(self) -> bool:
        """True if the loss found is better than the best baseline, significantly."""
        return self.standing is Standing.BEATS

    @property
    def p_value(self) -> float | None:
        """The corrected p-value against the best baseline; None where there is none."""
        return None if self.rival is None else self.p_values.get(self.rival.entrant.label)

    @property
    def can_seeds_tell(self) -> bool:
        """True if more training seeds may tell the losses apart; otherwise only more test data can."""
        return self.paired is None or self.paired.can_seeds_tell

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        noise = "training seeds only" if self.paired is None else describe_noise(self.paired)
        return {
            "standing": self.standing.value,
            "winner": self.is_win,
            "found": _list_values(self.found),
            "best_baseline": _list_values(self.rival),
            "difference": None if self.paired is None else self.paired.value,
            "interval": None if self.paired is None else self.paired.half_width,
            "p_value": self.p_value,
            "resolution": None if self.paired is None else self.paired.resolution,
            "examples": None if self.paired is None else self.paired.examples,
            "test": f"paired over {noise}, two-sided, Holm-corrected for {self.baselines} baseline"
            + "s" * (self.baselines != 1),
        }


def judge_comparison(rows: Sequence[Row], number: int | None) -> Judgement:
    """Judge the best loss found by a comparison on the test split.

    Args:
        rows: Losses found and baselines.
        number: Of the candidate that was best on the valid split; the best *on test* would flatter.
    """
    found = next((row for row in rows if number is not None and row.entrant.number == number), None)
    known = [row for row in sort_by_mean(rows) if row.entrant.baseline or row.entrant.known]
    rivals = [row for row in known if row is not found and row.mean is not None]
    losses = len({row.entrant.loss_name for row in rivals})
    if found is None:
        return Judgement(Standing.NOT_COMPARED)
    if found.mean is None:
        return Judgement(Standing.NO_SCORE, found, rivals[0] if rivals else None, baselines=losses)
    if not rivals:
        return Judgement(Standing.NO_BASELINE, found)
    pairs = {row.entrant.label: compare_paired(found.score, row.score) for row in rivals}
    p_values = _correct_by_loss(rivals, {label: pair and pair.p_value for label, pair in pairs.items()})
    paired, p_value = pairs[rivals[0].entrant.label], p_values.get(rivals[0].entrant.label)
    standing = _stand(paired, p_value, len(found.scores))
    return Judgement(standing, found, rivals[0], paired, p_values, losses)


def _stand(difference: Estimate | None, p_value: float | None, seeds: int) -> Standing:
    significant = p_value is not None and p_value < SIGNIFICANT
    if seeds < 2:
        return Standing.ONE_SEED
    if difference is None or difference.is_level:
        return Standing.EQUAL
    if difference.value > 0:
        return Standing.BEATS if significant else Standing.AHEAD
    return Standing.WORSE if significant else Standing.BEHIND


def _correct_by_loss(rivals: Sequence[Row], p_values: Mapping[str, float | None]) -> dict[str, float]:
    """Correct p-values for the number of losses: the same loss at several learning rates or step rules is one hypothesis.

    The best of them stands for the loss beside the others; each of them is corrected as if it did.

    Args:
        rivals: The best first.
    """
    best: dict[str, str] = {}
    for row in rivals:
        best.setdefault(row.entrant.loss_name, row.entrant.label)
    corrected: dict[str, float] = {}
    for row in rivals:
        labels = {**best, row.entrant.loss_name: row.entrant.label}.values()
        found = correct_by_holm({label: p_values[label] for label in labels})
        corrected |= {label: value for label, value in found.items() if label == row.entrant.label}
    return corrected


def correct_by_holm(p_values: Mapping[str, float | None]) -> dict[str, float]:
    """Correct p-values for their number; a test without one counts, and is not among the results.

    Source: Holm, 1979, A Simple Sequentially Rejective Multiple Test Procedure.

    >>> correct_by_holm({"a": 0.25, "b": 0.125, "c": None})
    {'b': 0.375, 'a': 0.5}
    """
    known = sorted((value, label) for label, value in p_values.items() if value is not None)
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, (value, label) in enumerate(known):
        highest = max(highest, min(1.0, (len(p_values) - place) * value))
        corrected[label] = highest
    return corrected


def describe_noise(estimate: Estimate) -> str:
    """Describe the sources of noise that an estimate includes.

    >>> describe_noise(Estimate(0.1, 0.05, 5, 0.02, 113, 63))
    '5 training seeds and 113 examples'
    >>> describe_noise(Estimate(0.1, 0.05, 5))
    '5 training seeds only'
    """
    seeds = f"{estimate.seeds} training seed" + "s" * (estimate.seeds != 1)
    return f"{seeds} only" if estimate.examples is None else f"{seeds} and {estimate.examples:,} examples"


def _list_values(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    entrant = row.entrant
    return {
        "label": entrant.label,
        "loss": entrant.loss,
        "learning_rate": entrant.learning_rate,
        "scale": entrant.scale,
        "mean": row.mean,
        "interval": row.interval,
        "seeds": len(row.scores),
    }


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

    @property
    def entrant(self) -> Entrant:
        """The loss with its rate and what it changes in the recipe."""
        others = {name: value for name, value in self.recipe.items() if name not in ("threshold", "weights")}
        weights = tuple(self.recipe.get("weights", {}).items())
        return Entrant(self.name, self.loss, self.learning_rate, weights=weights, **others)

    @property
    def title(self) -> str:
        """The loss, what changes in the recipe, and where the loss is from."""
        threshold = [f"which is {value:g}" for name, value in self.recipe.items() if name == "threshold"]
        parts = [self.name or self.entrant.name, *self.entrant.list_changes(), *threshold]
        return f"{', '.join(parts)} ({ORIGINS[self.origin]})"

    def describe(self) -> str:
        """Describe it in a line.

        >>> Recommendation("baseline/ce", 3.0, "standard", "Nothing is better.", {"step_rule": "one_norm"}).describe()
        'cross entropy, steps of one norm, 3 × the learning rate (the standard loss). Nothing is better.'
        """
        return f"{self.title}. {self.reason}"


def recommend(rows: Sequence[Row], number: int | None, ladder: Ladder | None, standard: str) -> Recommendation | None:
    """Recommend a loss, by a comparison over the same training seeds.

    Of the standard loss at its best learning rate, its recipe as given, the best of the ladder and the known losses, it is the best
    on the valid and the test split together; of equal ones the standard loss at its best rate. Those that are significantly behind
    the best on the test split, the noise of its examples counted, are left out. The loss found takes its place only where the
    verdict is that it beats the best of these on the test split, which did not choose it: what is new needs more evidence than
    what others have used.

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
    # Where the splits contradict each other by more than other examples would change, the held-out one counts.
    best = sort_by_mean(known)[0]
    near = [row for row in known if not _is_behind(row, best)]
    plain = [row for row in near if row in own and row.entrant.loss == standard]
    # What scores as the standard loss does on the test split, seed by seed, does not replace it.
    level = [row for row in near if any(_is_same(row, one) or _weigh_lead(row, one).is_level for one in plain)]
    candidates = [row for row in near if row in plain or row not in level]
    # What is known is chosen by its mean alone: a margin for the standard loss lost on tasks (docs/measurements.md).
    chosen = _find_best(candidates)
    origin = _find_origin(chosen.entrant, standard, ladder)
    reason = "On valid and test data together nothing else that was known before is ahead of it."
    left_out = [(row, _weigh_lead(row, chosen)) for row in known if row not in candidates]
    if ahead := [row for row, lead in left_out if lead.value > 0 and not lead.is_level]:
        together = _find_best(ahead)
        why = "as good as the standard loss on the test data"
        if together not in near:
            why = f"significantly behind {best.entrant.label} on the test data: the two splits differ"
        reason = f"{together.entrant.label} is the best on valid and test data together, but {why}."
        reason += " Of the others nothing is ahead of it."
    # The strongest of the others, as the verdict names it, not what the choice began with; the same at another rate says little.
    # One whose lead decided nothing is not named as ahead.
    leads = [(row, _subtract(chosen, row)) for row in sort_by_mean(known) if row is not chosen]
    others = [row for row, lead in leads if lead.value > 0 or not lead.is_level]
    others.sort(key=lambda row: row.entrant.way == chosen.entrant.way)
    reason = " ".join([reason, *(_describe(chosen, row, chosen) for row in others[:1])])
    found = next((row for row in whole if row.entrant.number == number and not row.entrant.known), None)
    if found is not None:
        if judge_comparison(rows, number).is_win:
            chosen, origin, reason = found, "found", _describe(found, best, found)
        elif _subtract(found, best).value > 0 and not _subtract(found, best).is_level:
            reason = f"{reason} {_describe(found, best, chosen)}"
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


def _weigh_lead(row: Row, than: Row) -> Estimate:
    """Return a row's lead on the valid and test splits, which both may choose between known losses."""
    pairs = compare_paired(row.score, than.score), compare_paired(row.valid, than.valid)
    return combine([pair for pair in pairs if pair is not None])


def _subtract(row: Row, than: Row) -> Estimate:
    """Return the difference of two rows on the test split."""
    found = compare_paired(row.score, than.score)
    assert found is not None, "only rows with a mean are compared"
    return found


def _find_best(rows: Sequence[Row]) -> Row:
    """Return the row that the others are least ahead of on both splits; of equal ones the first.

    Each pair weighs the splits by its own noise, so that the largest lead over one row need not be a lead over all others.
    """
    return min(rows, key=lambda row: max((_weigh_lead(one, row).value for one in rows if one is not row), default=0.0))


def _is_same(row: Row, than: Row) -> bool:
    """Return True if neither seeds nor examples of the test split tell two rows apart."""
    lead = _subtract(row, than)
    return lead.is_level and lead.error is None


def _is_behind(row: Row, best: Row) -> bool:
    """Return True if a row is significantly behind the best one, and would be on other examples of the split."""
    lead = _subtract(best, row)
    return row is not best and lead.examples is not None and _is_sure(lead)


def _is_sure(lead: Estimate) -> bool:
    return lead.p_value is not None and lead.p_value < SIGNIFICANT


def _describe(row: Row, than: Row, chosen: Row) -> str:
    """Describe which of two rows is ahead on the test split, and by how much; `chosen` is called "it"."""
    lead = _subtract(row, than)
    if lead.value < 0:
        return _describe(than, row, chosen)
    ahead, behind = ("it" if one is chosen else _write_label(one, chosen) for one in (row, than))
    chance = "" if _is_sure(lead) else " That may be chance."
    return (
        f"On held-out data {ahead} is ahead of {behind} by {difference(lead.value, lead.half_width)} (95 % confidence "
        f"interval over {describe_noise(lead)}).{chance}"
    )


def _write_label(row: Row, chosen: Row) -> str:
    is_same = row.entrant.loss == chosen.entrant.loss and not any(row.entrant.list_changes())
    return f"{row.entrant.label}{' with the recipe as given' if is_same else ''}"


def make_recommendation(entrant: Entrant, origin: Origin, reason: str, threshold: float | None) -> Recommendation:
    """Return the recommendation of a loss, as an entrant trains it; `threshold`: the mean of those that its trainings chose."""
    plain = Entrant("", "")
    values = {name: getattr(entrant, name) for name in ("step_rule", "length", "tuned_threshold", "scale")}
    recipe: dict[str, Any] = {name: value for name, value in values.items() if value != getattr(plain, name)}
    if threshold is not None:
        recipe["threshold"] = round(threshold, 3)
    if entrant.weights:
        recipe["weights"] = dict(entrant.weights)
    return Recommendation(entrant.loss, entrant.learning_rate, origin, reason, recipe, entrant.name)
