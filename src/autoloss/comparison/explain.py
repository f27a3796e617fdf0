"""Why a loss is ahead of the standard loss: its controls, each trained on the seeds on which the two were compared.

They differ from it, or from the standard loss, in one respect each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from autoloss import zoo
from autoloss.comparison.baselines import has_space, standard_entrant
from autoloss.comparison.climbing import list_weighted
from autoloss.comparison.entrant import COMPARISON, TEST, Entrant, training_seeds
from autoloss.comparison.explanation import CLASSES, CONFIDENCE, STEPS, Control, Explanation, Plan, read_explanation
from autoloss.comparison.record import Record, tune_learning_rates
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator, draw_samples, isolate
from autoloss.settings import StepRule
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import CONSTANT, Expression, leaf
from autoloss.space.item_weights import differentiate, list_states, measure_weights
from autoloss.space.loss import bind
from autoloss.space.loss_text import join_losses, round_factor, split_branches
from autoloss.space.operators import Operator
from autoloss.store.database import Say, ignore
from autoloss.tasks.task import Task
from autoloss.training.training import ItemWeights
from autoloss.zoo.entries import say_loss

PROBES, PROBES_OF_IMAGES = 16, 64
"""Samples on which gradients are compared; a sample of images is a single one, and a rare class is in few."""
OWN_RATE: Sequence[StepRule] = ("recipe", "one_norm", "adamw")
"""Step rules under which the rate of the standard loss is tuned; the others are those of the recipe, changed in one respect."""
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

    def train_alike(self, label: str, loss: str) -> Entrant:
        """Return another loss, trained as the loss is."""
        return replace(self.loss, label=label, loss=loss, baseline=True, known=False)


def explain_loss(
    entrant: Entrant,
    evaluator: Evaluator,
    seeds: int,
    record: Record,
    say: Say = ignore,
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
    probes = PROBES_OF_IMAGES if has_space(task) else PROBES
    trial = Trial(entrant, standard, evaluator, draw_samples(task, probes, seed, least=1))
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
        controls += [
            replace(control, text=row.entrant.label, entrant=row.entrant)
            for control, row in zip(known, rates, strict=True)
        ]
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
    told = f"The task {task.name} cannot replay the norms of gradients, so controls have steps of their own size."
    notes = [] if task.replays_norms else [told]
    if "items" not in tried:
        notes.append("No branch has a prediction and a target for each item, so no weights of items were tried.")
    return notes


def list_steps(trial: Trial) -> Iterator[Control]:
    """Return the standard loss with the steps of the loss and, the other way round, the loss with those of the standard loss."""
    loss, standard = trial.loss, trial.standard
    text, replays = f"{standard.label} with the steps of {loss.name}", trial.evaluator.task.replays_norms
    # A loss that has one norm anyhow is not replayed.
    pace = loss.loss if replays and loss.step_rule != "one_norm" else ""
    yield Control("steps", STEPS, text, replace(trial.train_alike(text, standard.loss), paced_by=pace))
    if replays:
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
    ways = [*((rule, replace(plain, step_rule=rule)) for rule in task.step_rules), *tuned.items()]
    changed = {CHANGES.get(rule, "learning rate"): replace(one, label=plain.label) for rule, one in ways}
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
    standard = trial.standard.loss
    found = {CLASSES: list_weighted(standard, trial.evaluator.task), CONFIDENCE: FOCUSED.get(standard, ())}
    for name in found.get(cause, ()):
        if name != trial.loss.loss:
            entrant = trial.train_alike(say_loss(name), name)
            yield Control("known", name, entrant.label, entrant)


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
