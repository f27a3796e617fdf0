"""Named points at which a driver can be ended by SIGKILL, to show that a kill there loses nothing.

`AUTOLOSS_CRASH=child-committed:3` ends the process when it reaches that point for the third time. Without the variable a
point does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from functools import cache

from autoloss.errors import RequestError, unknown

VARIABLE = "AUTOLOSS_CRASH"

_STAGES: Mapping[str, str] = {
    "begun": "the transaction has begun",
    "written": "its rows are written and not committed",
    "committed": "it is committed and not counted",
    "counted": "it is counted",
}


def _commit(name: str, what: str) -> dict[str, str]:
    return {f"{name}-{stage}": f"{what}: {when}" for stage, when in _STAGES.items()}


POINTS: Mapping[str, str] = {
    "owned": "the run's folder is made and locked",
    "samples-written": "the samples are in a file that has no name yet",
    "samples-named": "the samples have their name",
    "layout-begun": "the empty tables: the transaction has begun",
    "layout-written": "the empty tables: they are written and not committed",
    "layout-committed": "the empty tables: they are committed",
    **_commit("settings", "the settings of a new run"),
    "restored": "the history is read back from the store",
    "child-complete": "a child is settled and not yet written",
    **_commit("child", "a child, before it is trained"),
    "training-queued": "a child's training is queued",
    "outcome-received": "a training has ended and is not yet written",
    **_commit("outcome", "what a child's training came to"),
    "outcome-told": "the history knows the outcome",
    "search-ended": "the search is over and nothing is re-trained yet",
    **_commit("trial", "a training beside the search"),
    "best-confirmed": "the best are re-trained",
    "finalists-confirmed": "the finalists are re-trained",
    **_commit("setting", "a setting that changed: the budget, or who takes part in the comparison"),
    "compared": "the comparison is complete",
    "migration-begun": "the step from an older schema: the transaction has begun",
    "migration-written": "the step from an older schema: it is written and not committed",
    "migration-committed": "the step from an older schema: it is committed",
}
"""Every point in the order of a run's life, and what has happened when it is reached."""


class CrashPoints:
    """Ends the process by SIGKILL when it reaches a point for the given time.

    >>> CrashPoints("outcome-told:3").reach("outcome-told")

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

    def reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


@cache
def crash_points(target: str) -> CrashPoints:
    """Return the one instance for a target in this process; `crash_points.cache_clear()` resets its count."""
    return CrashPoints(target)


def crash_point(point: str) -> None:
    """Mark a point of a driver's life: the process ends here if the environment asks for it.

    Raises:
        RequestError: The environment names no point, or no count.
    """
    crash_points(os.environ.get(VARIABLE, "")).reach(point)
