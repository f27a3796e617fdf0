"""Named points at which a driver can be made to end by SIGKILL, to show that a kill there loses nothing.

`AUTOLOSS_CRASH=child-committed:3` ends the process when it passes that point for the third time. Without the variable a
point does nothing.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping

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
"""Every point in the order of a run's life, and what has happened when it is passed."""

_passed: Counter[str] = Counter()


def crash_point(point: str) -> None:
    """End the process here if that was asked for.

    Raises:
        RequestError: The variable names no point, or no number of times.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    name, _, count = wanted.partition(":")
    if name not in POINTS:
        raise unknown("crash point", name, POINTS)
    if not (count or "1").isdecimal():
        raise RequestError(
            f"{VARIABLE} is {wanted!r}; expected a point, or a point and how many times it is passed: {name}:3."
        )
    _passed[point] += 1
    if point == name and _passed[point] == int(count or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
