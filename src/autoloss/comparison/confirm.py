"""The end of a search: train the best candidates on new seeds, and compare them with the baselines on the test split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from autoloss.comparison.baselines import MOST_RIVALS, baselines, enter_loss, join_with
from autoloss.comparison.entrant import (
    COMPARISON,
    CONFIRMATION,
    TEST,
    VALIDATION,
    VALIDATION_SEEDS,
    Entrant,
    Row,
    Rows,
    count_after_search,
    read_comparison,
    sort_by_mean,
    training_seeds,
)
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.racing import follow_race
from autoloss.comparison.record import (
    TUNING_SHARE,
    Record,
    choose_first_share,
    count_tuning_trainings,
    find_promising,
    tune_learning_rates,
    write_trees,
)
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.numbers import figure
from autoloss.settings import Configuration, FinalSettings, SearchSettings, StepRule
from autoloss.store.database import ignore
from autoloss.store.run_settings import Comparison
from autoloss.store.store import Say, Store
from autoloss.tasks.task import Task
from autoloss.zoo.entries import ENTRIES

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
    observe: Callable[[int, int], None] = ignore,
    ladder: Ladder | None = None,
    rivals: Sequence[Entrant] = (),
) -> None:
    """Train the best candidates on new seeds, then compare the best of them with the baselines on the test split.

    Args:
        best: The best candidates of the search, at most `final.candidates` of them.
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
    expected = before + round(count_trainings(settings, task, ladder, len(rivals), len(best)))
    record = Record(dispatcher, store, expected, lambda done, expected: observe(done - before, expected - before))
    raced = [*best, *rivals]
    ranked = _confirm(raced, seed, settings, record, say) if settings.confirmations else raced
    best = [one for one in ranked if one.number is not None]
    if not settings.compare or not settings.compare_seeds:
        return
    if TEST not in task.splits:
        say("The task has no test split, so there is no comparison with the baselines.")
        return
    best = choose_compared(best, settings.compare)
    compared = "best" if len(best) == 1 else f"top {len(best)}"
    say(
        f"Comparing the {compared} with the baselines: each at the best learning rate of a small grid, then "
        f"{settings.compare_seeds} new training seeds each on the test split."
    )
    compare_with_baselines(best, task, configuration, settings.compare_seeds, store, record, ladder=ladder, say=say)


def choose_compared(best: Sequence[Entrant], count: int) -> list[Entrant]:
    """Return the first, and the best known loss that the search started from: what was found has to be ahead of it.

    >>> found, known = Entrant("#4", "p"), Entrant("#1 shelf/dice", "y", known=True)
    >>> [one.label for one in choose_compared([found, found, known], 1)]
    ['#4', '#1 shelf/dice']
    """
    known = [one for one in best[count:] if one.known and not best[0].known]
    return [*best[:count], *known[:1]]


def count_equivalents(settings: FinalSettings, task: Task, ladder: Ladder | None = None) -> float:
    """Return about how many whole trainings take as long as those that follow a search: rates are tried on shorter ones."""
    return count_trainings(settings, task, ladder, RIVALS, settings.candidates, choose_first_share(task, TUNING_SHARE))


def count_trainings(
    settings: FinalSettings, task: Task, ladder: Ladder | None, rivals: int, best: int, share: float = 1.0
) -> float:
    """Return about how many trainings follow a search, at most: confirmations, learning rates, the comparison.

    Args:
        ladder: None where it is not climbed yet: another way than the recipe's is expected to be its best.
        rivals: Number of losses that are confirmed with the `best` candidates.
        share: What a training counts by which rates are tried first.
    """
    rungs = 1 if ladder is None else sum(rung not in (None, ladder.given) for rung in (ladder.best, ladder.set_aside))
    ways = len(_find_untried(ladder, task))
    raced, confirmed = best + rivals, 0
    if settings.confirmations:
        confirmed = raced * settings.confirmations + min(settings.finalists, raced) * settings.finalist_seeds
    if not settings.compare or not settings.compare_seeds or TEST not in task.splits:
        return confirmed
    known = len(baselines(task))
    standard = min(1, known)
    # Beside the best of those found stands the best known one that the search started from.
    others, found = known - standard, min(settings.compare + 1, best)
    own = (1 + rungs + ways) * standard
    together = 0 if task.baselines else others * (len(task.branches) - 1) // len(task.branches)
    tuned = count_tuning_trainings(found, others + together, WAYS + ways, share)
    tuned += count_tuning_trainings(own, share=share)
    # The standard loss takes part as it is given, too, and with a tuned threshold where that decides; one rival as the best does.
    entrants = found + own + (1 + task.tunes_threshold) * standard + min(others, MOST_RIVALS) + 1
    return confirmed + tuned + entrants * (VALIDATION_SEEDS + settings.compare_seeds)


