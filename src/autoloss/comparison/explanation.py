"""Why a loss is ahead of the standard loss: what part of its gain each control has, and the plainest thing that has all of it.

A control differs from the loss in one respect: it takes the loss's steps in the standard loss's direction, or in that direction
with the loss's weights of classes, or it is the standard loss with another recipe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from autoloss.comparison.entrant import (
    COMPARISON,
    Entrant,
    Measurements,
    Row,
    collect_rows,
    compare_paired,
    training_seeds,
)
from autoloss.comparison.judgement import SIGNIFICANT, Origin, Recommendation, make_recommendation
from autoloss.comparison.noise import LEVEL, Estimate, estimate_mean, find_quantile
from autoloss.numbers import difference, figure
from autoloss.proposing.records import Outcome, Train
from autoloss.training.training import THRESHOLD

Kind = Literal["steps", "items", "reverse", "recipe", "known", "simpler"]
"""What a control changes: the standard loss takes the loss's steps, or also its weights of items; the loss takes the steps of the
standard loss; the standard loss has another recipe; a known loss or a simpler form takes the place of the loss."""
PLAIN: Sequence[Kind] = ("recipe", "known", "simpler")
"""What can take the place of the loss, the plainest first."""
ORIGINS: Mapping[Kind, Origin] = {"recipe": "standard", "known": "shelf", "simpler": "found"}
STEPS, CLASSES, CONFIDENCE, NONE = "step sizes", "class weights", "confidence weights", "none of these"
"""Names of causes."""
AS_GOOD = 0.9
"""Share from which a control may take the place of the loss."""
MOST, HALF, WHOLE = 0.8, 0.5, 0.95
"""A control has all of a gain if its share is at least `MOST` and its interval begins above `HALF` and reaches `WHOLE`: weights are
read off in steps, so that those of the cause itself come a little short."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a gain, with its 95 % confidence interval (Fieller's, over training seeds and, where
    the metric was resampled, examples).

    Args:
        share: 1 is all of the gain; None where it cannot be said.
        low: Lower end of the interval; None where there is none, likewise `high`.
    """

    name: str
    share: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def seems_all(self) -> bool:
        """True if it may be all of the gain, whether or not the seeds are enough to tell."""
        return self.share is not None and self.high is not None and self.share >= MOST and self.high >= WHOLE

    @property
    def excludes_something(self) -> bool:
        """True if the interval leaves out either nothing or all of the gain."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 1)

    def write(self) -> str:
        """Write the share in percent with its interval.

        >>> Share("step sizes", 0.5, 0.25, 0.75).write()
        '50 % [25, 75]'
        """
        if self.share is None:
            return "–"
        ends = "" if self.low is None or self.high is None else f" [{100 * self.low:z.0f}, {100 * self.high:z.0f}]"
        return f"{100 * self.share:z.0f} %{ends}"


def divide(name: str, part: Measurements, gain: Measurements) -> Share:
    """Return the ratio of two mean differences over the same seeds and examples, with Fieller's 95 % confidence interval.

    The interval holds every ratio r at which a paired t-test does not reject that the mean of part − r · gain is 0.

    Args:
        gain: Its mean is not 0.

    Source: Fieller, 1954, Some Problems in Interval Estimation.

    >>> divide("steps", Measurements((0.5, 0.6, 0.4)), Measurements((1.0, 1.0, 1.0))).share
    0.5
    """
    mine, whole, rest = (estimate_mean(one.finite, one.replicates) for one in (part, gain, part.subtract(gain)))
    share = mine.value / whole.value
    if whole.seeds < 2:
        return Share(name, share)
    factor = find_quantile(LEVEL, min(one.freedom for one in (mine, whole, rest))) ** 2
    of_part, of_gain, of_rest = ((one.error or 0.0) ** 2 for one in (mine, whole, rest))
    a = whole.value**2 - factor * of_gain
    b = mine.value * whole.value - factor * (of_part + of_gain - of_rest) / 2
    c = mine.value**2 - factor * of_part
    if a <= 0:
        return Share(name, share)
    root = math.sqrt(max(0.0, b * b - a * c))
    return Share(name, share, (b - root) / a, (b + root) / a)


@dataclass(frozen=True, slots=True)
class Control:
    """A training that differs from that of the loss in one respect.

    Args:
        name: The cause that it is about.
        text: What is trained, in words.
    """

    kind: Kind
    name: str
    text: str
    entrant: Entrant


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained for an explanation.

    Args:
        seeds: Number of training seeds.
        split: The evaluated split.
        loss: As it was compared.
        standard: The standard loss, as the recipe trains it.
        notes: What cannot be tried, in sentences.
    """

    seeds: int
    split: str
    loss: Entrant
    standard: Entrant
    controls: tuple[Control, ...]
    notes: tuple[str, ...] = ()

    @property
    def entrants(self) -> list[Entrant]:
        """All that is trained, each once."""
        return list(dict.fromkeys([self.standard, self.loss, *(control.entrant for control in self.controls)]))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Make a plan of what `asdict` returned."""
        controls = tuple(Control(**{**one, "entrant": Entrant(**one["entrant"])}) for one in values["controls"])
        loss, standard = (Entrant(**values[name]) for name in ("loss", "standard"))
        return cls(values["seeds"], values["split"], loss, standard, controls, tuple(values["notes"]))


