"""The state of a run: searching, confirming, finished or stopped, and the spent part of its budget."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from autoloss.comparison.entrant import count_after_search
from autoloss.report.shares import list_charges, trains_short
from autoloss.run.results import Search

ROUNDING = 1e-9
"""Rounding error of sums of shares."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run.

    Args:
        going: True if a process drives the run now.
        word: The state in a few words.
        sentence: Details, in a sentence.
        charged: Training equivalents spent so far, of `budget`.
        unit: Name of that unit.
        command: The command that resumes a stopped run.
    """

    going: bool
    word: str
    sentence: str
    charged: float
    budget: int
    unit: str
    command: str = ""

    @property
    def progress(self) -> str:
        """The spent part of the budget, such as `12.5 of 500`."""
        return f"{self.charged:.4g} of {self.budget}"


def state_of(search: Search) -> State:
    """Return the state of a run."""
    reader = search.reader
    charged = math.fsum(list_charges(search))
    expected, known = _count_final_trainings(search), count_after_search(reader.trainings, search.configuration.seed)
    # The process that drove a run still holds its lock when it reads the result.
    alive = reader.alive if search.branches is None else False
    going, command = True, ""
    if _is_searched(search, charged, alive):
        going = known < expected and bool(alive)
        word, sentence = "finished", ""
        if going:
            word = "confirming the best"
            sentence = f"{known} of at least {expected} trainings on new training seeds and of baselines are done"
    elif alive is None:
        word, sentence = "on another machine", "Another machine drives this run; its state is unknown here."
    elif alive:
        word, sentence = "searching", f"{len(reader.running)} in training now"
    else:
        going, word, sentence = False, "stopped", "Everything finished is saved."
        command = shlex.join(["autoloss", "resume", str(search.directory)])
    unit = "training equivalents" if trains_short(search) else "trainings"
    return State(going, word, sentence, charged, search.configuration.evaluations, unit, command)


def _is_searched(search: Search, charged: float, alive: bool | None) -> bool:
    """Return True if the budget is spent; less than a whole training may be left if the next one is whole."""
    left = search.configuration.evaluations - charged
    if left < search.configuration.search.rungs[0] - ROUNDING:
        return True
    # A running search has a running training, except between two of them.
    goes_on = search.reader.running or (alive is not False and not search.reader.trainings)
    return left < 1 - ROUNDING and not goes_on


def _count_final_trainings(search: Search) -> int:
    """Return the least number of trainings that follow the search; those of baselines depend on the task."""
    final, comparison = search.configuration.final, search.settings.comparison
    if not search.settings.final:
        return 0
    best = len(search.finalists)
    # The last finalist of the race gets all further seeds; the others may get none.
    further = final.finalist_seeds if final.confirmations and min(final.finalists, best) else 0
    compared = comparison.seeds * len(comparison.entrants) or min(final.compare, best) * final.compare_seeds
    return best * final.confirmations + further + compared