def _confirm(best: Sequence[Entrant], seed: int, settings: FinalSettings, record: Record, say: Say) -> list[Entrant]:
    """Train the best on new seeds, then let the finalists race; return all in their new order."""
    count = settings.confirm_seeds
    candidates = sum(one.number is not None for one in best)
    beside = "" if candidates == len(best) else " and the best of the ladder"
    top = "the best candidate" if candidates == 1 else f"the top {candidates} candidates"
    say(f"Confirming {top}{beside}: {count} new training seeds each ({len(best) * count}).")
    record.compare_losses(best, training_seeds(seed, CONFIRMATION, count), "valid")
    rows, missing = follow_race(best, seed, settings, record.outcomes)
    if missing:
        finalists = min(settings.finalists, len(best))
        say(
            f"Confirming the top {finalists} of these: one further training seed each per round, at most "
            f"{finalists * settings.finalist_seeds} trainings; a candidate that is clearly behind gets no more."
        )
    while missing:
        rows, missing = follow_race(best, seed, settings, record.run_trainings(missing))
    return [row.entrant for row in rows]


def compare_with_baselines(
    best: Sequence[Entrant],
    task: Task,
    configuration: Configuration,
    seed_count: int,
    store: Store,
    record: Record,
    *,
    every: bool = False,
    ladder: Ladder | None = None,
    say: Say = ignore,
) -> Rows:
    """Compare losses with the baselines on the test split; the learning rates of all are tuned on the same grid.

    The standard loss takes part as the recipe is given, and at its best rate by the recipe's steps and by the ladder's best way.
    The others are trained as the recipe says, as candidates are, or as the ladder's best is, whichever is best on the valid
    split, and only the best of them are measured on the test split.

    Args:
        store: Keeps the list of entrants.
        record: Runs and keeps every training.
        every: With all baselines, not only those that end a search, and all on the test split.
        ladder: The expert's.
        say: Called with a sentence on the baselines that are left out.

    Returns:
        One row per entrant, the best first.
    """
    seed, plain, behind = configuration.seed, baselines(task, every=every), list[Row]()
    # A known loss that was found again is not its own rival.
    again = [write_trees(one.loss) for one in best]
    # What the protocol refused may be what an expert trains with, and the search did not train it.
    refused = [
        enter_loss(one.label if one.label in ENTRIES else one.loss) for one in store.settings().start if one.is_compared
    ]
    fitting = {str(write_trees(one.loss)): one for one in (*refused, *plain[1:])}.values()
    standard, promising = plain[:1], [one for one in fitting if write_trees(one.loss) not in again]
    own = _list_own(standard, ladder, task)
    vary = partial(_list_ways, own, configuration.search, ladder, task)
    known, several = promising, len(task.branches) > 1
    if not every or several:
        promising, behind = find_promising(known, task, seed, record, vary)
    if several and promising:
        together = [*promising, *join_with(promising[0], known, task)]
        promising, further = find_promising(together, task, seed, record, vary)
        behind += further
    if every:
        promising, behind = list(dict.fromkeys([*known, *promising])), []
    rows = tune_learning_rates([*best, *own, *promising], task, seed, record, vary=vary)
    tuned, others = rows[: len(best) + len(own)], sort_by_mean(rows[len(best) + len(own) :])
    # The ladder's best may be a baseline with weights of the classes.
    others = [row for row in others if row.entrant not in {one.entrant for one in tuned}]
    kept = others if every else [row for row in others if row.mean is not None][:MOST_RIVALS]
    notes = list(_describe_left([*(row for row in others if row not in kept), *behind], task))
    for note in notes:
        say(note)
    found, rivals = [row.entrant for row in tuned[: len(best)]], [row.entrant for row in (*tuned[len(best) :], *kept)]
    # The standard loss as the recipe trains it comes first: it is the reference of the others.
    entrants = [*found, *(one for one in standard if one not in rivals), *rivals]
    entrants += _train_alike(found[0], sort_by_mean([*tuned, *kept]), entrants)
    comparison = Comparison(seed_count, [asdict(entrant) for entrant in entrants], notes)
    before = store.settings().comparison
    # One that was interrupted says nothing.
    is_whole = len(read_comparison(before, seed, record.outcomes)) == len(before.entrants)
    store.change_setting("comparison", choose_comparison(before, comparison) if is_whole else comparison)
    # The seeds that chose a rate flatter it.
    record.compare_losses(entrants, training_seeds(seed, VALIDATION, VALIDATION_SEEDS), "valid")
    record.compare_losses(entrants, training_seeds(seed, COMPARISON, seed_count), TEST)
    return read_comparison(comparison, seed, record.outcomes)


