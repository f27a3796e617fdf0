"""Search efficiency: what each part of the paper's search adds at equal time, and what each part of this project adds to it.

python bench/finding/ablation.py --work /tmp/ablation.sqlite --out bench/results/ablation.json      keeps each training; goes on
python bench/finding/ablation.py --tasks digits-det --seconds 600 --work …                           the detector

The paper's ablation, with its arms in its order: random search, naive evolution, with the rejection protocol, with the
equivalence check, and with a stop at invalid values, all from the settings of its recipe; then the same search with each part
that this project added, one after the other. All arms of a seed share samples and training seed, and a loss that two of them
propose is trained once, but each is charged with its processor time: an arm ends after so many seconds of one thread, in
rejection tests and in trainings. Without the protocol, the first attempt that holds a prediction and a target is trained; without
the equivalence check, no loss is another's twin; without a stop, a training that diverges is charged with the time of a whole
one. A memory is learnt without the task. The five best whole trainings of an arm are trained again on two new seeds of the valid
split: `chosen` is the test score of the one that the search calls best, and `chosen_by_mean` that of the one with the best mean,
the choice under noise.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import autoloss
from autoloss import recipes
from autoloss.comparison.entrant import CONFIRMATION, training_seeds
from autoloss.errors import RunError
from autoloss.evaluation.adapting import adapt
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.history import History
from autoloss.proposing.memory import Memory, read_prior
from autoloss.proposing.mutation import Kind, draw_attempt
from autoloss.proposing.proposers import make_proposer
from autoloss.proposing.records import Attempt, Candidate, Job, Outcome, RejectionBatch, State, Train
from autoloss.run.loop import run_loop
from autoloss.run.resolving import operator_table
from autoloss.run.starting_losses import name_losses, parse_starting_losses
from autoloss.settings import Configuration
from autoloss.training.training import Training
from autoloss.workers.pool import InlineWorkers
from output import Figure, emit, make_parser, parse_arguments
from problems import PROBLEMS
from searches import tell
from sharing import Cache

TOP = 5
NEW_SEEDS = training_seeds(0, CONFIRMATION, 2)
SHARES = (0.25, 0.5, 1.0)
"""Shares of an arm's time at which its five best are looked at."""
TASKS = ("digits-seg-miou", "digits-det", "tabular-f1", "worst-digit")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to search.

    Args:
        settings: Changes to those of the paper's recipe.
        rejection: With the rejection protocol; likewise the equivalence check and the stop at invalid values.
    """

    settings: Mapping[str, Any]
    rejection: bool = True
    equivalence: bool = True
    stop: bool = True


PARTS: Mapping[str, Sequence[str]] = {
    "+ selection": ("evolution.tournament", "evolution.population", "offspring.fresh"),
    "+ scale": ("search.scale", "rejection.admit_standard"),
    "+ rungs": ("search.rungs", "search.promote", "search.promoted_lag"),
    "+ guided": ("search.proposer", "search.guided_share"),
    "+ shelf, sums": (
        "evolution.start",
        "search.promote_start",
        "evolution.valid_draws",
        "offspring.sum",
        "offspring.refine",
    ),
    "+ memory": ("search.prior",),
}
"""Arm → the settings of the default recipe that it adds to those of the arm before."""


def list_arms() -> dict[str, Arm]:
    """Return all arms in their order."""
    arms = {
        "random search": Arm({"search.proposer": "random"}, rejection=False, equivalence=False, stop=False),
        "naive evolution": Arm({}, rejection=False, equivalence=False, stop=False),
        "+ rejection": Arm({}, equivalence=False, stop=False),
        "+ equivalence": Arm({}, stop=False),
        "+ stop (the paper's)": Arm({}),
    }
    settings: dict[str, Any] = {}
    for name, added in PARTS.items():
        settings = {**settings, **{one: recipes.DEFAULT[one] for one in added if one in recipes.DEFAULT}}
        arms[name] = Arm(settings)
    return arms


ARMS = list_arms()
FIGURES = {
    f"{arm}: {name}": Figure(("rows", {"task": "tabular-f1", "arm": arm}, key), digits=digits)
    for arm in ("naive evolution", "+ stop (the paper's)", "+ shelf, sums")
    for name, key, digits in (("losses explored", "explored", 0), ("five best at the end", "top", 3))
}


class TimeIsUp(Exception):
    """The arm has spent its processor time."""


class Worker:
    """Does the jobs of one search in this process, charges their processor time, and leaves out what the arm goes without."""

    def __init__(self, evaluator: Evaluator, arm: Arm, cache: Cache, limit: float) -> None:
        self._evaluator, self._arm, self._cache, self.limit = evaluator, arm, cache, limit
        self.spent = 0.0
        self.trainings, self.diverged = 0, 0
        self.explored = 0
        self.whole: list[tuple[float, str, float]] = []
        """(seconds, loss, score) of each whole training."""
        self._seconds_of_whole = 0.0

    def __call__(self, job: Job) -> list[Attempt] | Outcome:
        if self.spent > self.limit:
            raise TimeIsUp
        return self._train(job) if isinstance(job, Train) else self._test(job)

    def _test(self, job: RejectionBatch) -> list[Attempt]:
        began = time.process_time()
        if self._arm.rejection:
            found = self._evaluator.perform(job)
            assert isinstance(found, list)
        else:
            found = self._draw(job)
        self.explored += len(found)
        if not self._arm.equivalence:
            found = [self._make_unique(one, job) for one in found]
        self.spent += time.process_time() - began
        return found

    def _draw(self, job: RejectionBatch) -> list[Attempt]:
        """Draw attempts until one holds a prediction and a target; nothing else is asked of it."""
        configuration, tester = self._evaluator.configuration, self._evaluator.get_tester(job.branch)
        settings, roles = configuration.evolution, tester.engine.branch.leaves_and_roles
        parent = None if job.parent is None else tester.parse(job.parent)
        found: list[Attempt] = []
        for number in range(job.first, job.first + job.count):
            tree = draw_attempt(
                job.candidate, job.branch, Kind(job.kind), number, parent, tester.alphabet, settings, configuration.seed
            )
            reason = "SIZE" if len(tree.operators) > settings.maximum_operators else "STRUCTURE"
            passes = tree.holds(roles) and reason != "SIZE"
            found.append(Attempt(number, str(tree), None if passes else reason, b"?" if passes else b"", (), passes))
            if passes:
                break
        return found

    def _make_unique(self, one: Attempt, job: RejectionBatch) -> Attempt:
        """Give an attempt a key and a signature of its own, so that it is no other's twin."""
        if not one.key:
            return one
        digest = hashlib.blake2b(f"{job.candidate} {job.branch} {one.number}".encode(), digest_size=16).digest()
        signature = tuple(f"{1 + int.from_bytes(digest[at : at + 2]) / 7:.5e}" for at in range(0, 16, 2))
        return one._replace(key=digest[:8], signature=signature)

    def _train(self, job: Train) -> Outcome:
        outcome = self.look_up(job)
        seconds = outcome.seconds or 0.0
        self.trainings += 1
        if outcome.score is None:
            self.diverged += 1
            if not self._arm.stop:
                seconds = max(seconds, self._seconds_of_whole * job.training.fidelity)
        elif job.training.fidelity == 1:
            self._seconds_of_whole = seconds
        self.spent += seconds
        if outcome.state is State.SCORED and outcome.score is not None and job.training.fidelity == 1:
            self.whole.append((self.spent, job.loss, outcome.score))
        return outcome

    def look_up(self, job: Train) -> Outcome:
        """Train, or return what an earlier training came to, with its seconds of processor time."""
        if (known := self._cache.find_training(job)) is not None:
            return known
        began = time.process_time()
        found = self._evaluator.perform(job)
        assert isinstance(found, Outcome)
        self._cache.add_training(job, replace(found, seconds=time.process_time() - began))
        return self._cache.find_training(job) or found


