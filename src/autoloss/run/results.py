"""The results of a run, read from its store; reading needs no torch and locks nothing."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from autoloss.comparison.entrant import Entrant, Row, Rows, read_comparison
from autoloss.comparison.explanation import Explanation, Plan, read_explanation
from autoloss.comparison.judgement import Judgement, Recommendation, Standing, judge_comparison, recommend
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.racing import follow_race
from autoloss.errors import RequestError
from autoloss.options import Natural, checked
from autoloss.proposing.records import Individual, State
from autoloss.run.user_files import Trust
from autoloss.showing import plot, to_html
from autoloss.space.loss_text import join_losses, split_branches, split_factor
from autoloss.store.read import Reader, read_once
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import read_figures
from autoloss.zoo.entries import say_loss

if TYPE_CHECKING:
    from autoloss.settings import Configuration
    from autoloss.space.branch import Branch
    from autoloss.space.form import BranchForm
    from autoloss.space.loss import Loss
    from autoloss.space.operators import Operator


_CALL = re.compile(r"(\w+)\(")
LOOKED_AT = 100
"""Number of losses behind the best that may take the places of those that learned nothing."""
LISTED = 10
"""Number of losses that a message lists."""
NOTHING_GAINED = 0.1
"""Share of the best loss's gain over the untrained network below which a training counts as having learned nothing."""


@dataclass(frozen=True, slots=True)
class FoundLoss:
    """A loss that a search found.

    Args:
        id: The number of its candidate.
        score: The metric of its proxy training on the valid split, or its mean over several; minus infinity where it has none.
        formula: Its text.
        also: Further metrics of its proxy training, or their means.
        deviation: Standard deviation of the score over the proxy trainings; None for a single one.
        trainings: Number of proxy trainings (seeds, folds) at that share of the schedule.
        fidelity: Share of the schedule at which it has that score.
        confirmed: Mean over new training seeds on the valid split, or None when it was not trained again.
        fresh_seeds: The number of those seeds; close finalists have more than the others.
        run: The search that found it.
    """

    id: int
    score: float
    formula: str
    also: Mapping[str, float] = field(repr=False, compare=False)
    confirmed: float | None
    fresh_seeds: int
    fidelity: float
    deviation: float | None
    trainings: int
    run: Search = field(repr=False, compare=False)

    @property
    def forms(self) -> Mapping[str, BranchForm]:
        """Branch → what the run stores of it."""
        return self.run.settings.branches

    @property
    def loss(self) -> Loss:
        """The loss, which `Loss.criterion` turns into a module.

        Raises:
            RequestError: It has operators of the run's own, in files that nobody vouches for.
        """
        from autoloss.run.resolving import operator_table
        from autoloss.run.user_files import check_trust
        from autoloss.space.loss import Loss
        from autoloss.space.operators import OPERATORS

        leaves = self.run.settings.leaves
        if not set(_CALL.findall(self.formula)) - set(OPERATORS):
            return Loss.parse(self.formula, leaves)
        check_trust(self.run.settings, self.run.directory, self.run.trust, task=False)
        return Loss.parse(self.formula, leaves, operator_table(self.run.operators))

    @property
    def size(self) -> int:
        """The number of operators over all branches; in prefix text each has one opening parenthesis."""
        return self.formula.count("(")


@dataclass(frozen=True, slots=True)
class NeverTrained:
    """Losses that passed the rejection protocol on every branch and then trained nothing.

    Args:
        trained: Losses that passed and were trained to an end.
        diverged: Of these, how many have no score.
        standing: How many gained next to nothing over the untrained network; None where its score is not known.
        untrained: That score.
    """

    trained: int
    diverged: int
    standing: int | None
    untrained: float | None

    @classmethod
    def of(cls, scores: Sequence[float], diverged: int, untrained: float | None) -> NeverTrained:
        """Count the scores that gained next to nothing."""
        standing = None
        if untrained is not None and scores:
            standing = len(scores) - len(leave_out_idle([(1.0, score) for score in scores], untrained))
        return cls(len(scores) + diverged, diverged, standing, untrained)


