"""A rehearsal: faults happen where their keys say, in any run of the same seed, and the history is that of a run without."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import cloudpickle
import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.run.loop import run_loop
from autoloss.search.history import History, as_text
from autoloss.search.jobs import Job, RejectionBatch, Train, Trained
from autoloss.search.records import State
from autoloss.settings import Configuration, LimitSettings
from autoloss.store.samples import draw_samples
from autoloss.workers import dispatch, injection
from autoloss.workers.dispatch import Dispatcher, run_all
from autoloss.workers.injection import FAULTS, FAULTY_ATTEMPTS, HANGING, Fault, Injection, Rehearsing
from autoloss.workers.job_runner import JobRunner
from autoloss.workers.machines import Machines
from autoloss.workers.pool import InlineWorkers, ProcessWorkers

from .quick import SETTINGS, QuickTask

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train(job: Job) -> Trained:
    assert isinstance(job, Train)
    return Trained("scored", float(job.seed), {"process": float(os.getpid())})


def rehearsed(faults: Injection, jobs: int, workers: int = 1, **limits: float) -> tuple[dict[int, float], Dispatcher]:
    """Return seed → score of trainings in a rehearsal."""
    settings = LimitSettings(training_seconds=20, **limits)
    with ProcessWorkers(Rehearsing(train), workers, memory_limit_bytes=settings.memory_bytes) as pool:
        dispatcher = Dispatcher(pool, settings, faults)
        scores = {
            done.job.seed: done.result.score
            for done in run_all([Train("y", seed) for seed in range(jobs)], dispatcher)
            if isinstance(done.job, Train) and not isinstance(done.result, list)
        }
    return scores, dispatcher


@pytest.mark.parametrize("kind", FAULTS)
def test_what_a_fault_hits_is_done_again(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatch, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(injection, "FAULTY_ATTEMPTS", 1)
    scores, dispatcher = rehearsed(Injection({kind: 1.0}), 1, memory_gigabytes=0.25)
    assert scores == {0: 0.0}
    assert dispatcher.mishaps.injected == Counter({kind: 1})
    assert dispatcher.mishaps.repeated == 1


def test_the_faults_of_trainings_are_the_same_with_any_number_of_workers():
    faults = Injection.parse("worker-crash=0.2,error=0.2,seed=7")
    one, two = (rehearsed(faults, 6, workers) for workers in (1, 2))
    assert one[0] == two[0] == {seed: float(seed) for seed in range(6)}
    assert one[1].mishaps == two[1].mishaps
    assert one[1].mishaps.injected


def test_a_rehearsal_ends_even_when_every_attempt_is_hit():
    scores, dispatcher = rehearsed(Injection({"error": 1.0}), 1)
    assert scores == {0: 0.0}
    assert dispatcher.mishaps.injected.total() == FAULTY_ATTEMPTS
    assert dispatcher.mishaps.rehearsal() == (
        "Injected 3 faults (error 3): 3 attempts repeated with the same seed, no job was lost."
    )


def check_three_failures_of_the_machine_are_no_score() -> None:
    """The check that the mutants have to fail as well."""

    def refuse(job):
        raise MemoryError("for real")

    with InlineWorkers(refuse) as pool:
        dispatcher = Dispatcher(pool, LimitSettings(), Injection({"error": 1.0}))
        (done,) = run_all([Train("y", 0)], dispatcher)
    assert not isinstance(done.result, list)
    assert (done.result.state, done.result.score) == (State.FAILED, None)
    assert done.result.reason.count("for real") >= dispatch.TRIES
    assert dispatcher.mishaps.given_up == 1
    assert "1 jobs failed for reasons of their own" in dispatcher.mishaps.rehearsal()
    assert dispatcher.mishaps.failures() == (
        "The machine ended 2 attempts (memory 2); they were repeated with the same seed."
    )


def test_three_failures_of_the_machine_are_no_score_and_injected_ones_are_not_among_them():
    check_three_failures_of_the_machine_are_no_score()


def test_draws_follow_their_rates_and_depend_on_seed_job_and_attempt_alone():
    rates = {"worker-crash": 0.1, "hang": 0.05}

    def draws(seed: int, attempt: int) -> list[Fault | None]:
        return [Injection(rates, seed).drawn(Train("y", number), attempt, None) for number in range(4000)]

    first = draws(0, 0)
    assert first == draws(0, 0)
    assert first != draws(1, 0)
    assert first != draws(0, 1)
    kinds = Counter(fault.kind for fault in first if fault)
    assert 0.08 < kinds["worker-crash"] / 4000 < 0.12
    assert 0.035 < kinds["hang"] / 4000 < 0.065
    late = Counter(fault.late for fault in first if fault and fault.kind not in HANGING)
    assert min(late[False], late[True]) > 100
    assert not any(fault.late for fault in first if fault and fault.kind in HANGING)


def test_how_many_attempts_a_batch_holds_does_not_move_its_fault():
    faults = Injection({"error": 0.5})
    for first in range(50):
        short, long = (RejectionBatch(3, "main", "fresh", None, first, count) for count in (16, 400))
        assert faults.drawn(short, 0, None) == faults.drawn(long, 0, None)


def test_a_greedy_worker_takes_more_than_its_limit_and_never_the_whole_machine():
    faults = Injection({"oom": 1.0})
    limited, unlimited = (faults.drawn(Train("y", 0), 0, limit) for limit in (10 << 30, None))
    assert limited is not None
    assert unlimited is not None
    assert limited.memory_bytes == 15 << 30
    assert unlimited.memory_bytes == 1 << 30


def test_text_is_read_with_its_seed():
    assert Injection.parse(" worker-crash=0.05, hang=0.01 ,seed=7") == Injection(
        MappingProxyType({"worker-crash": 0.05, "hang": 0.01}), 7
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "crash=0.1": r"no fault to inject named 'crash'.*worker-crash, hang, hang-c, freeze, oom, error, seed",
        "hang": "hang takes a share such as 0.05, found 'hang'",
        "hang=often": "takes a share such as 0.05, found 'hang=often'",
        "hang=0.1,seed=x": "seed takes a whole number, found 'seed=x'",
        "hang=1.5": "rate of hang is 1.5; it is a share of all attempts, from 0 to 1",
        "hang=nan": "rate of hang is nan",
        "hang=0.6,oom=0.6": "add up to 1.2; they cannot pass 1",
        "hang=0.1,hang=0.2": "hang comes twice",
        "seed=3": "Name a fault to inject, such as worker-crash=0.05. Known: worker-crash, hang",
        "": "Name a fault to inject",
    }.items(),
)
def test_what_cannot_be_injected_is_refused_before_anything_starts(text: str, expected: str):
    with pytest.raises(RequestError, match=expected):
        Machines(inject=text)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ({"workers": 0, "inject": "hang=0.1"}, "--inject needs worker processes, and workers is 0"),
        ({"workers": 0, "ray": "auto"}, "--ray needs worker processes, and workers is 0"),
        ({"workers": -1}, "workers is -1; it needs to be 0"),
        ({"ray_insecure": True}, "--ray-insecure says how to use a Ray cluster; name one"),
    ],
)
def test_machines_that_do_not_go_together_are_refused(machines: dict, expected: str):
    with pytest.raises(RequestError, match=expected):
        Machines(**machines)


class Nowhere:
    """Keeps nothing."""

    def add_child(self, child, rejected) -> None: ...

    def add_outcome(self, child, outcome) -> None: ...


def history_of(faults: Injection | None, around: Callable[..., Any] = Rehearsing) -> tuple[list[str], Dispatcher]:
    """Search in this process; a fault here is what a worker's end is to its driver: a lost job."""
    task, configuration = QuickTask(), Configuration().changed({**SETTINGS, "evaluations": 20, "seed": 3})
    history = History(task.branches, configuration)
    workshop = JobRunner(task, draw_samples(task, configuration.rejection.samples, configuration.seed), configuration)
    with InlineWorkers(around(workshop.perform)) as pool:
        dispatcher = Dispatcher(pool, configuration.limits, faults)
        run_loop(history, Nowhere(), dispatcher)
    return list(as_text(history.finished)), dispatcher


