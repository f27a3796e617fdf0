"""What a run came to, read from its store; reading needs no torch and disturbs nobody."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autoloss.run.columns import Columns
from autoloss.search.jobs import Train
from autoloss.search.records import Individual, Outcome, State
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Store
from autoloss.trainings.entrant import COMPARISON, TEST, Entrant, training_seeds
from autoloss.trainings.table import Row, collect_rows, confirmed_rows, sort_by_mean

if TYPE_CHECKING:
    from autoloss.settings import Configuration
    from autoloss.space.loss import Loss
    from autoloss.space.operators import Operator


@dataclass(frozen=True, slots=True)
class Found:
    """A loss that a search found.

    Args:
        formula: Its text.
        score: The metric of its proxy training on the valid split.
        confirmed: Mean over fresh seeds on the valid split, or None when it was not re-trained.
        fresh_seeds: The number of those seeds; the finalists have more than the others.
        leaves: Branch → names of its leaves.
        operators: The run's own, as objects or by reference.
    """

    id: int
    score: float
    formula: str
    confirmed: float | None = None
    fresh_seeds: int = 0
    leaves: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)
    operators: Sequence[Operator | str] = field(default=(), repr=False, compare=False)

    @property
    def loss(self) -> Loss:
        from autoloss.run.resolving import operator_table
        from autoloss.space.loss import Loss

        return Loss.parse(self.formula, self.leaves, operator_table(self.operators))

    @property
    def size(self) -> int:
        """The number of operators over all branches; in prefix text each has one opening parenthesis."""
        return self.formula.count("(")


NOTHING_GAINED = 0.1
"""Of what the best of a run gained over the untrained network: a training that gained less came to nothing."""


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
    def of(cls, columns: Columns, untrained: float | None) -> InVain:
        scores = [columns.score(number) or 0.0 for number in columns.ranked]
        diverged = columns.trained[State.DIVERGED]
        standing = None
        if untrained is not None and scores:
            enough = untrained + NOTHING_GAINED * max(0.0, max(scores) - untrained)
            standing = sum(score <= enough for score in scores)
        return cls(len(scores) + diverged, diverged, standing, untrained)


@dataclass(frozen=True, slots=True)
class Search:
    """A run and what it came to.

    Args:
        settings: How the run was started.
        history: Its individuals in order, up to the first without an outcome; a reader's has those after gaps too, and reads each
            when it is asked for.
        end: Why it ended.
        confirmed: The best, re-trained on fresh seeds of the valid split; the winner first.
        comparison: The best of those and the baselines on the test split, the best first.
        own: Operators that were given as objects.
        columns: The same history as numbers.
    """

    directory: Path
    settings: RunSettings
    history: Sequence[Individual]
    end: str = "it is not finished"
    confirmed: Sequence[Row] = field(default=())
    comparison: Sequence[Row] = field(default=())
    own: Sequence[Operator] = field(default=(), repr=False)
    columns: Columns = field(default_factory=Columns, repr=False, compare=False)

    @property
    def operators(self) -> Sequence[Operator | str]:
        """The run's own operators: objects where these are at hand, else references."""
        objects: dict[str, Operator | str] = {operator.name: operator for operator in self.own}
        return [objects.get(name, name) for name in self.configuration.space.operators]

    @property
    def in_vain(self) -> InVain:
        """How many losses passed the rejection protocol and then trained nothing."""
        return InVain.of(self.columns, self.settings.untrained)

    @property
    def configuration(self) -> Configuration:
        return self.settings.configuration

    @property
    def best(self) -> Found:
        """The winner on fresh seeds or, where nothing was re-trained, the highest score.

        Raises:
            LookupError: No loss has a score.
        """
        # Nobody but the first few by score was trained on fresh seeds.
        ranked = self.top(max(1, self.configuration.final.confirm))
        if not ranked:
            raise LookupError(f"No loss of the run in {self.directory} has a score.")
        return max(ranked, key=standing)

    def top(self, count: int) -> list[Found]:
        """Return the best by score, each signature once; `best` goes by fresh seeds instead."""
        return self.chosen(self.columns.ranked[:count])

    def chosen(self, numbers: Sequence[int]) -> list[Found]:
        """Return losses with a score by their numbers."""
        again = {row.entrant.loss: row for row in self.confirmed if row.mean is not None}
        leaves, operators = self.settings.leaves, self.operators
        return [
            Found(best.id, best.score, best.formula, row.mean, len(row.scores), leaves, operators)
            if (row := again.get(best.formula))
            else Found(best.id, best.score, best.formula, leaves=leaves, operators=operators)
            for best in map(self.individual, numbers)
        ]

    def individual(self, number: int) -> Individual:
        """Return an individual of the history by its number.

        Raises:
            LookupError: There is none, or it has no outcome.
        """
        return _numbered(self.history, self.columns, number)