@dataclass(frozen=True, eq=False)
class Search:
    """A run and its results.

    Args:
        reader: The content of the run's store.
        end: Why the search ended; empty for a run that is only read.
        own: Operators that were given as objects.
        branches: Those of the task, if this process ran the search.
        trust: Which files that the run names may be run, even if another user started it.
    """

    reader: Reader
    end: str = ""
    own: Sequence[Operator] = field(default=(), repr=False)
    branches: Mapping[str, Branch] | None = field(default=None, repr=False)
    trust: Trust = field(default=False, repr=False)

    _repr_html_, plot = to_html, plot

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return self.reader.directory

    @property
    def settings(self) -> RunSettings:
        """The request that started the run."""
        return self.reader.settings

    @property
    def configuration(self) -> Configuration:
        """All settings of the run."""
        return self.settings.configuration

    @cached_property
    def history(self) -> Sequence[Individual]:
        """The candidates in order with their outcomes, up to the first without one."""
        return self.reader.history()

    @cached_property
    def finalists(self) -> Sequence[Entrant]:
        """The best losses, which are confirmed on new seeds or only compared; those that learned nothing are left out."""
        return self._learned[: self.configuration.final.candidates]

    @cached_property
    def rivals(self) -> Sequence[Entrant]:
        """What the finalists are raced with: the ladder's best, and the best loss that the search started from."""
        known = next((one for one in self._learned if one.known), None)
        found = [] if known is None or known in self.finalists else [known]
        best = None if self.ladder is None else self.ladder.best
        return found if best is None else [*found, best.entrant]

    @cached_property
    def _learned(self) -> Sequence[Entrant]:
        """The best losses without those that learned nothing."""
        ranked = self.reader.losses(self.reader.ranking[: LOOKED_AT + self.configuration.final.candidates])
        learned = leave_out_idle([(row["fidelity"], row["score"]) for row in ranked], self.settings.untrained)
        return [self.enter(ranked[at]["id"], ranked[at]["loss"]) for at in learned]

    def enter(self, number: int, loss: str) -> Entrant:
        """Return a candidate as an entrant, trained as the search does; it is known where the search started from its loss."""
        trees = _leave_out_factors(loss)
        known = any(trees == _leave_out_factors(one) for one in self.configuration.evolution.start)
        start = (one for one in self.settings.start if one.label != one.loss)
        names = (say_loss(one.label) for one in start if trees == _leave_out_factors(one.loss))
        return Entrant(" ".join((f"#{number}", *islice(names, 1))), loss, known=known).follow(self.configuration.search)

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """What to train with: the loss found only where it is ahead of all that was known before, and where it was explained
        nothing plainer is as good; None while nothing is known."""
        best = self.best.id if self.top(1) else None
        found = recommend(self.comparison, best, self.ladder, join_losses(self.settings.standard_loss))
        explained = self.explanation
        if found and found.origin == "found" and explained and explained.loss.entrant.number == best:
            return explained.recommendation or found
        return found

    @cached_property
    def ladder(self) -> Ladder | None:
        """What an expert would try with the standard loss; None where it was left out, or is not climbed yet."""
        return None if self.settings.ladder is None else Ladder.from_dict(self.settings.ladder)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Why a loss is ahead of the standard loss; None where `autoloss explain` was not run."""
        plan = self.settings.explanation
        seed, trainings = self.configuration.seed, self.reader.trainings
        return None if plan is None else read_explanation(Plan.from_dict(plan), seed, trainings)

    @cached_property
    def confirmed(self) -> Sequence[Row]:
        """The finalists and what they are raced with, trained again on new seeds of the valid split; the best first."""
        seed, final = self.configuration.seed, self.configuration.final
        if not final.confirmations:
            return ()
        return follow_race([*self.finalists, *self.rivals], seed, final, self.reader.trainings)[0]

    @cached_property
    def comparison(self) -> Rows:
        """The best of those and the baselines on the test split, the best first."""
        return read_comparison(self.settings.comparison, self.configuration.seed, self.reader.trainings)

    @cached_property
    def judgement(self) -> Judgement:
        """The verdict on whether the best loss beats the best baseline on the test split."""
        trained = {row.entrant.label for row in self.comparison}
        planned = {entrant["label"] for entrant in self.settings.comparison.entrants if entrant.get("baseline")}
        if planned and planned.isdisjoint(trained):
            # The comparison was stopped before any baseline was trained.
            return Judgement(Standing.NOT_COMPARED)
        return judge_comparison(self.comparison, self.best.id if self.top(1) else None)

    @property
    def operators(self) -> Sequence[Operator | str]:
        """The run's own operators: objects where these are at hand, else references."""
        objects: dict[str, Operator | str] = {operator.name: operator for operator in self.own}
        return [objects.get(name, name) for name in self.configuration.space.operators]

    @property
    def never_trained(self) -> NeverTrained:
        """The number of losses that passed the rejection protocol and then trained nothing."""
        diverged = self.reader.trained(State.DIVERGED)
        return NeverTrained.of(self.reader.scores, diverged, self.settings.untrained)

    @property
    def best(self) -> FoundLoss:
        """The best on new training seeds or, where nothing was trained again, the highest score.

        Raises:
            LookupError: No loss has a score.
        """
        for found in self.best_first(1):
            return found
        raise LookupError(f"No loss of the run in {self.directory} has a score.")

    def choose(self, number: int | None) -> FoundLoss:
        """Return the loss of this number, or the best if omitted.

        Raises:
            RequestError: It has no outcome, or no loss has a score.
        """
        if number is None and not self.top(1):
            raise RequestError(f"No loss of the run in {self.directory} has a score yet; see `autoloss failures`.")
        for found in [self.best] if number is None else self.losses([number]):
            return found
        listed = ", ".join(f"#{found.id}" for found in self.top(LISTED)) or "none has a score yet"
        raise RequestError(f"There is no finished loss #{number} in {self.directory}. The best are: {listed}.")

    def best_first(self, count: int) -> list[FoundLoss]:
        """Return the losses as new training seeds rank them, then those that were not trained on new seeds, by score."""
        confirmed = [row.entrant.number for row in self.confirmed if row.mean is not None]
        order = dict.fromkeys([*(number for number in confirmed if number is not None), *self.reader.ranking])
        return self.losses(list(order)[:count])

    @checked
    def top(self, count: Natural) -> list[FoundLoss]:
        """Return the highest scores, each signature once; `best` uses the scores on new training seeds instead."""
        return self.losses(self.reader.ranking[:count])

    def losses(self, numbers: Sequence[int]) -> list[FoundLoss]:
        """Return losses with an outcome by their numbers."""
        again = {row.entrant.loss: row for row in self.confirmed if row.mean is not None}
        found = []
        for row in self.reader.losses(numbers):
            score = float("-inf") if row["score"] is None else row["score"]
            confirmed = again.get(row["loss"])
            mean, count = (None, 0) if confirmed is None else (confirmed.mean, len(confirmed.scores))
            found.append(
                FoundLoss(
                    id=row["id"],
                    score=score,
                    formula=row["loss"],
                    also=read_figures(row["also"]),
                    confirmed=mean,
                    fresh_seeds=count,
                    fidelity=row["fidelity"],
                    deviation=row["deviation"],
                    trainings=row["count"],
                    run=self,
                )
            )
        return found