def check_faults_do_not_change_the_history() -> None:
    """The check that the mutants have to fail as well."""

    def lose(fault):
        raise MemoryError(f"injected: {fault.kind}")

    clean = history_of(None)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(injection, "FAULTS", dict.fromkeys(FAULTS, lose))
        histories = [history_of(Injection.parse(f"worker-crash=0.4,hang=0.3,seed={seed}")) for seed in range(3)]
    for rehearsed_history, dispatcher in histories:
        assert rehearsed_history == clean
        assert dispatcher.mishaps.injected.total() == dispatcher.mishaps.repeated > 10


def check_what_the_machine_loses_is_tried_again() -> None:
    """The check that the mutants have to fail as well."""
    lost: Counter[str] = Counter()

    def lose_twice(perform):
        def performed(job):
            lost[str(job)] += 1
            # Of every other job the machine loses two attempts.
            if lost[str(job)] <= 2 and isinstance(job, Train) and len(job.loss) % 2:
                raise MemoryError("for real")
            return perform(job)

        return performed

    clean = history_of(None)[0]
    history, dispatcher = history_of(None, lose_twice)
    assert history == clean
    assert dispatcher.mishaps.losses["memory"] > 10


def test_what_the_machine_loses_is_tried_again_and_the_history_stays():
    check_what_the_machine_loses_is_tried_again()


def test_faults_do_not_change_the_history():
    check_faults_do_not_change_the_history()


def test_a_search_is_rehearsed_and_says_what_it_survived(tmp_path):
    said: list[str] = []
    found = autoloss.search(
        QuickTask(),
        evaluations=3,
        seed=3,
        workers=1,
        inject="error=0.3,seed=2",
        directory=tmp_path / "run",
        settings=SETTINGS,
        final=False,
        say=said.append,
    )
    clean = autoloss.search(
        QuickTask(), evaluations=3, seed=3, workers=0, directory=tmp_path / "clean", settings=SETTINGS, final=False
    )
    assert list(as_text(found.history)) == list(as_text(clean.history))
    (line,) = said
    assert line.startswith("Injected ")
    assert line.endswith("no job was lost.")
    assert not line.startswith("Injected 0 ")
