"""Why a loss is ahead of the standard loss: its controls, each trained on the seeds on which the two were compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoloss.comparison.baselines import has_space, standard_entrant
from autoloss.comparison.controls import Trial, list_items, list_known, list_recipes, list_steps
from autoloss.comparison.entrant import COMPARISON, TEST, Entrant, training_seeds
from autoloss.comparison.explanation import Control, Explanation, Plan, read_explanation
from autoloss.comparison.record import Record, tune_learning_rates
from autoloss.comparison.simpler import list_simpler
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.settings import StepRule
from autoloss.tasks.task import Task

PROBES, PROBES_OF_IMAGES = 16, 64
"""Samples on which gradients are compared; a sample of images is a single one, and a rare class is in few."""
OWN_RATE: Sequence[StepRule] = ("recipe", "one_norm", "adamw")
"""Step rules under which the rate of the standard loss is tuned; the others are those of the recipe, changed in one respect."""


def explain_loss(
    entrant: Entrant,
    evaluator: Evaluator,
    seeds: int,
    record: Record,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Explanation, Plan]:
    """Train a loss, the standard loss and their controls on the same seeds, and describe the causes of the gain.

    Args:
        entrant: The loss as it was compared.
        evaluator: Of the run's task.
        seeds: Number of training seeds: the first of those of comparisons, on the test split where the task has one.
        say: Called with a sentence about what is trained next.

    Returns:
        The explanation, and what was trained for it, from which `read_explanation` makes it again.

    Raises:
        RequestError: The task names no standard loss for every branch, or its samples do not serve.
    """
    task, seed = evaluator.task, evaluator.configuration.seed
    standard = standard_entrant(task)
    if standard is None:
        raise RequestError(f"The task {task.name} has no standard loss for every branch; declare `standard`.")
    trial = Trial(
        entrant, standard, evaluator, draw_samples(task, PROBES_OF_IMAGES if has_space(task) else PROBES, seed)
    )
    say("Tuning the learning rate of the standard loss under each step rule.")
    rules: list[StepRule] = [rule for rule in OWN_RATE if rule in task.step_rules]
    rates = tune_learning_rates([replace(standard, step_rule=rule) for rule in rules], task, seed, record)
    tuned = dict(zip(rules, (row.entrant for row in rates), strict=True))
    controls = [*list_steps(trial), *list_items(trial), *list_recipes(trial, tuned), *list_simpler(trial)]
    split = TEST if TEST in task.splits else "valid"
    plan = Plan(seeds, split, entrant, standard, tuple(controls), tuple(_list_notes(task, controls)))
    say(f"Training {entrant.label} and {len(controls)} controls on {seeds} seeds each.")
    found = _train(plan, seed, record)
    if cause := found.likely_cause:
        known = list(list_known(trial, cause.name))
        rates = tune_learning_rates([control.entrant for control in known], task, seed, record)
        controls += [replace(control, entrant=row.entrant) for control, row in zip(known, rates, strict=True)]
        plan = replace(plan, controls=tuple(controls))
        found = _train(plan, seed, record)
    return found, plan


def _train(plan: Plan, seed: int, record: Record) -> Explanation:
    record.compare_losses(plan.entrants, training_seeds(seed, COMPARISON, plan.seeds), plan.split)
    found = read_explanation(plan, seed, record.outcomes)
    assert found is not None
    return found


def _list_notes(task: Task, controls: Sequence[Control]) -> list[str]:
    """Describe the controls that a task does not support."""
    tried = {control.kind for control in controls}
    notes = []
    if not task.replays_norms:
        notes.append(
            f"The task {task.name} cannot replay the norms of gradients, so controls have steps of their own size."
        )
    if "items" not in tried:
        notes.append("No branch has a prediction and a target for each item, so no weights of items were tried.")
    return notes
