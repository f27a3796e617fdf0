"""The summary of a run, shown by terminal, JSON, report and live page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autoloss.comparison.entrant import Row
from autoloss.comparison.judgement import Judgement
from autoloss.report.readable import Readable, simplify_formulas
from autoloss.report.shares import trains_short
from autoloss.report.state import State, state_of
from autoloss.report.verdict import Verdict, reach_verdict
from autoloss.run.results import LOOKED_AT, FoundLoss, Search, leave_out_idle
from autoloss.space.loss_text import split_branches
from autoloss.training.recipe import describe_recipe
from autoloss.zoo import ENTRIES

TOP = 10


@dataclass(frozen=True, slots=True)
class ListedLoss:
    """One row of a table of losses.

    Args:
        age: Number of later candidates.
        times_found: Number of times it was found, with twins and copies.
    """

    found: FoundLoss
    formula: Readable
    age: int
    times_found: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {name: getattr(self.found, name) for name in ("id", "score", "fidelity", "confirmed", "size")}
        counts = {"age": self.age, "found": self.times_found}
        return values | counts | describe_formula(self.formula) | {"also": dict(self.found.also)}


def describe_formula(formula: Readable) -> dict[str, str]:
    """Return the forms of a formula as plain values."""
    return {
        "formula": formula.found,
        "simplified": formula.text,
        "readable": formula.line,
        "identity": formula.identity,
    }


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run.

    Args:
        best: The loss that the verdict is about; None before the first score.
        top: The losses with the highest scores.
    """

    search: Search
    state: State
    verdict: Verdict
    best: ListedLoss | None
    top: Sequence[ListedLoss]

    @property
    def task(self) -> str:
        """The task with its options."""
        settings = self.search.settings
        options = ", ".join(f"{name} {value}" for name, value in settings.task.options.items())
        return f"{settings.title} ({options})" if options else settings.title

    @property
    def shares(self) -> bool:
        """True if the run trains at several shares of the schedule; each score is then shown with its share."""
        return trains_short(self.search)

    @property
    def commands(self) -> dict[str, str]:
        """The commands that show the run and, where something is recommended, that give it to use."""
        directory, advice = str(self.search.directory), self.search.recommendation
        found = {"look": shlex.join(["autoloss", "report", directory])}
        numbers = {row.entrant.loss: row.entrant.number for row in self.search.comparison}
        named = () if advice is None else dict.fromkeys(split_branches(advice.loss).values())
        if named and all(name in ENTRIES for name in named):
            found["use"] = " && ".join(f"autoloss zoo show {name}" for name in named)
        elif advice is not None and (number := numbers.get(advice.loss)) is not None:
            found["use"] = shlex.join(["autoloss", "export", directory, str(number), "--out", "my_loss.py"])
        return found

    @property
    def advice(self) -> list[str]:
        """What is recommended, its formula where it has one, and its recipe where that is known; empty where nothing is."""
        advice = self.search.recommendation
        if advice is None:
            return []
        entry = ENTRIES.get(advice.loss)
        formula = simplify_formulas(self.search, [advice.loss])[advice.loss].text if entry is None else entry.formula
        lines = [f"Recommended: {advice.describe()}", *[f"Its formula: {formula}"] * bool(formula)]
        way = advice.entrant
        recipe, _ = describe_recipe(self.search.settings.recipe, way.step_rule, way.learning_rate, way.length)
        lines += [f"Trained with: {recipe}"] * bool(recipe)
        ignored = {form.ignore_index for form in self.search.settings.branches.values()} - {None}
        # An exported file knows it, a loss of the zoo does not.
        return lines + [f"Give its criterion ignore_index={index}." for index in ignored if entry is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        search = self.search
        return {
            "verdict": search.judgement.to_dict(),
            "recommendation": search.recommendation and asdict(search.recommendation),
            "ladder": search.ladder and search.ladder.to_dict(),
            "identity": self.best.formula.identity if self.best else "",
            "directory": str(search.directory),
            "commands": self.commands,
            "data": list(search.settings.data),
            "end": search.end,
            "top": [one.to_dict() for one in self.top],
            "never_trained": asdict(search.never_trained),
            "comparison": comparison_rows(search.comparison, search.judgement),
        }


def summarize(search: Search, count: int = TOP) -> Summary:
    """Summarize the last reading of a run.

    Args:
        count: Number of losses in `top`.
    """
    state = state_of(search)
    best = list_losses(search, search.best_first(1))
    return Summary(search, state, reach_verdict(search, state), best[0] if best else None, list_top(search, count))


def list_top(search: Search, count: int) -> list[ListedLoss]:
    """Return the best losses as new training seeds and scores rank them; those that learned nothing come last."""
    order, untrained = search.best_first(count + LOOKED_AT), search.settings.untrained
    again = [found for found in order if found.confirmed is not None]
    learned = {order[at].id for at in leave_out_idle([(one.fidelity, one.score) for one in order], untrained)}
    shown = [*again, *(one for one in order if one.confirmed is None)]
    return list_losses(search, sorted(shown, key=lambda one: one.id not in learned)[:count])


def list_by_size(search: Search) -> list[ListedLoss]:
    """Return, for each size, the best loss that is better than all smaller ones, the smallest first."""
    return list_losses(search, search.losses(search.reader.best_by_size))


def list_losses(search: Search, chosen: Sequence[FoundLoss]) -> list[ListedLoss]:
    """Return losses of a run as rows of a table."""
    times_found, last = search.reader.times_found([one.id for one in chosen]), max(search.reader.settled, default=0)
    readable = simplify_formulas(search, [one.formula for one in chosen])
    return [ListedLoss(one, readable[one.formula], last - one.id, times_found[one.id]) for one in chosen]


def comparison_rows(rows: Sequence[Row], judgement: Judgement | None = None) -> list[dict[str, Any]]:
    """Return a comparison as plain values.

    Args:
        judgement: Its p-values replace those against the first baseline.
    """
    return [
        asdict(row.entrant)
        | {
            "scores": list(row.scores),
            "reasons": list(row.reasons),
            "mean": row.mean,
            "sd": row.score.deviation,
            "interval": row.interval,
            "p_value": p_value_of(row, judgement),
            "also": row.also,
        }
        for row in rows
    ]


def p_value_of(row: Row, judgement: Judgement | None) -> float | None:
    """Return the p-value that a comparison shows for a row."""
    return row.p_value if judgement is None else judgement.p_values.get(row.entrant.label)
