"""Every kind of Workers keeps the promises of the contract; test_ray.py asks the same of those on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoloss.workers.faults import FaultyFunction
from autoloss.workers.injection import FaultyWorkers, Injection
from autoloss.workers.pool import InlineWorkers, JobFunction, ProcessWorkers

from .conformance import PROMISES, Start
from .local_cluster import leased_workers


def faulty_workers(function: JobFunction) -> FaultyWorkers:
    """Return workers of which one attempt out of five fails."""
    workers = ProcessWorkers(FaultyFunction(function), 2)
    return FaultyWorkers(
        workers, Injection({"error": 0.1, "worker-crash": 0.1}, 3), key=lambda payload: (str(payload),)
    )


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


def test_faults_were_injected_while_the_contract_was_kept():
    with faulty_workers(abs) as workers:
        for job in range(10):
            workers.submit(job, -job, deadline_seconds=20)
            assert [outcome.value for outcome in workers.wait(None)] == [job]
        assert workers.repeated == workers.injected.total() > 0
