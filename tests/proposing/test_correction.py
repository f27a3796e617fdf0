"""Scores of short trainings are corrected by what promoted candidates, and those like them, came to."""

from __future__ import annotations

from dataclasses import replace

from autoloss.proposing.correction import LEAST_PROMOTED, correct_scores
from autoloss.proposing.records import PROMOTED, Outcome, State
from autoloss.proposing.view import Ledger, View
from autoloss.settings import Configuration

from .conformance import candidate

CONFIGURATION = Configuration().changed({"search.rungs": (0.125, 1.0)})
LAG = CONFIGURATION.evolution.lag
FAST, GOOD = ("1e0", "1e0", "5e0", "5e0"), ("1e0", "-1e0", "1e-1", "-1e-1")
"""Signatures of two kinds of losses, on one sample."""


def made(number, signature, parent=None):
    promoted = {"parent": parent, "kinds": {"main": PROMOTED}, "fidelity": 1.0}
    return candidate(
        number, signature={"main": signature}, **{"fidelity": 0.125, **(promoted if parent is not None else {})}
    )


def scored(score, fidelity=0.125):
    return Outcome(state=State.SCORED, score=score, fidelity=fidelity)


def run(whole=(), configuration=CONFIGURATION, reverse=False):
    """Twelve short trainings, in which the fast losses lead; then whole ones: (candidate, score)."""
    found = Ledger(["main"], configuration)
    scores = [scored((0.5 if number < 6 else 0.2) - number / 1000) for number in range(12)]
    for number in range(12):
        found.add(made(number, FAST if number < 6 else GOOD))
    for number, (promoted, score) in enumerate(whole, start=12):
        found.add(made(number, FAST if promoted < 6 else GOOD, promoted))
        scores.append(scored(score, 1.0))
    # Those after them are not looked at.
    for number in range(len(scores), 60):
        found.add(made(number, FAST))
        scores.append(Outcome(state=State.DIVERGED, fidelity=0.125))
    # A loss is promoted when its own outcome is known, so that one always arrives first.
    for number in (*reversed(range(12)), *reversed(range(12, 60))) if reverse else range(60):
        found.tell(number, scores[number])
    return found


def values(k, *of, **how):
    return correct_scores(View(run(*of, **how), k))


def order(values):
    return sorted(values, key=lambda k: -values[k])


def test_without_longer_trainings_candidates_are_in_the_order_of_their_scores():
    assert order(values(11 + LAG)) == list(range(12))
    few = [(0, 0.1), (6, 0.9)]
    assert len(few) < LEAST_PROMOTED
    assert order(values(13 + LAG, few)) == list(range(12))


def test_what_promoted_candidates_came_to_changes_the_value_of_those_like_them():
    after, before = values(14 + LAG, [(0, 0.4), (1, 0.3), (6, 0.9)]), values(11 + LAG)
    # Number 11 was never promoted, but is like the one that did well; number 3 is like those that did not.
    assert all(after[number] > before[number] for number in (6, 11))
    assert all(after[number] < before[number] for number in (0, 1, 3))


def test_many_longer_trainings_turn_the_order_around():
    whole = [(0, 0.4), (1, 0.3), (2, 0.35), (6, 0.9), (7, 0.8), (8, 0.85)]
    assert order(values(17 + LAG, whole))[0] in (6, 7, 8)


def test_where_both_agree_nothing_changes():
    found = values(14 + LAG, [(0, 0.9), (1, 0.8), (6, 0.3)])
    assert found == values(11 + LAG)


def test_only_what_may_be_seen_counts():
    whole = [(0, 0.4), (1, 0.3), (6, 0.9)]
    assert values(13 + LAG, whole) == values(11 + LAG)
    assert set(values(5 + LAG, whole)) == set(range(6))


def test_longer_trainings_count_from_a_lag_of_their_own_on():
    whole, lag = [(0, 0.4), (1, 0.3), (6, 0.9)], LAG + 5
    changed = CONFIGURATION.changed({"search.promoted_lag": lag})
    assert values(13 + lag, whole, changed) == values(11 + LAG)
    assert values(14 + lag, whole, changed) == values(14 + LAG, whole)


def test_the_order_in_which_outcomes_arrive_makes_no_difference():
    whole = [(0, 0.4), (1, 0.3), (6, 0.9)]
    assert values(14 + LAG, whole, reverse=True) == values(14 + LAG, whole)


def test_candidates_without_a_score_or_a_finite_gradient_do_no_harm():
    found = Ledger(["main"], CONFIGURATION)
    signatures = [*[FAST] * 6, *[GOOD] * 6, ("nan", "inf", "0", "-inf"), FAST]
    scores = [*(0.5 - number / 10 for number in range(12)), 0.1, None]
    for number, (promoted, score) in enumerate([(None, 0)] * 14 + [(0, 0.4), (1, 0.3), (6, 0.9)]):
        found.add(made(number, signatures[number if promoted is None else promoted], promoted))
        short = Outcome(state=State.DIVERGED, fidelity=0.125) if number == 13 else None
        found.tell(number, scored(score, 1.0) if promoted is not None else short or scored(scores[number]))
    after = correct_scores(View(found, 16 + LAG))
    assert 13 not in after
    assert all(value == value for value in after.values())


def test_of_losses_that_noise_cannot_tell_apart_the_simpler_one_is_ahead():
    found = Ledger(["main"], CONFIGURATION.changed({"search.resolution": 0.1}))
    for number, (loss, score) in enumerate((("add(p, mul(p, y))", 0.55), ("neg(p)", 0.52), ("log(neg(p))", 0.64))):
        found.add(replace(made(number, FAST), loss=loss))
        found.tell(number, scored(score))
    for number in range(3, 12):
        found.add(made(number, GOOD))
        found.tell(number, Outcome(state=State.DIVERGED, fidelity=0.125))
    assert order(correct_scores(View(found, 2 + LAG))) == [2, 1, 0]
