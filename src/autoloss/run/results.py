"""What a run came to, read from its store; reading needs no torch and disturbs nobody."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoloss.search.jobs import Train
from autoloss.search.records import Individual, Origin, Outcome, State
from autoloss.store.read import Reader, read_once
from autoloss.trainings.evidence import COMPARISON, CONFIRMATION, TEST, Entrant, Row, by_evidence, by_mean, rows, seeds

if TYPE_CHECKING:
    from autoloss.settings import Configuration
    from autoloss.space.loss import Loss
    from autoloss.space.operators import Operator


UNTRAINED = "untrained"
"""Key of a run's setting: the score of the network that its trainings begin with, as JSON."""
NOTHING_GAINED = 0.1
"""Of what the best of a run gained over the untrained network: a training that gained less came to nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """A loss that a search found.

    Args:
        score: The metric of its proxy training on the valid split.
        formula: Its text.
        confirmed: Mean over new training seeds on the valid split, or None when it was not trained again.
        fresh_seeds: The number of those seeds; the finalists have more than the others.
        also: Further metrics of its proxy training.
        leaves: Branch → names of its leaves.
        operators: The run's own, as objects or by reference.
    """

    id: int
    score: float
    formula: str
    confirmed: float | None = None
    fresh_seeds: int = 0
    also: Mapping[str, float] = field(default_factory=dict, compare=False)
    leaves: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)
    operators: Sequence[Operator | str] = field(default=(), repr=False, compare=False)

    @property
    def loss(self) -> Loss:
        from autoloss.run.own_operators import operator_table
        from autoloss.space.loss import Loss

        return Loss.parse(self.formula, self.leaves, operator_table(self.operators))

    @property
    def size(self) -> int:
        """The number of operators over all branches; in prefix text each has one opening parenthesis."""
        return self.formula.count("(")


@dataclass(frozen=True, slots=True)
class InVain:
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
    def of(cls, scores: Sequence[float], diverged: int, untrained: float | None) -> InVain:
        standing = None
        if untrained is not None and scores:
            enough = untrained + NOTHING_GAINED * max(0.0, max(scores) - untrained)
            standing = sum(score <= enough for score in scores)
        return cls(len(scores) + diverged, diverged, standing, untrained)


@dataclass(frozen=True, eq=False)
class Search:
    """A run and what it came to.

    Args:
        reader: What was read of it.
        end: Why it ended.
        own: Operators that were handed over in Python.
    """

    reader: Reader
    end: str = "it is not finished"
    own: Sequence[Operator] = field(default=(), repr=False)

    @property
    def directory(self) -> Path:
        return self.reader.directory

    @property
    def settings(self) -> Mapping[str, str]:
        """What the store keeps of the run: configuration, task, title, branches."""
        return self.reader.settings

    @cached_property
    def history(self) -> Sequence[Individual]:
        """The candidates in order with their outcomes, up to the first without one."""
        return self.reader.history()

    @cached_property
    def confirmed(self) -> Sequence[Row]:
        """The best, trained again on new seeds of the valid split; the winner first."""
        seed, final = self._configuration["seed"], self._configuration["final"]
        best = self.reader.losses(self.reader.ranking[: final["confirm"]])
        entrants = [Entrant(f"#{row['id']}", row["loss"]) for row in best]
        return confirmations(entrants, seed, final, self.reader.trainings)

    @cached_property
    def comparison(self) -> Sequence[Row]:
        """The best of those and the baselines on the test split, the best first."""
        listed = json.loads(self.settings.get(COMPARISON, '{"seeds": 0, "entrants": []}'))
        entrants = [Entrant(**entrant) for entrant in listed["entrants"]]
        again = seeds(self._configuration["seed"], COMPARISON, listed["seeds"])
        return by_mean(rows(entrants, again, TEST, self.reader.trainings))

    @cached_property
    def _configuration(self) -> Mapping[str, Any]:
        return json.loads(self.settings["configuration"])

    @property
    def operators(self) -> Sequence[Operator | str]:
        """The run's own operators: objects where these are at hand, else references."""
        kept: list[str] = self._configuration.get("space", {}).get("operators", ())
        objects: dict[str, Operator | str] = {operator.name: operator for operator in self.own}
        return [objects.get(name, name) for name in kept]

    @property
    def in_vain(self) -> InVain:
        """How many losses passed the rejection protocol and then trained nothing."""
        untrained = json.loads(self.settings.get(UNTRAINED, "null"))
        return InVain.of(self.reader.scores, self.reader.states.get(State.DIVERGED, 0), untrained)

    @property
    def configuration(self) -> Configuration:
        from autoloss.settings import Configuration

        return Configuration.from_json(self.settings["configuration"])

    @property
    def best(self) -> Found:
        """The winner on new seeds or, where nothing was trained again, the highest score.

        Raises:
            LookupError: No loss has a score.
        """
        # Nobody but the first few by score was trained on new seeds.
        ranked = self.top(max(1, self._configuration["final"]["confirm"]))
        if not ranked:
            raise LookupError(f"No loss of the run in {self.directory} has a score.")
        return max(ranked, key=standing)

    def top(self, count: int) -> list[Found]:
        """Return the best by score, each signature once; `best` goes by new seeds instead."""
        return self.chosen(self.reader.ranking[:count])

    def chosen(self, numbers: Sequence[int]) -> list[Found]:
        """Return losses with an outcome by their numbers."""
        again = {row.entrant.loss: row for row in self.confirmed if row.mean is not None}
        leaves = {name: tuple(form["leaves"]) for name, form in json.loads(self.settings["branches"]).items()}
        operators = self.operators
        found = []
        for row in self.reader.losses(numbers):
            score = float("-inf") if row["score"] is None else row["score"]
            confirmed = again.get(row["loss"])
            mean, count = (None, 0) if confirmed is None else (confirmed.mean, len(confirmed.scores))
            found.append(Found(row["id"], score, row["loss"], mean, count, json.loads(row["also"]), leaves, operators))
        return found


