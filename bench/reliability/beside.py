"""Compares a search of a toy task with any workers with the same search in this process."""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from autoloss.evaluation.dispatch import Dispatcher, job_key
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.history import History
from autoloss.proposing.records import State
from autoloss.run.loop import run_loop
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.task import Task
from autoloss.training.loop import Execution
from autoloss.training.training import Diverged, Observe, Scored, Training
from autoloss.workers.injection import FaultyFunction, FaultyWorkers, Injection
from autoloss.workers.pool import InlineWorkers, Workers
from histories import as_text
from output import emit, keep_rows, make_parser, parse_arguments
from searches import tell
from synthetic import Nowhere

Measure = Callable[[argparse.Namespace], list[dict[str, Any]]]
"""Takes the sizes on the command line and returns rows of a table of faults."""

# Workers elsewhere cannot import what lies beside a script.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS, CLASSES = 6, 3
SETTINGS = {
    "seed": 3,
    "evolution.initial": 5,
    "rejection.steps": 15,
    "rejection.learning_rate": 0.1,
    "rejection.samples": 2,
    "rejection.threshold": 0.5,
}
"""Make a search quick: about one simulated candidate in three passes."""


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).double().mean().item()


class Toy(Task):
    """Scores a loss by its gradient on a fixed batch; a hash decides which losses diverge and how long a training takes.

    Args:
        delay_seconds: Trainings sleep up to so long, each for a time of its own.
    """

    name = "toy"

    def __init__(self, delay_seconds: float = 0.0) -> None:
        self._delay_seconds = delay_seconds

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {"main": ActivatedBranch(activation="softmax", measure=accuracy, channels=CLASSES)}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        generator = torch.Generator().manual_seed(seed)
        return {"main": [_sample(generator) for _ in range(count)]}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        sample = _sample(torch.Generator().manual_seed(training.seed % 2**32))
        prediction = sample.prediction.requires_grad_(True)
        (slope,) = torch.autograd.grad(criterion["main"](prediction, sample.context), prediction)
        total = math.tanh(float((slope * sample.context["towards"]).sum()))
        digest = hashlib.blake2b(f"{total:.9e}".encode(), digest_size=2).digest()
        time.sleep(self._delay_seconds * digest[1] / 255)
        if not math.isfinite(total) or digest[0] % 5 == 0:
            return Diverged(1, "not finite, or a hash said so")
        return Scored(total, {}, ((1, total),))


def _sample(generator: torch.Generator) -> Sample:
    prediction = 0.1 * torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    towards = torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    target = (prediction[:, :, 0, 0].argmax(1) + 1) % CLASSES
    return Sample(prediction, {"target": target, "towards": towards})


def searched(
    evaluations: int,
    workers: Callable[[Callable[[Any], Any]], Workers] = InlineWorkers,
    *,
    delay_seconds: float = 0.0,
    inject: str | None = None,
    settings: Mapping[str, Any] | None = None,
    meddle: Callable[[Workers, int], None] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Search with the toy; returns its history, and counts of what went wrong.

    Args:
        workers: Makes workers of what they perform.
        meddle: Gets the workers and the number of evaluations so far, about twice a second and after each news.
    """
    task, configuration = (
        Toy(delay_seconds),
        Configuration().changed({**SETTINGS, "evaluations": evaluations, **(settings or {})}),
    )
    history = History(task.branches, configuration)
    samples = draw_samples(task, configuration.rejection.samples, configuration.seed)
    runner = Evaluator(task, samples, configuration)
    inner = workers(FaultyFunction(runner.perform))
    injection = Injection({}) if inject is None else Injection.parse(inject)
    with FaultyWorkers(inner, injection, job_key, configuration.limits.memory_bytes) as pool:
        dispatcher = Dispatcher(pool, configuration.limits)
        run_loop(
            history, Nowhere(), dispatcher, None if meddle is None else lambda progress: meddle(inner, progress.trained)
        )
    counts = {
        "failed": sum(outcome.state is State.FAILED for outcome in history.outcomes.values()),
        "repeated": pool.repeated + dispatcher.queue.losses.total(),
        "injected": dict(pool.injected),
        "losses": dict(dispatcher.queue.losses),
    }
    return list(as_text(history.finished())), counts


def beside_clean(promise: str, evaluations: int, workers: Callable[..., Any], **how: Any) -> dict[str, Any]:
    """Compare a search with the same one in this process without faults or delays."""
    clean, counts_clean = searched(evaluations)
    start = time.monotonic()
    lines, counts = searched(evaluations, workers, **how)
    lost = counts["failed"] - counts_clean["failed"] + sum(line not in lines for line in clean)
    more = {name: counts[name] for name in ("injected", "losses")}
    seconds = round(time.monotonic() - start)
    return row(promise, evaluations, lost, counts["repeated"], lines == clean, **more, seconds=seconds)


def run_measures(
    doc: str,
    measures: Sequence[Measure],
    argv: Sequence[str] | None,
    usual: Mapping[str, int],
    quick: Mapping[str, int],
) -> None:
    """Run a script's measures, or those that `--only` names.

    Args:
        usual: Sizes, each an argument of the command line.
        quick: The same under `--quick`.
    """
    table = {measure.__name__: measure for measure in measures}
    parser = make_parser(doc, **usual)
    parser.add_argument("--only", nargs="+", choices=list(table), help="only these measurements")
    arguments = parse_arguments(parser, argv, **quick)
    rows = []
    for name in arguments.only or table:
        rows += [{"name": name, **found} for found in table[name](arguments)]
        tell(str(rows[-1]))
    emit({"rows": keep_rows(rows, arguments)}, arguments, show)


def row(promise: str, trials: int, lost: int, repeated: int, history_equal: bool | None, **more: Any) -> dict[str, Any]:
    """Return one line of a table of faults.

    Args:
        lost: Evaluations without the outcome that they have in a run without faults, or workers that stayed.
        repeated: Attempts that were done again.
        history_equal: Whether the history is the clean run's, byte for byte; None where there is no history.
    """
    return {
        "promise": promise,
        "trials": trials,
        "lost": lost,
        "repeated": repeated,
        "history_equal": history_equal,
        **more,
    }


def show(result: dict[str, Any]) -> None:
    """Print a table of faults."""
    for found in result["rows"]:
        equal = {True: "history equal", False: "HISTORY DIFFERS", None: ""}[found["history_equal"]]
        figures = f"{found['trials']} trials, {found['lost']} lost, {found['repeated']} repeated"
        print(f"{found['promise']:<78} {figures}  {equal}", flush=True)
