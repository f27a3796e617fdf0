"""What views rank, count and join is what the candidates and their outcomes say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from autoloss.proposing.records import Individual, Origin, Outcome, State
from autoloss.store.read import Reader
from autoloss.store.store import Store
from autoloss.training.training import Training
from tests.report.written import KEY, begin, candidate

TEXTS = ("p", "neg(p)", "mul(p, y)", "neg(neg(p))", "mul(neg(p), neg(y))")
COUNTS = ({"sampled": 3, "STRUCTURE": 2, "passed": 1}, {"sampled": 1, "passed": 1, "reused": 1}, {})
REASONS = ("a hash said so", "a hash said so\nand more", "", "no\tsuch disk")


def draw(seed: int, size: int) -> list[Individual]:
    """Draw a history: trained losses, twins of earlier ones, copies of those; equal scores are frequent."""
    rng = Random(seed)
    history: list[Individual] = []
    for number in range(size):
        source = rng.choice(history) if history and rng.random() < 0.4 else None
        parent = rng.choice(history).id if history and rng.random() < 0.8 else None
        state = rng.choice([State.SCORED, State.SCORED, State.DIVERGED, State.FAILED])
        score = rng.choice([-0.5, 0.0, 0.25, 0.5, 0.75]) if state is State.SCORED else None
        shared = None if source is None else source.id
        made = candidate(number, rng.choice(TEXTS), parent=parent, source=shared, counts=rng.choice(COUNTS))
        outcome = Outcome(state=state, score=score, reason="" if score is not None else rng.choice(REASONS))
        history.append(Individual(made, outcome if source is None else source.outcome))
    return history


def write(directory: Path, history: list[Individual]) -> Reader:
    begin(directory)
    with Store(directory, write=True) as store:
        store.database.connection.execute("PRAGMA synchronous = OFF")
        for one in history:
            store.add_candidate(one.candidate, {})
        # Outcomes come in any order.
        for one in Random(0).sample(history, len(history)):
            if one.candidate.source is None:
                store.add_training(one.candidate.loss, KEY, one.outcome, one.id)
    return Reader(directory)


def rank(history: list[Individual]) -> list[Individual]:
    scored = [one for one in history if one.candidate.origin is Origin.TRAINED and one.outcome.score is not None]
    return sorted(scored, key=lambda one: (-one.score, one.id))


@pytest.mark.parametrize("seed", range(12))
def test_views_say_what_the_rows_do(seed, tmp_path):
    history = draw(seed, 40)
    reader = write(tmp_path, history)
    trained = [one for one in history if one.candidate.origin is Origin.TRAINED]
    assert reader.history() == history
    assert (reader.settled, reader.newest) == ([*range(40)], 39)
    assert reader.ranking == [one.id for one in rank(history)]
    assert reader.scores == [one.score for one in trained if one.outcome.score is not None]
    assert reader.trained() == len(trained)
    for state in State:
        assert reader.trained(state) == sum(one.outcome.state is state for one in trained)
    assert reader.totals == sum((Counter(one.candidate.counts) for one in history), Counter())
    roots: dict[int, int] = {}
    for one in history:
        roots[one.id] = one.id if one.candidate.source is None else roots[one.candidate.source]
    assert reader.times_found(range(40)) == Counter(roots.values())
    for row in reader.losses(range(40)):
        one = history[row["id"]]
        assert (row["loss"], row["state"], row["score"]) == (one.formula, one.outcome.state.value, one.outcome.score)
        assert row["size"] == one.formula.count("(")
        assert reader.trained_loss(one.id) == history[roots[one.id]].formula
        born = [
            other for other in history if other.candidate.parent == one.id and other.candidate.kinds["main"] != "fresh"
        ]
        assert reader.offspring(one.id) == [
            {"id": other.id, "loss": other.formula, "fidelity": 1.0, "score": other.outcome.score, "promoted": 0}
            for other in born
        ]


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_each_size_is_better_than_all_smaller(seed, tmp_path):
    history = draw(seed, 40)
    expected: list[Individual] = []
    for found in sorted(rank(history), key=lambda one: (one.formula.count("("), -one.score, one.id)):
        if not expected or found.score > expected[-1].score:
            expected.append(found)
    assert write(tmp_path, history).best_by_size == [found.id for found in expected]


@pytest.mark.parametrize("seed", range(4))
def test_failures_are_grouped_by_the_first_line_of_their_reason(seed, tmp_path):
    history = draw(seed, 40)
    groups: dict[tuple[str, str], list[Individual]] = {}
    for one in history:
        if one.candidate.source is None and one.outcome.score is None:
            line = next(iter(one.outcome.reason.splitlines()), "")
            groups.setdefault((one.outcome.state.value, line), []).append(one)
    found = write(tmp_path, history).unscored
    assert [row["count"] for row in found] == sorted((len(group) for group in groups.values()), reverse=True)
    for row in found:
        group = groups[row["state"], row["line"]]
        assert (row["count"], row["id"], row["loss"]) == (len(group), group[0].id, group[0].formula)


def test_outcomes_come_in_any_order_and_what_is_missing_decides_nothing(tmp_path):
    directory = begin(tmp_path)
    with Store(directory, write=True) as store:
        for number, source in ((0, None), (2, None), (5, 0), (9, 3), (10, 9), (12, 5)):
            store.add_candidate(candidate(number, "neg(p)", source=source), {})
        reader = Reader(directory)
        assert reader.settled == []
        for number, score in ((2, 0.5), (7, 0.9)):
            store.add_training("neg(p)", KEY, Outcome(state=State.SCORED, score=score), number)
        assert reader.look()
        assert reader.settled == [2]
        store.add_training("neg(p)", KEY, Outcome(state=State.SCORED, score=0.7), 0)
        assert reader.look()
    assert reader.settled == [0, 2, 5, 12]
    assert reader.ranking == [0, 2]
    assert reader.scores == [0.7, 0.5]
    assert reader.times_found([0, 2]) == {0: 3, 2: 1}
    assert [(row["id"], row["score"]) for row in reader.losses([10, 12, 3])] == [(12, 0.7)]
    assert reader.trained_loss(10) is None


def test_a_candidate_of_several_trainings_is_settled_when_all_have_ended_and_its_score_is_their_mean(tmp_path):
    directory = begin(tmp_path)
    scores = {(0, 0): 0.5, (0, 1): 0.75, (1, 0): 0.25, (1, 1): 0.5}
    with Store(directory, write=True) as store:
        store.add_candidate(candidate(0, "neg(p)", seeds=(0, 1), folds=(0, 1)), {})
        store.add_candidate(candidate(1, "p", folds=(0, 2)), {})
        store.add_candidate(candidate(2, "neg(p)", source=0), {})
        reader = Reader(directory)
        for (seed, fold), score in scores.items():
            assert reader.settled == []
            assert [row["id"] for row in reader.running] == [0, 1]
            outcome = Outcome(state=State.SCORED, score=score, also={"auc": 2 * score})
            store.add_training("neg(p)", Training(seed=seed, fold=fold), outcome, 0)
            reader.look()
        diverged = Outcome(state=State.DIVERGED, step=3, reason="not finite")
        for fold, outcome in ((0, Outcome(state=State.SCORED, score=0.9)), (2, diverged)):
            store.add_training("p", Training(seed=0, fold=fold), outcome, 1)
    reader.look()
    assert (reader.settled, reader.ranking, [row["id"] for row in reader.unscored]) == ([0, 1, 2], [0], [1])
    pooled = [Outcome(state=State.SCORED, score=score, also={"auc": 2 * score}) for score in scores.values()]
    expected = Outcome.pool(pooled)
    for row in reader.losses([0, 2]):
        assert (row["score"], row["count"], json.loads(row["also"])) == (0.5, 4, {"auc": 1.0})
        assert row["deviation"] == pytest.approx(expected.deviation)
    assert reader.outcome(2) == reader.history()[0].outcome == expected
    assert reader.history()[1].outcome.state is State.DIVERGED


def test_trainings_beside_the_search_are_groups_of_their_own(tmp_path):
    directory = begin(tmp_path)
    with Store(directory, write=True) as store:
        for seed in (3, 4):
            outcome = Outcome(state=State.DIVERGED, step=seed, reason=f"not finite\nline {seed}")
            store.add_training("neg(p)", replace(KEY, seed=seed), outcome)
    (group,) = Reader(directory).unscored
    assert [group[name] for name in ("id", "count", "line", "seed", "step")] == [None, 2, "not finite", 3, 3]