def _list_ways(
    own: Sequence[Entrant], search: SearchSettings, ladder: Ladder | None, task: Task, one: Entrant
) -> list[Entrant]:
    """Return the ways of training that a loss is tried in: a baseline has all that a loss found has."""
    if ladder is None or ladder.best is None or one in own:
        return [one]
    followed, plain = (one.follow(search), one) if one.number is None else (one, replace(one, step_rule="recipe"))
    rules = [ladder.best.entrant.step_rule, *_find_untried(ladder, task)]
    return list(dict.fromkeys([followed, plain, *(replace(followed, step_rule=rule) for rule in rules)]))


def _train_alike(found: Entrant, ranked: Sequence[Row], entrants: Sequence[Entrant]) -> Iterator[Entrant]:
    """Yield the leading rival trained as the loss found is: else the luck of the rates that the valid split chose decides."""
    for rival in [row.entrant for row in ranked if row.entrant.baseline or row.entrant.known]:
        if write_trees(rival.loss) != write_trees(found.loss):
            alike = replace(
                found, label=rival.name, loss=rival.loss, baseline=rival.baseline, known=rival.known
            ).spell_out()
            if all((one.way, one.learning_rate) != (alike.way, alike.learning_rate) for one in entrants):
                yield alike
            return


def _find_untried(ladder: Ladder | None, task: Task) -> list[StepRule]:
    """Return steps of one norm, where a ladder with a small budget had no room for them; they are often the best."""
    return ["one_norm"] if ladder is not None and "one_norm" in task.step_rules and not ladder.tried("one_norm") else []


def _list_own(standard: Sequence[Entrant], ladder: Ladder | None, task: Task) -> list[Entrant]:
    """Return the standard loss as the recipe trains it, as the ladder's best does and as the better one that gave way to it.

    Each comes with the rate that the ladder found best. As the recipe trains it, it also comes with a tuned threshold: at 0.5 a
    rare class may be told at no rate.
    """
    rungs = [rung.entrant for rung in (() if ladder is None else (ladder.best, ladder.set_aside)) if rung is not None]
    # Class weights are one thing, and how it trains another: without them the loss takes part in that way as well.
    rungs += [replace(rung, label="", loss=one.loss) for one in standard for rung in rungs if rung.loss != one.loss]
    rungs += [
        replace(rung, step_rule=rule, learning_rate=1.0) for rung in rungs[-1:] for rule in _find_untried(ladder, task)
    ]
    decides = task.tunes_threshold and (ladder is None or ladder.tunes_threshold)
    decided = [replace(one, tuned_threshold=True) for one in standard if decides]
    own = {one.way: one for one in (*standard, *decided)}
    for one in reversed(rungs):
        own[one.way] = replace(one, label=one.name)
    return list(own.values())


def _describe_left(rows: Sequence[Row], task: Task) -> Iterator[str]:
    """Describe the baselines that are not measured on the test split, and what the task's own reference scores there."""
    left, without = list[str](), list[str]()
    for row in rows:
        share = max(outcome.fidelity for outcome in row.outcomes)
        if row.mean is None:
            reasons = (reason.splitlines()[0] for reason in row.reasons)
            without.append(f"{row.entrant.label} (no score at any learning rate: {'; '.join(dict.fromkeys(reasons))})")
        else:
            at = "" if share == 1 else f" at {share:g} of the schedule"
            left.append(f"{row.entrant.label} ({figure(row.mean)}{at})")
    if left:
        yield f"Behind on the valid split, and not measured on the {TEST} split: {', '.join(left)}."
    if without:
        yield f"Left out: {', '.join(without)}."
    if task.describe_reference is not None:
        yield task.describe_reference(TEST)


def choose_comparison(before: Comparison, now: Comparison) -> Comparison:
    """Return which of two comparisons a run is judged by: the later one, unless it says less of the best loss.

    >>> eight, three = (Comparison(seeds, [{"label": "#4", "loss": "p"}]) for seeds in (8, 3))
    >>> choose_comparison(eight, three).seeds
    8
    """
    known, (best, *_) = {one["loss"] for one in before.entrants if not one.get("baseline")}, now.entrants
    return before if before.seeds > now.seeds and best["loss"] in known else now
