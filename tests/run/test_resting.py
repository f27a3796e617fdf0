"""While nothing can be recorded, what workers finish is kept, no deadline passes, and nothing new begins."""

from __future__ import annotations

import time

from autoloss.run.configuration import LimitSettings
from autoloss.run.dispatch import Dispatcher
from autoloss.run.jobs import Train, Trained
from autoloss.run.records import State
from autoloss.run.workers import InlineWorkers, ProcessWorkers


def test_what_ends_during_a_rest_is_told_afterwards():
    performed: list[int] = []

    def perform(job: Train) -> Trained:
        performed.append(job.seed)
        return Trained("scored", float(job.seed))

    with InlineWorkers(perform) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        tickets = [dispatcher.submit(Train("y", seed)) for seed in range(2)]
        dispatcher.rest(0.02)
        assert performed == [0]
        done = dispatcher.wait(0.0)
        assert [(one.ticket, one.result.score) for one in done] == [(tickets[0], 0.0), (tickets[1], 1.0)]
        assert performed == [0, 1]


def test_a_rest_takes_its_time_whatever_is_under_way():
    with InlineWorkers(lambda job: Trained("scored", 1.0)) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        dispatcher.submit(Train("y", 0))
        began = time.monotonic()
        dispatcher.rest(0.05)
        assert time.monotonic() - began >= 0.05


def test_a_large_result_is_taken_in_before_its_deadline_passes():
    with ProcessWorkers(lambda job: Trained("scored", 1.0, curve=((1, 0.5),) * 100_000), 1) as workers:
        dispatcher = Dispatcher(workers, LimitSettings(training_seconds=30))
        dispatcher.submit(Train("y", 0))
        while not dispatcher._ended:
            dispatcher.rest(0.05)
        (done,) = dispatcher.wait(0.0)
        assert done.result.state is State.SCORED
