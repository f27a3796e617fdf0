"""Cost of the driver: time and memory per trained candidate, and the share of the time in which its workers are busy.

python bench/cost/driver.py --out results/driver.json

The pipeline, its history and its store are the real ones, and jobs are pickled as for worker processes; only what a worker
would do is answered at once, and the time that takes is left out. Utilisation is the share of the time in which worker processes
train or test, on digits-seg, a table and a task of ten labels, with one worker and two; beside it the share of trainings alone and
the seconds of tests for each loss that passes. The figures of digits-seg with two workers stand at the top; only on an otherwise
idle machine are they those of the search.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import gc
import itertools
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from autoloss import recipes
from autoloss.evaluation.adapting import adapt
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.proposing.history import History
from autoloss.proposing.memory import recall
from autoloss.proposing.proposers import make_proposer
from autoloss.proposing.records import Candidate, Outcome, Train
from autoloss.run.loop import run_loop
from autoloss.run.request import branch_forms, make_request, prepare
from autoloss.settings import Configuration
from autoloss.store.store import Store
from autoloss.training.training import Training
from autoloss.workers.messages import Finished, JobOutcome, decode
from autoloss.workers.pool import ProcessWorkers, Workers
from autoloss.workers.worker import run_job
from output import Figure, emit, make_parser, parse_arguments
from problems import PROBLEMS, make_denoising
from synthetic import BRANCHES, DEFAULT, Answers

TARGETS = {
    "milliseconds_per_candidate": 5.0,
    "megabytes": 200.0,
    "utilisation": 0.95,
    "default_recipe_utilisation": 0.95,
}
FIGURES = {
    "milliseconds per candidate": Figure(("milliseconds_per_candidate",), digits=1),
    "of which in the store": Figure(("milliseconds_in_the_store",), digits=1),
    "megabytes": Figure(("megabytes",), digits=0),
    "utilisation of two workers": Figure(("utilisation",), digits=2),
    "utilisation of two workers, default recipe": Figure(("default_recipe_utilisation",), digits=2),
}
SETTINGS = {"evolution.lag": 8, "seed": 0, "evolution.idle_children": 10**6}
SLOTS = 4
SEGMENTATION = "digits-seg-miou"
TASKS = {**PROBLEMS, "denoising": make_denoising}


class Instant(Workers):
    """Answers every job at once, and knows how long the answering took."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._waiting: dict[int, bytes] = {}
        self.answering_seconds = 0.0
        self.trained_at: list[float] = []
        # The same in processor time, which says more on a machine that does other things too.
        self.answering_processor_seconds = 0.0
        self.trained_at_processor: list[float] = []

    @property
    def slots(self) -> int:
        return SLOTS

    @property
    def busy(self) -> Mapping[int, float]:
        return dict.fromkeys(self._waiting, 0.0)

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        frame = cloudpickle.dumps((job, cloudpickle.dumps(payload)))
        began, began_processor = time.perf_counter(), time.process_time()
        del frame
        self._waiting[job] = cloudpickle.dumps(run_job(self._answers.perform, job, payload))
        if isinstance(payload, Train):
            self.trained_at.append(began - self.answering_seconds)
            self.trained_at_processor.append(began_processor - self.answering_processor_seconds)
        self.answering_seconds += time.perf_counter() - began
        self.answering_processor_seconds += time.process_time() - began_processor

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        found = [decode(body) for body in self._waiting.values()]
        self._waiting.clear()
        return found

    def cancel(self, job: int) -> None:
        del self._waiting[job]

    def close(self) -> None:
        self._waiting.clear()


class Timed:
    """The store, and how long it took to write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seconds = 0.0

    def add_candidate(self, candidate: Candidate, rejected: dict[tuple[str, int], tuple[str, str]]) -> None:
        began = time.perf_counter()
        self._store.add_candidate(candidate, rejected)
        self.seconds += time.perf_counter() - began

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None) -> None:
        began = time.perf_counter()
        self._store.add_training(loss, training, outcome, candidate)
        self.seconds += time.perf_counter() - began


class Counted(Workers):
    """Worker processes, and how long they were at work."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.seconds = 0.0
        self.began: float | None = None

    @property
    def slots(self) -> int:
        return self._workers.slots

    @property
    def busy(self) -> Mapping[int, float]:
        return self._workers.busy

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        self._workers.submit(job, payload, deadline_seconds=deadline_seconds)

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        found = self._workers.wait(timeout_seconds)
        now = time.perf_counter()
        if found and self.began is None:
            # Workers import torch and compile once; what is of interest is the rest of a long run.
            self.began = now
        if self.began is not None:
            # Of a job that was under way at that moment, the rest counts.
            since = now - self.began
            self.seconds += sum(min(since, outcome.seconds) for outcome in found if isinstance(outcome, Finished))
        return found

    def cancel(self, job: int) -> None:
        self._workers.cancel(job)

    def close(self) -> None:
        self._workers.close()


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__)
    asked.add_argument("--candidates", type=int, default=10_000, help="trainings with instant answers")
    asked.add_argument("--evaluations", type=int, default=60, help="real trainings, for the utilisation")
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=[SEGMENTATION, "tabular-f1", "worst-digit"])
    asked.add_argument("--recipes", nargs="+", choices=recipes.SEARCH_RECIPES, default=list(recipes.SEARCH_RECIPES))
    asked.add_argument("--part", choices=["costs", "utilisation"], help="only this part")
    arguments = parse_arguments(asked, argv, candidates=1_000, evaluations=10)
    result: dict[str, Any] = {"targets": TARGETS}
    if arguments.part != "utilisation":
        result |= costs(arguments.candidates)
        # A budget of training equivalents holds several times as many short trainings.
        shortly = costs(round(arguments.candidates * DEFAULT["search.rungs"][0]), DEFAULT)
        result |= {f"default_recipe_{name}": value for name, value in shortly.items()}
    if arguments.part != "costs":
        rows = [
            measure_search(task, workers, recipe, arguments.evaluations, arguments.quick)
            for task, recipe, workers in itertools.product(arguments.tasks, arguments.recipes, (2, 1))
            if (recipe, workers) != ("paper", 1)
        ]
        for row in rows:
            if (row["task"], row["workers"]) == (SEGMENTATION, 2):
                prefix = "default_recipe_" if row["recipe"] == "default" else ""
                result |= {f"{prefix}{name}": row[name] for name in ("utilisation", "training_share")}
        result["searches"] = rows
    emit(result, arguments, _print)


