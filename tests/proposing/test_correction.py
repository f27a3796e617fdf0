"""Scores of short trainings are corrected by what promoted candidates, and those like them, came to."""

from __future__ import annotations

from autoloss.proposing.correction import LEAST_PROMOTED, ScoreCorrection
from autoloss.proposing.records import PROMOTED, Candidate, Origin, Outcome, State
from autoloss.settings import Configuration

CONFIGURATION = Configuration().changed({"search.rungs": (0.125, 1.0)})
LAG = CONFIGURATION.evolution.lag
FAST, GOOD = ("1e0", "1e0", "5e0", "5e0"), ("1e0", "-1e0", "1e-1", "-1e-1")
"""Signatures of two kinds of losses, on one sample."""


def candidate(number, signature, parent=None):
    kinds = {"main": "fresh" if parent is None else PROMOTED}
    return Candidate(
        id=number,
        parent=parent,
        kinds=kinds,
        attempts={"main": 0},
        loss="mul(y, p)",
        origin=Origin.TRAINED,
        source=None,
        signature={"main": signature},
        fidelity=0.125 if parent is None else 1.0,
    )


def scored(score, fidelity=0.125):
    return Outcome(state=State.SCORED, score=score, fidelity=fidelity)


def correction(whole=(), configuration=CONFIGURATION):
    """Twelve short trainings, in which the fast losses lead; then whole ones: (candidate, score)."""
    made = ScoreCorrection(["main"], configuration)
    for number in range(12):
        made.add(candidate(number, FAST if number < 6 else GOOD))
        made.tell(number, scored((0.5 if number < 6 else 0.2) - number / 1000))
    for number, (promoted, score) in enumerate(whole, start=12):
        made.add(candidate(number, FAST if promoted < 6 else GOOD, promoted))
        made.tell(number, scored(score, 1.0))
    return made


def order(values):
    return sorted(values, key=lambda k: -values[k])


def test_without_longer_trainings_candidates_are_in_the_order_of_their_scores():
    assert order(correction().values(11 + LAG)) == list(range(12))
    few = [(0, 0.1), (6, 0.9)]
    assert len(few) < LEAST_PROMOTED
    assert order(correction(few).values(13 + LAG)) == list(range(12))


def test_what_promoted_candidates_came_to_changes_the_value_of_those_like_them():
    values, before = correction([(0, 0.4), (1, 0.3), (6, 0.9)]).values(14 + LAG), correction().values(11 + LAG)
    # Number 11 was never promoted, but is like the one that did well; number 3 is like those that did not.
    assert all(values[number] > before[number] for number in (6, 11))
    assert all(values[number] < before[number] for number in (0, 1, 3))


def test_many_longer_trainings_turn_the_order_around():
    whole = [(0, 0.4), (1, 0.3), (2, 0.35), (6, 0.9), (7, 0.8), (8, 0.85)]
    assert order(correction(whole).values(17 + LAG))[0] in (6, 7, 8)


def test_where_both_agree_nothing_changes():
    values = correction([(0, 0.9), (1, 0.8), (6, 0.3)]).values(14 + LAG)
    assert values == correction().values(11 + LAG)


def test_only_what_may_be_seen_counts():
    made = correction([(0, 0.4), (1, 0.3), (6, 0.9)])
    assert made.values(13 + LAG) == correction().values(11 + LAG)
    assert set(made.values(5 + LAG)) == set(range(6))


def test_longer_trainings_count_from_a_lag_of_their_own_on():
    whole, lag = [(0, 0.4), (1, 0.3), (6, 0.9)], LAG + 5
    made = correction(whole, CONFIGURATION.changed({"search.promoted_lag": lag}))
    assert made.values(13 + lag) == correction().values(11 + LAG)
    assert made.values(14 + lag) == correction(whole).values(14 + LAG)


def test_the_order_in_which_outcomes_arrive_makes_no_difference():
    whole = [(0, 0.4), (1, 0.3), (6, 0.9)]
    made = ScoreCorrection(["main"], CONFIGURATION)
    for number in range(15):
        promoted = whole[number - 12][0] if number >= 12 else None
        kind = FAST if (number if promoted is None else promoted) < 6 else GOOD
        made.add(candidate(number, kind, promoted))
    for number in reversed(range(15)):
        if number >= 12:
            made.tell(number, scored(whole[number - 12][1], 1.0))
        else:
            made.tell(number, scored((0.5 if number < 6 else 0.2) - number / 1000))
    assert made.values(14 + LAG) == correction(whole).values(14 + LAG)


def test_candidates_without_a_score_or_a_finite_gradient_do_no_harm():
    made = correction([(0, 0.4), (1, 0.3), (6, 0.9)])
    made.add(candidate(15, ("nan", "inf", "0", "-inf")))
    made.tell(15, scored(0.1))
    made.add(candidate(16, FAST))
    made.tell(16, Outcome(state=State.DIVERGED, reason="a loss is not finite", fidelity=0.125))
    values = made.values(16 + LAG)
    assert 16 not in values
    assert all(value == value for value in values.values())
