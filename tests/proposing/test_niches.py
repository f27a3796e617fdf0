"""Losses with nearly equal gradients: what is one niche, and how parents are spread over niches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from autoloss.errors import RequestError
from autoloss.proposing.archive import AgeingPopulation
from autoloss.proposing.niches import Niches
from autoloss.proposing.view import Ledger, View
from autoloss.settings import Configuration
from histories import as_text

from . import invented
from .conformance import candidate, outcome

MAIN = ("main",)
CONFIGURATION = Configuration().changed({"evolution.lag": 1})


def run(signatures: Sequence[Mapping[str, Sequence[float]]], branches: Sequence[str] = MAIN) -> Ledger:
    """A run whose candidates have these signatures, and rising scores."""
    made = Ledger(branches, CONFIGURATION)
    for k, signature in enumerate(signatures):
        texts = {branch: tuple(f"{value!r}" for value in values) for branch, values in signature.items()}
        made.add(candidate(k, signature=texts))
    return made


def gradient(norm: float = 1.0, direction: float = 0.5) -> list[float]:
    """A signature of one sample: norm and product at the start and at half-right predictions."""
    return [norm, norm * direction, norm, norm * direction]


def found(radius: float, signatures: Sequence[Mapping[str, Sequence[float]]], branches=MAIN) -> list[int]:
    made, niches = run(signatures, branches), Niches(radius)
    for k in range(len(signatures)):
        made.tell(k, outcome(0.5))
    view = View(made, len(signatures))
    return niches.find(view, range(len(signatures)))


def test_a_loss_belongs_to_the_nearest_first_member_within_the_radius():
    norms = (1.0, 1.05, 1.5, 1.45, 1.09, 1.2)
    # 1.2 is further than 0.1 from both (in logarithms) and begins a niche; 1.09 is nearest to 1.
    assert found(0.1, [{"main": gradient(norm)} for norm in norms]) == [0, 0, 2, 2, 0, 5]


def test_directions_count_and_so_does_each_branch_by_itself():
    a, b = gradient(), gradient(direction=-0.5)
    assert found(0.3, [{"main": a}, {"main": b}]) == [0, 1]
    names = tuple("abcd")
    # One branch of four differs: over all of them the difference would be half as large.
    same = dict.fromkeys(names, a)
    other = same | {"d": gradient(direction=0.0)}
    assert found(0.2, [same, other, same, other], names) == [0, 1, 0, 1]


def test_signatures_of_another_length_and_none_at_all_are_niches_of_their_own():
    plain = {"main": [1.0]}
    assert found(0.1, [{"main": gradient()}, plain, {}, {}, plain]) == [0, 1, 2, 3, 1]


def test_exploding_and_vanishing_gradients_do_not_stop_a_search():
    extremes = [float("inf"), float("nan"), 0.0, 1e300]
    signatures = [{"main": [value, 1.0, value, -1.0]} for value in (*extremes, *extremes)]
    numbers = found(0.1, signatures)
    assert numbers[:4] == numbers[4:]


def test_many_niches_are_kept_apart():
    assert found(0.1, [{"main": gradient(2.0**k)} for k in range(60)] * 2) == [*range(60)] * 2


@pytest.mark.parametrize("radius", ["-0.1", "nan", "inf"])
def test_a_radius_is_a_number_from_zero(radius):
    with pytest.raises(RequestError, match=r"search.niche is .*expected a number, at least 0"):
        Configuration().changed({"search.niche": radius})


CROWD = 40
"""Candidates of one niche; those after them stand alone."""


def drawn(niches: Niches | None) -> list[int]:
    """The parents of a candidate under many seeds."""
    made = run([{"main": gradient(1 + k / 1e4 if k < CROWD else 2.0**k)} for k in range(CROWD + 10)])
    for k in range(CROWD + 10):
        made.tell(k, outcome(0.5 + k / 1e4 if k < CROWD else 0.45 - k / 1e4))
    population, view = AgeingPopulation(size=1000, tournament=0.25, niches=niches), View(made, CROWD + 10)
    return [parent for seed in range(200) if (parent := population.draw_parent(view, Random(seed))) is not None]


def test_a_crowd_of_one_loss_does_not_take_every_place_among_the_parents():
    parents = {"alone": drawn(None), "niches": drawn(Niches(0.1))}
    share = {name: sum(k < CROWD for k in found) / 200 for name, found in parents.items()}
    # Of 50, 13 are drawn, and one of the crowd is always among them; of 11 niches 3.
    assert share["alone"] == 1.0
    assert 0.15 < share["niches"] < 0.4


def test_a_niche_competes_with_one_of_its_best():
    ranks = [CROWD - 1 - k for k in drawn(Niches(0.1)) if k < CROWD]
    assert ranks
    # The best of ten among forty.
    assert sum(rank < 10 for rank in ranks) > 0.85 * len(ranks)


@pytest.mark.parametrize("order", [1, 2])
def test_the_order_in_which_trainings_end_does_not_matter(order):
    settings = {"search.proposer": "guided", "search.rungs": (0.125, 1.0), "search.niche": 0.1, "seed": 3}
    configuration = Configuration().changed({**settings, "evaluations": 15, "evolution.tournament": 0.3})

    def lines(niche: float = 0.1, order: int | None = None) -> list[str]:
        return list(as_text(invented.run(configuration.changed({"search.niche": niche}), order=order).finished))

    assert lines(order=order) == lines() != lines(niche=0.0)