class _Nowhere:
    def add_candidate(self, candidate: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None: ...

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None) -> None: ...


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, seeds=3, seconds=240.0)
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=[TASKS[0]])
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    asked.add_argument(
        "--work", type=Path, help="the SQLite file that keeps trainings and arms; without it nothing is kept"
    )
    asked.add_argument("--few", action="store_true", help="tasks with a third of the steps or fewer, for short times")
    asked.add_argument("--minutes", type=float, default=1e6, help="begin no arm after this time")
    arguments = parse_arguments(asked, argv, tasks=["tabular-f1"], seeds=1, seconds=1.0, few=True)
    end = time.monotonic() + 60 * arguments.minutes
    with TemporaryDirectory() as folder:
        path = arguments.work or Path(folder) / "trainings.sqlite"
        searches = [
            found
            for task, seed in itertools.product(arguments.tasks, range(arguments.seeds))
            for arm in arguments.arms
            if (found := _search(task, seed, arm, path, end, arguments)) is not None
        ]
    rows = list(_summarise(searches))
    emit(
        {"seconds": arguments.seconds, "few": arguments.few, "top": TOP, "rows": rows, "searches": searches},
        arguments,
        _print,
    )


def _search(name: str, seed: int, arm: str, path: Path, end: float, arguments: Any) -> dict[str, Any] | None:
    cache = Cache(path, f"ablation, {name}{', few' if arguments.few else ''}")
    key = json.dumps([arm, arguments.seconds, autoloss.__version__])
    if (kept := cache.find_search(seed, key)) is not None:
        return json.loads(kept)
    if time.monotonic() > end:
        return None
    task = PROBLEMS[name](arguments.few)
    configuration = _configure(task, ARMS[arm], seed)
    samples = draw_samples(task, configuration.rejection.samples, seed)
    evaluator = adapt(Evaluator(task, samples, configuration), lambda said: None)
    for branch in task.branches:
        # What testers compile and measure at first is no part of a search's time.
        evaluator.judge_standard(branch)
    worker, adapted, ended = Worker(evaluator, ARMS[arm], cache, arguments.seconds), evaluator.configuration, ""
    try:
        with InlineWorkers(worker) as workers:
            forms = {name: branch.form(samples[name]) for name, branch in task.branches.items()}
            # What it learnt from the task itself is left out.
            known = [forest for forest in read_prior(adapted.search.prior)[0] if forest.source != name]
            memory = Memory(known, forms, evaluator.operators) if known else None
            history = History(task.branches, adapted, make_proposer(adapted, memory=memory))
            ended = run_loop(history, _Nowhere(), Dispatcher(workers, adapted.limits))
    except TimeIsUp:
        ended = "the time is up"
    except RunError as error:
        ended = "the time is up" if TimeIsUp.__name__ in str(error) else str(error)
    found = {"task": name, "seed": seed, "arm": arm, "ended": ended, **_describe(worker, evaluator)}
    cache.add_search(seed, key, json.dumps(found))
    tell(
        f"{name}, seed {seed}, {arm}: {found['explored']} explored, {found['trainings']} trained, five best {found['top']}"
    )
    return found


