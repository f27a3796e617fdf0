"""Every kind of Workers keeps the promises of the contract; test_ray.py asks the same of those on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoloss.workers.injection import FaultyFunction, FaultyWorkers, Injection
from autoloss.workers.pool import InlineWorkers, JobFunction, ProcessWorkers
from autoloss.workers.queue import JobQueue

from .conformance import PROMISES, Start
from .local_cluster import leased_workers


def faulty_workers(function: JobFunction, rate: float = 0.0) -> FaultyWorkers:
    """Return workers of which two attempts out of five fail at a rate of 0.2."""
    injection = Injection({"error": rate, "worker-crash": rate}, 3)
    return FaultyWorkers(ProcessWorkers(FaultyFunction(function), 2), injection, lambda payload: (str(payload),))


KINDS: dict[str, Start] = {
    "inline": InlineWorkers,
    "processes": lambda function: ProcessWorkers(function, 2),
    "faulty": faulty_workers,
    "leased": leased_workers,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_workers_keep_the_contract(promise: Callable[[Start], None], kind: str):
    promise(KINDS[kind])


def test_faults_are_lost_attempts_that_a_queue_repeats():
    with faulty_workers(abs, 0.2) as workers:
        queue = JobQueue(workers)
        for job in range(10):
            queue.submit(-job, deadline_seconds=20)
        outcomes = []
        while queue.pending:
            outcomes += queue.wait(None)
    assert sorted(outcome.value for _, outcome in outcomes) == list(range(10))
    assert workers.repeated == workers.injected.total() > 0
    assert not queue.losses
