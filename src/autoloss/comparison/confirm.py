"""The end of a search: train the best candidates on new seeds, and compare them with the baselines on the test split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from autoloss.comparison.baselines import baselines, count_tuning_trainings, tune_learning_rates
from autoloss.comparison.entrant import COMPARISON, CONFIRMATION, TEST, Entrant, training_seeds
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.racing import follow_race
from autoloss.comparison.record import Record, compare_losses, run_trainings
from autoloss.comparison.table import Row, sort_by_mean
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.settings import Configuration, FinalSettings
from autoloss.store.run_settings import Comparison
from autoloss.store.store import Store
from autoloss.tasks.task import Task

Say = Callable[[str], None]


def confirm_and_compare(
    best: Sequence[Entrant],
    task: Task,
    configuration: Configuration,
    dispatcher: Dispatcher,
    store: Store,
    say: Say,
    observe: Callable[[int, int], None] = lambda done, expected: None,
    ladder: Ladder | None = None,
    rivals: Sequence[Entrant] = (),
) -> None:
    """Train the best candidates on new seeds, then compare the best of them with the baselines on the test split.

    Args:
        best: The best candidates of the search, at most `final.confirm` of them.
        rivals: What they have to be ahead of, and is raced with them: the ladder's best, and the best known loss.
        say: Called with a sentence about what is trained next.
        observe: Called with (trainings that are done, those of the whole finale) after each training.
        ladder: As for `compare_with_baselines`.
    """
    settings, seed = configuration.final, configuration.seed
    if not best:
        return
    record = Record(store, count_trainings(settings, len(best), task, len(rivals)), observe)
    if settings.confirm_seeds:
        ranked = _confirm([*best, *rivals], seed, settings, dispatcher, record, say)
        best = [one for one in ranked if one.number is not None]
    if not settings.compare or not settings.compare_seeds:
        return
    if TEST not in task.splits:
        say("The task has no test split, so nothing is compared with the baselines.")
        return
    # The best known loss that the search started from is compared, too: what was found has to be ahead of it.
    known = [one for one in best[settings.compare :] if one.known and not best[0].known]
    best = [*best[: settings.compare], *known[:1]]
    compared = "best" if len(best) == 1 else f"top {len(best)}"
    say(
        f"Comparing the {compared} with the baselines: each at the best learning rate of a small grid, then "
        f"{settings.compare_seeds} new training seeds each on the test split."
    )
    seeds = settings.compare_seeds
    compare_with_baselines(best, task, configuration, seeds, store, dispatcher, record, ladder=ladder)


def count_trainings(settings: FinalSettings, best: int, task: Task, rivals: int = 0) -> int:
    """Return about how many trainings follow a search, at most: confirmations, learning rates, the comparison.

    Args:
        best: Number of the best candidates.
        rivals: Number of further losses that are confirmed with them.
    """
    best = min(best, settings.confirm)
    raced = best + rivals
    confirmed = raced * settings.confirm_seeds + min(settings.finalists, raced) * settings.finalist_seeds
    if not settings.compare or not settings.compare_seeds or TEST not in task.splits:
        return confirmed if settings.confirm_seeds else 0
    entrants = min(settings.compare, best) + len(baselines(task))
    tuned = count_tuning_trainings(entrants)
    # The standard loss also takes part at the recipe's own learning rate, where another one is better.
    compared = tuned + (entrants + 1) * settings.compare_seeds
    return compared + (confirmed if settings.confirm_seeds else 0)


def _confirm(
    best: Sequence[Entrant], seed: int, settings: FinalSettings, dispatcher: Dispatcher, record: Record, say: Say
) -> list[Entrant]:
    """Train the best on new seeds, then let the finalists race; return all in their new order."""
    count = settings.confirm_seeds
    candidates = sum(one.number is not None for one in best)
    beside = "" if candidates == len(best) else " and the best of the ladder"
    say(
        f"Confirming the top {candidates} candidates{beside}: {count} new training seeds each ({len(best) * count} trainings)."
    )
    compare_losses(best, training_seeds(seed, CONFIRMATION, count), "valid", dispatcher, record)
    race = follow_race(best, seed, settings, record.outcomes)
    if race.missing:
        finalists = min(settings.finalists, len(best))
        say(
            f"Confirming the top {finalists} of these: one further training seed each per round, at most "
            f"{finalists * settings.finalist_seeds} trainings; a candidate that is clearly behind gets no more."
        )
    while race.missing:
        race = follow_race(best, seed, settings, run_trainings(race.missing, dispatcher, record))
    return [row.entrant for row in race.rows]


def compare_with_baselines(
    best: Sequence[Entrant],
    task: Task,
    configuration: Configuration,
    seed_count: int,
    store: Store,
    dispatcher: Dispatcher,
    record: Record,
    *,
    every: bool = False,
    ladder: Ladder | None = None,
) -> list[Row]:
    """Compare losses with the baselines on the test split; the learning rates of all are tuned on the same grid.

    Args:
        store: Keeps the list of entrants.
        record: Keeps every training.
        every: With all baselines, not only those that end a search.
        ladder: The expert's; its best rung is a baseline, the others but the standard loss are trained as the candidates are, and
            candidates also under the step rule of the best.

    Returns:
        One row per entrant, the best first.
    """
    plain = baselines(task, every=every)
    # The standard loss as the recipe trains it comes first: it is the reference of the others.
    own, others, rule = plain[:1], plain, None
    if ladder is not None and ladder.best is not None:
        own = [*own, *([ladder.best.entrant] if ladder.best is not ladder.given else [])]
        others = [*plain[:1], *(one.follow(configuration.search) for one in plain[1:])]
        rule = ladder.best.entrant.step_rule
    tuned = tune_learning_rates([*best, *others], task, configuration.seed, dispatcher, record, rule=rule)
    found, rivals = tuned[: len(best)], tuned[len(best) :]
    entrants = [*found, *(one for one in own if one not in rivals), *rivals]
    comparison = Comparison(seed_count, [dataclasses.asdict(entrant) for entrant in entrants])
    store.change_setting("comparison", choose_comparison(store.settings().comparison, comparison))
    seeds = training_seeds(configuration.seed, COMPARISON, seed_count)
    return sort_by_mean(compare_losses(entrants, seeds, TEST, dispatcher, record))


def choose_comparison(before: Comparison, now: Comparison) -> Comparison:
    """Return which of two comparisons a run is judged by: the later one, unless it says less of the same losses.

    >>> eight, three = (Comparison(seeds, [{"label": "#4", "loss": "p"}]) for seeds in (8, 3))
    >>> choose_comparison(eight, three).seeds
    8
    """

    def list_found(compared: Comparison) -> set[str]:
        return {entrant["loss"] for entrant in compared.entrants if not entrant.get("baseline")}

    return before if before.seeds > now.seeds and list_found(now) <= list_found(before) else now
