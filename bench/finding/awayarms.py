"""The gate of a task away from home, and the arms that are compared on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import autoloss
from autoloss import zoo
from autoloss.comparison.baselines import fits, standard_entrant
from autoloss.comparison.entrant import Entrant, Measurements, training_seeds
from autoloss.comparison.record import LEARNING_RATES
from autoloss.errors import RunError
from autoloss.proposing.mutation import WEIGHTS, refine
from autoloss.run.results import find_learning_rate
from autoloss.space.expression import Alphabet, Expression, build
from autoloss.space.loss import MAIN
from autoloss.space.numerals import weigh
from awayaudit import AUDIT_SEEDS, Auditor, Trainer, describe_entrant, make_entrant, rank_means, write_audit
from awaytasks import BY_NAME

BUDGET = 40
"""Training equivalents of an arm."""
RATES = (0.3, 1.0, 3.0)
"""Factors on the learning rate of the ladder's best at which a loss of the shelf is tried."""
SHELF_SEEDS = 5
"""Training seeds of the valid split by whose mean the gate chooses a loss of the shelf."""
CLOSE = 4
"""Losses of the shelf, the best on the first of these seeds, that are trained with the others and judged."""
LADDER_SHARE = 0.4
"""Share of the budget that the arm `ladder + shelf` spends on the ladder."""
NEIGHBOURS = 36
"""Refinements of the best known loss, and at most as many sums with others, that the arm `ladder + shelf, refined` tries."""
GATE, STANDARD, LADDER, RACED, BEST_FOUND = "gate", "standard", "ladder", "ladder + shelf", "best found"
REFINED = f"{RACED}, refined"
SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "no ladder": {"ladder.share": 0.0},
    "no start": {"evolution.start": ()},
    "no model": {"search.proposer": "evolution"},
    "no rungs": {"search.rungs": (1.0,)},
    "neither ladder nor start": {"ladder.share": 0.0, "evolution.start": ()},
    "random": {"search.proposer": "random", "ladder.share": 0.0, "evolution.start": ()},
}
"""Arm → what it changes of the settings of a search: nothing, or one part left out."""
ARMS = (STANDARD, LADDER, RACED, REFINED, *SEARCHES)


@dataclass(frozen=True, slots=True)
class Work:
    """One arm on one task with one seed, or the gate of a task (`GATE`)."""

    task: str
    arm: str
    seed: int = 0
    budget: int = BUDGET
    quick: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """The arm as rows name it: a search with other settings has a name of its own."""
        return f"{self.arm}, {self.label}" if self.label and self.arm in SEARCHES else self.arm


def perform(work: Work) -> list[dict[str, Any]]:
    """Do one piece of work, and return the rows that are kept of it."""
    began = time.perf_counter()
    rows = _open_gate(work) if work.arm == GATE else _run_arm(work)
    seconds = round(time.perf_counter() - began, 1)
    return [{**row, "seconds": seconds} for row in rows]


def _make(work: Work) -> autoloss.SupervisedTask:
    return BY_NAME[work.task].make(steps_share=0.2 if work.quick else 1.0)


def _make_auditor(work: Work) -> Auditor:
    seeds = 2 if work.quick else AUDIT_SEEDS
    return Auditor(BY_NAME[work.task], seeds, steps_share=0.2 if work.quick else 1.0)


def tune_standard(task: autoloss.SupervisedTask, valid: Trainer) -> Entrant:
    """Return the standard loss at its best learning rate: the reference of every arm."""
    given = standard_entrant(task)
    assert given is not None
    seeds = training_seeds(0, "away: standard", 2)
    grid = [replace(given, learning_rate=rate) for rate in LEARNING_RATES]
    first = _rank(valid, grid, seeds[:1])[:2]
    return (_rank(valid, first, seeds) or [given])[0]


def _rank(valid: Trainer, entrants: Sequence[Entrant], seeds: Sequence[int], fidelity: float = 1.0) -> list[Entrant]:
    return rank_means({one: valid.measure(one, seeds, fidelity) for one in entrants})


def list_shelf(task: autoloss.SupervisedTask, leader: Entrant) -> list[Entrant]:
    """Return the losses of the shelf that fit the task, each at a small grid of rates around that of the ladder's best."""
    fitting = [entry.name for entry in zoo.SHELF if fits(entry, MAIN, task)]
    return [
        replace(leader, label=name, loss=name, learning_rate=leader.learning_rate * rate, length=1.0)
        for name in fitting
        for rate in RATES
    ]


def take_best_rates(ranked: Sequence[Entrant]) -> list[Entrant]:
    """Return each loss at the rate that comes first, in order."""
    best: dict[str, Entrant] = {}
    for one in ranked:
        best.setdefault(one.loss, one)
    return list(best.values())


