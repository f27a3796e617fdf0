"""A crash point ends the process where, and when, the environment asks for it; without that it does nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from autoloss.errors import RequestError
from autoloss.store.crash_points import VARIABLE, CrashPoints, crash_point

LOOP = """
from autoloss.store.crash_points import crash_point
for time in 1, 2, 3:
    print(time, flush=True)
    crash_point({!r})
"""


@pytest.mark.parametrize(
    ("asked", "reached", "printed"),
    [("outcome-told:2", "outcome-told", "12"), ("outcome-told", "outcome-told", "1"), ("", "outcome-told", "123")],
)
def test_a_process_ends_when_it_reaches_its_point_for_the_given_time(asked, reached, printed):
    done = subprocess.run(
        [sys.executable, "-c", LOOP.format(reached)],
        env={**os.environ, VARIABLE: asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == list(printed)
    assert done.returncode == (0 if printed == "123" else -signal.SIGKILL)


def test_another_point_and_no_variable_do_nothing(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    crash_point("child-committed")
    CrashPoints("child-committed").reach("child-begun")


def test_what_the_environment_asks_for_must_exist(monkeypatch):
    monkeypatch.setenv(VARIABLE, "child-comitted")
    with pytest.raises(RequestError, match=r"no crash point named 'child-comitted'. Did you mean 'child-committed'"):
        crash_point("child-begun")
    monkeypatch.setenv(VARIABLE, "child-committed:often")
    with pytest.raises(RequestError, match="a point and a count: child-committed:3 for the third time"):
        crash_point("child-begun")
