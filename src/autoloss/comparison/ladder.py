"""The ladder: what an expert tries with the standard loss before a new one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autoloss.comparison.entrant import Entrant, Measurements
from autoloss.numbers import figure
from autoloss.proposing.records import State
from autoloss.settings import StepRule
from autoloss.zoo.entries import say_loss


@dataclass(frozen=True, slots=True)
class Rung:
    """A way of training with the standard loss, and its scores on the valid split.

    Args:
        fidelity: Share of the schedule that was trained.
        scores: One for each training seed; None for a training without one.
        threshold: The mean of the tuned thresholds; None where none was tuned.
        reason: Why the first training without a score has none.
    """

    entrant: Entrant
    fidelity: float
    scores: tuple[float | None, ...]
    threshold: float | None = None
    reason: str = ""

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None where a training has no score."""
        return Measurements(self.scores).mean

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds; None for one."""
        return Measurements(self.scores).deviation

    @property
    def rank(self) -> tuple[float, int, float]:
        """Sort key: a longer training tells more, then more seeds, then the higher mean."""
        return self.fidelity, len(self.scores), -math.inf if self.mean is None else self.mean

    def write_score(self) -> str:
        """Write the mean, with the standard deviation over several seeds.

        >>> Rung(Entrant("ce", "baseline/ce"), 1.0, (0.5, 0.7)).write_score()
        '0.6000 ± 0.1414 (standard deviation over 2 seeds)'
        """
        if self.deviation is None:
            return figure(self.mean) + (
                " (one seed)" if self.fidelity == 1 else f" at {self.fidelity:g} of the schedule"
            )
        return f"{figure(self.mean)} ± {figure(self.deviation)} (standard deviation over {len(self.scores)} seeds)"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, from which `from_dict` makes it again."""
        values = asdict(self)
        return {**values.pop("entrant"), **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rung:
        """Make a rung of what `to_dict` returned."""
        own = {name: values[name] for name in ("fidelity", "scores", "threshold", "reason") if name in values}
        others = {name: value for name, value in values.items() if name not in own}
        return cls(Entrant(**others), **{**own, "scores": tuple(own["scores"])})


@dataclass(frozen=True, slots=True)
class Ladder:
    """The ways of training with the standard loss that were tried.

    Args:
        rungs: First the chosen one, the simplest of those that noise cannot tell from the best; then the others, the best first.
        spent: Training equivalents of all trainings.
        standard: The standard loss.
    """

    rungs: Sequence[Rung]
    spent: float
    standard: str

    @property
    def given(self) -> Rung | None:
        """The recipe as it was given."""
        return next((rung for rung in self.rungs if self._is_given(rung.entrant)), None)

    @property
    def best(self) -> Rung | None:
        """The one that is chosen of the recipe's length; None where no training has a score."""
        return self._find_best(lambda entrant: entrant.length == 1)

    @property
    def set_aside(self) -> Rung | None:
        """The one of the recipe's length with a higher mean than the simpler `best`, if noise cannot tell them apart."""
        best = self.best
        ahead = [rung for rung in self.rungs if best is not None and rung.entrant.length == 1 and rung.rank > best.rank]
        return max(ahead, key=lambda rung: rung.rank, default=None)

    @property
    def reason(self) -> str:
        """Why the first training without a score has none; empty where all have one."""
        return next((rung.reason for rung in self.rungs if rung.reason), "")

    @property
    def highest(self) -> float | None:
        """The highest mean of what was trained longest and on most seeds; None without.

        Short trainings are measured on a part of the split, and the best of many single trainings is high by chance.
        """
        rungs = [rung for rung in self.rungs if rung.mean is not None]
        most = max((rung.rank[:2] for rung in rungs), default=None)
        return max((rung.rank[2] for rung in rungs if rung.rank[:2] == most), default=None)

    @property
    def longer(self) -> Rung | None:
        """The best of those that are trained longer than the recipe, where it is ahead of `best`."""
        found, best = self._find_best(lambda entrant: entrant.length > 1), self.best
        if found is None or best is None or found.fidelity < 1 or found.mean is None or best.mean is None:
            return None
        return found if best.fidelity < 1 or found.mean > best.mean else None

    @property
    def tunes_threshold(self) -> bool:
        """Whether a tuned threshold came to another than 0.5, or none was tuned; never for a metric of the order alone."""
        return {rung.threshold for rung in self.rungs if rung.entrant.tuned_threshold} != {0.5}

    def tried(self, rule: StepRule) -> bool:
        """Return True if a training had this step rule."""
        return any(rung.entrant.step_rule == rule for rung in self.rungs)

    def choose_settings(self, step_rules: Sequence[StepRule]) -> dict[str, Any]:
        """Return the settings under which candidates are compared with the best.

        They are trained as the best is, except that their steps never grow with the gradient, where the task allows it: a loss
        then wins by the direction of its steps, not by their size, which a learning rate would give too.
        """
        best = self.best
        if best is None:
            return {}
        chosen = best
        if best.entrant.step_rule in ("recipe", "clipped") and "one_norm" in step_rules:
            chosen = self._find_best(lambda entrant: entrant.step_rule == "one_norm" and entrant.length == 1) or best
        rule = chosen.entrant.step_rule
        if rule == "recipe" and chosen.entrant.loss != self.standard:
            # Candidates have the standard loss's norm of the gradient; that of class weights is another, and so is their rate.
            wanted = self.standard, rule, 1
            chosen = self._find_best(lambda one: (one.loss, one.step_rule, one.length) == wanted) or chosen
        return {
            "search.learning_rate": chosen.entrant.learning_rate,
            "search.step_rule": rule,
            "search.tuned_threshold": best.entrant.tuned_threshold,
            "search.weights": tuple(f"{name}={factor:g}" for name, factor in best.entrant.weights),
            "search.direction": rule in ("one_norm", "adamw"),
        }

    def describe(self) -> Iterator[str]:
        """Describe the best rung and compare it with the given recipe."""
        best, given = self.best, self.given
        if best is None:
            tried = "with the recipe as given" if len(self.rungs) == 1 else "at any rate or step rule that was tried"
            yield (
                f"The standard loss, {say_loss(self.standard)}, has no score {tried}. First lower "
                "the learning rate in the recipe, and look at data and targets (`autoloss check`)."
                + (f" The first training ended without a score: {self.reason}." if self.reason else "")
            )
            return
        if len(self.rungs) == 1:
            yield f"The standard loss has {best.write_score()} with the recipe as given; no change of it was tried."
        elif given is None or self._is_given(best.entrant):
            changes = f"No change of the recipe, of {len(self.rungs) - 1} tried, clearly improves the standard loss"
            yield f"{changes}: {best.write_score()} with the recipe as given."
        else:
            score = given.write_score() if given.mean is not None else "no score"
            found = f"{best.entrant.label}: {best.write_score()} on the valid split"
            yield f"Best with the standard loss: {found}; the recipe as given: {score}."
            if aside := self.set_aside:
                yield f"Higher, but not clearly, so that the simpler is chosen: {aside.entrant.label}: {aside.write_score()}."
        if longer := self.longer:
            yield f"Longer training scores higher: {longer.entrant.label}: {longer.write_score()}."
        # A rate at which a training diverges is no news; one that raises an error says nothing about the way.
        if failed := [rung for rung in self.rungs if rung.reason.startswith(State.FAILED.value)]:
            first = f"{failed[0].entrant.label}: {failed[0].reason}"
            yield f"{len(failed)} of {len(self.rungs)} ways could not be judged. The first, {first}."

    def _find_best(self, fits: Callable[[Entrant], bool]) -> Rung | None:
        return next((rung for rung in self.rungs if rung.mean is not None and fits(rung.entrant)), None)

    def _is_given(self, entrant: Entrant) -> bool:
        return entrant.learning_rate == 1 and not entrant.count_changes(self.standard)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, from which `from_dict` makes it again."""
        return {"rungs": [rung.to_dict() for rung in self.rungs], "spent": self.spent, "standard": self.standard}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Ladder:
        """Make a ladder of what `to_dict` returned."""
        return cls(tuple(map(Rung.from_dict, values["rungs"])), values["spent"], values["standard"])