def costs(evaluations: int, settings: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Measure a whole search whose jobs are answered at once; the time is that of its last tenth.

    Args:
        evaluations: Training equivalents.
        settings: What differs from the paper's.
    """
    configuration = Configuration().changed({**SETTINGS, **settings, "evaluations": evaluations})
    gc.collect()
    before = resident_megabytes()
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), write=True) as store:
        history, record = History(BRANCHES, configuration), Timed(store)
        workers = Instant(Answers(configuration))
        began = time.perf_counter()
        run_loop(history, record, Dispatcher(workers, configuration.limits))
        whole = time.perf_counter() - began - workers.answering_seconds
        after = resident_megabytes()
        store_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    trained, by_processor = workers.trained_at, workers.trained_at_processor
    tenth = max(2, len(trained) // 10)
    return {
        "milliseconds_per_candidate": _pace(trained[-tenth:]),
        "processor_milliseconds_per_candidate": _pace(by_processor[-tenth:]),
        # Were anything done for all candidates at each, the last would cost more than these.
        "processor_milliseconds_in_the_second_tenth": _pace(by_processor[tenth : 2 * tenth]),
        "milliseconds_per_candidate_from_the_first": 1000 * whole / len(trained),
        "milliseconds_in_the_store": 1000 * record.seconds / len(trained),
        "megabytes": after - before,
        "store_megabytes": store_bytes / 1e6,
        "trained": len(trained),
        "explored": history.totals["sampled"],
        "simulated": history.totals["simulated"],
        "children": len(history.candidates),
    }


def _pace(moments: Sequence[float]) -> float:
    """Return milliseconds from one moment to the next."""
    return 1000 * (moments[-1] - moments[0]) / (len(moments) - 1)


def measure_search(name: str, count: int, recipe: str, evaluations: int, quick: bool) -> dict[str, Any]:
    """Measure how much of the time worker processes train or test in a search, from the first answer to the last.

    Args:
        name: Of a task of `TASKS`.
        count: Number of workers.
        evaluations: Training equivalents.
    """
    request = make_request(TASKS[name](quick), recipe=recipe, evaluations=evaluations, seed=0)
    evaluator = adapt(prepare(request), lambda said: None)
    task, configuration = evaluator.task, evaluator.configuration
    memory = recall(configuration.search, branch_forms(task, evaluator.samples), evaluator.operators)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), write=True) as store:
        history = History(task.branches, configuration, make_proposer(configuration, memory=memory))
        with Counted(ProcessWorkers(evaluator.perform, count)) as workers:
            run_loop(history, store, Dispatcher(workers, configuration.limits))
            seconds = time.perf_counter() - (workers.began or 0.0)
        trainings = [outcome.seconds for outcome in store.outcomes().values()]
    passed = max(1, history.totals["passed"])
    return {
        "task": name,
        "workers": count,
        "recipe": recipe,
        "utilisation": workers.seconds / (count * seconds),
        "training_share": sum(trainings) / (count * seconds),
        "seconds": seconds,
        "trainings": len(trainings),
        "seconds_per_training": sum(trainings) / max(1, len(trainings)),
        "passed": passed,
        "explored": history.totals["sampled"],
        "seconds_per_passed": (workers.seconds - sum(trainings)) / passed,
        "load": os.getloadavg()[0],
    }


def resident_megabytes() -> float:
    """Return the memory that this process holds."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def _print(result: dict[str, Any]) -> None:
    for name, target in TARGETS.items():
        if name in result:
            print(f"{name}: {result[name]:.3g} (target {target:g})")
    for name, value in result.items():
        if name not in TARGETS and isinstance(value, int | float):
            print(f"  {name}: {value:.4g}")
    for row in result.get("searches", ()):
        print(
            f"  {row['task']}, {row['recipe']}, {row['workers']} workers: {row['utilisation']:.2f} at work, "
            f"{row['training_share']:.2f} training ({row['seconds_per_training']:.3f} s each), "
            f"{row['seconds_per_passed']:.3f} s of tests for each that passes"
        )


if __name__ == "__main__":
    main()