def _numbered(history: Sequence[Individual], columns: Columns, number: int) -> Individual:
    finished = columns.finished
    place = bisect_left(finished, number)
    if place == len(finished) or finished[place] != number:
        raise LookupError(f"No loss #{number} has an outcome.")
    return history[place]


def standing(found: Found) -> tuple[int, float]:
    """Return what losses are ordered by: the number of fresh seeds they stood, then the mean over these."""
    return found.fresh_seeds, found.score if found.confirmed is None else found.confirmed


def ranking(history: Sequence[Individual]) -> list[Individual]:
    """Return the trained individuals with a score, the best first; twins and copies are not listed again."""
    columns = Columns.of(history)
    return [_numbered(history, columns, number) for number in columns.ranked]


def best_entrants(history: Sequence[Individual], count: int, columns: Columns | None = None) -> list[Entrant]:
    """Return the losses that are re-trained before a winner is named.

    Args:
        columns: The same history as numbers, where these are at hand.
    """
    columns = columns or Columns.of(history)
    best = (_numbered(history, columns, number) for number in columns.ranked[:count])
    return [Entrant(f"#{individual.id}", individual.formula) for individual in best]


def open_run(directory: str | Path) -> Search:
    """Read a run as far as it is, without disturbing who drives it.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: A row is damaged.
    """
    with Store(Path(directory)) as store:
        return read_run(Path(directory), store)


def read_run(directory: Path, store: Store, end: str = "it is not finished") -> Search:
    """Read a run from its open store."""
    return summary(directory, store.settings(), individuals(store), store.trials(), end)


def summary(
    directory: Path,
    settings: RunSettings,
    history: Sequence[Individual],
    known: Mapping[Train, Outcome],
    end: str = "it is not finished",
    columns: Columns | None = None,
) -> Search:
    """Put together what a run came to.

    Args:
        known: Trainings beside the search.
        columns: The history as numbers, where these are at hand.
    """
    columns = columns or Columns.of(history)
    seed, final = settings.configuration.seed, settings.configuration.final
    confirmed = confirmed_rows(best_entrants(history, final.confirm, columns), seed, final, known)
    entrants = [Entrant(**entrant) for entrant in settings.comparison.entrants]
    comparison = collect_rows(entrants, training_seeds(seed, COMPARISON, settings.comparison.seeds), TEST, known)
    return Search(directory, settings, history, end, confirmed, sort_by_mean(comparison), columns=columns)


def individuals(store: Store) -> list[Individual]:
    """Return the children up to the first without an outcome, each with its own or shared one."""
    # Outcomes first: a child that is appended in between then lacks its outcome, never the other way round.
    outcomes = store.outcomes()
    found: list[Individual] = []
    for child in store.children():
        outcome = outcomes.get(child.id if child.source is None else child.source)
        if outcome is None:
            break
        # A later copy may share what is shared here.
        outcomes[child.id] = outcome
        found.append(Individual(child, outcome))
    return found


def training_command(search: Search, loss: str) -> str:
    """Return the command that trains with a loss as this run did."""
    task = search.settings.task
    options = dict(task.options)
    parts = ["autoloss score", shlex.quote(task.name or "TASK"), "--loss", shlex.quote(loss)]
    for name in ("metric", "data"):
        if name in options:
            parts += [f"--{name}", shlex.quote(str(options.pop(name)))]
    parts += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in options.items()]
    parts += [f"--frozen {shlex.quote(f'{name}={text}')}" for name, text in task.frozen.items()]
    parts += [f"--operators {shlex.quote(name)}" for name in search.configuration.space.operators]
    return " ".join([*parts, f"--seed {search.configuration.seed}"])
