"""Misdeeds of a training in its process, shared by the tests of workers and the searches with such trainings."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys

import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def loop_in_python() -> None:
    while True:
        pass


def loop_in_c() -> None:
    # PyDLL keeps the GIL: no thread and no signal handler of the worker runs until it returns.
    ctypes.PyDLL(None).sleep(600)


def backtrack() -> None:
    re.match(r"(a|a)*b", "a" * 64)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crash() -> None:
    ctypes.string_at(0)


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    loop_in_python()
