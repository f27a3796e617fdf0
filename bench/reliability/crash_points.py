"""Named points at which a driver can be ended by SIGKILL, to show that a kill there loses nothing.

`AUTOLOSS_CRASH=candidate-committed:3` ends a process in which `install` was called when it passes that point for the third time.
The product knows nothing of this: each point is before or after a call of one of its functions, which `install` wraps.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.proposing.records import Train

VARIABLE = "AUTOLOSS_CRASH"
_STAGES = {
    "begun": "the transaction has begun",
    "written": "its rows are written and not committed",
    "committed": "it is committed",
}


def _transaction(name: str, what: str) -> dict[str, str]:
    return {f"{name}-{stage}": f"{what}: {when}" for stage, when in _STAGES.items()}


POINTS: Mapping[str, str] = {
    "owned": "the run's folder is made and locked",
    "samples-written": "the samples are in a file that has no name yet",
    "samples-named": "the samples have their name",
    **_transaction("layout", "the empty tables"),
    **_transaction("settings", "the settings of a new run"),
    "restored": "the history is read back from the store",
    "candidate-complete": "a candidate is settled and not yet written",
    **_transaction("candidate", "a candidate, before it is trained"),
    "training-queued": "a candidate's training is queued",
    "outcome-received": "a training has ended and is not yet written",
    **_transaction("outcome", "the outcome of a candidate's training"),
    "outcome-told": "the history and the store know the outcome",
    "search-ended": "the search is over and nothing is trained again yet",
    **_transaction("trial", "a training beside the search"),
    "best-confirmed": "the best are trained on new seeds",
    "finalists-confirmed": "the finalists are trained on new seeds",
    **_transaction("setting", "a setting that changed: the budget, or the losses that are compared"),
    "compared": "the comparison is complete",
}
"""Every point in the order of a run's life, and what has happened when it is reached."""

BEFORE: Mapping[str, str] = {
    "samples-written": "autoloss.store.samples:commit_file",
    "candidate-complete": "autoloss.store.store:Store.add_candidate",
    "search-ended": "autoloss.run.search:confirm_and_compare",
    "best-confirmed": "autoloss.comparison.confirm:follow_race",
}
"""Point → the function that it is before each call of."""
AFTER: Mapping[str, str] = {
    "owned": "autoloss.run.search:lock_run",
    "samples-named": "autoloss.store.samples:commit_file",
    "restored": "autoloss.proposing.history:History.restore",
    "training-queued": "autoloss.evaluation.dispatch:Dispatcher.submit",
    "finalists-confirmed": "autoloss.comparison.confirm:_confirm",
    "compared": "autoloss.comparison.confirm:compare_with_baselines",
}
"""Point → the function that it is after each call of."""


class CrashPoints:
    """Ends the process by SIGKILL when it reaches a point for the given time.

    Args:
        target: A point, or a point and a count, such as `outcome-told:3`; empty for none.

    Raises:
        RequestError: There is no such point, or the count is not a number.
    """

    def __init__(self, target: str) -> None:
        self._point, _, count = target.partition(":")
        if target and self._point not in POINTS:
            raise unknown("crash point", self._point, POINTS)
        if not (count or "1").isdecimal():
            raise RequestError(
                f"{VARIABLE} is {target!r}; expected a point, or a point and a count: {self._point}:3 for the third time."
            )
        self._left = int(count or "1")
        self._transaction = "layout"

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Wrap the functions of this process that points lie beside."""
        for point, place in BEFORE.items():
            _wrap(place, lambda call, *given, at=point, **named: (self.reach(at), call(*given, **named))[1])
        for point, place in AFTER.items():
            _wrap(place, functools.partial(self._call_before, point))
        for name, place in (
            ("settings", "write_settings"),
            ("setting", "change_setting"),
            ("candidate", "add_candidate"),
            ("outcome", "add_training"),
        ):
            _wrap(f"autoloss.store.store:Store.{place}", functools.partial(self._append, name))
        _wrap("autoloss.store.database:Database._try", self._try)

    def _call_before(self, point: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = call(*given, **named)
        if point != "training-queued" or isinstance(given[1], Train):
            self.reach(point)
        return found

    def _append(self, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> None:
        beside = name == "outcome" and (given[4] if len(given) > 4 else named.get("candidate")) is None
        if name == "outcome" and not beside:
            self.reach("outcome-received")
        with self._naming("trial" if beside else name):
            call(*given, **named)
        if name == "outcome" and not beside:
            self.reach("outcome-told")

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        before, self._transaction = self._transaction, name
        try:
            yield
        finally:
            self._transaction = before

    def _try(self, call: Callable[..., Any], database: Any, write: Callable[[sqlite3.Connection], object]) -> Any:
        name = self._transaction

        def stage_and_write(connection: sqlite3.Connection) -> None:
            self.reach(f"{name}-begun")
            write(connection)
            self.reach(f"{name}-written")

        call(database, stage_and_write)
        self.reach(f"{name}-committed")


def _wrap(place: str, around: Callable[..., Any]) -> None:
    """Put `around(function, …)` in the place of a function, given as `module:qualified.name`."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, name)
    setattr(owner, name, functools.wraps(function)(lambda *given, **named: around(function, *given, **named)))


def install() -> None:
    """Let this process crash where the environment asks for it.

    Raises:
        RequestError: The environment names no point, or no count.
    """
    if target := os.environ.get(VARIABLE, ""):
        CrashPoints(target).install()
