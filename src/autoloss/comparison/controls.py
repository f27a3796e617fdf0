"""The controls of a loss: trainings that differ from it, or from the standard loss, in one respect each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoloss.comparison.climbing import CLASS_WEIGHTS
from autoloss.comparison.entrant import Entrant
from autoloss.comparison.explanation import CLASSES, CONFIDENCE, STEPS, Control
from autoloss.evaluation.evaluator import Evaluator, isolate
from autoloss.settings import StepRule
from autoloss.space.branch import Sample
from autoloss.space.item_weights import measure_weights
from autoloss.training.training import ItemWeights
from autoloss.zoo.entries import say_loss

GROUPED: Mapping[str, str] = {"class": CLASSES, "confidence": CONFIDENCE}
"""Grouping of items → the cause that its weights are."""
EVEN = 0.05
"""Weights that all differ from 1 by less weigh nothing."""
CHANGES: Mapping[StepRule, str] = {
    "clipped": "clipping",
    "one_norm": "one norm",
    "warmup": "warm-up",
    "cosine": "cosine",
    "adamw": "AdamW",
}
"""Step rule → the cause that it stands for, the plainest first."""
LONGER = 2.0
FOCUSED: Mapping[str, Sequence[str]] = {
    "baseline/ce": ("baseline/focal", "shelf/absolute"),
    "baseline/bce": ("shelf/focal_bce", "shelf/brier_bce"),
    "baseline/mse": ("shelf/pseudo_huber", "shelf/absolute_error", "shelf/cauchy"),
}
"""Standard loss → known losses that weigh items by confidence."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A loss whose gain over the standard loss is explained.

    Args:
        loss: As it was compared.
        standard: As the recipe trains it.
        samples: Branch → samples on which gradients are compared.
    """

    loss: Entrant
    standard: Entrant
    evaluator: Evaluator
    samples: Mapping[str, Sequence[Sample]]

    @property
    def pace(self) -> str:
        """The loss whose norms the controls replay; empty where it has one norm anyhow, or the task does not replay norms."""
        return "" if self.loss.step_rule == "one_norm" or not self.evaluator.task.replays_norms else self.loss.loss

    def train_alike(self, label: str, loss: str) -> Entrant:
        """Return another loss, trained as the loss is."""
        return replace(self.loss, label=label, loss=loss, baseline=True, known=False)


def list_steps(trial: Trial) -> Iterator[Control]:
    """Return the standard loss with the steps of the loss and, the other way round, the loss with those of the standard loss."""
    loss, standard = trial.loss, trial.standard
    steps = replace(
        trial.train_alike(f"{standard.label} with the steps of {loss.name}", standard.loss), paced_by=trial.pace
    )
    yield Control("steps", STEPS, f"{standard.label} with the steps of {loss.name}", steps)
    if trial.evaluator.task.replays_norms:
        label = f"{loss.name} with the steps of {standard.label}"
        turned = replace(standard, label=label, loss=loss.loss, baseline=False, paced_by=standard.loss)
        yield Control("reverse", "direction", label, turned)


def list_items(trial: Trial) -> Iterator[Control]:
    """Return the standard loss with the loss's steps and its weights of items.

    Where these are all equal, they change nothing.
    """
    standard, loss = trial.standard, trial.loss
    for grouping, cause in GROUPED.items():
        found = _measure_items(trial, grouping)
        if not found:
            continue
        text = f"{standard.label} with the steps and {cause} of {loss.name}"
        uneven = [one for one in found if any(abs(weight - 1) > EVEN for weight in one.weights)]
        steps = next(list_steps(trial)).entrant
        weighted = replace(steps, label=text, item_weights=tuple(uneven)) if uneven else steps
        yield Control("items", cause, text, weighted)


def _measure_items(trial: Trial, grouping: str) -> list[ItemWeights]:
    """Return the weights that the loss gives the items of each branch; none where no branch has such groups."""
    evaluator, training = trial.evaluator, trial.loss.job(0, "valid").training
    found = []
    with isolate():
        criterion, standard = (evaluator.bind_loss(one.loss, training) for one in (trial.loss, trial.standard))
        for name, branch in evaluator.task.branches.items():
            samples, seed = trial.samples[name], evaluator.configuration.seed
            weights = measure_weights(criterion[name], standard[name], branch, samples, grouping, seed)
            if weights:
                found.append(ItemWeights(name, grouping, weights))
    return found


def list_recipes(trial: Trial, tuned: Mapping[StepRule, Entrant]) -> Iterator[Control]:
    """Return changes of the standard loss's recipe with the same effect, the simplest first.

    Args:
        tuned: Rule → the standard loss at its best rate. What has no rate of its own has that of `recipe`.
    """
    task, plain = trial.evaluator.task, replace(tuned["recipe"], label=trial.standard.label)
    changed = {
        "learning rate": plain,
        **{CHANGES[rule]: replace(plain, step_rule=rule) for rule in task.step_rules if rule in CHANGES},
    }
    changed |= {
        CHANGES[rule]: replace(one, label=trial.standard.label) for rule, one in tuned.items() if rule in CHANGES
    }
    if task.tunes_threshold:
        changed["tuned threshold"] = replace(plain, tuned_threshold=True)
    if task.lengthens:
        changed["longer training"] = replace(plain, length=LONGER)
    for cause in ("learning rate", "tuned threshold", *CHANGES.values(), "longer training"):
        entrant = changed.get(cause)
        if entrant is not None and entrant != trial.standard:
            yield Control("recipe", cause, entrant.spell_out().label, entrant.spell_out())


def list_known(trial: Trial, cause: str) -> Iterator[Control]:
    """Return known losses that weight items by the cause of a loss's gain, trained in the same way."""
    found = {CLASSES: CLASS_WEIGHTS, CONFIDENCE: FOCUSED}.get(cause, {})
    for name in found.get(trial.standard.loss, ()):
        if name != trial.loss.loss:
            entrant = trial.train_alike(say_loss(name), name).spell_out()
            yield Control("known", name, entrant.label, entrant)
