"""A cluster in this process: everything but the network."""

from __future__ import annotations

from collections.abc import Sequence

from autoloss.workers.leases import Cluster, Heartbeat, LeasedWorkers, Request, Supervisor
from autoloss.workers.messages import encode_function
from autoloss.workers.pool import JobFunction


class LocalCluster(Cluster):
    """Its supervisors answer while they are waited for."""

    def __init__(self, function: JobFunction) -> None:
        self._function = encode_function(function)
        self._calls: dict[int, tuple[Supervisor, Request | None]] = {}
        self._called = 0

    def start(self) -> Supervisor:
        return Supervisor(self._function, None)

    def call(self, supervisor: Supervisor, request: Request | None) -> int:
        self._called += 1
        self._calls[self._called] = supervisor, request
        return self._called

    def wait(self, calls: Sequence[int], timeout_seconds: float) -> Sequence[tuple[int, Heartbeat]]:
        answers = [(call, *self._calls.pop(call)) for call in calls]
        return [(call, supervisor.beat(request)) for call, supervisor, request in answers]

    def end(self, supervisor: Supervisor) -> None:
        self._calls = {call: asked for call, asked in self._calls.items() if asked[0] is not supervisor}
        supervisor._workers.close()

    def close(self) -> None:
        self._calls.clear()

    def describe(self) -> str:
        return "It is this process."


def leased_workers(function: JobFunction) -> LeasedWorkers:
    return LeasedWorkers(LocalCluster(function), 2)
