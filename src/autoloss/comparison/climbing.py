"""The race of the expert's ladder.

The rate of the steps and their rule are tried on short trainings first, the best of them longer; then, on the best, weights of the
classes and of the branches, a tuned threshold and a longer schedule; at last those that lead whole, on several seeds, beside the
recipe as it was given. A choice that noise cannot tell from a simpler one gives way to it: steps as the recipe takes them, no
weights and no threshold, at any rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean

from autoloss.comparison.baselines import fits, standard_entrant
from autoloss.comparison.entrant import LADDER, LADDER_SEEDS, Entrant, Measurements, find_simplest, training_seeds
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.comparison.record import LEARNING_RATES, NEAR_RATES, Record, choose_first_share
from autoloss.evaluation.evaluator import Evaluator
from autoloss.settings import LEAST_LADDER, StepRule
from autoloss.tasks.task import Task
from autoloss.training.training import THRESHOLD
from autoloss.zoo.entries import ENTRIES, OF_SHARES, say_loss

LEAST_BUDGET = 2.0
"""Training equivalents below which nothing is tried."""
FIRST_SHARE = 1 / 8
"""Share of the schedule of the first trainings, where it has enough steps."""
RULES: Sequence[StepRule] = ("recipe", "clipped", "one_norm", "adamw")
"""The step rules that are tried."""
BEYOND = 3.0
"""Factor between a rate at the end of the grid and the next one beyond it."""
FURTHER = 2
"""Number of rates that are tried beyond the grid, one after the other, while the best is at its end."""
LONGER = 4
"""Number of rates and rules that are trained longer."""
WEIGHT = 3.0
"""Factor on the loss of a branch that is tried."""
RESERVE = (2.0, 4.0)
"""Training equivalents that are kept for the last rungs, the recipe as it was given and the best: a quarter of the budget, at least
so many that both are trained, at most so many that both are trained on two seeds."""
CLASS_WEIGHTS: Mapping[str, Sequence[str]] = {
    f"baseline/{kind}": (
        *(f"shelf/{weight}_{kind}" for weight in ("root_balanced", "effective", "balanced")),
        f"baseline/class_weighted_{kind}",
    )
    for kind in ("ce", "bce")
}
"""Standard loss → the same with weights of the classes: of shares in the batch the root, the effective number and the inverse; the
inverse of those in the training data."""
_WEIGHTED = {name for names in CLASS_WEIGHTS.values() for name in names}


def climb_ladder(evaluator: Evaluator, seed: int, budget: float, record: Record) -> Ladder:
    """Race what an expert would try with the task's standard loss, on the valid split.

    What is tried follows from the task, the budget and the recorded trainings alone.

    Args:
        evaluator: Of a task that names a standard loss for every branch.
        seed: The run's.
        budget: Training equivalents that may be spent, at least `LEAST_BUDGET`.
    """
    task = evaluator.task
    given = standard_entrant(task)
    assert given is not None
    reserve = min(max(budget / 4, RESERVE[0]), RESERVE[1])
    climb = _Climb(given.loss, training_seeds(seed, LADDER, LADDER_SEEDS), budget, reserve, record)
    first = choose_first_share(task, FIRST_SHARE)
    grid = _choose_grid(task, given, budget / (2 * first))
    if len(grid) > 1:
        # Short trainings hardly ever decide for a rare class at 0.5: their rates cannot be told apart there.
        constant = evaluator.measure_constant() if task.tunes_threshold else None
        if constant is not None:
            climb.run([given], first)
            if climb.ranked([given]) and climb.score(given) <= constant:
                grid = _decide(grid)
        climb.run(grid, first)
        for _ in range(FURTHER):
            further = _extend(climb, grid)
            climb.run(further, first)
            grid += further
        scores = [climb.score(one) for one in climb.ranked(grid)]
        if constant is not None and scores and (scores[0] <= constant or scores.count(scores[0]) > len(scores) / 2):
            # A part of the split has another best constant, but then most of them are equal.
            climb.run(_decide(grid), first)
            grid = list(dict.fromkeys([*grid, *_decide(grid)]))
    chosen = _choose_longer(climb.ranked(grid)) or [given]
    extras = 1 + sum(1 + (one.length - 1) for one in _vary(task, given, {}))
    left = budget - climb.spent - reserve
    second = next((share for share in (1.0, 0.5, 0.25) if first <= share and (LONGER + extras) * share <= left), first)
    early = {one: climb.score(one) for one in chosen if one in climb.tried}
    climb.run([given, *chosen], second)
    # Steps that follow the gradient grow with the weights: inverse shares of ten classes make them ten times as long.
    follows = "one_norm" in task.step_rules
    longer_steps = {loss: evaluator.measure_weights(loss) for loss in list_weighted(given.loss, task) if follows}
    for best in climb.choose(chosen):
        varied, share = _vary(task, best, longer_steps), second
        # One branch has to learn something before the others count: short trainings tell only which way begins first, as long as
        # the score still grows nearly as fast as they do.
        if len(task.branches) > 1 and best in early:
            floor = evaluator.measure_untrained() or 0.0
            share = 1.0 if climb.score(best) - floor > math.sqrt(second / first) * (early[best] - floor) else second
        climb.run([best, *varied], share, reserve=reserve if share < 1 or budget > LEAST_LADDER else 1.0)
        climb.run(_combine([one for one in varied if climb.choose([best, one]) == [one]]), share)
    if task.tunes_learning_rate:
        _slow_down(climb)
    own = [one for one in climb.tried if one.length == 1]
    leaders = list(dict.fromkeys([*climb.choose(own), *climb.ranked(own)]))[:2]
    longer = [one for one in climb.ranked(climb.tried)[:1] if one.length > 1]
    # One seed tells little of the first: fewer are trained whole where the budget has no room for two seeds of all.
    lasts = ([given, *leaders, *longer], [given, *leaders], [given, *[one for one in leaders if one != given][:1]])
    affordable = (
        (last, seeds)
        for last, seeds in product(lasts, range(LADDER_SEEDS, 1, -1))
        if climb.cost(last, 1.0, seeds) <= budget - climb.spent
    )
    last, seeds = next(affordable, (lasts[0], 1))
    climb.run(last, 1.0, seeds=seeds, reserve=0.0)
    return climb.finish()


class _Climb:
    """The trainings of a ladder so far."""

    def __init__(self, standard: str, seeds: Sequence[int], budget: float, reserve: float, record: Record) -> None:
        self._standard, self._seeds, self._record = standard, seeds, record
        self._budget, self._reserve = budget, reserve
        self._rungs: dict[Entrant, Rung] = {}
        self._measured: dict[Entrant, Measurements] = {}
        self._trained: dict[tuple[Entrant, float, int], float] = {}

    @property
    def tried(self) -> list[Entrant]:
        return list(self._rungs)

    @property
    def spent(self) -> float:
        return sum(self._trained.values())

    def cost(self, entrants: Iterable[Entrant], fidelity: float, seeds: int) -> float:
        """Return the training equivalents of what is not trained yet."""
        new = product(dict.fromkeys(entrants), self._seeds[:seeds])
        return sum(fidelity * one.length for one, seed in new if (one, fidelity, seed) not in self._trained)

    def run(self, entrants: Iterable[Entrant], fidelity: float, seeds: int = 1, reserve: float | None = None) -> None:
        """Train each with so many seeds at a share of the schedule, as far as the budget reaches.

        Args:
            reserve: Training equivalents that stay for later, if not those of the last rungs.
        """
        room, chosen = self._budget - (self._reserve if reserve is None else reserve) - self.spent, []
        for one in dict.fromkeys(entrants):
            cost = self.cost([one], fidelity, seeds)
            if cost <= room:
                room -= cost
                chosen.append(one)
        jobs = {one: [one.job(seed, "valid", fidelity=fidelity) for seed in self._seeds[:seeds]] for one in chosen}
        recorded = self._record.run_trainings(job for turn in jobs.values() for job in turn)
        for one, turn in jobs.items():
            outcomes = [recorded[job] for job in turn]
            thresholds = [outcome.also[THRESHOLD] for outcome in outcomes if THRESHOLD in outcome.also]
            self._measured[one] = Measurements.of(outcomes)
            reasons = (f"{one.state.value}: {one.reason.splitlines()[0].rstrip('.')}" for one in outcomes if one.reason)
            reason = next(reasons, "")
            tuned = mean(thresholds) if thresholds else None
            self._rungs[one] = Rung(one, fidelity, self._measured[one].values, tuned, reason)
            for job in turn:
                self._trained[one, fidelity, job.training.seed] = fidelity * one.length

    def ranked(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Return those that have a score, the best first; of equal ones, the recipe's rate."""
        found = [self._rungs[one] for one in entrants if one in self._rungs and self._rungs[one].mean is not None]
        ranked = sorted(found, key=lambda rung: (rung.rank, rung.entrant.learning_rate == 1), reverse=True)
        return [rung.entrant for rung in ranked]

    def choose(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Return the simplest of those that noise cannot tell from the best, among the longest trainings; none without a score."""
        ranked = self.ranked(entrants)
        whole = [one for one in ranked if self._rungs[one].rank[:2] == self._rungs[ranked[0]].rank[:2]]
        if not whole:
            return []
        return [find_simplest(whole, self._measured.__getitem__, lambda one: one.count_changes(self._standard))]

    def score(self, entrant: Entrant) -> float:
        """Return the mean score of one that has been trained and has a score."""
        found = self._rungs[entrant].mean
        return -math.inf if found is None else found

    def finish(self) -> Ladder:
        first = self.choose([one for one in self._rungs if one.length == 1])
        ranked = sorted(self._rungs.values(), key=lambda rung: (rung.entrant in first, rung.rank), reverse=True)
        rungs = tuple(replace(rung, entrant=rung.entrant.spell_out()) for rung in ranked)
        return Ladder(rungs, self.spent, self._standard)


def _choose_grid(task: Task, given: Entrant, most: float) -> list[Entrant]:
    """Return the largest grid of rules and rates that the budget has room for.

    Args:
        most: Number of trainings at most.
    """
    rules = [rule for rule in task.step_rules if rule in RULES]
    rates, near = (LEARNING_RATES, NEAR_RATES) if task.tunes_learning_rate else ((1.0,), (1.0,))
    few = [rule for rule in rules if rule in ("recipe", "one_norm")]
    for chosen, factors in ((rules, rates), (rules, near), (few, near), (rules[:1], near)):
        if len(chosen) * len(factors) <= most:
            return [replace(given, step_rule=rule, learning_rate=factor) for rule, factor in product(chosen, factors)]
    return [given]


def _decide(entrants: Iterable[Entrant]) -> list[Entrant]:
    """Return each with a tuned threshold."""
    return [replace(one, tuned_threshold=True) for one in entrants]


def _extend(climb: _Climb, grid: Sequence[Entrant]) -> list[Entrant]:
    """Return the rate beyond the grid where the best is at its end, and ahead of the next rate of the same rule."""
    ranked = climb.ranked(grid)
    if not ranked:
        return []
    best = ranked[0]
    rates = sorted(one.learning_rate for one in grid if one.step_rule == best.step_rule)
    scores = {one.learning_rate: climb.score(one) for one in ranked if one.step_rule == best.step_rule}
    for end, inner, factor in ((rates[0], rates[:2][-1], 1 / BEYOND), (rates[-1], rates[-2:][0], BEYOND)):
        if best.learning_rate == end != inner and (inner not in scores or scores[end] > scores[inner]):
            return [replace(best, learning_rate=float(f"{end * factor:.1g}"))]
    return []


def _slow_down(climb: _Climb) -> None:
    """Train the best whole at smaller rates, as long as one is ahead: short trainings favour large ones."""
    for _ in range(FURTHER):
        for best in climb.choose([one for one in climb.tried if one.length == 1]):
            slower = replace(best, learning_rate=float(f"{best.learning_rate / BEYOND:.1g}"))
            climb.run([best, slower], 1.0)


def _choose_longer(ranked: Sequence[Entrant]) -> list[Entrant]:
    """Return the best rate of the two best rules, then the best others."""
    best: dict[StepRule, Entrant] = {}
    for one in ranked:
        best.setdefault(one.step_rule, one)
    return list(dict.fromkeys([*list(best.values())[:2], *ranked]))[:LONGER]


def list_weighted(standard: str, task: Task) -> list[str]:
    """Return the standard loss of a single branch with weights of the classes, as far as they fit."""
    known, (branch, *_) = CLASS_WEIGHTS.get(standard, ()), task.branches
    return [name for name in known if fits(ENTRIES[name], branch, task)]


def _vary(task: Task, best: Entrant, weights: Mapping[str, Mapping[str, float]]) -> list[Entrant]:
    """Return the best with weights of the classes and of the branches, with a tuned threshold, and trained for longer.

    Args:
        weights: Loss with weights of the classes → branch → norm of its gradient beside the standard loss's.
    """
    branches, found = list(task.branches), list[Entrant]()
    for loss in list_weighted(best.loss, task):
        (norm,) = weights[loss].values() if loss in weights and best.step_rule == "recipe" else (1.0,)
        # One rare row of a batch makes a step as large as its weight.
        for slower in (1.0, BEYOND) if loss in OF_SHARES else (1.0,):
            rate = float(f"{best.learning_rate / norm / slower:.2g}")
            found.append(replace(best, label=say_loss(loss), loss=loss, learning_rate=rate))
    if task.tunes_threshold:
        found.append(replace(best, tuned_threshold=not best.tuned_threshold))
    if task.lengthens:
        found.append(replace(best, length=2.0))
    if len(branches) > 1:
        # What a small budget has room for comes first: all classes together, and the longer training.
        classes = tuple(name for name in branches if task.branches[name].predicts_probabilities)
        groups = dict.fromkeys([classes, *((name,) for name in sorted(branches))])
        several = [replace(best, weights=tuple((name, WEIGHT) for name in group)) for group in groups if group]
        found = [*several[:1], *found, *several[1:]]
    return found


def _combine(ahead: Sequence[Entrant]) -> list[Entrant]:
    """Return class weights and a tuned threshold at once, where each alone is ahead."""
    if not any(one.tuned_threshold for one in ahead):
        return []
    return [replace(one, tuned_threshold=True) for one in ahead if one.loss in _WEIGHTED][:1]