def _open_gate(work: Work) -> list[dict[str, Any]]:
    """Judge the standard loss, the ladder's best, and the best losses of the shelf on the audit split, each at its best rate.

    The loss of the shelf that counts is the one with the highest mean on the valid split.
    """
    task, auditor = _make(work), _make_auditor(work)
    valid = Trainer(task, "valid")
    tuned = tune_standard(task, valid)
    ladder = autoloss.tune(task, trainings=6 if work.quick else 24, seed=0, workers=0)
    assert ladder.best is not None
    seeds = training_seeds(0, "away: shelf", 2 if work.quick else SHELF_SEEDS)
    grid = list_shelf(task, ladder.best.entrant)[: 6 if work.quick else None]
    chosen = _rank(valid, take_best_rates(_rank(valid, grid, seeds[:1]))[:CLOSE], seeds)
    judged = [("given", standard_entrant(task)), (STANDARD, tuned), (LADDER, ladder.best.entrant)]
    judged += [("shelf" if one is chosen[0] else one.loss, one) for one in chosen]
    return [write_row(work, role, one, auditor.judge(one)) for role, one in judged if one is not None]


def _run_arm(work: Work) -> list[dict[str, Any]]:
    task = _make(work)
    if work.arm == STANDARD:
        found: dict[str, Entrant | None] = {STANDARD: standard_entrant(task)}
    elif work.arm == LADDER:
        best = autoloss.tune(task, trainings=work.budget, seed=work.seed, workers=0).best
        found = {LADDER: None if best is None else best.entrant}
    elif work.arm == RACED:
        found = {RACED: race_shelf(task, work.seed, work.budget)}
    elif work.arm == REFINED:
        found = {REFINED: refine_winner(task, work.seed, race_shelf(task, work.seed, work.budget))}
    else:
        try:
            found = _search(task, work)
        except RunError as error:
            # It recommends nothing, which is not at or above anything.
            given = standard_entrant(task)
            assert given is not None
            nothing = Measurements((None,) * AUDIT_SEEDS)
            return [{**write_row(work, work.name, given, nothing), "stopped": str(error)}]
    auditor = _make_auditor(work)
    rows = [write_row(work, role, one, auditor.judge(one)) for role, one in found.items() if one is not None]
    return [{**row, "settings": dict(work.settings)} for row in rows]


def race_shelf(task: autoloss.SupervisedTask, seed: int, budget: float) -> Entrant:
    """Race the losses of the shelf with the best of a ladder, within one budget, as an expert without a search would.

    All rates at a quarter of the schedule, the best four whole, then the best two and the ladder's best on further seeds.
    """
    ladder = autoloss.tune(task, trainings=max(2.0, LADDER_SHARE * budget), seed=seed, workers=0)
    assert ladder.best is not None
    leader, valid, seeds = ladder.best.entrant, Trainer(task, "valid"), training_seeds(seed, "away: race", 4)
    ranked = _rank(valid, list_shelf(task, leader), seeds[:1], 0.25)
    whole = _rank(valid, take_best_rates(ranked)[:4], seeds[:1])[:2]
    return (_rank(valid, [leader, *whole], seeds) or [leader])[0]


def refine_winner(task: autoloss.SupervisedTask, seed: int, winner: Entrant) -> Entrant:
    """Race a known loss with those that are one number or one summand away from it: what is left for small steps.

    All of them once, the best eight on three seeds, the best three and the known loss on eight.
    """
    tree, alphabet = _get_tree(winner.loss), Alphabet(task.branches[MAIN].leaves_and_roles)
    rng = Random(seed)
    refined = dict.fromkeys(refine(tree, alphabet, rng) for _ in range(10 * NEIGHBOURS))
    others = dict.fromkeys(_get_tree(one.loss) for one in list_shelf(task, winner))
    sums = [build("add", tree, weigh(other, weight)) for other in others if other != tree for weight in WEIGHTS]
    near = [tree for part in (list(refined), sums) for tree in rng.sample(part, min(NEIGHBOURS, len(part)))]
    valid, seeds = Trainer(task, "valid"), training_seeds(seed, "away: refine", 8)
    once = _rank(valid, [replace(winner, label=str(one), loss=str(one)) for one in near], seeds[:1])
    thrice = _rank(valid, once[:8], seeds[:3])
    return _rank(valid, [winner, *thrice[:3]], seeds)[0]


def _get_tree(name: str) -> Expression:
    found = zoo.get(name)
    assert isinstance(found, autoloss.Loss)
    return found[MAIN]


def _search(task: autoloss.SupervisedTask, work: Work) -> dict[str, Entrant | None]:
    settings: dict[str, Any] = {**SEARCHES[work.arm], **dict(work.settings)}
    if work.quick:
        settings |= {"evolution.initial": 4, "evolution.lag": 1, "final.confirm": 2, "final.finalists": 2}
        settings |= {"final.confirm_seeds": 1, "final.compare_seeds": 3, "evolution.start": ()}
    with TemporaryDirectory() as folder:
        found = autoloss.search(
            task,
            evaluations=work.budget,
            seed=work.seed,
            workers=0,
            directory=Path(folder) / "run",
            settings=settings,
        )
        # At the rate at which it was compared.
        best = [find_learning_rate(found, Entrant(f"#{one.id}", one.formula)) for one in found.best_first(1)]
        return {work.name: make_entrant(found), f"{work.name}, {BEST_FOUND}": next(iter(best), None)}


def write_row(work: Work, role: str, entrant: Entrant, audit: Measurements) -> dict[str, Any]:
    """Return the row of a way of training that was judged on the audit split."""
    found = {"task": work.task, "arm": work.name, "role": role, "seed": work.seed}
    return {**found, "entrant": describe_entrant(entrant), **write_audit(audit)}
