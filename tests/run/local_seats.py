"""Seats of a cluster in this process: everything of it but the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoloss.workers.leases import LeasedWorkers
from autoloss.workers.messages import seal
from autoloss.workers.seats import Attendant, Cluster, Command, News, Opened


class LocalSeats(Cluster):
    """Each seat's attendant takes its turn when it is waited for."""

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._frame = seal(Opened(perform))
        self._calls: dict[int, tuple[Attendant, Command]] = {}
        self._called = 0

    def open(self) -> Attendant:
        return Attendant(self._frame, None)

    def call(self, seat: Attendant, command: Command) -> int:
        self._called += 1
        self._calls[self._called] = seat, command
        return self._called

    def wait(self, calls: Sequence[int], timeout_seconds: float) -> Sequence[tuple[int, News]]:
        # Commands that nobody listens to any more are carried out as well, before those that came later.
        due = sorted(self._calls) if calls else []
        answered = [
            (call, seat.turn(command)) for call, (seat, command) in ((call, self._calls.pop(call)) for call in due)
        ]
        return [(call, report) for call, report in answered if call in calls]

    def end(self, seat: Attendant) -> None:
        seat.close()

    def close(self) -> None:
        self._calls.clear()

    def describe(self) -> str:
        return "It is this process."


def leased_workers(perform: Callable[[Any], Any]) -> LeasedWorkers:
    return LeasedWorkers(LocalSeats(perform), 2)
