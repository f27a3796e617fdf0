"""Simpler forms of a loss: without one of its operators or subtrees, or with the standard loss on one of its branches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from autoloss import zoo
from autoloss.comparison.controls import Trial
from autoloss.comparison.explanation import Control
from autoloss.evaluation.evaluator import isolate
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import CONSTANT, Expression, leaf
from autoloss.space.item_weights import differentiate, list_states
from autoloss.space.loss import bind
from autoloss.space.loss_text import join_losses, round_factor, split_branches
from autoloss.space.operators import Operator

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
