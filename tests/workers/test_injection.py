"""Injected faults are a function of seed, job and attempt, and a history with them is that of a run without."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import cloudpickle
import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Dispatcher, Machines, job_key, run_jobs
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.history import History
from autoloss.proposing.records import Job, Outcome, RejectionBatch, State, Train
from autoloss.run.loop import run_loop
from autoloss.settings import Configuration, LimitSettings
from autoloss.training.training import ItemWeights, Training
from autoloss.workers import injection, queue
from autoloss.workers.injection import (
    FAULTS,
    FAULTY_ATTEMPTS,
    HANGING,
    Fault,
    FaultyFunction,
    FaultyWorkers,
    Injection,
)
from autoloss.workers.pool import InlineWorkers, ProcessWorkers, Workers
from histories import as_text
from tests.run.quick import SETTINGS, QuickTask

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train(job: Job) -> Outcome:
    assert isinstance(job, Train)
    return Outcome(state=State.SCORED, score=float(job.training.seed), also={"process": float(os.getpid())})


def run_with_faults(
    injection: Injection, jobs: int, workers: int = 1, **limits: float
) -> tuple[dict[int, float], FaultyWorkers]:
    """Return seed → score of trainings with injected faults."""
    settings = LimitSettings(training_seconds=20, **limits)
    memory = settings.memory_bytes
    inner = ProcessWorkers(FaultyFunction(train), workers, memory_limit_bytes=memory)
    with FaultyWorkers(inner, injection, job_key, memory) as pool:
        dispatcher = Dispatcher(pool, settings)
        scores = {
            job.training.seed: result.score
            for job, result, _ in run_jobs([Train("y", Training(seed=seed)) for seed in range(jobs)], dispatcher)
            if isinstance(job, Train) and not isinstance(result, list)
        }
    assert not dispatcher.queue.losses
    assert not dispatcher.failed
    return scores, pool


@pytest.mark.parametrize("kind", FAULTS)
def test_a_job_with_a_fault_is_repeated(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(injection, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(injection, "FAULTY_ATTEMPTS", 1)
    scores, workers = run_with_faults(Injection({kind: 1.0}), 1, memory_gigabytes=0.25)
    assert scores == {0: 0.0}
    assert workers.injected == Counter({kind: 1})
    assert workers.repeated == 1


def test_the_faults_of_trainings_are_the_same_with_any_number_of_workers():
    faults = Injection.parse("worker-crash=0.2,error=0.2,seed=7")
    one, two = (run_with_faults(faults, 6, workers) for workers in (1, 2))
    assert one[0] == two[0] == {seed: float(seed) for seed in range(6)}
    assert one[1].injected == two[1].injected != Counter()
    assert one[1].repeated == two[1].repeated


def test_a_run_ends_even_when_every_attempt_is_hit():
    scores, workers = run_with_faults(Injection({"error": 1.0}), 1)
    assert scores == {0: 0.0}
    assert workers.injected.total() == FAULTY_ATTEMPTS
    assert workers.describe_faults(0) == (
        "Injected 3 faults (error 3): 3 attempts repeated with the same seed, no job was lost."
    )


def check_three_failures_of_the_machine_are_no_score() -> None:
    """The check that the mutants have to fail as well."""

    def refuse(job):
        raise MemoryError("for real")

    with FaultyWorkers(InlineWorkers(FaultyFunction(refuse)), Injection({"error": 1.0}), job_key) as pool:
        dispatcher = Dispatcher(pool, LimitSettings())
        ((_, result, _),) = run_jobs([Train("y", Training(seed=0))], dispatcher)
    assert not isinstance(result, list)
    assert (result.state, result.score) == (State.FAILED, None)
    assert result.reason.count("for real") >= queue.TRIES
    assert "injected" not in result.reason
    assert (dispatcher.failed, pool.repeated) == (1, FAULTY_ATTEMPTS)
    assert "1 jobs failed" in pool.describe_faults(dispatcher.failed)
    assert dispatcher.queue.describe_losses() == (
        "The machine ended 2 attempts (memory 2); they were repeated with the same seed."
    )


def test_three_failures_of_the_machine_are_no_score_and_injected_ones_are_not_among_them():
    check_three_failures_of_the_machine_are_no_score()


def test_draws_follow_their_rates_and_depend_on_seed_job_and_attempt_alone():
    rates = {"worker-crash": 0.1, "hang": 0.05}

    def draws(seed: int, attempt: int) -> list[Fault | None]:
        keys = [job_key(Train("y", Training(seed=number))) for number in range(4000)]
        return [Injection(rates, seed).draw_fault(key, attempt, None) for key in keys]

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
        assert job_key(short) == job_key(long)
        assert faults.draw_fault(job_key(short), 0, None) == faults.draw_fault(job_key(long), 0, None)


def test_every_field_that_decides_a_training_decides_its_faults():
    plain = Training(seed=0)
    others = [
        replace(plain, seed=1),
        replace(plain, split="test"),
        replace(plain, fold=1),
        replace(plain, schedule="full"),
        replace(plain, fidelity=0.5),
        replace(plain, learning_rate=0.1),
        replace(plain, scale={"main": 3.0}),
        replace(plain, step_rule="one_norm"),
        replace(plain, length=2.0),
        replace(plain, tuned_threshold=True),
        replace(plain, paced_by="neg(y)"),
        replace(plain, item_weights=(ItemWeights("main", "class", (1.0, 2.0)),)),
    ]
    keys = {job_key(Train("y", training)) for training in (plain, *others)}
    assert len(keys | {job_key(Train("neg(y)", plain))}) == 2 + sum(field.compare for field in fields(Training))
    assert job_key(Train("y", replace(plain, resampled=True))) == job_key(Train("y", plain))


def test_oom_takes_more_than_the_limit_and_never_the_whole_machine():
    faults = Injection({"oom": 1.0})
    key = job_key(Train("y", Training(seed=0)))
    limited, unlimited = (faults.draw_fault(key, 0, limit) for limit in (10 << 30, None))
    assert limited is not None
    assert unlimited is not None
    assert limited.memory_bytes == 15 << 30
    assert unlimited.memory_bytes == 1 << 30


def test_text_is_read_with_its_seed():
    assert Injection.parse(" worker-crash=0.05, hang=0.01 ,seed=7") == Injection(
        {"worker-crash": 0.05, "hang": 0.01}, 7
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "crash=0.1": r"no fault to inject named 'crash'.*worker-crash, hang, hang-c, freeze, oom, error, seed",
        "hang": "hang takes a share such as 0.05, found 'hang'",
        "hang=often": "takes a share such as 0.05, found 'hang=often'",
        "hang=0.1,seed=x": "seed takes a whole number, found 'seed=x'",
        "hang=1.5": "rate of hang is 1.5; expected a share of all attempts, from 0 to 1",
        "hang=nan": "rate of hang is nan",
        "hang=0.6,oom=0.6": "add up to 1.2",
        "hang=0.1,hang=0.2": "hang is given twice",
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
        ({"workers": 0, "inject": "hang=0.1"}, "workers is 0; inject needs at least one worker process"),
        ({"workers": 0, "ray": "auto"}, "workers is 0; ray needs at least one worker process"),
        ({"workers": -1}, "workers is -1; expected a whole number, at least 0"),
        ({"ray_insecure": True}, "ray_insecure allows an open Ray cluster, and ray names none"),
    ],
)
def test_machines_that_do_not_go_together_are_refused(machines: dict, expected: str):
    with pytest.raises(RequestError, match=expected):
        Machines(**machines)


class Nowhere:
    """Keeps nothing."""

    def add_candidate(self, candidate, rejected) -> None: ...

    def add_training(self, loss, training, outcome, candidate) -> None: ...


def history_of(
    around: Callable[[Callable[..., Any]], Any], faults: Injection | None = None
) -> tuple[list[str], Dispatcher, Workers]:
    """Search in this process; a fault here is what the end of a worker is to its driver: a lost job."""
    task, configuration = QuickTask(), Configuration().changed({**SETTINGS, "evaluations": 20, "seed": 3})
    history = History(task.branches, configuration)
    runner = Evaluator(task, draw_samples(task, configuration.rejection.samples, configuration.seed), configuration)
    inner = InlineWorkers(around(runner.perform))
    with inner if faults is None else FaultyWorkers(inner, faults, job_key) as pool:
        dispatcher = Dispatcher(pool, configuration.limits)
        run_loop(history, Nowhere(), dispatcher)
    return list(as_text(history.finished())), dispatcher, pool


def check_faults_do_not_change_the_history() -> None:
    """The check that the mutants have to fail as well."""

    def lose(fault):
        raise MemoryError(f"injected: {fault.kind}")

    clean = history_of(lambda perform: perform)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(injection, "FAULTS", dict.fromkeys(FAULTS, lose))
        found = [
            history_of(FaultyFunction, Injection.parse(f"worker-crash=0.4,hang=0.3,seed={seed}")) for seed in range(3)
        ]
    for history, dispatcher, workers in found:
        assert history == clean
        assert not dispatcher.queue.losses
        assert isinstance(workers, FaultyWorkers)
        assert workers.injected.total() == workers.repeated > 10


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

    history, dispatcher, _ = history_of(lose_twice)
    assert history == history_of(lambda perform: perform)[0]
    assert dispatcher.queue.losses["memory"] > 10


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
        # A fault hits the second training, whatever the tests of losses are divided into; each costs the start of a worker.
        workers=Machines(workers=1, inject="error=0.1,seed=10"),
        directory=tmp_path / "run",
        settings=SETTINGS,
        final=False,
        say=said.append,
    )
    clean = autoloss.search(
        QuickTask(), evaluations=3, seed=3, workers=0, directory=tmp_path / "clean", settings=SETTINGS, final=False
    )
    assert list(as_text(found.history)) == list(as_text(clean.history))
    *_, line = said
    assert line.startswith("Injected ")
    assert line.endswith("no job was lost.")
    assert not line.startswith("Injected 0 ")
