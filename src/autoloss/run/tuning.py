"""`autoloss tune`: the expert's ladder alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from autoloss.comparison.climbing import LEAST_BUDGET, climb_ladder
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.record import Record
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.run.beginning import describe_tries, settle_length
from autoloss.run.progress import Finale, Forecast
from autoloss.run.request import make_request, prepare
from autoloss.run.user_files import importable_files
from autoloss.tasks.task import Task

TRAININGS = 24.0
"""Training equivalents that are enough for every kind of rung, on three seeds at last."""


@importable_files()
def tune(
    task: str | Task,
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    frozen: Mapping[str, str] | None = None,
    trainings: float = TRAININGS,
    seed: int = 0,
    workers: int = 2,
    say: Callable[[str], None] = lambda text: None,
    observe: Callable[[Finale], None] = lambda progress: None,
) -> Ladder:
    """Tune the training with a task's standard loss, on the valid split.

    Rates and step rules (as the recipe says, clipped, one norm of the gradient, AdamW), weights of the classes and of the
    branches, a tuned threshold, a longer training: all in short trainings first, the best in whole ones on several seeds.

    Args:
        task: As for `autoloss.search`, likewise `metric`, `options` and `frozen`.
        trainings: Training equivalents that may be spent, at least 2.
        seed: Seed from which the training seeds are derived.
        workers: Processes that train; 0 trains in this process.
        say: Called with a sentence on what is tried.
        observe: Called with the progress after each training.

    Returns:
        What was tried, the best first.

    Raises:
        RequestError: The task names no standard loss for every branch, or the budget is too small.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> ladder = autoloss.tune(task, trainings=4, workers=0)
    >>> ladder.best.mean >= ladder.given.mean
    True
    """
    if not trainings >= LEAST_BUDGET:
        raise RequestError(f"trainings is {trainings:g}; at least {LEAST_BUDGET:g} are needed to compare anything.")
    request = make_request(task, seed=seed, metric=metric, options=options, frozen=frozen)
    evaluator = prepare(request, samples=False)
    if not evaluator.has_standard:
        raise RequestError(f"The task {request.task.name} has no standard loss for every branch; declare `standard`.")
    machines = Machines(workers=workers)
    evaluator = settle_length(evaluator, machines, say)
    say(describe_tries(evaluator.task, trainings))
    began, forecast = time.monotonic(), Forecast(max(1, workers))

    def tell(recorded: int, expected: int) -> None:
        if recorded:
            spent = sum(job.training.fidelity * job.training.length for job in record.outcomes)
            seconds = time.monotonic() - began
            left = forecast.tell_trainings(max(0.0, trainings - spent), spent, seconds)
            observe(Finale(round(spent), round(trainings), seconds, left, "tuning the standard loss"))

    with start_workers(evaluator, machines) as dispatcher:
        record = Record(dispatcher, observe=tell)
        ladder = climb_ladder(evaluator, seed, trainings, record)
    assert ladder is not None
    return ladder
