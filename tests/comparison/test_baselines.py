"""Baselines on the valid split: all at short trainings, whole ones for those that lead."""

from __future__ import annotations

from autoloss.comparison.baselines import LEARNING_RATES, PROMISING, find_promising, tune_learning_rates
from autoloss.comparison.climbing import CLASS_WEIGHTS
from autoloss.comparison.entrant import TUNING, Entrant, training_seeds
from autoloss.comparison.record import Record
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines, start_workers
from autoloss.settings import Configuration
from tests.comparison.test_ladder import task


def test_only_baselines_that_lead_in_short_trainings_are_trained_whole():
    made, record = task(), Record()
    others = [Entrant(name, name, baseline=True) for name in ("baseline/dice", *CLASS_WEIGHTS["baseline/ce"])]
    with start_workers(Evaluator(made, {}, Configuration()), Machines(workers=0)) as pool:
        dispatcher = Dispatcher(pool, Configuration().limits)
        promising, left = find_promising(others, made, 0, dispatcher, record, lambda one: [one])
        assert len(record.outcomes) == len(others) * len(LEARNING_RATES)
        rows = tune_learning_rates(promising, made, 0, dispatcher, record)
    assert [len(promising), len(left)] == [PROMISING, len(others) - PROMISING]
    assert {one.loss for one in promising}.isdisjoint(row.entrant.loss for row in left)
    second = training_seeds(0, TUNING, 2)[1]
    whole = {job.loss for job in record.outcomes if (job.training.seed, job.training.fidelity) == (second, 1.0)}
    assert whole == {row.entrant.loss for row in rows} == {one.loss for one in promising}
    assert all(row.mean is not None for row in rows)