@dataclass(frozen=True, slots=True)
class Explanation:
    """The causes of a loss's gain over the standard loss.

    Args:
        loss: The loss, trained as it was compared.
        standard: The standard loss, as the recipe trains it.
        controls: Each with its outcomes over the same training seeds.
        split: The evaluated split.
        notes: What could not be tried, in sentences.
    """

    loss: Row
    standard: Row
    controls: Sequence[tuple[Control, Row]]
    split: str
    notes: Sequence[str] = ()

    @property
    def gain(self) -> Estimate | None:
        """The difference of the loss from the standard loss; None where a training has no score."""
        return compare_paired(self.loss.score, self.standard.score)

    @property
    def is_gain(self) -> bool:
        """True if the loss is significantly ahead."""
        gain = self.gain
        if gain is None or gain.value <= 0 or len(self.loss.scores) < 2:
            return False
        # Where neither seeds nor examples change the difference, it has no p-value, and no doubt either.
        return gain.p_value is None or gain.p_value < SIGNIFICANT

    def find_share(self, name: str, row: Row, base: Row | None = None) -> Share:
        """Return the share of the gain that a control has beyond another row.

        Args:
            base: The standard loss if None.
        """
        base = base or self.standard
        if not self.is_gain or row.mean is None or base.mean is None:
            return Share(name)
        return divide(name, row.score.subtract(base.score), self.loss.score.subtract(self.standard.score))

    @property
    def main(self) -> list[tuple[Control, Row, Share]]:
        """The controls of step sizes and of weights of items, each with its share of the gain."""
        shown = [pair for pair in self.controls if pair[0].kind in ("steps", "items")]
        return [(control, row, self.find_share(control.name, row)) for control, row in shown]

    @property
    def causes(self) -> Sequence[Share]:
        """The share of each cause: the likely cause first, then the largest, and last what step sizes and weights do not explain.

        Weights of items count for what they add to the loss's steps; another recipe of the standard loss for all that it has.
        """
        shown = [pair for pair in self.controls if pair[0].kind in ("steps", "items", "recipe")]
        found = [self._find_own_share(control, row) for control, row in shown]
        cause = self.likely_cause and self.likely_cause.name
        found.sort(key=lambda one: (one.name == cause, -math.inf if one.share is None else one.share), reverse=True)
        nearest = max(self.main, key=lambda one: one[2].share or 0.0, default=None)
        return [*found, Share(NONE) if nearest is None else self.find_share(NONE, self.loss, nearest[1])]

    def _find_own_share(self, control: Control, row: Row) -> Share:
        steps = next((other for one, other in self.controls if one.kind == "steps"), None)
        return self.find_share(control.name, row, steps if control.kind == "items" else None)

    @property
    def cause(self) -> Share | None:
        """The simplest of step sizes and weights of items that gives the standard loss the whole gain; None where none does."""
        sure = [one for one in self.main if one[2].seems_all and (one[2].low or 0.0) > HALF]
        return self._choose_cause(sure)

    @property
    def likely_cause(self) -> Share | None:
        """The same, where the seeds may be too few to be sure of it."""
        return self.cause or self._choose_cause([one for one in self.main if one[2].seems_all])

    def _choose_cause(self, whole: Sequence[tuple[Control, Row, Share]]) -> Share | None:
        found = [(control.kind == "steps", self._find_own_share(control, row)) for control, row, _ in whole]
        return max(found, key=lambda one: (one[0], one[1].share or 0.0), default=(False, None))[1]

    @property
    def plainest(self) -> tuple[Control, Row] | None:
        """The simplest control that can take the place of the loss; None where there is none."""
        for kind in PLAIN:
            shares = [(self.find_share(one[0].name, one[1]), one) for one in self.controls if one[0].kind == kind]
            good = [(share.share, one) for share, one in shares if share.seems_all and (share.share or 0.0) >= AS_GOOD]
            if good:
                # Known losses are equally simple; the others come the plainest first.
                return max(good, key=lambda one: one[0] or 0.0)[1] if kind == "known" else good[0][1]
        return None

    @property
    def recommendation(self) -> Recommendation | None:
        """What to use instead of the loss; None if nothing simpler is as good."""
        if self.plainest is None:
            return None
        control, row = self.plainest
        reason = (
            f"It is simpler than {self.loss.entrant.name} and as good: {figure(row.mean)} and {figure(self.loss.mean)} on the "
            f"{self.split} split over {len(row.scores)} training seeds (autoloss explain)."
        )
        return make_recommendation(control.entrant, ORIGINS[control.kind], reason, row.also.get(THRESHOLD))

    def describe(self) -> Iterator[str]:
        """Describe the causes of the gain in sentences, and what has the same effect."""
        loss, standard, gain = self.loss.entrant.label, self.standard.entrant.label, self.gain
        if gain is None:
            reasons = "; ".join(dict.fromkeys([*self.loss.reasons, *self.standard.reasons]))
            yield f"There is nothing to explain: a training with {loss} or {standard} has no score. {reasons}".strip()
            return
        figures = f"{difference(gain.value, gain.half_width)} on the {self.split} split"
        figures += f" over {len(self.loss.scores)} training seeds"
        if not self.is_gain:
            remedy = "More seeds may show one: --seeds." if gain.can_seeds_tell else "Only more test data can show one."
            told = f" {remedy}" if gain.value > 0 else ""
            yield f"{loss} is not significantly ahead of {standard} ({figures}), so there is no gain to explain.{told}"
            return
        given = "" if list(self.standard.entrant.list_changes()) else ", trained as the recipe says,"
        yield f"{loss} is ahead of {standard}{given} by {figures}."
        yield self._describe_cause()
        for control, row in self.controls:
            if control.kind == "reverse" and row.mean is not None:
                share = self.find_share(control.name, row).write()
                yield f"Conversely, {control.text} has {figure(row.mean)}: {share} of the gain."
        if self.plainest is None:
            yield "No simpler change that was tried is as good."
            return
        control, row = self.plainest
        yield f"The simplest change with the same effect: {control.text}: {figure(row.mean)}."

    def _describe_cause(self) -> str:
        cause = self.likely_cause
        if cause is None:
            return self._describe_parts()
        control, row, _ = next(one for one in self.main if one[0].name == cause.name)
        what = f"{control.text} has {figure(row.mean)}, {self.loss.entrant.name} {figure(self.loss.mean)}"
        if self.cause is None:
            return f"The cause may be the {cause.name}: {what}. More seeds are needed to be sure: --seeds."
        if control.kind == "steps":
            return f"The whole gain comes from the size of the steps: {what}."
        alone = next((share.write() for one, _, share in self.main if one.kind == "steps"), "nothing")
        return f"The gain comes from the {cause.name}: {what}. The size of the steps alone accounts for {alone} of it."

    def _describe_parts(self) -> str:
        own = [self._find_own_share(control, row) for control, row, _ in self.main]
        unsure = [one.name for _, _, one in self.main if one.share is not None and not one.excludes_something]
        names = [one.name for one in own if one.share is not None and one.name not in unsure]
        parts = [f"{one.name} {one.write()}" for one in own if one.low is not None and one.low > 0]
        gain = "all of the gain" if parts else "the gain"
        sentences = [f"None of these explains {gain}: {', '.join(names)}."] if names else []
        if unsure:
            sentences.append(
                f"These seeds are too few to tell how much of the gain comes from: {', '.join(unsure)}. Take more: --seeds."
            )
        sentences = sentences or ["No cause was identified."]
        sentences += [f"They account for a part of it: {', '.join(parts)}."] if parts else []
        return " ".join([*sentences, *(f"{one.text} has no score." for one, row, _ in self.main if row.mean is None)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        gain, plainest = self.gain, self.plainest
        return {
            **{name: _describe_row(row) for name, row in (("loss", self.loss), ("standard", self.standard))},
            "gain": gain and {"difference": gain.value, "interval": gain.half_width, "p_value": gain.p_value},
            "seeds": len(self.loss.scores),
            "split": self.split,
            "cause": (self.cause.name if self.cause else NONE) if self.is_gain else None,
            "causes": [asdict(one) for one in self.causes],
            "controls": [
                {**asdict(control), **_describe_row(row), "share": asdict(self.find_share(control.name, row))}
                for control, row in self.controls
            ],
            "plainest": plainest and plainest[0].name,
            "recommendation": self.recommendation and asdict(self.recommendation),
            "text": list(self.describe()),
            "notes": list(self.notes),
        }


def read_explanation(plan: Plan, seed: int, recorded: Mapping[Train, Outcome]) -> Explanation | None:
    """Make an explanation from the recorded trainings of its plan; None where the loss or the standard loss is not trained yet.

    Args:
        seed: The run's.
    """
    seeds = training_seeds(seed, COMPARISON, plan.seeds)
    rows = {row.entrant: row for row in collect_rows(plan.entrants, seeds, plan.split, recorded)}
    if plan.loss not in rows or plan.standard not in rows:
        return None
    controls = [(control, rows[control.entrant]) for control in plan.controls if control.entrant in rows]
    return Explanation(rows[plan.loss], rows[plan.standard], controls, plan.split, plan.notes)


def _describe_row(row: Row) -> dict[str, Any]:
    return {
        "label": row.entrant.label,
        "loss": row.entrant.loss,
        "mean": row.mean,
        "interval": row.interval,
        "scores": list(row.scores),
    }