def standing(found: Found) -> tuple[int, float]:
    """Return what losses are ordered by: the number of new seeds they were trained on, then the mean over these."""
    return found.fresh_seeds, found.score if found.confirmed is None else found.confirmed


def ranking(history: Sequence[Individual]) -> list[Individual]:
    """Return the trained individuals with a score, the best first; twins and copies are not listed again."""
    trained = [one for one in history if one.child.origin is Origin.TRAINED and one.outcome.score is not None]
    # A stable order: of equal scores the earlier candidate counts.
    return sorted(trained, key=lambda one: -one.score)


def confirmation(history: Sequence[Individual], count: int) -> list[Entrant]:
    """Return the losses that are re-trained before a winner is named."""
    return [Entrant(f"#{individual.id}", individual.formula) for individual in ranking(history)[:count]]


def confirmations(
    entrants: Sequence[Entrant], seed: int, final: Mapping[str, int], known: Mapping[Train, Outcome]
) -> list[Row]:
    """Return what re-training came to, the winner first; a finalist has its further seeds as soon as all of them are known.

    Args:
        final: `FinalSettings` as values; a run of an earlier release has no finalists.
    """
    first, further = final["confirm_seeds"], final.get("finalist_seeds", 0)
    again = seeds(seed, CONFIRMATION, first + further)
    best = by_mean(rows(entrants, again[:first], "valid", known))
    chosen = [row.entrant for row in best[: final.get("finalists", 0)]]
    whole = {row.entrant: row for row in rows(chosen, again, "valid", known)}
    return by_evidence([whole.get(row.entrant, row) for row in best])


def open_run(directory: str | Path) -> Search:
    """Read a run as far as it is, without disturbing who drives it.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: A row is damaged.
    """
    return Search(read_once(directory))


def read_run(directory: Path, end: str = "it is not finished", own: Sequence[Operator] = ()) -> Search:
    """Read a whole run, as its driver returns it: nothing is read from its directory later."""
    found = Search(read_once(directory), end, own)
    # A caller may remove the directory.
    _ = found.history
    return found


def training_command(search: Search, loss: str) -> str:
    """Return the command that trains with a loss as this run did."""
    task = json.loads(search.settings["task"])
    options = dict(task["options"])
    parts = ["autoloss score", shlex.quote(task["name"] or "TASK"), "--loss", shlex.quote(loss)]
    for name in ("metric", "data"):
        if name in options:
            parts += [f"--{name}", shlex.quote(str(options.pop(name)))]
    parts += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in options.items()]
    parts += [f"--frozen {shlex.quote(f'{name}={text}')}" for name, text in task.get("frozen", {}).items()]
    configuration = json.loads(search.settings["configuration"])
    parts += [f"--operators {shlex.quote(name)}" for name in configuration.get("space", {}).get("operators", ())]
    return " ".join([*parts, f"--seed {configuration['seed']}"])
