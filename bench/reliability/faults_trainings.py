"""Cost of misbehaving trainings for their search, and of a long search with faults for its driver.

python bench/reliability/faults_trainings.py --out results/faults_trainings.json        about half an hour on two cores
python bench/reliability/faults_trainings.py --quick
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import builtins
import os
import secrets
import signal
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import autoloss
from autoloss.evaluation.dispatch import Dispatcher, job_key
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.history import History
from autoloss.proposing.records import State
from autoloss.run.loop import Progress, run_loop
from autoloss.settings import Configuration
from autoloss.store.store import FILE, Store
from autoloss.workers.injection import FaultyFunction, FaultyWorkers, Injection
from autoloss.workers.pool import ProcessWorkers
from beside import SETTINGS, Measure, Toy, row, run_measures
from histories import as_text
from misdeeds import backtrack, crash, ignore_signals, loop_in_c, stop
from not_finite import LENIENT, STEPS, not_finite
from output import Figure
from searches import tell

cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVERY = 3
"""One training of so many misbehaves; the next attempt at it does not."""
MEMORY_GIGABYTES = 1.5
MARK = "AUTOLOSS_BENCH_MARK"
LONG = 20_000_000
QUICK_SETTINGS: Mapping[str, Any] = {**LENIENT, "limits.memory_gigabytes": MEMORY_GIGABYTES}


def leave() -> None:
    os._exit(0)


def hoard() -> None:
    taken = []
    while True:
        taken.append(b"x" * (64 << 20))
        time.sleep(0.01)


def interrupt() -> None:
    raise KeyboardInterrupt


def raise_long() -> None:
    raise ValueError("x" * LONG)


def close_descriptors() -> None:
    os.closerange(3, 4096)


def write_stray_bytes() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):
                os.write(int(name), bytes(8))
    # Long enough for the driver to read them.
    time.sleep(0.3)


def hide_a_process() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()


def leave_threads() -> None:
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def change_settings() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    np.seterr(all="raise")
    os.environ["OMP_NUM_THREADS"] = "7"
    os.chdir("/")
    signal.alarm(1)


class _SilentError(Exception):
    @property
    def __cause__(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise ValueError("no cause")


def raise_silently() -> None:
    raise _SilentError


class _Loud:
    def flush(self) -> None:
        raise KeyboardInterrupt


def replace_output() -> None:
    sys.stdout = _Loud()


class _Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return 0 * operator(*arguments, **(named or {}))


def enter_modes() -> None:
    _Nothing().__enter__()
    BaseTorchFunctionMode().__enter__()


def forget_names() -> None:
    for name in [name for name in sys.modules if name == "json" or name.startswith("autoloss.space")]:
        del sys.modules[name]
    sys.path.insert(0, "/nowhere")
    tempfile.tempdir = "/nowhere"
    del builtins.__dict__["print"]


FAILED, REPEATED, HARMLESS = "failed", "repeated", "harmless"
MISDEEDS: Mapping[str, tuple[Callable[[], None], str]] = {
    "changes settings": (change_settings, HARMLESS),
    "writes stray bytes to every descriptor": (write_stray_bytes, HARMLESS),
    "leaves a process that hides": (hide_a_process, HARMLESS),
    "raises an exception of 20 MB": (raise_long, FAILED),
    "raises KeyboardInterrupt": (interrupt, FAILED),
    "faults on a segment": (crash, REPEATED),
    "loops in C with the interpreter's lock": (loop_in_c, FAILED),
    "backtracks in a regular expression": (backtrack, FAILED),
    "stops itself": (stop, FAILED),
    "ignores signals and loops": (ignore_signals, FAILED),
    "ends with os._exit(0)": (leave, REPEATED),
    "allocates without end": (hoard, REPEATED),
    "closes its descriptors": (close_descriptors, HARMLESS),
    "leaves threads": (leave_threads, HARMLESS),
    "raises an exception that raises": (raise_silently, FAILED),
    "replaces its output with one that raises": (replace_output, HARMLESS),
    "does not leave modes of torch": (enter_modes, HARMLESS),
    "forgets modules and built-in names": (forget_names, HARMLESS),
}
"""Misdeed → the function that does it, and the fate of its training."""
AT_THE_END = (change_settings, enter_modes, forget_names)
"""Its own training would suffer; the next one must not."""
TASKS: Sequence[tuple[str, Mapping[str, Any], float]] = (
    ("tabular", {"data": "iris", "steps": 20}, 20.0),
    ("digits-seg", {}, 40.0),
)
"""Name, options, and the deadline of a training in seconds: several times what one takes."""


@dataclass
class Misbehaving:
    """Stands for the `train` of a task, and misbehaves in one call of `EVERY`; the count is kept in a file, for all workers."""

    task: autoloss.Task
    misdeed: Callable[[], None] | None
    count: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with open(self.count, "ab") as file:
            file.write(b".")
            number = file.tell()
        misdeed = self.misdeed if number % EVERY == 1 else None
        if misdeed is not None and misdeed not in AT_THE_END:
            misdeed()
        # That of the class: the task's own is this object.
        outcome = type(self.task).train(self.task, *arguments, **named)
        if misdeed is not None and misdeed in AT_THE_END:
            misdeed()
        return outcome


def try_misdeed(
    kind: str | None,
    evaluations: int,
    folder: Path,
    task: tuple[str, Mapping[str, Any], float] = TASKS[0],
    workers: int = 1,
) -> dict[str, Any]:
    """Search with trainings that misbehave; return the history, counts, and what is left behind."""
    name, options, deadline = task
    made, count = autoloss.tasks.get(name, **options), folder / "count"
    misdeed = None if kind is None else MISDEEDS[kind][0]
    setattr(made, "train", Misbehaving(made, misdeed, str(count)))  # noqa: B010
    mark = secrets.token_hex(8)
    os.environ[MARK] = mark
    try:
        found = autoloss.search(
            made,
            evaluations=evaluations,
            workers=workers,
            directory=folder / "run",
            settings={**QUICK_SETTINGS, "limits.training_seconds": deadline},
            final=False,
        )
    finally:
        del os.environ[MARK]
    time.sleep(0.2)
    with Store(folder / "run") as store:
        outcomes = [*store.outcomes().values()]
    attempts = count.stat().st_size
    return {
        "lines": list(as_text(found.history)),
        "failed": sum(outcome.state is State.FAILED for outcome in outcomes),
        "misdeeds": -(-attempts // EVERY),
        "repeated": attempts - len(outcomes),
        "left": sum(mark.encode() in _environment_of(process) for process in os.listdir("/proc") if process.isdigit()),
        "bytes": (folder / "run" / FILE).stat().st_size,
    }


def _environment_of(process: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/environ").read_bytes()
    return b""


def judge(kind: str, found: Mapping[str, Any], clean: Mapping[str, Any]) -> list[str]:
    """Return the errors of a search, compared with one whose trainings behave."""
    expected = MISDEEDS[kind][1]
    wrong = []
    if found["left"]:
        wrong.append(f"{found['left']} processes are left")
    if found["bytes"] > clean["bytes"] + 1_000_000:
        wrong.append(f"the database has {found['bytes']} bytes")
    if expected == FAILED and found["failed"] != found["misdeeds"]:
        wrong.append(f"{found['failed']} of {found['misdeeds']} trainings failed")
    if expected != FAILED and found["lines"] != clean["lines"]:
        wrong.append("another history")
    if expected != REPEATED and found["repeated"]:
        wrong.append(f"{found['repeated']} attempts were repeated")
    return wrong


def misbehaving(sizes: Namespace) -> list[dict[str, Any]]:
    """Searches whose trainings misbehave: those of one kind in each."""
    rows = []
    for task in TASKS[: sizes.tasks]:
        with tempfile.TemporaryDirectory() as folder:
            clean = try_misdeed(None, sizes.evaluations, Path(folder), task)
        for kind in [*MISDEEDS][: sizes.kinds]:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                found = try_misdeed(kind, sizes.evaluations, Path(folder), task)
            wrong = judge(kind, found, clean)
            equal = None if MISDEEDS[kind][1] == FAILED else found["lines"] == clean["lines"]
            more = {"becomes": MISDEEDS[kind][1], "wrong": wrong, "seconds": round(time.monotonic() - start)}
            promise = f"{task[0]}: a training {kind}"
            rows.append(row(promise, found["misdeeds"], len(wrong), found["repeated"], equal, **more))
            tell(str(rows[-1]))
    return rows


SOAK_FAULTS = "worker-crash=0.004,hang=0.0005,hang-c=0.0005,freeze=0.0005,oom=0.0005,error=0.002,seed=7"


TELL_EVERY = 100
"""Candidates between two lines of progress."""


class _EnoughError(Exception):
    """The number of candidates asked for is reached."""


def soak(sizes: Namespace) -> list[dict[str, Any]]:
    """A long search of a toy with faults on, and everything stored; Ctrl-C ends it, and what was done by then is shown."""
    settings = {
        **SETTINGS,
        "evaluations": sizes.children,
        "limits.memory_gigabytes": 1.0,
        "evolution.idle_children": 10**6,
    }
    task, configuration = Toy(), Configuration().changed(settings)
    samples = draw_samples(task, configuration.rejection.samples, configuration.seed)
    runner = Evaluator(task, samples, configuration)
    history = History(task.branches, configuration)
    start, used, memory = time.monotonic(), time.process_time(), _resident_bytes()
    told = 0

    def cost(candidates: int) -> dict[str, Any]:
        return {
            "megabytes": round((_resident_bytes() - memory) / 1e6),
            "milliseconds_per_child": round(1000 * (time.process_time() - used) / max(candidates, 1), 2),
            "injected": dict(pool.injected),
            "seconds": round(time.monotonic() - start),
        }

    inner = ProcessWorkers(FaultyFunction(runner.perform), 2, memory_limit_bytes=configuration.limits.memory_bytes)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder), write=True) as store,
        FaultyWorkers(inner, Injection.parse(SOAK_FAULTS), job_key, configuration.limits.memory_bytes) as pool,
    ):
        dispatcher = Dispatcher(pool, configuration.limits)

        def stop_when_done(progress: Progress) -> None:
            nonlocal told
            if (done := len(history.candidates)) >= sizes.children:
                raise _EnoughError
            if done >= told + TELL_EVERY:
                told = done
                tell(f"{done} of {sizes.children} candidates: {cost(done)}")

        with suppress(_EnoughError, KeyboardInterrupt):
            run_loop(history, store, dispatcher, stop_when_done)
        candidates, figures = len(history.candidates), cost(len(history.candidates))
        stored = sum(1 for _ in store.candidates())
    failed = sum(outcome.state is State.FAILED for outcome in history.outcomes.values())
    lost = failed + candidates - stored
    return [
        row(
            "a search with faults on",
            candidates,
            lost,
            pool.repeated + dispatcher.queue.losses.total(),
            None,
            **figures,
        )
    ]


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FIGURES = {
    "soak: children": Figure(("rows", {"name": "soak"}, "trials")),
    "soak: attempts repeated": Figure(("rows", {"name": "soak"}, "repeated")),
    "soak: lost": Figure(("rows", {"name": "soak"}, "lost")),
    "soak: megabytes of the driver": Figure(("rows", {"name": "soak"}, "megabytes")),
    "soak: milliseconds per child": Figure(("rows", {"name": "soak"}, "milliseconds_per_child"), digits=1),
    "misbehaving: trials": Figure(("rows", {"name": "misbehaving"}, "trials")),
    "not finite: trials": Figure(("rows", {"name": "not_finite"}, "trials")),
    "not finite: lost": Figure(("rows", {"name": "not_finite"}, "lost")),
}
MEASURES: tuple[Measure, ...] = (soak, misbehaving, not_finite)
USUAL = {"evaluations": 4, "tasks": 2, "kinds": len(MISDEEDS), "children": 5000, "steps": len(STEPS)}
QUICK = {"evaluations": 3, "tasks": 1, "kinds": 5, "children": 100, "steps": 1}


def main(argv: Sequence[str] | None = None) -> None:
    run_measures(__doc__ or "", MEASURES, argv, USUAL, QUICK)


if __name__ == "__main__":
    main()
