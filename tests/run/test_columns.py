"""What is counted, ranked and shown from numbers alone is what whole rows say."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from autoloss.run.columns import NONE, Columns
from autoloss.run.results import ranking
from autoloss.search.records import Individual, Origin, Outcome, State
from tests.report.written import child

TEXTS = ("p", "neg(p)", "mul(p, y)", "neg(neg(p))", "mul(neg(p), neg(y))")


def drawn(seed: int, size: int) -> list[Individual]:
    """Draw a history: trained losses, twins of earlier ones, copies of those; equal scores are frequent."""
    rng = Random(seed)
    history: list[Individual] = []
    for number in range(size):
        source = rng.choice(history) if history and rng.random() < 0.4 else None
        parent = rng.choice(history).id if history and rng.random() < 0.8 else None
        state = rng.choice([State.SCORED, State.SCORED, State.DIVERGED, State.FAILED])
        score = rng.choice([-0.5, 0.0, 0.25, 0.5, 0.75]) if state is State.SCORED else None
        made = child(number, rng.choice(TEXTS), parent=parent, source=None if source is None else source.id)
        history.append(Individual(made, Outcome(state=state, score=score) if source is None else source.outcome))
    return history


@pytest.mark.parametrize("seed", range(30))
def test_columns_say_what_the_rows_do(seed):
    history = drawn(seed, 40)
    columns = Columns.of(history)
    by_number = {found.id: found for found in history}
    trained = [found for found in history if found.child.origin is Origin.TRAINED]
    assert list(columns.finished) == list(by_number)
    best = sorted((f for f in trained if f.outcome.score is not None), key=lambda found: (-found.score, found.id))
    assert list(columns.ranked) == [found.id for found in best] == [found.id for found in ranking(history)]
    assert columns.scores == [found.score for found in trained if found.outcome.score is not None]
    assert columns.own == len(trained)
    assert columns.trained == Counter(found.outcome.state for found in trained)
    for number, found in by_number.items():
        assert (columns.state(number), columns.score(number)) == (found.outcome.state, found.outcome.score)
        born = [other.id for other in history if other.child.parent == number and other.child.kinds["main"] != "fresh"]
        assert columns.offspring(number) == born
    roots: dict[int, int] = {}
    for found in history:
        roots[found.id] = found.id if found.child.source is None else roots[found.child.source]
    assert columns.found == Counter(roots.values())
    assert {number: columns.root(number) for number in by_number} == roots


@pytest.mark.parametrize("seed", range(30))
def test_the_best_of_each_size_is_better_than_all_smaller(seed):
    history = drawn(seed, 40)
    expected: list[Individual] = []
    for found in sorted(ranking(history), key=lambda one: (one.formula.count("("), -one.score, one.id)):
        if not expected or found.score > expected[-1].score:
            expected.append(found)
    assert Columns.of(history).best_by_size == [found.id for found in expected]


def test_outcomes_come_in_any_order_and_what_is_missing_decides_nothing():
    columns = Columns()
    for number, source in ((0, None), (2, None), (5, 0), (9, 3), (10, 9), (12, 5)):
        columns.add(number, None, source, Origin.TRAINED if source is None else Origin.TWIN, True, "neg(p)")
    assert list(columns.finished) == []
    columns.tell(2, State.SCORED, 0.5)
    columns.tell(7, State.SCORED, 0.9)
    assert list(columns.finished) == [2]
    columns.tell(0, State.SCORED, 0.7)
    assert list(columns.finished) == [0, 2, 5, 12]
    assert list(columns.ranked) == [0, 2]
    assert columns.scores == [0.7, 0.5]
    assert (columns.root(12), columns.root(9), columns.root(10), columns.root(3)) == (0, NONE, NONE, NONE)
    assert (columns.state(10), columns.score(10), columns.score(12)) == (None, None, 0.7)
    assert (5 in columns, 3 in columns, -1 in columns) == (True, False, False)
