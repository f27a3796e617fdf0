"""Searches some of whose trainings meet NaN or infinity: in the loss, in its gradient, or as their score."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

import autoloss
from autoloss.proposing.records import Outcome, State
from autoloss.run.results import open_run
from autoloss.store.store import Store
from autoloss.training.training import Scored
from beside import row
from searches import tell

EVERY = 3
"""One training of so many meets such a number."""
STEPS = (1, 19, 21)
VALUES = (math.nan, math.inf, -math.inf)
PLACES = ("loss", "gradient", "score")
TASK: tuple[str, Mapping[str, Any]] = ("tabular", {"data": "iris", "steps": 40})
LENIENT: Mapping[str, Any] = {
    "rejection.engine": "reference",
    "rejection.steps": 20,
    "rejection.threshold": 0.01,
    "search.rungs": (1.0,),
}
"""Most losses pass, and each is trained whole."""


@dataclass
class Spoiled:
    """Stands for the `train` of a task.

    Args:
        place: What is not finite in one training of `EVERY`.
        step: Where it is met, in a loss or a gradient.
    """

    task: autoloss.Task
    place: str
    value: float
    step: int
    trainings: int = field(default=0, init=False)

    def __call__(self, criterion: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        self.trainings += 1
        spoils = self.trainings % EVERY == 1
        if spoils and self.place != "score":
            criterion = {name: self._spoil(loss) for name, loss in criterion.items()}
        # That of the class: the task's own is this object.
        outcome = type(self.task).train(self.task, criterion, *arguments, **named)
        if spoils and self.place == "score" and isinstance(outcome, Scored):
            return dataclasses.replace(outcome, score=self.value)
        return outcome

    def _spoil(self, loss: Any) -> Any:
        steps = itertools.count(1)

        def compute(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
            if next(steps) != self.step:
                return loss(prediction, context)
            if self.place == "loss":
                return loss(prediction, context) + self.value
            prediction = prediction.clone()
            prediction.register_hook(lambda gradient: gradient + self.value)
            return loss(prediction, context)

        return compute


def search_spoiled(place: str, value: float, step: int, evaluations: int, folder: Path) -> tuple[int, list[str]]:
    """Search in this process; return how many trainings met the number, and what went wrong."""
    name, options = TASK
    task = autoloss.tasks.get(name, **options)
    setattr(task, "train", Spoiled(task, place, value, step))  # noqa: B010
    autoloss.search(task, evaluations=evaluations, workers=0, directory=folder, settings=LENIENT, final=False)
    # What the store and the tables say afterwards, not what this process still knows.
    with Store(folder) as store:
        outcomes = store.outcomes()
    best = open_run(folder).top(1)[0].id
    return -(-len(outcomes) // EVERY), judge_outcomes(outcomes, best, place, step)


def judge_outcomes(outcomes: Mapping[int, Outcome], best: int, place: str, step: int) -> list[str]:
    """Return the errors in the outcomes of a search, each with its candidate.

    Args:
        best: The candidate that the search found best.
    """
    expected = (None, "the metric is") if place == "score" else (step, f"the {place} is not finite")
    met = [candidate for number, candidate in enumerate(sorted(outcomes)) if number % EVERY == 0]
    wrong = []
    for candidate in met:
        outcome = outcomes[candidate]
        if outcome.state is not State.DIVERGED or outcome.score is not None:
            wrong.append(f"#{candidate} is {outcome.state.value} with the score {outcome.score}")
        elif outcome.step != expected[0] or not (outcome.reason or "").startswith(expected[1]):
            wrong.append(f"#{candidate} diverged at step {outcome.step}: {outcome.reason}")
    if best in met:
        wrong.append(f"#{best} is the best")
    return wrong


def not_finite(sizes: Namespace) -> list[dict[str, Any]]:
    """Searches whose trainings meet NaN or infinity: such a training is stopped there, says so, and is never the best."""
    rows = []
    for place in PLACES:
        steps = STEPS[:1] if place == "score" else STEPS[: sizes.steps]
        trials, wrong = 0, list[str]()
        for value, step in itertools.product(VALUES, steps):
            with tempfile.TemporaryDirectory() as folder:
                met, found = search_spoiled(place, value, step, sizes.evaluations, Path(folder) / "run")
            trials += met
            wrong += [f"{value} at step {step}: {text}" for text in found]
        where = "" if place == "score" else f" at step {', '.join(map(str, steps))}"
        rows.append(row(f"NaN, Inf or -Inf as the {place}{where}", trials, len(wrong), 0, None, wrong=wrong))
        tell(str(rows[-1]))
    return rows
