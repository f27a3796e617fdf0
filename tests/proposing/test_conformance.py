"""Every proposer and every archive of the package, and some that break the contract, held to the suite."""

from __future__ import annotations

from random import Random

import pytest

from autoloss.proposing.evolution import AgeingPopulation
from autoloss.proposing.history import History
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.proposers import PROPOSERS, RandomSearch, make_proposer
from autoloss.proposing.view import Ledger, View

from . import conformance
from .conformance import ARCHIVE_CLAIMS, BRANCHES, CONFIGURATION, PROPOSER_CLAIMS, outcome

ARCHIVES = {
    "ageing population": AgeingPopulation(size=12, tournament=0.3),
    "everybody, one contestant": AgeingPopulation(size=10**6, tournament=1e-9),
}


@pytest.mark.parametrize("claim", PROPOSER_CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_conforms(name, claim):
    claim(lambda configuration: make_proposer(configuration.changed({"search.proposer": name})))


@pytest.mark.parametrize("claim", ARCHIVE_CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("name", ARCHIVES)
def test_every_archive_conforms(name, claim):
    claim(ARCHIVES[name])


class Counting(RandomSearch):
    """Mutates one candidate after the other: what was asked before decides."""

    parent = -1

    def ask(self, k, visible):
        self.parent += 1
        return Plan(k, self.parent, dict.fromkeys(BRANCHES, Kind.MUTATION))


class Curious(RandomSearch):
    """Says that it needs no outcomes, and looks at them."""

    def ask(self, k, visible):
        return Plan(k, visible.count - 1 if visible.count else None, dict.fromkeys(BRANCHES, Kind.FRESH))


class Hoarding(RandomSearch):
    """Keeps what it has seen in itself, and so from one run to the next."""

    scored = 0

    def needs_outcomes(self, k):
        return True

    def ask(self, k, visible):
        self.scored = max(self.scored, len(visible.scored(1.0)))
        return Plan(k, None, dict.fromkeys(BRANCHES, Kind.FRESH), pool=1 + self.scored)


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        (Counting, conformance.what_was_asked_before_makes_no_difference),
        (Counting, conformance.parents_are_among_the_candidates_that_may_be_seen),
        (Curious, conformance.a_plan_that_needs_no_outcomes_looks_at_none),
        (Hoarding, conformance.one_object_serves_several_runs),
    ],
)
def test_the_suite_notices_what_breaks_the_contract(wrong, claim):
    with pytest.raises(AssertionError):
        claim(lambda configuration: wrong())


def test_a_view_refuses_what_a_candidate_cannot_know():
    everything = conformance.ledger()
    view = View(everything, 10)
    assert view.count == 10 - conformance.LAG + 1
    for number in (-1, view.count, 39):
        with pytest.raises(LookupError, match="does not see"):
            view.outcome(number)


def test_a_view_is_empty_until_all_that_may_be_known_is_there():
    everything = Ledger(BRANCHES, CONFIGURATION)
    for k in range(4):
        everything.add(conformance.candidate(k))
    for k in (0, 2, 3):
        everything.tell(k, outcome(0.5))
    assert [View(everything, k).count for k in range(7)] == [0, 0, 0, 1, 0, 0, 0]
    everything.tell(1, outcome(None))
    assert [View(everything, k).count for k in range(7)] == [0, 0, 0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="Candidate 0 has an outcome already"):
        everything.tell(0, outcome(0.5))


def test_a_plan_with_a_parent_that_cannot_be_known_is_refused():
    class Ahead(RandomSearch):
        def ask(self, k, visible):
            return Plan(k, k - 1 if k else None, dict.fromkeys(BRANCHES, Kind.FRESH))

    history = History(BRANCHES, CONFIGURATION, Ahead())
    assert history.plan(0).parent is None
    with pytest.raises(ValueError, match="does not see"):
        history.plan(1)


def test_random_search_and_evolution_that_draws_nothing_but_fresh_trees_plan_the_same_trees():
    fresh = CONFIGURATION.changed({"offspring.copy": 0.0, "offspring.fresh": 1.0})
    for k in range(conformance.COUNT):
        names = ("evolution", "random")
        planned = [
            conformance.plan(make_proposer(fresh.changed({"search.proposer": name})), k, fresh) for name in names
        ]
        assert planned[0].kinds == planned[1].kinds
        assert planned[1].parent is None


def test_the_population_is_the_most_recent_scored_losses():
    population = AgeingPopulation(size=3, tournament=1.0)
    found = [outcome(score) for score in (0.9, None, 0.1, 0.2, None, 0.3)]
    everything = conformance.ledger(CONFIGURATION.changed({"evolution.lag": 4}), found)
    assert list(population.members(View(everything, 9))) == [2, 3, 5]
    # Candidate 6 does not see those after 6 − 4.
    assert list(population.members(View(everything, 6))) == [0, 2]
    assert population.draw_parent(View(everything, 9), Random(0)) == 5
