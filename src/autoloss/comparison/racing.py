"""Confirming the best candidates: the same new seeds for all, then a race in which only those that may be the best get more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from autoloss.comparison.entrant import CONFIRMATION, Entrant, Row, collect_rows, sort_by_mean, training_seeds
from autoloss.comparison.noise import find_quantile, shrink_means
from autoloss.proposing.records import Outcome, Train
from autoloss.settings import FinalSettings

SPLIT = "valid"
ERROR = 0.05
"""Probability that the best finalist is taken out of a round, if scores are normal with equal spread."""
MOST = 2
"""No finalist gets more further seeds than so many times `final.finalist_seeds`."""


def follow_race(
    entrants: Sequence[Entrant], seed: int, settings: FinalSettings, recorded: Mapping[Train, Outcome]
) -> tuple[list[Row], list[Train]]:
    """Derive how far confirming is from the trainings that are recorded, and from nothing else.

    All entrants are trained on `confirm_seeds` new seeds. The best `finalists` of them then race: in each round those that may
    be the best get one more seed, the same for all. One that falls out may return when later seeds change the leader, and a
    finalist whose mean sinks below that of another entrant leaves its place to it: a loss that fails one training in five often
    leads on two. The last one left gets what it lacks of `confirm_seeds + finalist_seeds` seeds. There are at most `finalists ×
    finalist_seeds` trainings after the first round, and a training without a score takes its loss out for good.

    Args:
        entrants: The best candidates of the search, and what they have to be ahead of.
        seed: The run's.

    Returns:
        The entrants with their outcomes so far, by their mean, shrunken by its noise, then those with a training without a score;
        and the trainings of the round under way, none at the end.
    """
    first, most = settings.confirm_seeds, settings.confirm_seeds + MOST * settings.finalist_seeds
    seeds = training_seeds(seed, CONFIRMATION, most)
    beginning = [entrant.job(one, SPLIT) for one in seeds[:first] for entrant in entrants]
    rows = {row.entrant: row for row in collect_rows(entrants, seeds[:first], SPLIT, recorded)}
    left = len(_find_finalists(rows.values(), settings)) * settings.finalist_seeds
    missing: list[Train] = []
    while further := _plan_round(_find_finalists(rows.values(), settings), settings, left):
        jobs = {
            entrant: [entrant.job(one, SPLIT) for one in seeds[len(rows[entrant].outcomes) :][:count]]
            for entrant, count in further.items()
        }
        if missing := [job for turn in jobs.values() for job in turn if job not in recorded]:
            break
        for entrant, turn in jobs.items():
            row = rows[entrant]
            rows[entrant] = replace(row, outcomes=(*row.outcomes, *(recorded[job] for job in turn)))
            left -= len(turn)
    return _rank(list(rows.values())), [job for job in beginning if job not in recorded] or missing


def _rank(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by their mean, shrunken by its noise, the best first; those without one last."""
    whole = [row for row in rows if row.mean is not None]
    shrunken = shrink_means([row.score.finite for row in whole])
    order = sorted(range(len(whole)), key=lambda at: shrunken[at], reverse=True)
    return [*(whole[at] for at in order), *(row for row in rows if row.mean is None)]


def _find_finalists(rows: Iterable[Row], settings: FinalSettings) -> list[Row]:
    return sort_by_mean([row for row in rows if row.mean is not None])[: settings.finalists]


def find_contenders(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that may be the best, the one with the highest mean first.

    The differences from it over common seeds are tested with one-sided t-tests whose variance is pooled over all rows, so that
    two seeds are enough, at `ERROR` divided by the number of tests (Bonferroni).

    Source: Moore & Lee, 1994, Efficient Algorithms for Minimizing Cross Validation Error ("blocking race"); Birattari et al.,
    2002, A Racing Algorithm for Configuring Metaheuristics. There what falls out never returns.

    >>> from autoloss.proposing.records import State
    >>> def row(label, *scores):
    ...     return Row(Entrant(label, label), tuple(Outcome(state=State.SCORED, score=score) for score in scores))
    >>> [found.entrant.label for found in find_contenders([row("a", 0.5, 0.6), row("b", 0.51, 0.58), row("c", 0.1, 0.2)])]
    ['a', 'b']
    """
    ranked = sort_by_mean([row for row in rows if row.mean is not None])
    if not ranked:
        return []
    leader, *others = ranked
    behind = [[a - b for a, b in zip(leader.score.finite, row.score.finite, strict=False)] for row in others]
    freedom = sum(len(found) - 1 for found in behind)
    if not freedom:
        return ranked
    variance = sum((one - mean(found)) ** 2 for found in behind for one in found) / freedom
    critical = find_quantile(1 - ERROR / len(behind), freedom)
    near = [mean(found) <= critical * math.sqrt(variance / len(found)) for found in behind]
    return [leader, *(row for row, is_near in zip(others, near, strict=True) if is_near)]


def _plan_round(rows: Sequence[Row], settings: FinalSettings, left: int) -> dict[Entrant, int]:
    """Return how many further seeds each gets in the next round; nothing at the end of the race.

    Args:
        left: Trainings that may still be spent.
    """
    contenders = find_contenders(rows)
    if len(contenders) == 1:
        lacking = settings.confirm_seeds + settings.finalist_seeds - len(contenders[0].outcomes)
        return {contenders[0].entrant: min(lacking, left)} if min(lacking, left) > 0 else {}
    # Those that return to the race catch up before the others go on.
    fewest = min((len(row.outcomes) for row in contenders), default=0)
    turn = [row.entrant for row in contenders if len(row.outcomes) == fewest]
    may_go_on = fewest < settings.confirm_seeds + MOST * settings.finalist_seeds and len(turn) <= left
    return dict.fromkeys(turn, 1) if may_go_on else {}