def _configure(task: autoloss.Task, arm: Arm, seed: int) -> Configuration:
    settings = {**recipes.get_search_settings(task.name, "paper"), **arm.settings, "seed": seed, "evaluations": 100_000}
    if start := settings.get("evolution.start"):
        most = Configuration().changed(settings).evolution.initial
        losses, _ = parse_starting_losses(name_losses(start), task, operator_table(()), most)
        settings["evolution.start"] = tuple(map(str, losses))
    return Configuration().changed(settings)


def _describe(worker: Worker, evaluator: Evaluator) -> dict[str, Any]:
    """Return what an arm came to: its counts, its five best over time, and what its choice is worth on new seeds."""
    limit = worker.limit
    best = _take_top(worker.whole)
    rate = evaluator.configuration.search.learning_rate
    fresh = {loss: _measure(loss, NEW_SEEDS, "valid", rate, worker) for _, loss, _ in best}
    by_mean = max(fresh, key=lambda loss: fresh[loss] or -1e9, default=None)
    return {
        "explored": worker.explored,
        "trainings": worker.trainings,
        "diverged": worker.diverged,
        "course": [[share, _mean_of_top(one for one in worker.whole if one[0] <= share * limit)] for share in SHARES],
        "top": _mean_of_top(worker.whole),
        "best": best[0][1] if best else None,
        "chosen": _measure(best[0][1], NEW_SEEDS, "test", rate, worker) if best else None,
        "chosen_by_mean": None if by_mean is None else _measure(by_mean, NEW_SEEDS, "test", rate, worker),
    }


def _take_top(whole: Iterable[tuple[float, str, float]]) -> list[tuple[float, str, float]]:
    """Return the five losses with the highest scores, the best first."""
    every: dict[str, tuple[float, str, float]] = {}
    for one in sorted(whole, key=lambda one: one[2], reverse=True):
        every.setdefault(one[1], one)
    return list(every.values())[:TOP]


def _mean_of_top(whole: Iterable[tuple[float, str, float]]) -> float | None:
    best = _take_top(whole)
    return fmean(score for *_, score in best) if best else None


def _measure(loss: str, seeds: Sequence[int], split: str, rate: float, worker: Worker) -> float | None:
    outcomes = [worker.look_up(Train(loss, Training(seed=seed, split=split, learning_rate=rate))) for seed in seeds]
    scores = [one.score for one in outcomes if one.score is not None]
    return fmean(scores) if len(scores) == len(seeds) else None


def _summarise(searches: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield a row for each task and arm: means over its seeds, with the standard deviation of the five best."""
    for task, arm in dict.fromkeys((one["task"], one["arm"]) for one in searches):
        mine = [one for one in searches if (one["task"], one["arm"]) == (task, arm)]
        row: dict[str, Any] = {"task": task, "arm": arm, "seeds": len(mine)}
        for key in ("explored", "trainings", "diverged", "top", "chosen", "chosen_by_mean"):
            values = [one[key] for one in mine if one[key] is not None]
            row[key] = fmean(values) if len(values) == len(mine) else None
        row["top_sd"] = stdev([one["top"] for one in mine]) if row["top"] is not None and len(mine) > 1 else None
        row["course"] = [
            [
                share,
                fmean(values)
                if len(values := [v for one in mine if (v := one["course"][at][1]) is not None])
                else None,
            ]
            for at, share in enumerate(SHARES)
        ]
        yield row


def _print(result: Mapping[str, Any]) -> None:
    print(f"{result['seconds']:g} s of processor time for each arm and seed")
    head = ("explored", "trained", "diverged", *(f"at {share:g}" for share in SHARES), "chosen", "by mean")
    print(f"{'task, arm':<40}" + "".join(f"{one:>10}" for one in head))
    for row in result["rows"]:
        counts = [f"{row[key]:.0f}" for key in ("explored", "trainings", "diverged")]
        scores = [*(score for _, score in row["course"]), row["chosen"], row["chosen_by_mean"]]
        texts = [*counts, *("–" if score is None else f"{score:.3f}" for score in scores)]
        print(f"{row['task'] + ', ' + row['arm']:<40}" + "".join(f"{one:>10}" for one in texts))


if __name__ == "__main__":
    main()
