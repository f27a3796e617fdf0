"""What all tests stand on."""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import typer.main

# The processes of the tests share the cores: one thread each is quickest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that was started in the background may have inherited that interrupts are ignored; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

if "XDG_STATE_HOME" not in os.environ:
    # The key with which searches sign is not the user's.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="autoloss-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


# Typer builds all commands anew for each call of the command line, which happens once in the process of a user.
typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import without collecting garbage: there is next to none, and to look for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Triton names every object that is left at the end.
        atexit.register(gc.unfreeze)
        gc.enable()


LONG = ("test_ray.py", "test_adapters.py", "test_commands.py", "test_site.py")
"""Files whose tests take longest: they begin first, so that no process works alone at the end. Ray's come before all others, which
may import Ray before its settings are there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the engine, or load what another process compiles, before any test has a limit on its time."""
    if not hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    from autoloss.rejection.compiled.engine import CompiledEngine
    from autoloss.rejection.protocol import measure_reference
    from autoloss.settings import ProtocolSettings
    from autoloss.space.parsing import parse
    from tests.rejection.scenes import BRANCH, samples

    scenes = samples()
    settings = ProtocolSettings(samples=len(scenes))
    engine, tree = CompiledEngine(BRANCH, measure_reference(BRANCH, scenes), settings), parse("-y * log(p)")
    engine.gradients([tree])
    engine.start_descent(tree).advance(0, 1)


@pytest.fixture
def simulated_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be simulated in this process: each has what a process gets, and jobs end in an order that is drawn.

    tests/run/test_history.py and tests/workers hold processes to the same.
    """
    import cloudpickle

    from autoloss.evaluation import dispatch
    from autoloss.workers.process_state import preserve_state
    from virtual import VirtualWorkers

    def start(function: Callable[[Any], Any], slots: int, **limits: Any) -> VirtualWorkers:
        copies = itertools.cycle([cloudpickle.loads(cloudpickle.dumps(function)) for _ in range(slots)])
        draw = Random(slots)

        def perform(payload: Any) -> Any:
            with preserve_state():
                return next(copies)(cloudpickle.loads(cloudpickle.dumps(payload)))

        return VirtualWorkers(slots, perform, lambda payload, result: draw.random())

    monkeypatch.setattr(dispatch, "ProcessWorkers", start)
