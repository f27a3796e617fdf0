"""What ends a search: the best candidates on new training seeds, then beside the baselines on the test split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from autoloss.settings import Configuration, FinalSettings
from autoloss.store.crash_points import crash_point
from autoloss.store.run_settings import Comparison
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.trainings.baselines import at_scales, baselines, tune_learning_rates
from autoloss.trainings.compare import compare_losses
from autoloss.trainings.entrant import COMPARISON, CONFIRMATION, TEST, Entrant, training_seeds
from autoloss.trainings.table import Row, confirmed_rows, sort_by_mean
from autoloss.workers.dispatch import Dispatcher

Say = Callable[[str], None]


def confirm_and_compare(
    best: Sequence[Entrant], task: Task, configuration: Configuration, dispatcher: Dispatcher, store: Store, say: Say
) -> None:
    """Train the best candidates on new seeds, then compare the winners with the baselines on the test split.

    Args:
        best: The best candidates of the search, at most `final.confirm` of them.
        say: Called with a sentence about what is trained next.
    """
    settings, seed = configuration.final, configuration.seed
    if not best:
        return
    if settings.confirm_seeds:
        best = _confirm(best, seed, settings, dispatcher, store, say)
    if not settings.compare or not settings.compare_seeds:
        return
    if TEST not in task.splits:
        say("The task has no test split, so nothing is compared with the baselines.")
        return
    best = best[: settings.compare]
    say(
        f"Comparing the top {len(best)} with the baselines on the test split: {settings.compare_seeds} new training seeds each."
    )
    compare_with_baselines(best, task, configuration, settings.compare_seeds, store, dispatcher)
    crash_point("compared")


def _confirm(
    best: Sequence[Entrant], seed: int, settings: FinalSettings, dispatcher: Dispatcher, store: Store, say: Say
) -> list[Entrant]:
    """Train the best on new seeds, the finalists on further ones; return them in their new order."""
    count, further = settings.confirm_seeds, settings.finalist_seeds
    every = training_seeds(seed, CONFIRMATION, count + further)
    say(f"Confirming the top {len(best)} candidates: {count} new training seeds each ({len(best) * count} trainings).")
    first = compare_losses(best, every[:count], "valid", dispatcher, store)
    crash_point("best-confirmed")
    finalists = [row.entrant for row in sort_by_mean(first)[: settings.finalists]]
    if finalists and further:
        say(
            f"Confirming the top {len(finalists)} of these: {further} further training seeds each "
            f"({len(finalists) * further} trainings)."
        )
        compare_losses(finalists, every, "valid", dispatcher, store)
        crash_point("finalists-confirmed")
    return [row.entrant for row in confirmed_rows(best, seed, settings, store.trainings())]


def compare_with_baselines(
    best: Sequence[Entrant],
    task: Task,
    configuration: Configuration,
    seed_count: int,
    store: Store,
    dispatcher: Dispatcher,
    *,
    every: bool = False,
) -> list[Row]:
    """Compare losses with the tuned baselines, and with the standard loss at other scales, on the test split.

    Every training is recorded in the store, and so is the list of entrants.

    Args:
        every: With all baselines, not only those that end a search.

    Returns:
        One row per entrant, the best first.
    """
    plain = baselines(task, every=every)
    rivals = tune_learning_rates(plain, task, configuration.seed, dispatcher, store)
    # The standard loss at the recipe's own learning rate comes first: it is the reference of the others.
    own = [rival for rival in plain[:1] if rival not in rivals]
    entrants = [*best, *own, *rivals, *(other for rival in plain[:1] for other in at_scales(rival))]
    comparison = Comparison(seed_count, [dataclasses.asdict(entrant) for entrant in entrants])
    store.change_setting("comparison", comparison)
    seeds = training_seeds(configuration.seed, COMPARISON, seed_count)
    return sort_by_mean(compare_losses(entrants, seeds, TEST, dispatcher, store))
