"""Changes of a search's settings to what its task can follow, found before the first candidate."""

from __future__ import annotations

import math
from collections.abc import Callable

from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.learning import Floor
from autoloss.numbers import figure
from autoloss.proposing.records import State
from autoloss.rejection.screen import bound_gains
from autoloss.training.training import Training

LEAST_STEPS = 32
"""Optimizer steps of the shortest training that losses are compared by; docs/measurements.md ranks losses after them."""
NEAR, SHARE_OF_STANDARD = 0.5, 0.9
"""η is lowered where the standard loss has at least this share of it, to this share of the standard loss's g."""
LARGEST_SHARE = 0.5
"""Largest share of the schedule that counts as a short training."""
Say = Callable[[str], None]


def check_threshold(evaluator: Evaluator) -> None:
    """Refuse a threshold that no loss can reach: the search would draw a million losses before it gave up."""
    settings = evaluator.configuration.rejection
    for name in evaluator.task.branches:
        reference = evaluator.get_tester(name).engine.reference
        most = reference.score(bound_gains(reference), settings.unit)
        if most < settings.threshold:
            untrained = sum(reference.initial) / len(reference.initial)
            raise RequestError(
                f"No loss can pass on the branch {name}: the metric of an untrained network is {untrained:.2f} already, so g is at "
                f"most {most:.2f} ({settings.unit}), below η = {settings.threshold:g}. Set rejection.unit=relative, or a lower "
                "rejection.threshold.",
                argument="settings",
            )


def adapt(evaluator: Evaluator, say: Say, tuned: bool = False) -> Evaluator:
    """Return the evaluator with the settings of a search changed to what its task can follow.

    Args:
        say: Called with a sentence about each change.
        tuned: Whether ways to train with the standard loss were tried before.
    """
    return _adapt_rungs(_adapt_scale(_adapt_threshold(evaluator, say), say), say, tuned)


def score_standard(evaluator: Evaluator) -> float | None:
    """Return the standard loss's score at the first of several rungs; None with a single rung, or without such a loss."""
    first, *others = evaluator.configuration.search.rungs
    if not others or not evaluator.has_standard:
        return None
    return evaluator.train_standard(evaluator.make_training(first)).score


def _adapt_threshold(evaluator: Evaluator, say: Say) -> Evaluator:
    """Lower η to what the standard loss reaches on the branches where it comes near."""
    settings = evaluator.configuration.rejection
    if not settings.admit_standard:
        return evaluator
    rejected: dict[str, float] = {}
    for branch, form in evaluator.task.branches.items():
        # Elsewhere g depends on the unit of the targets, and a low one says nothing about other losses.
        verdict = evaluator.judge_standard(branch) if form.predicts_probabilities else None
        # A g far below η says nothing about the losses that are wanted.
        if verdict and verdict.score is not None and NEAR * settings.threshold <= verdict.score < settings.threshold:
            rejected[branch] = verdict.score
    if not rejected:
        return evaluator
    branch = min(rejected, key=lambda name: rejected[name])
    threshold = float(f"{SHARE_OF_STANDARD * rejected[branch]:.3g}")
    say(
        f"The standard loss of the branch {branch} has g {rejected[branch]:.3g} on the samples, just below rejection.threshold = "
        f"{settings.threshold:g}. The threshold is lowered to {threshold:g}, so that losses like it pass."
    )
    return evaluator.changed(evaluator.configuration.changed({"rejection.threshold": threshold}))


def _adapt_scale(evaluator: Evaluator, say: Say) -> Evaluator:
    """Train losses at their own scale where the standard loss has none that they could be brought to."""
    if not evaluator.configuration.search.scale:
        return evaluator
    for branch in evaluator.task.branches:
        if branch not in evaluator.task.standard:
            obstacle = f"the task has no standard loss for the branch {branch}"
        elif evaluator.get_tester(branch).scale is None:
            obstacle = f"the gradient of the standard loss of the branch {branch} is zero or not finite on the samples"
        else:
            continue
        say(f"Losses are not scaled to the gradient of the standard loss: {obstacle}.")
        return evaluator.changed(evaluator.configuration.changed({"search.scale": False}))
    return evaluator


def _adapt_rungs(evaluator: Evaluator, say: Say, tuned: bool) -> Evaluator:
    """Lengthen the short trainings until the task can be trained and measured there."""
    settings = evaluator.configuration.search
    if len(settings.rungs) == 1:
        return evaluator
    rungs, reason = _choose_rungs(evaluator)
    if rungs == settings.rungs:
        return evaluator
    changes: dict[str, object] = {"search.rungs": rungs}
    if len(rungs) > 1:
        say(f"{reason} Candidates are trained at a share of {rungs[0]:.3g} first.")
        # A larger share means fewer candidates: whole trainings keep their part of the budget.
        longer = rungs[0] / settings.rungs[0]
        changes["search.promote"] = min(1.0, settings.promote * longer)
        changes["search.promoted_lag"] = math.ceil(settings.promoted_lag / longer)
    else:
        say(f"{reason} Every candidate is trained for the whole schedule.")
        # Where nothing is learned in short trainings, a whole one tells whether anything is.
        if not tuned and evaluator.task.shortens and (obstacle := _find_obstacle_of_training(evaluator, 1.0)):
            say(f"{obstacle} First try other learning rates, step rules and lengths: `autoloss tune`.")
    return evaluator.changed(evaluator.configuration.changed(changes))


def _choose_rungs(evaluator: Evaluator) -> tuple[tuple[float, ...], str]:
    """Return the rungs at which the task can be trained and measured, and why they are others than those asked for."""
    task, rungs, reason = evaluator.task, evaluator.configuration.search.rungs, ""
    if not task.shortens:
        return (1.0,), f"The task {task.name} cannot be cut short (it declares `shortens = False`)."
    steps = task.steps(Training(seed=0))
    if steps is not None and steps * rungs[0] < LEAST_STEPS:
        reason = f"A training of {task.name} has {steps} steps; a share of {rungs[0]:g} has fewer than {LEAST_STEPS}."
        rungs = _raise_first(rungs, LEAST_STEPS / steps)
    while len(rungs) > 1 and (obstacle := _find_obstacle_of_training(evaluator, rungs[0])):
        reason, rungs = obstacle, _raise_first(rungs, 2 * rungs[0])
    return rungs, reason


def _raise_first(rungs: tuple[float, ...], first: float) -> tuple[float, ...]:
    """Return the rungs with a larger first one; the last alone where that is too large."""
    return (first, *(rung for rung in rungs if rung > first)) if first <= LARGEST_SHARE else rungs[-1:]


def _find_obstacle_of_training(evaluator: Evaluator, fidelity: float) -> str | None:
    """Train with the standard loss at a share of the schedule; return why losses cannot be compared there, or None."""
    if not evaluator.has_standard:
        return None
    outcome = evaluator.train_standard(evaluator.make_training(fidelity))
    # A network that has come to the most frequent class in a short training may well have begun to learn.
    floor = Floor(evaluator.measure_untrained(), None)
    at = f"at a share of {fidelity:.3g} of the schedule" if fidelity < 1 else "in a whole training"
    if outcome.state is not State.SCORED or outcome.score is None:
        return f"The standard loss has no score {at}: {outcome.reason}."
    if not floor.is_beaten(outcome.score):
        return f"The standard loss learns nothing {at}: the metric is {figure(outcome.score)}; {floor.describe()}."
    return None
