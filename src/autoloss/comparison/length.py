"""The length of trainings whose epochs the task chose: the standard loss has to learn something in it."""

from __future__ import annotations

from dataclasses import replace

from autoloss.comparison.baselines import standard_entrant
from autoloss.comparison.entrant import LADDER, Measurements, compare_paired, training_seeds
from autoloss.comparison.record import Record
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.learning import measure_floor
from autoloss.training.recipe import USUAL_STEPS
from autoloss.training.training import Training

LONGEST = 8.0
"""Largest factor on the epochs."""
AHEAD = 2.0
"""Standard errors by which a training twice as long has to be ahead."""


def choose_length(evaluator: Evaluator, seed: int, record: Record) -> tuple[float, list[tuple[int, float]]]:
    """Double the length until the standard loss learns, and further while that helps and no training is long.

    It has learned something when its score is neither that of an untrained network nor of a constant prediction (`Floor`). From
    there on, twice the length has to be ahead by more than the noise of the examples, and to have at most `USUAL_STEPS` steps.

    Args:
        evaluator: Of a task that `chooses_length`.

    Returns:
        The factor on the epochs, 1 where nothing learns at any length; and (steps, score) of each training.
    """
    task, given = evaluator.task, standard_entrant(evaluator.task)
    assert given is not None
    (first,), tried = training_seeds(seed, LADDER, 1), list[tuple[int, float]]()
    floor = measure_floor(evaluator, [first])

    def train(length: float) -> Measurements:
        job = replace(given, length=length).job(first, "valid")
        found = Measurements.of([record.run_trainings([job])[job]])
        if found.mean is not None:
            tried.append((task.steps(job.training) or 0, found.mean))
        return found

    length, best = 1.0, train(1.0)
    while length < LONGEST:
        learns = floor.is_beaten(best.mean)
        if learns and (task.steps(Training(seed=first, length=2 * length)) or 0) > USUAL_STEPS:
            break
        longer = train(2 * length)
        lead = compare_paired(longer, best)
        if learns and (lead is None or lead.value <= AHEAD * lead.least_error):
            break
        length, best = 2 * length, longer
    return length if floor.is_beaten(best.mean) else 1.0, tried
