"""What a search does before its first candidate: draws samples, checks that a loss can pass, and tests the losses to start from."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from autoloss import __version__
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines
from autoloss.proposing.chance import derive_seed
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.screen import bound_gains
from autoloss.run.adapting import adapt_configuration, describe_budget
from autoloss.run.changes import read_recipe
from autoloss.run.request import Request, branch_forms
from autoloss.run.starting_losses import check_starting_losses, describe_start
from autoloss.settings import Configuration, ProtocolSettings
from autoloss.store import samples as sample_files
from autoloss.store.migrations import digest_of_samples
from autoloss.store.run_settings import RunSettings
from autoloss.tasks.diagnosis import find_doubtful_predictions
from autoloss.tasks.task import Task
from autoloss.training.threads import one_thread


def start_run(
    request: Request, directory: Path, machines: Machines, say: Callable[[str], None]
) -> tuple[RunSettings, sample_files.Samples]:
    """Draw and save the samples of a run, and return them with its settings, which are not written yet.

    Raises:
        RequestError: The samples do not serve, or no loss can reach the threshold.
        RunError: There is no room for the samples.
    """
    task, configuration = request.task, request.configuration
    samples = sample_files.draw_samples(task, configuration.rejection.samples, configuration.seed)
    for text in (*find_doubtful_predictions(task, samples), *task.diagnose()):
        say(f"Check the task: {text}")
    check_threshold(task, samples, configuration.rejection)
    sample_files.save(directory, samples)
    runner = Evaluator(task, samples, configuration, operators=request.operators)
    configuration, standard = adapt_configuration(task, configuration, runner, say)
    start = check_starting_losses(request.start, runner.changed(configuration))
    for text in (
        *describe_idle_workers(machines.workers, configuration),
        *map(describe_start, start),
        *describe_budget(configuration),
    ):
        say(text)
    with one_thread():
        untrained = task.untrained(derive_seed(configuration.seed, "training"))
    settings = RunSettings(
        configuration=configuration,
        task=request.reference,
        title=task.name,
        branches=branch_forms(task, samples),
        release=__version__,
        samples_digest=digest_of_samples(directory),
        untrained=untrained,
        standard=standard,
        standard_loss=dict(task.standard),
        recipe=read_recipe(task),
        start=start,
        also=request.also,
    )
    return settings, samples


def check_threshold(task: Task, samples: sample_files.Samples, settings: ProtocolSettings) -> None:
    """Refuse a threshold that no loss can reach: the search would draw a million losses before it gave up.

    Raises:
        RequestError: On some branch, even the ideal prediction gains less.
    """
    for name, branch in task.branches.items():
        with one_thread():
            reference = measure_reference(branch, samples[name])
        most = reference.score(bound_gains(reference), settings.unit)
        if most < settings.threshold:
            untrained = sum(reference.initial) / len(reference.initial)
            raise RequestError(
                f"No loss can pass on the branch {name}: an untrained network's metric is {untrained:.2f} on its samples already, "
                f"so g can be {most:.2f} at most ({settings.unit}), and η is {settings.threshold:g}. Set "
                "rejection.unit=relative, or a lower rejection.threshold.",
                argument="settings",
            )


def describe_idle_workers(workers: int, configuration: Configuration) -> list[str]:
    """Say whether some workers will often have nothing to train; docs/results.md shows what a lag costs.

    >>> describe_idle_workers(2, Configuration().changed({"evolution.lag": 4}))
    []
    """
    lag = configuration.evolution.lag
    settings, wanted = {"evolution.lag": lag}, {"evolution.lag": max(lag, 2 * workers)}
    waits = lag < workers
    if len(configuration.search.rungs) > 1 and workers > 1:
        # While one candidate is trained whole, those up to this lag after it are trained shortly. Three quarters of what all
        # workers train in that time are enough.
        settings["search.promoted_lag"] = max(lag, configuration.search.promoted_lag)
        wanted["search.promoted_lag"] = math.ceil(workers / configuration.search.rungs[0])
        waits = waits or settings["search.promoted_lag"] < 0.75 * workers / configuration.search.rungs[0]
    if not waits:
        return []
    now, better = (" and ".join(f"{name}={value}" for name, value in each.items()) for each in (settings, wanted))
    return [
        f"With {now}, some of the {workers} workers will often only test losses, or wait for those that train. Set {better} to "
        "keep nearly all busy; each candidate then knows fewer of the latest ones."
    ]