def _leave_out_factors(loss: str) -> tuple[tuple[str, str], ...]:
    """Return the trees of a loss by branch, without the factors of the search."""
    return tuple((branch, split_factor(tree)[1]) for branch, tree in split_branches(loss).items())


def leave_out_idle(scores: Sequence[tuple[float, float]], untrained: float | None) -> list[int]:
    """Return the places of the losses that learned something: they gained at least `NOTHING_GAINED` of what the best gained.

    Args:
        scores: (Share of the schedule, score) of each loss; scores are compared at one share only.
        untrained: Score of the untrained network; None where it is not known, and none is left out.

    >>> leave_out_idle([(1.0, 0.7), (1.0, 0.0), (0.5, 0.1), (0.5, 0.0)], untrained=0.0)
    [0, 2]
    """
    if untrained is None:
        return list(range(len(scores)))
    best: dict[float, float] = {}
    for share, score in scores:
        best[share] = max(score, best.get(share, score))
    enough = {share: untrained + NOTHING_GAINED * max(0.0, most - untrained) for share, most in best.items()}
    return [at for at, (share, score) in enumerate(scores) if score > enough[share]]


@checked
def open_run(directory: str | Path, *, trust: Trust = False) -> Search:
    """Read a run, finished or running, without locking it.

    Args:
        directory: Folder of the run.
        trust: Load files of operators that the run names, even if another user started it.

    Returns:
        The run up to now.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: A row is damaged.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="iris")
    >>> autoloss.open_run("iris").best == found.best
    True
    """
    return Search(read_once(directory), trust=trust)


def find_learning_rate(search: Search, entrant: Entrant) -> Entrant:
    """Return a loss as it was compared in a run: if in several ways, as it is recommended, or the best on the valid split.

    Where it was not compared, with the learning rate of the search.
    """
    sought = entrant.loss if entrant.number is None else entrant.number
    compared = [Entrant(**values) for values in search.settings.comparison.entrants]
    same = [one for one in compared if sought == (one.loss if one.number is None else one.number)]
    # A threshold that is tuned on the valid split is the best there, also where it is not on other data.
    if (advised := search.recommendation) is not None:
        plain = {"label": advised.name, "scale": 1.0, "baseline": False, "known": False}
        same = [one for one in same if replace(one, **plain) == advised.entrant] or same
    scores = {row.entrant: row.valid.mean for row in search.comparison if row.valid.mean is not None}
    # The standard loss at its best learning rate is listed after the one at the recipe's.
    best = max(reversed(same), key=lambda one: scores.get(one, -math.inf), default=None)
    return best or entrant.follow(search.configuration.search).spell_out()


def training_command(search: Search, loss: str) -> str:
    """Return the command that trains with a loss as this run did."""
    name, *options = search.settings.task.to_arguments()
    parts = ["autoloss score", name, "--loss", shlex.quote(loss), *options]
    settings = search.configuration.search
    parts += [f"--set search.learning_rate={settings.learning_rate:g}"] * (settings.learning_rate != 1)
    parts += [f"--set search.step_rule={settings.step_rule}"] * (settings.step_rule != "recipe")
    parts += [f"--set search.length={settings.length:g}"] * (settings.length != 1)
    parts += ["--set search.tuned_threshold=true"] * settings.tuned_threshold
    parts += [f"--frozen {shlex.quote(f'{name}={text}')}" for name, text in search.settings.task.frozen.items()]
    parts += [f"--operators {shlex.quote(name)}" for name in search.configuration.space.operators]
    return " ".join([*parts, f"--seed {search.configuration.seed}"])
