"""How large a difference between losses a split can show."""

from __future__ import annotations

import math

import pytest

from autoloss.comparison.resolution import Resolution, measure_resolution
from autoloss.proposing.records import Outcome, State, Train
from autoloss.training.training import Replicates, Training


def outcome(score: float, phase: float, spread: float = 0.02, examples: int = 40) -> Outcome:
    scores = tuple(score + spread * math.sin(at + phase) for at in range(64))
    return Outcome(state=State.SCORED, score=score, replicates=Replicates(examples, scores))


def jobs(*outcomes: Outcome, fidelity: float = 1.0) -> dict[Train, Outcome]:
    return {Train("y", Training(seed=seed, fidelity=fidelity)): outcome for seed, outcome in enumerate(outcomes)}


def test_it_is_that_of_the_difference_of_the_best():
    found = measure_resolution(jobs(outcome(0.8, 0.0), outcome(0.81, math.pi / 2)))
    # The difference of two sines a quarter apart has their amplitude times √2: a deviation of 0.02. n / (n − 1) comes on top.
    assert found is not None
    assert found.difference == pytest.approx(2.0227 * 0.02 * math.sqrt(40 / 39), rel=0.03)
    assert found.examples == 40


def test_trainings_that_steps_have_spoilt_do_not_count():
    spoilt = [outcome(score, phase=at, spread=9.0) for at, score in enumerate((-30.0, -50.0))]
    good = outcome(0.8, 0.0), outcome(0.81, math.pi / 2)
    assert measure_resolution(jobs(*good, *spoilt), gain=0.5) == measure_resolution(jobs(*good))
    assert measure_resolution(jobs(*good, *spoilt)).difference > 5
    alone = measure_resolution(jobs(good[0], *spoilt), gain=0.5)
    assert (alone.difference, alone.error, alone.single > 0) == (None, alone.single, True)
    assert alone.describe(gain=0.5).startswith("The valid split has 40 examples; a single score is uncertain by 0.0")


def test_it_is_not_known_of_one_training_or_without_resamples():
    assert measure_resolution(jobs(outcome(0.8, 0.0))) is None
    assert measure_resolution(jobs(*(Outcome(state=State.SCORED, score=score) for score in (0.5, 0.6)))) is None
    assert measure_resolution({}) is None


def test_short_trainings_are_left_out_since_they_are_measured_on_a_part_of_the_split():
    short = jobs(outcome(0.8, 0.0, examples=20), outcome(0.81, math.pi / 2, examples=20), fidelity=0.5)
    assert measure_resolution(short) is None


def test_a_split_that_is_too_small_says_what_to_do():
    small = Resolution(0.2, 12)
    assert small.describe(gain=0.9).endswith("cannot be detected on it.")
    assert "Data(folds=5)" in small.describe(gain=0.3)
    assert "is not ahead of predictions without learning" in small.describe(gain=-0.1)
