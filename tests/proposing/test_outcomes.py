"""An outcome knows the noise of its score: mean, standard deviation and count over trainings at one fidelity."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from autoloss.proposing.records import Outcome, State


def scored(score, **also):
    return Outcome(state=State.SCORED, score=score, also=also, seconds=2.0, curve=((1, 0.5),))


def test_several_trainings_have_a_mean_a_deviation_and_a_count():
    scores = [0.5, 0.75, 0.55, 0.61]
    found = Outcome.pool([scored(score, depth=10 * score) for score in scores])
    assert found.score == pytest.approx(statistics.mean(scores))
    assert found.deviation == pytest.approx(statistics.stdev(scores))
    assert found.also == {"depth": pytest.approx(10 * statistics.mean(scores))}
    assert found.also_deviation == {"depth": pytest.approx(10 * statistics.stdev(scores))}
    assert (found.count, found.seconds, found.curve, found.fidelity) == (4, 8.0, (), 1.0)


def test_one_training_is_its_own_outcome_without_a_deviation():
    one = scored(0.5)
    assert Outcome.pool([one]) is one
    assert (one.deviation, one.count) == (None, 1)


def test_a_metric_that_one_training_lacks_is_left_out():
    assert Outcome.pool([scored(0.5, depth=1.0, width=2.0), scored(0.6, width=3.0)]).also == {"width": 2.5}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((State.SCORED, State.FAILED, State.DIVERGED), State.DIVERGED),
        ((State.STOPPED, State.SCORED, State.FAILED), State.FAILED),
        ((State.SCORED, State.STOPPED), State.STOPPED),
    ],
)
def test_one_training_without_a_score_leaves_none_to_the_whole(states, expected):
    outcomes = [scored(0.5) if s is State.SCORED else Outcome(state=s, reason=s.value) for s in states]
    found = Outcome.pool(outcomes)
    assert (found.state, found.score, found.reason, found.count) == (expected, None, expected.value, len(states))


def test_fidelities_are_not_mixed():
    with pytest.raises(ValueError, match="one fidelity"):
        Outcome.pool([scored(0.5), replace(scored(0.6), fidelity=0.5)])
