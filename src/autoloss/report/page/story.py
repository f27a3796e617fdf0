"""The first screen in words: whether the winner is better than the best baseline, how certain that is, and the state of the run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autoloss.report.numbers import figure
from autoloss.report.shares import at_share, list_charges, trains_short
from autoloss.report.verdict import SURE, Judgement, Standing, judged
from autoloss.run.results import Search
from autoloss.trainings.entrant import TEST

ROUNDING = 1e-9
"""Of sums of shares."""
Tone = Literal["good", "open", "bad"]

HEADLINES: Mapping[Standing, tuple[str, Tone]] = {
    Standing.BEATS: ("Yes: {winner} beats the best baseline.", "good"),
    Standing.AHEAD: ("Perhaps: {winner} is ahead of the best baseline, but not significantly.", "open"),
    Standing.EQUALS: ("No: {winner} equals the best baseline.", "bad"),
    Standing.BEHIND: ("No: {winner} does not beat the best baseline.", "bad"),
}


@dataclass(frozen=True, slots=True)
class Story:
    """What the first screen says.

    Args:
        headline: The answer.
        sentences: The evidence.
        winner: Number of the winning loss, or None.
        advice: The next step and its command, or None.
    """

    headline: str
    tone: Tone
    sentences: tuple[str, ...] = ()
    winner: int | None = None
    advice: tuple[str, str] | None = None


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
    best = min(final.confirm, len(search.top(final.confirm)))
    further = min(final.finalists, best) * final.finalist_seeds
    compared = comparison.seeds * len(comparison.entrants) or min(final.compare, best) * final.compare_seeds
    return best * final.confirm_seeds + further + compared


def story_of(search: Search, state: State) -> Story:
    """Return the first screen of a run."""
    best = search.best if search.top(1) else None
    if best is None:
        ended = () if state.going or state.command else ("The run ended without a score.",)
        return Story("Nothing yet: no loss has a score.", "open", (*_so_far(state), *ended))
    found = judged(search.comparison, f"#{best.id}")
    if found is None:
        return _untested(search, state)
    if found.rival is None:
        numbers = f"On the {TEST} split, new training seeds: {found.numbers}."
        headline = f"#{best.id} reaches {figure(found.winner.mean)}; there is no baseline to compare it with."
        return Story(headline, "open", (numbers,), best.id)
    headline, tone = HEADLINES[found.standing or Standing.EQUALS]
    if found.standing is Standing.BEHIND and found.paired and (found.paired.p_value or 0.0) >= SURE:
        headline = "No: {winner} does not beat the best baseline; it is behind, but not significantly."
    label = found.winner.entrant.label
    number = int(label.removeprefix("#")) if label.removeprefix("#").isdigit() else best.id
    return Story(headline.format(winner=label), tone, _evidence(search, found), number)


def _evidence(search: Search, found: Judgement) -> tuple[str, ...]:
    rivals = sum(row.entrant.baseline for row in search.comparison)
    means = f"Means on the unused {TEST} split, ± half the width of the 95 % confidence interval: {found.numbers}."
    sure = f"{found.sureness[0].upper()}{found.sureness[1:]}."
    fair = (
        f"The baseline is the best of {rivals}; their learning rates were tuned."
        if rivals > 1
        else "It is the only baseline of the comparison."
    )
    few = (
        " Three seeds show large differences only; compare on more seeds with autoloss compare."
        if len(found.winner.scores) <= 3
        else ""
    )
    return (means, sure + few, fair)


def _untested(search: Search, state: State) -> Story:
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
    luck = "The best of many noisy scores is biased upwards; new training seeds and held-out data give an unbiased estimate."
    headline = "Not known yet: no loss has been compared with the baselines."
    compare = ("Compare it:", shlex.join(["autoloss", "compare", str(search.directory)]))
    advice = None if state.going or state.command else compare
    return Story(headline, "open", (so_far, luck, *_so_far(state)), best.id, advice)


def _so_far(state: State) -> tuple[str, ...]:
    return (f"{state.progress} {state.unit} are done.",) if state.going else ()
