"""Every proposer and every archive of the package, and some that break the contract, held to the suite."""

from __future__ import annotations

from random import Random

import pytest

from autoloss.proposing.archive import AgeingPopulation
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.proposers import PROPOSERS, RandomSearch

from . import conformance
from .conformance import ARCHIVE_CLAIMS, BRANCHES, CONFIGURATION, PROPOSER_CLAIMS, outcome

ARCHIVES = {
    "ageing population": lambda lag: AgeingPopulation(size=12, tournament=0.3, lag=lag),
    "everybody, one contestant": lambda lag: AgeingPopulation(size=10**6, tournament=1e-9, lag=lag),
}


@pytest.mark.parametrize("claim", PROPOSER_CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_conforms(name, claim):
    claim(PROPOSERS[name])


@pytest.mark.parametrize("claim", ARCHIVE_CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", ARCHIVES)
def test_every_archive_conforms(name, claim):
    claim(ARCHIVES[name])


class Latest(RandomSearch):
    """Mutates what was told last: the order of outcomes decides."""

    parent = 0

    def ask(self, k):
        return Plan(k, self.parent, dict.fromkeys(BRANCHES, Kind.MUTATION))

    def tell(self, k, outcome):
        self.parent = k


class Streaming(RandomSearch):
    """Draws from one generator for all candidates: what was asked before decides."""

    def __init__(self, branches, configuration):
        super().__init__(branches, configuration)
        self._rng = Random(configuration.seed)

    def ask(self, k):
        return Plan(k, None if k < 3 else self._rng.randrange(k - 2), dict.fromkeys(BRANCHES, Kind.FRESH))


class Forgetful(RandomSearch):
    """Is plannable once only."""

    asked = False

    def plannable(self, k):
        asked, self.asked = self.asked, True
        return not asked


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        (Latest, conformance.the_order_of_outcomes_makes_no_difference),
        (Latest, conformance.outcomes_after_k_minus_lag_make_no_difference),
        (Latest, conformance.parents_are_among_the_candidates_that_may_be_seen),
        (Streaming, conformance.what_was_asked_before_makes_no_difference),
        (Forgetful, conformance.a_candidate_is_plannable_once_all_up_to_k_minus_lag_are_told_and_stays_so),
    ],
)
def test_the_suite_notices_what_breaks_the_contract(wrong, claim):
    with pytest.raises(AssertionError):
        claim(wrong)


def test_random_search_and_evolution_that_draws_nothing_but_fresh_trees_plan_the_same_trees():
    fresh = CONFIGURATION.changed({"offspring.copy": 0.0, "offspring.fresh": 1.0})
    for k in range(conformance.COUNT):
        planned = [conformance.plan(PROPOSERS[name], k, fresh) for name in ("evolution", "random")]
        assert planned[0].kinds == planned[1].kinds
        assert planned[1].parent is None


def test_the_population_is_the_most_recent_scored_losses():
    population = AgeingPopulation(size=3, tournament=1.0, lag=4)
    for k, score in enumerate([0.9, None, 0.1, 0.2, None, 0.3]):
        population.add(k, outcome(score))
    assert list(population.members(9)) == [2, 3, 5]
    # Candidate 6 does not see those after 6 − 4.
    assert list(population.members(6)) == [0, 2]
    assert population.draw_parent(9, Random(0)) == 5
