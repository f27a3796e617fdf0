"""What a training raises, returns or names has a limited length in the run, and cannot fail to be written."""

from __future__ import annotations

import asyncio
import json
import sys

import cloudpickle
import pytest

from autoloss.errors import RequestError, keep_text
from autoloss.evaluation.dispatch import Dispatcher, run_jobs
from autoloss.proposing.records import NAME_CHARACTERS, REASON_CHARACTERS, Outcome, State, Train, to_record
from autoloss.report.failures import group_failures
from autoloss.run.request import make_request
from autoloss.settings import Configuration, LimitSettings
from autoloss.store.read import Reader
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.store.store import FILE, Store
from autoloss.training.training import Diverged, Scored, Stopped, Training
from autoloss.workers.messages import Finished, Lost, Raised
from autoloss.workers.pool import InlineWorkers, ProcessWorkers
from autoloss.workers.worker import run_job
from tests.run.quick import QuickTask
from tests.workers.conformance import list_groups

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LONG = "x" * 5_000_000
JOB = Train("neg(y)", Training(seed=0))


class SilentError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


class EndOfWorldError(BaseException):
    pass


def fail(error: BaseException | type[BaseException]) -> None:
    raise error


class NoCauseError(RuntimeError):
    @property
    def __cause__(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise ValueError("no cause")


class NoName(type):
    @property
    def __mro__(cls) -> tuple[type, ...]:
        raise ValueError("no name")


class NoNameError(Exception, metaclass=NoName):
    pass


class Text(str):
    """Obeys no limit."""

    def __len__(self) -> int:
        return 0

    def __format__(self, form: str) -> str:
        raise KeyboardInterrupt

    def encode(self, *arguments: object, **named: object) -> bytes:
        raise KeyboardInterrupt


class OwnTextError(Exception):
    def __str__(self) -> str:
        return Text(LONG)


ERRORS = {
    "long": ValueError(LONG),
    "many lines": ValueError("line\n" * 1_000_000),
    "no UTF-8": ValueError("\ud800" * 5000),
    "no text": SilentError(),
    "no cause": NoCauseError(),
    "no name": NoNameError(),
    "a text of its own": OwnTextError(),
    "in a group": ExceptionGroup("g" * 100_000, [ValueError(LONG)] * 30),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_the_text_of_an_exception_is_limited_and_can_be_written(kind: str):
    outcome = run_job(fail, 1, ERRORS[kind])
    assert isinstance(outcome, Raised)
    assert len(outcome.message) + len(outcome.traceback_text) <= REASON_CHARACTERS
    outcome.message.encode()
    with InlineWorkers(lambda job: fail(ERRORS[kind])) as workers:
        ((_, result, _),) = run_jobs([JOB], Dispatcher(workers, LimitSettings()))
    assert isinstance(result, Outcome)
    assert result.state is State.FAILED
    assert len(result.reason) <= REASON_CHARACTERS
    result.reason.encode()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, EndOfWorldError, SystemExit]
)
def test_whatever_train_raises_is_its_own_fault_and_not_the_machines(error: type[BaseException]):
    with ProcessWorkers(fail, 1) as workers:
        workers.submit(1, error, deadline_seconds=20)
        (outcome,) = workers.wait(None)
        group = list_groups(workers)
        assert isinstance(outcome, Raised)
        assert error.__name__ in outcome.message
        workers.submit(2, ValueError, deadline_seconds=20)
        workers.wait(None)
        assert list_groups(workers) == group


def test_an_output_that_raises_costs_nothing():
    class Loud:
        def flush(self) -> None:
            raise KeyboardInterrupt

    def replace_output(_: object) -> None:
        sys.stdout = Loud()

    with ProcessWorkers(replace_output, 1) as workers:
        workers.submit(1, None, deadline_seconds=20)
        (outcome,) = workers.wait(None)
    assert isinstance(outcome, Finished)


def test_an_interrupt_from_outside_is_an_accident_of_the_machine():
    def interrupt(_: object) -> None:
        import os
        import signal
        import time

        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    with ProcessWorkers(interrupt, 1) as workers:
        workers.submit(1, None, deadline_seconds=20)
        (outcome,) = workers.wait(None)
    assert isinstance(outcome, Lost)
    assert (outcome.cause, "SIGINT" in outcome.detail) == ("killed", True)


def test_an_error_of_the_machine_inside_a_group_is_found():
    outcome = run_job(fail, 1, ExceptionGroup("two", [ValueError("a"), RuntimeError("CUDA error: lost")]))
    assert isinstance(outcome, Lost)
    assert outcome.cause == "device"


def test_what_a_training_returns_is_limited():
    scored = to_record(
        Scored(0.5, {f"{number} {LONG}": 1.0 for number in range(3)}, tuple((step, 1.0) for step in range(300_000)))
    )
    assert len(scored.curve) <= 100
    assert (scored.curve[0], scored.curve[-1]) == ((0, 1.0), (299_999, 1.0))
    assert all(len(name) <= NAME_CHARACTERS for name in scored.also)
    assert len(to_record(Scored(0.5, {str(number): 1.0 for number in range(10_000)})).also) <= 100
    for end in (Diverged(1, LONG), Stopped(1, LONG + "\udfff")):
        reason = to_record(end).reason
        assert len(reason) <= REASON_CHARACTERS
        reason.encode()
    for step in (10**30, float("nan")):
        with pytest.raises(ValueError, match="train\\(\\) returned a step"):
            to_record(Diverged(step, "late"))  # pyright: ignore[reportArgumentType]


def test_a_text_is_cut_once():
    assert type(keep_text(Text("\ud800" + LONG), 100)) is str
    assert len(keep_text(Text(LONG), 100)) <= 100
    cut = keep_text("\ud800" + LONG, 100)
    assert len(cut) <= 100
    assert keep_text(cut, 100) == cut


@pytest.mark.parametrize("name", [LONG, "\ud800", "x" * 201, None])
def test_a_name_that_no_table_shows_is_refused(name: str):
    task = QuickTask()
    task.name = name
    with pytest.raises(RequestError, match="name of the task") as refused:
        make_request(task, Configuration())
    assert len(str(refused.value)) < 500
    with pytest.raises(RequestError, match="name of a branch"):
        make_request(QuickTask(branches=[name]), Configuration())


def test_a_run_with_reasons_of_any_length_is_read(tmp_path):
    settings = RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
    with Store(tmp_path, write=True) as store:
        store.write_settings(settings)
        for seed in range(2):
            outcome = Outcome(state=State.FAILED, reason=LONG)
            store.add_training("neg(y)", Training(seed=seed), outcome)
    assert (tmp_path / FILE).stat().st_size > len(LONG)
    found = group_failures(Reader(tmp_path))
    assert len(json.dumps(found)) < 20_000
