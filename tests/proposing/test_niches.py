"""Losses with nearly equal gradients: what is one niche, and how parents are spread over niches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from autoloss.errors import RequestError
from autoloss.proposing.archive import AgeingPopulation
from autoloss.proposing.history import as_text
from autoloss.proposing.niches import Niches
from autoloss.proposing.records import Candidate, Origin
from autoloss.settings import Configuration

from . import invented
from .conformance import ARCHIVE_CLAIMS, COUNT, outcome

MAIN = ("main",)


def candidate(k: int, signature: Mapping[str, Sequence[float]]) -> Candidate:
    texts = {branch: tuple(f"{value!r}" for value in values) for branch, values in signature.items()}
    return Candidate(
        id=k, parent=None, kinds={}, attempts={}, loss=f"loss{k}", origin=Origin.TRAINED, source=None, signature=texts
    )


def gradient(norm: float = 1.0, direction: float = 0.5) -> list[float]:
    """A signature of one sample: norm and product at the start and at half-right predictions."""
    return [norm, norm * direction, norm, norm * direction]


def found(niches: Niches, signatures: Sequence[Mapping[str, Sequence[float]]]) -> list[int]:
    for k, signature in enumerate(signatures):
        niches.add(candidate(k, signature))
    return [niches.find(k) for k in range(len(signatures))]


def test_a_loss_belongs_to_the_nearest_first_member_within_the_radius():
    norms = (1.0, 1.05, 1.5, 1.45, 1.09, 1.2)
    # 1.2 is further than 0.1 from both (in logarithms) and begins a niche; 1.09 is nearest to 1.
    assert found(Niches(MAIN, 0.1), [{"main": gradient(norm)} for norm in norms]) == [0, 0, 2, 2, 0, 5]


def test_directions_count_and_so_does_each_branch_by_itself():
    a, b = gradient(), gradient(direction=-0.5)
    assert found(Niches(MAIN, 0.3), [{"main": a}, {"main": b}]) == [0, 1]
    names = tuple("abcd")
    # One branch of four differs: over all of them the difference would be half as large.
    same = dict.fromkeys(names, a)
    other = same | {"d": gradient(direction=0.0)}
    assert found(Niches(names, 0.2), [same, other, same, other]) == [0, 1, 0, 1]


def test_signatures_of_another_length_and_none_at_all_are_niches_of_their_own():
    plain = {"main": [1.0]}
    assert found(Niches(MAIN, 0.1), [{"main": gradient()}, plain, {}, {}, plain]) == [0, 1, 2, 3, 1]
    assert Niches(MAIN, 0.1).find(7) == 7


def test_exploding_and_vanishing_gradients_do_not_stop_a_search():
    extremes = [float("inf"), float("nan"), 0.0, 1e300]
    signatures = [{"main": [value, 1.0, value, -1.0]} for value in (*extremes, *extremes)]
    numbers = found(Niches(MAIN, 0.1), signatures)
    assert numbers[:4] == numbers[4:]


def test_many_niches_are_kept_apart():
    assert found(Niches(MAIN, 0.1), [{"main": gradient(2.0**k)} for k in range(60)] * 2) == [*range(60)] * 2


@pytest.mark.parametrize("radius", ["-0.1", "nan", "inf"])
def test_a_radius_is_a_number_from_zero(radius):
    with pytest.raises(RequestError, match=r"search.niche (is -0.1; it needs to be at least 0|takes a number)"):
        Configuration().changed({"search.niche": radius})


CROWD = 40
"""Candidates of one niche; those after them stand alone."""


def crowded(niches: Niches | None) -> AgeingPopulation:
    population = AgeingPopulation(size=1000, tournament=0.25, lag=1, niches=niches)
    for k in range(CROWD + 10):
        population.observe(candidate(k, {"main": gradient(1 + k / 1e4 if k < CROWD else 2.0**k)}))
        population.add(k, outcome(0.5 + k / 1e4 if k < CROWD else 0.45 - k / 1e4))
    return population


def test_a_crowd_of_one_loss_does_not_take_every_place_among_the_parents():
    drawn = {
        name: Counter(min(crowded(niches).draw_parent(60, Random(seed)), CROWD) for seed in range(200))
        for name, niches in {"alone": None, "niches": Niches(MAIN, 0.1)}.items()
    }
    share = {name: sum(count for k, count in counts.items() if k < CROWD) / 200 for name, counts in drawn.items()}
    # Of 50, 13 are drawn, and one of the crowd is always among them; of 11 niches 3.
    assert share["alone"] == 1.0
    assert 0.15 < share["niches"] < 0.4


def test_a_niche_competes_with_one_of_its_best():
    drawn = [crowded(Niches(MAIN, 0.1)).draw_parent(60, Random(seed)) for seed in range(200)]
    ranks = [CROWD - 1 - k for k in drawn if k < CROWD]
    assert ranks
    # The best of ten among forty.
    assert sum(rank < 10 for rank in ranks) > 0.85 * len(ranks)


@pytest.mark.parametrize("claim", ARCHIVE_CLAIMS, ids=lambda claim: claim.__name__)
def test_an_archive_with_niches_conforms(claim):
    def make(lag: int) -> AgeingPopulation:
        population = AgeingPopulation(size=12, tournament=0.3, lag=lag, niches=Niches(MAIN, 0.1))
        for k in range(COUNT):
            population.observe(candidate(k, {"main": gradient(1.0 + k % 5)}))
        return population

    claim(make)


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_in_which_trainings_end_does_not_matter(order):
    settings = {"search.proposer": "guided", "search.rungs": (0.125, 1.0), "search.niche": 0.1, "seed": 3}
    configuration = Configuration().changed({**settings, "evaluations": 15, "evolution.tournament": 0.3})

    def lines(niche: float = 0.1, order: int | None = None) -> list[str]:
        return list(as_text(invented.run(configuration.changed({"search.niche": niche}), order=order).finished))

    assert lines(order=order) == lines() != lines(niche=0.0)
