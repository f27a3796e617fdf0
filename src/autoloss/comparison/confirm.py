"""The end of a search: train the best candidates on new seeds, and compare them with the baselines on the test split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace

from autoloss.comparison.baselines import (
    MOST_RIVALS,
    TUNING_SHARE,
    baselines,
    choose_first_share,
    count_tuning_trainings,
    find_promising,
    tune_learning_rates,
)
from autoloss.comparison.entrant import (
    COMPARISON,
    CONFIRMATION,
    TEST,
    TUNING,
    TUNING_SEEDS,
    Entrant,
    count_after_search,
    training_seeds,
)
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.racing import follow_race
from autoloss.comparison.record import Record, compare_losses, run_trainings
from autoloss.comparison.table import Row, Rows, read_comparison, sort_by_mean
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.numbers import figure
from autoloss.settings import Configuration, FinalSettings
from autoloss.store.run_settings import Comparison
from autoloss.store.store import Store
from autoloss.tasks.task import Task

Say = Callable[[str], None]
RIVALS = 2
"""Maximum number of losses confirmed in addition to the candidates: the ladder's best, and the best known loss."""
WAYS = 2
"""Ways of training that each loss is tried in, mostly: as the recipe says, and as candidates are trained."""


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
    recorded = store.trainings()
    before = len(recorded) - count_after_search(recorded, seed)
    expected = round(count_trainings(settings, task, len(rivals), len(best)))
    record = Record(store, before + expected, lambda done, expected: observe(done - before, expected - before))
    if settings.confirm_seeds:
        ranked = _confirm([*best, *rivals], seed, settings, dispatcher, record, say)
        best = [one for one in ranked if one.number is not None]
    if not settings.compare or not settings.compare_seeds:
        return
    if TEST not in task.splits:
        say("The task has no test split, so there is no comparison with the baselines.")
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
    compare_with_baselines(best, task, configuration, seeds, store, dispatcher, record, ladder=ladder, say=say)


def count_trainings(settings: FinalSettings, task: Task, rivals: int = RIVALS, best: int | None = None) -> float:
    """Return about how many trainings follow a search, at most: confirmations, learning rates, the comparison.

    Args:
        rivals: Number of losses that are confirmed with the best candidates.
        best: Number of these, where it is not `final.confirm`.
    """
    return _count(settings, task, rivals, best, 1.0)


def count_equivalents(settings: FinalSettings, task: Task) -> float:
    """Return about how many whole trainings take as long as those that follow a search: rates are tried on shorter ones."""
    return _count(settings, task, RIVALS, None, choose_first_share(task, TUNING_SHARE))


def _count(settings: FinalSettings, task: Task, rivals: int, best: int | None, share: float) -> float:
    best = settings.confirm if best is None else best
    raced = best + rivals
    confirmed = raced * settings.confirm_seeds + min(settings.finalists, raced) * settings.finalist_seeds
    if not settings.compare or not settings.compare_seeds or TEST not in task.splits:
        return confirmed if settings.confirm_seeds else 0
    known = len(baselines(task))
    standard = min(1, known)
    # Beside the best of those found stands the best known one that the search started from.
    others, found = known - standard, min(settings.compare + 1, best)
    tuned = count_tuning_trainings(found + standard, others, WAYS, share)
    # The standard loss takes part as it is given, as the ladder's best, tuned and, where it decides, with a tuned threshold.
    entrants = found + (3 + task.tunes_threshold) * standard + min(others, MOST_RIVALS)
    compared = tuned + entrants * settings.compare_seeds
    return compared + (confirmed if settings.confirm_seeds else 0)


