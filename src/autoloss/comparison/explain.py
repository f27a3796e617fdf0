"""Why a loss is ahead of the standard loss: its controls, each trained on the seeds on which the two were compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from autoloss import zoo
from autoloss.comparison.baselines import has_space, standard_entrant
from autoloss.comparison.controls import Trial, list_items, list_known, list_recipes, list_steps
from autoloss.comparison.entrant import COMPARISON, TEST, Entrant, training_seeds
from autoloss.comparison.explanation import Control, Explanation, Plan, read_explanation
from autoloss.comparison.record import Record, tune_learning_rates
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator, draw_samples, isolate
from autoloss.settings import StepRule
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import CONSTANT, Expression, leaf
from autoloss.space.item_weights import differentiate, list_states
from autoloss.space.loss import bind
from autoloss.space.loss_text import join_losses, round_factor, split_branches
from autoloss.space.operators import Operator
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
        entrant, standard, evaluator, draw_samples(task, PROBES_OF_IMAGES if has_space(task) else PROBES, seed, least=1)
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


MOST = 4
"""Simpler forms that are trained at most."""
LEAST_COSINE = 0.5
"""Cosine of the gradients on samples below which a simpler form is another loss."""


def list_simpler(trial: Trial) -> list[Control]:
    """Return the simpler forms of the loss whose gradients on samples are most like its own.

    Each is scaled to the norm of the loss's gradient, and trained as the loss is.
    """
    task = trial.evaluator.task
    given = split_branches(trial.loss.loss)
    with isolate():
        losses = zoo.resolve(trial.loss.loss, task.branches, trial.evaluator.operators)[1]
        found: dict[tuple[str, float], tuple[float, int, str]] = {}
        for (name, branch), key in zip(task.branches.items(), given, strict=False):
            tree = losses[name]
            if isinstance(tree, Expression):
                states = list_states(branch, trial.samples[name], trial.evaluator.configuration.seed)
                for cosine, simpler in _compare(tree, branch, states):
                    text = join_losses({**given, key: str(simpler)})
                    rank = (-cosine, len(simpler.operators), text)
                    # Forms of one cosine are nearly always of one gradient, such as that of 1 · p and of p.
                    found[name, cosine] = min(found.get((name, cosine), rank), rank)
    chosen = [text for *_, text in sorted(found.values())[:MOST]]
    if len(given) > 1:
        standard = split_branches(trial.standard.loss)
        chosen += [join_losses({**given, name: standard[name]}) for name in given if given[name] != standard[name]]
    return [Control("simpler", text, text, replace(trial.loss, label=text, loss=text, known=False)) for text in chosen]


def _compare(tree: Expression, branch: Branch, states: list[Sample]) -> Iterator[tuple[float, Expression]]:
    """Yield simpler forms of a tree at its scale, with the cosine between their gradients and its own."""
    own = _differentiate(tree, branch, states)
    for simpler in list_forms(tree):
        if not simpler.holds(branch.leaves_and_roles):
            continue
        product, mine, theirs = 0.0, 0.0, 0.0
        for one, other in zip(own, _differentiate(simpler, branch, states), strict=True):
            product += float((one * other).sum())
            mine += float(one.square().sum())
            theirs += float(other.square().sum())
        if not (mine > 0 and theirs > 0 and math.isfinite(theirs)):
            continue
        cosine = product / math.sqrt(mine * theirs)
        if cosine >= LEAST_COSINE:
            yield round(cosine, 3), simpler.scaled(round_factor(simpler.factor * math.sqrt(mine / theirs)))


def _differentiate(tree: Expression, branch: Branch, states: list[Sample]) -> list[Tensor]:
    loss = bind({"main": tree}, {"main": branch})["main"]
    return [differentiate(loss, state) for state in states]


def list_forms(tree: Expression) -> list[Expression]:
    """Return the trees in which one operator is replaced by one of its operands, or a subtree by 1; each once.

    >>> from autoloss import parse
    >>> [str(one) for one in list_forms(parse("mul(y, log(p))"))]
    ['y', 'log(p)', 'mul(y, p)', 'mul(y, 1)']
    """
    found: dict[Expression, Expression] = {}
    for node, symbol in enumerate(tree.symbols):
        if not isinstance(symbol, Operator):
            continue
        for part in (*tree.children(node), *([leaf(CONSTANT)] if node else ())):
            simpler = tree.replace(node, part)
            found.setdefault(simpler.canonical(), simpler)
    found.pop(tree.canonical(), None)
    return list(found.values())
