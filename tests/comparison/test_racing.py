"""The race of the finalists: a clear winner costs little, close ones get more seeds, and never more than the stated cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from autoloss.comparison.entrant import CONFIRMATION, Entrant, Row, training_seeds
from autoloss.comparison.racing import MOST, find_contenders, follow_race
from autoloss.proposing.records import Outcome, State, Train
from autoloss.settings import FinalSettings

FINAL = FinalSettings(confirm=10, confirm_seeds=2, finalists=4, finalist_seeds=3)
WHOLE = FINAL.confirm_seeds + MOST * FINAL.finalist_seeds
SEEDS = training_seeds(7, CONFIRMATION, WHOLE)

Table = Mapping[str, Sequence[float | None]]


def entrants_of(table: Table) -> list[Entrant]:
    return [Entrant(label, label) for label in table]


def outcomes_of(table: Table) -> dict[Train, Outcome]:
    """Return what every training would come to."""
    return {
        entrant.job(seed, "valid"): Outcome(state=State.DIVERGED if score is None else State.SCORED, score=score)
        for entrant in entrants_of(table)
        for seed, score in zip(SEEDS, table[entrant.label], strict=True)
    }


def raced(table: Table, settings: FinalSettings = FINAL) -> list[Row]:
    rows, missing = follow_race(entrants_of(table), 7, settings, outcomes_of(table))
    assert missing == []
    return rows


def seeds_of(rows: Sequence[Row]) -> dict[str, int]:
    return {row.entrant.label: len(row.outcomes) for row in rows}


def level(score: float, spread: float = 0.01) -> list[float]:
    """Return scores around a level that go up and down with the seed."""
    return [score + spread * (-1) ** (seed + round(100 * score)) for seed in range(WHOLE)]


CLEAR = {"a": level(0.8), "b": level(0.5), "c": level(0.41), "d": level(0.3), "e": level(0.2), "f": level(0.1)}


def test_a_clear_winner_costs_only_the_seeds_that_it_has_to_stand():
    assert seeds_of(raced(CLEAR)) == {"a": 5, "b": 2, "c": 2, "d": 2, "e": 2, "f": 2}


def test_close_finalists_get_the_seeds_that_the_others_save():
    race = raced({**CLEAR, "b": level(0.797)})
    assert seeds_of(race) == {"a": WHOLE, "b": WHOLE, "c": 2, "d": 2, "e": 2, "f": 2}


def test_four_that_cannot_be_told_apart_share_the_seeds():
    race = raced(
        {name: [0.8 + 0.01 * ((3 * seed + at) % 4) for seed in range(WHOLE)] for at, name in enumerate("abcd")}
    )
    assert set(seeds_of(race).values()) == {5}


def test_a_leader_that_fails_a_seed_lets_the_others_return_and_catch_up():
    fickle = {"fickle": [0.9, 0.9, 0.9, 0.0, *[0.9] * 4], "steady": [0.8] * WHOLE, "weak": [0.3] * WHOLE}
    race = raced(fickle, FinalSettings(confirm=3, confirm_seeds=2, finalists=2, finalist_seeds=3))
    assert seeds_of(race) == {"steady": 5, "fickle": 5, "weak": 2}
    assert list(seeds_of(race)) == ["steady", "fickle", "weak"]


def test_finalists_that_fail_a_seed_leave_their_places_to_who_was_behind_them():
    fails = [0.9, 0.9, 0.1, *[0.9] * 5]
    table = {"fickle": fails, "like it": fails, "steady": level(0.8), "weak": [0.3] * WHOLE}
    race = raced(table, FinalSettings(confirm=4, confirm_seeds=2, finalists=2, finalist_seeds=3))
    assert next(iter(seeds_of(race))) == "steady"
    assert seeds_of(race)["steady"] > 3
    assert seeds_of(race)["weak"] == 2


def test_the_place_of_a_finalist_without_a_score_is_taken():
    table = {"a": [0.9, 0.9, None, *[0.9] * 5], "b": level(0.82), "c": level(0.81)}
    race = raced(table, FinalSettings(confirm=3, confirm_seeds=2, finalists=2, finalist_seeds=3))
    assert list(seeds_of(race))[-1] == "a"
    assert min(seeds_of(race)[name] for name in "bc") > 2


def test_a_training_without_a_score_takes_its_loss_out_at_once():
    scores = [*level(0.8)[:3], None, *level(0.8)[4:]]
    race = raced({**CLEAR, "a": scores, "b": level(0.797)})
    assert next(iter(seeds_of(race))) == "b"
    assert list(seeds_of(race))[-1] == "a"
    assert seeds_of(race)["a"] == 4
    begun = raced({**CLEAR, "a": [None, *level(0.8)[1:]]})
    assert (seeds_of(begun)["a"], next(iter(seeds_of(begun)))) == (2, "b")
    assert seeds_of(raced({"a": [None] * WHOLE})) == {"a": 2}


@pytest.mark.parametrize("seed", range(40))
def test_the_cost_is_never_above_the_stated_one_and_a_kill_changes_nothing(seed):
    rng = Random(seed)
    settings = FinalSettings(
        confirm_seeds=rng.randint(1, 2), finalists=rng.randint(0, 5), finalist_seeds=rng.randint(0, 3)
    )
    noise, step = rng.choice([0.0, 0.001, 0.05]), rng.choice([0.0, 0.01, 0.1])
    table: Table = {
        str(number): [None if rng.random() < 0.03 else step * number + rng.gauss(0, noise) for _ in range(WHOLE)]
        for number in range(rng.randint(1, 8))
    }
    outcomes, entrants = outcomes_of(table), entrants_of(table)
    race = raced(table, settings)
    further = [len(row.outcomes) - settings.confirm_seeds for row in race]
    assert sum(further) <= min(settings.finalists, len(table)) * settings.finalist_seeds
    assert max(further) <= MOST * settings.finalist_seeds
    if not settings.finalists:
        assert not any(further)
    # Trainings end in any order, and a driver that is killed begins again with those that were recorded.
    recorded: dict[Train, Outcome] = {}
    while missing := follow_race(entrants, 7, settings, recorded)[1]:
        done = rng.sample(missing, rng.randint(1, len(missing)))
        recorded |= {job: outcomes[job] for job in done}
    assert follow_race(entrants, 7, settings, recorded) == (race, [])
    assert len(recorded) == sum(len(row.outcomes) for row in race)


def test_a_round_is_asked_for_at_once():
    table = {name: [0.8 + 0.01 * ((3 * seed + at) % 4) for seed in range(WHOLE)] for at, name in enumerate("abcd")}
    outcomes, entrants = outcomes_of(table), entrants_of(table)
    recorded: dict[Train, Outcome] = {}
    sizes = []
    while missing := follow_race(entrants, 7, FINAL, recorded)[1]:
        sizes.append(len(missing))
        recorded |= {job: outcomes[job] for job in missing}
    assert sizes == [8, 4, 4, 4]


def rows_of(**scores: Sequence[float]) -> list[Row]:
    return [
        Row(Entrant(name, name), tuple(Outcome(state=State.SCORED, score=score) for score in each))
        for name, each in scores.items()
    ]


def contenders(rows: Sequence[Row]) -> list[str]:
    return [row.entrant.label for row in find_contenders(rows)]


def test_a_contender_is_tested_against_the_leader_with_the_pooled_spread():
    # Differences 0.1 ± 0.01 and d ± 0.03: the pooled variance is (0.0002 + 0.0018) / 2 with two degrees of freedom, and the
    # critical value t(0.975, 2) = 4.3027, so what is further behind than 4.3027 · √(0.001 / 2) = 0.0962 falls out.
    leader = (1.0, 1.0)
    assert contenders(rows_of(a=leader, b=(0.89, 0.91), c=(0.87, 0.93))) == ["a"]
    assert contenders(rows_of(a=leader, b=(0.89, 0.91), c=(0.875, 0.935))) == ["a", "c"]
    # One seed tells nothing of the spread.
    assert contenders(rows_of(a=(0.9,), b=(0.1,))) == ["a", "b"]
    # Losses that are equal on every seed stay together.
    assert contenders(rows_of(a=(0.9, 0.8), b=(0.9, 0.8), c=(0.8, 0.7))) == ["a", "b"]