def _confirm(
    best: Sequence[Entrant], seed: int, settings: FinalSettings, dispatcher: Dispatcher, record: Record, say: Say
) -> list[Entrant]:
    """Train the best on new seeds, then let the finalists race; return all in their new order."""
    count = settings.confirm_seeds
    candidates = sum(one.number is not None for one in best)
    beside = "" if candidates == len(best) else " and the best of the ladder"
    say(f"Confirming the top {candidates} candidates{beside}: {count} new training seeds each ({len(best) * count}).")
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
    say: Say = lambda text: None,
) -> Rows:
    """Compare losses with the baselines on the test split; the learning rates of all are tuned on the same grid.

    Each takes part as the recipe says, as candidates are trained, or as the ladder's best is, whichever is best on the valid
    split. Of the baselines besides the standard loss only the best there are measured on the test split.

    Args:
        store: Keeps the list of entrants.
        record: Keeps every training.
        every: With all baselines, not only those that end a search, and all on the test split.
        ladder: The expert's; its best rung is a baseline, too.
        say: Called with a sentence on the baselines that are left out.

    Returns:
        One row per entrant, the best first.
    """
    plain, best_rung = baselines(task, every=every), None if ladder is None else ladder.best
    # The standard loss as the recipe trains it comes first: it is the reference of the others.
    own, rungs = plain[:1], [] if ladder is None else [ladder.best, ladder.set_aside]
    own = [*own, *(rung.entrant for rung in rungs if rung is not None and rung is not (ladder and ladder.given))]

    def vary(one: Entrant) -> list[Entrant]:
        if best_rung is None or one in plain[:1]:
            return [one]
        # A baseline has all that a loss found has: the steps of the recipe, of the search, and of the ladder's best.
        followed = one if one.number is not None else one.follow(configuration.search)
        return list(dict.fromkeys([one, followed, replace(followed, step_rule=best_rung.entrant.step_rule)]))

    promising, left = plain[1:], list[Row]()
    if not every:
        promising, left = find_promising(promising, task, configuration.seed, dispatcher, record, vary)
    tuned = [*best, *plain[:1], *promising]
    rows = tune_learning_rates(tuned, task, configuration.seed, dispatcher, record, vary=vary)
    found, standard = [row.entrant for row in rows[: len(best)]], [row.entrant for row in rows[len(best) :][:1]]
    others = sort_by_mean(rows[len(best) + 1 :])
    kept = others if every else [row for row in others if row.mean is not None][:MOST_RIVALS]
    left = ", ".join(_describe_left(row) for row in [*(row for row in others if row not in kept), *left])
    notes = [f"Behind on the valid split, and not measured on the {TEST} split: {left}."] if left else []
    if task.describe_reference is not None:
        notes.append(task.describe_reference(TEST))
    for note in notes:
        say(note)
    rivals = [*standard, *(row.entrant for row in kept)]
    if task.tunes_threshold:
        rivals += [replace(one, label=one.loss, tuned_threshold=True).name_factor() for one in standard]
    entrants = [*found, *(one for one in own if one not in rivals), *rivals]
    comparison = Comparison(seed_count, [dataclasses.asdict(entrant) for entrant in entrants], notes)
    store.change_setting("comparison", choose_comparison(store.settings().comparison, comparison))
    # The ladder's best was trained with other seeds on the valid split.
    compare_losses(entrants, training_seeds(configuration.seed, TUNING, TUNING_SEEDS), "valid", dispatcher, record)
    compare_losses(entrants, training_seeds(configuration.seed, COMPARISON, seed_count), TEST, dispatcher, record)
    return read_comparison(comparison, configuration.seed, record.outcomes)


def _describe_left(row: Row) -> str:
    if row.mean is None:
        return f"{row.entrant.label} (no score at any learning rate: {'; '.join(row.reasons)})"
    share = max(outcome.fidelity for outcome in row.outcomes)
    return f"{row.entrant.label} ({figure(row.mean)}{'' if share == 1 else f' at {share:g} of the schedule'})"


def choose_comparison(before: Comparison, now: Comparison) -> Comparison:
    """Return which of two comparisons a run is judged by: the later one, unless it says less of the same losses.

    >>> eight, three = (Comparison(seeds, [{"label": "#4", "loss": "p"}]) for seeds in (8, 3))
    >>> choose_comparison(eight, three).seeds
    8
    """

    def list_found(compared: Comparison) -> set[str]:
        return {entrant["loss"] for entrant in compared.entrants if not entrant.get("baseline")}

    return before if before.seeds > now.seeds and list_found(now) <= list_found(before) else now
