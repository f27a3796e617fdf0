"""The first screen in words: whether the winner is better than the best baseline, how certain that is, and the state of the run."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from autoloss.comparison.judgement import Standing
from autoloss.numbers import figure
from autoloss.report.shares import at_share, list_charges, trains_short
from autoloss.report.verdict import (
    NOTHING,
    Step,
    Tone,
    answer,
    evidence,
    explain_identity,
    next_steps,
)
from autoloss.run.results import Search

ROUNDING = 1e-9
"""Of sums of shares."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the first screen says.

    Args:
        headline: The answer.
        sentences: What it rests on.
        best: Number of the loss that it is about, or None.
        is_win: Whether that loss beats the best baseline.
        steps: What to do next, where there is something.
    """

    headline: str
    tone: Tone
    sentences: tuple[str, ...] = ()
    best: int | None = None
    is_win: bool = False
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run.

    Args:
        going: Whether a process drives it now.
        word: The state in one or two words.
        sentence: What is under way, or what to do.
        charged: Training equivalents so far, of `budget`; `unit` is what they are called.
        command: The command that resumes it, where it stopped.
    """

    going: bool
    word: str
    sentence: str
    charged: float
    budget: int
    command: str = ""
    unit: str = "trainings"

    @property
    def progress(self) -> str:
        return f"{self.charged:.4g} of {self.budget}"


def state_of(search: Search) -> State:
    """Return the state of a run: searching, confirming, finished or stopped."""
    reader = search.reader
    budget = search.configuration.evaluations
    charged = math.fsum(list_charges(search))
    unit = "training equivalents" if trains_short(search) else "trainings"
    expected = _trials_expected(search)
    known = len(reader.trainings)
    again = shlex.join(["autoloss", "resume", str(search.directory)])
    searched = _is_searched(search, charged)
    if searched and (known >= expected or not reader.alive):
        return State(False, "finished", "", charged, budget, unit=unit)
    if searched:
        done = f"{known} of at least {expected} trainings on new training seeds and of baselines are done"
        return State(True, "confirming the best", done, charged, budget, unit=unit)
    if reader.alive is None:
        sentence = "Another machine drives this run; its state is unknown here."
        return State(True, "on another machine", sentence, charged, budget, unit=unit)
    if reader.alive:
        return State(True, "searching", f"{len(reader.running)} in training now", charged, budget, unit=unit)
    return State(False, "stopped", "Nothing is lost. Resume with:", charged, budget, again, unit)


def _is_searched(search: Search, charged: float) -> bool:
    """Say whether the budget is spent. What is left may be too little for a whole training, and the next one be whole."""
    left = search.configuration.evaluations - charged
    if left < search.configuration.search.rungs[0] - ROUNDING:
        return True
    # A search that goes on has a training under way, but for the moments between two of them.
    goes_on = search.reader.running or (search.reader.alive is not False and not search.reader.trainings)
    return left < 1 - ROUNDING and not goes_on


def _trials_expected(search: Search) -> int:
    """Return how many trainings follow the search, as far as that is known: those of baselines depend on the task."""
    final, comparison = search.configuration.final, search.settings.comparison
    if not search.settings.final:
        return 0
    best = min(final.confirm, len(search.top(final.confirm)))
    # The last finalist of the race gets so many; the others may get none.
    further = final.finalist_seeds if min(final.finalists, best) else 0
    compared = comparison.seeds * len(comparison.entrants) or min(final.compare, best) * final.compare_seeds
    return best * final.confirm_seeds + further + compared


def story_of(search: Search, state: State) -> Story:
    """Return the first screen of a run."""
    best = search.best if search.top(1) else None
    if best is None:
        why = () if state.going or state.command else ("The run ended without a score.",)
        return Story(NOTHING, "open", (*_so_far(state), *why))
    judgement = search.judgement
    sentences, steps = tuple(evidence(judgement)), () if state.going else tuple(next_steps(search))
    if judgement.standing is Standing.NOT_COMPARED:
        sentences, steps = (*_describe_best(search), *_so_far(state)), () if state.command else steps
    headline, tone = answer(search)
    sentences = (*sentences, *explain_identity(search))
    return Story(headline, tone, sentences, best.id, judgement.is_win, steps)


def _describe_best(search: Search) -> tuple[str, str]:
    best = search.best
    confirmed = (
        ""
        if best.confirmed is None
        else f" Its mean over {best.fresh_seeds} new training seeds is {figure(best.confirmed)}."
    )
    fidelity = search.reader.losses([best.id])[0]["fidelity"]
    share = ""
    if trains_short(search):
        rest = "" if fidelity == 1 else " of the schedule; none is trained whole yet"
        share = f", trained {at_share(fidelity)}{rest}"
    so_far = f"The best so far is #{best.id} with {figure(best.score)} on the valid split{share}.{confirmed}"
    return so_far, "The best of many noisy scores is too good: only new training seeds and held-out data tell."


def _so_far(state: State) -> tuple[str, ...]:
    return (f"{state.progress} {state.unit} are done.",) if state.going else ()
