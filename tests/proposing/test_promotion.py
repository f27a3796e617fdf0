"""Cheap trainings first: which candidates are promoted to a larger share of the schedule, and what the budget counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from autoloss import recipes
from autoloss.errors import RequestError
from autoloss.proposing.evolution import AgeingPopulation
from autoloss.proposing.history import History
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.proposers import PROPOSERS, Promotion, RandomSearch, Starting, make_proposer
from autoloss.proposing.records import Origin, Outcome, State
from autoloss.proposing.view import Ledger, View
from autoloss.settings import Configuration
from histories import as_text

from . import conformance, invented
from .conformance import PROPOSER_CLAIMS, candidate, outcome

RUNGS = ((0.125, 1.0), (0.1, 0.3, 1.0))
INITIAL, LAG, PROMOTED_LAG = 5, 3, 9
SETTINGS = {
    "evolution.initial": INITIAL,
    "evolution.lag": LAG,
    "evolution.tournament": 0.5,
    "search.promote": 0.25,
    "search.pool": 3,
    "evolution.idle_children": 20,
    "seed": 7,
}
PROMOTING = Configuration().changed({**SETTINGS, "search.rungs": RUNGS[0]})
LAGS = pytest.mark.parametrize("promoted_lag", [0, PROMOTED_LAG])


@pytest.mark.parametrize("claim", PROPOSER_CLAIMS, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("rungs", RUNGS, ids=str)
@pytest.mark.parametrize("name", PROPOSERS)
def test_every_proposer_conforms_where_candidates_are_promoted(name, rungs, claim, monkeypatch):
    settings = {"search.proposer": name, "search.rungs": rungs, "search.promote": 0.25}
    changed = conformance.CONFIGURATION.changed(settings)
    whole = conformance.outcomes
    # The outcomes of the suite are of whole trainings.
    shares = Told(changed, [one.score for one in whole()], conformance.BRANCHES).shares
    assert len(set(shares)) == len(rungs)

    def outcomes(count=conformance.COUNT, seed=0):
        return [replace(one, fidelity=share) for one, share in zip(whole(count, seed), shares, strict=False)]

    monkeypatch.setattr(conformance, "outcomes", outcomes)
    monkeypatch.setattr(conformance, "CONFIGURATION", changed)
    claim(make_proposer)


class Told:
    """The promotions of random search where these are the scores, and what it planned."""

    def __init__(
        self,
        configuration: Configuration,
        scores: Sequence[float | None],
        branches: Sequence[str] = ("main",),
        start: Sequence[str] = (),
    ) -> None:
        self.proposer = Promotion(Starting(RandomSearch(), start), configuration)
        self.ledger = Ledger(branches, configuration)
        self.plans: list[Plan] = []
        self.scores = list(scores)
        for k, score in enumerate(scores):
            self.tell(k, score)

    def tell(self, k: int, score: float | None, fidelity: float | None = None) -> Plan:
        plan = self.proposer.ask(k, View(self.ledger, k))
        self.plans.append(replace(plan, fidelity=plan.fidelity or self.ledger.configuration.search.rungs[0]))
        kinds = {branch: kind.value for branch, kind in plan.kinds.items()}
        share = self.plans[k].fidelity
        self.ledger.add(conformance.candidate(k, parent=plan.parent, kinds=kinds, fidelity=share))
        self.ledger.tell(k, replace(outcome(score), fidelity=fidelity or share))
        return plan

    @property
    def shares(self) -> list[float]:
        return [plan.fidelity for plan in self.plans]

    @property
    def promotions(self) -> list[Plan]:
        return [plan for plan in self.plans if plan.promotes]

    def scored_at(self, rung: float, until: int) -> list[int]:
        return [k for k in range(until + 1) if self.plans[k].fidelity == rung and self.scores[k] is not None]


def random_scores(count: int, seed: int) -> list[float | None]:
    rng = Random(seed)
    return [None if rng.random() < 0.15 else rng.randrange(20) / 20 for _ in range(count)]


@pytest.mark.parametrize("promote", [0.05, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("rungs", RUNGS, ids=str)
def test_of_n_that_scored_at_a_rung_the_share_is_promoted_and_rounded_down(rungs, promote):
    changed = PROMOTING.changed({"search.rungs": rungs, "search.promote": promote})
    for seed in range(5):
        told = Told(changed, random_scores(120, seed))
        for rung, next_rung in itertools.pairwise(rungs):
            promoted = [plan.candidate for plan in told.promotions if plan.fidelity == next_rung]
            for k in range(INITIAL, 120):
                seen = len(told.scored_at(rung, k - LAG))
                done = sum(at <= k for at in promoted)
                assert done <= promote * seen
                # A candidate promotes one; at so small a share no more than one is due at a time, and at two rungs two.
                if promote <= 0.25:
                    assert done >= int(promote * seen) - 1
        assert told.promotions


@pytest.mark.parametrize(("scored", "promote", "expected"), [(30, 0.05, 1), (30, 0.25, 7), (7, 0.5, 3), (3, 0.25, 0)])
def test_once_no_further_candidate_scores_it_is_the_share_exactly(scored, promote, expected):
    changed = PROMOTING.changed({"evolution.initial": 40, "search.promote": promote})
    told = Told(changed, [*(k / 100 for k in range(scored)), *[None] * (40 - scored + 30)])
    assert len(told.promotions) == expected
    assert [plan.parent for plan in told.promotions] == list(range(scored))[::-1][:expected]


def test_the_best_that_may_be_seen_and_are_not_promoted_come_first_and_none_twice():
    for rungs in RUNGS:
        for seed in range(5):
            told = Told(PROMOTING.changed({"search.rungs": rungs}), random_scores(120, seed))
            gone: set[tuple[int, float]] = set()
            for plan in told.promotions:
                rung = rungs[rungs.index(plan.fidelity) - 1]
                waiting = [k for k in told.scored_at(rung, plan.candidate - LAG) if (k, plan.fidelity) not in gone]
                # Of equal ones the first.
                assert plan.parent == max(waiting, key=lambda k: (told.scores[k], -k))
                gone.add((plan.parent, plan.fidelity))
            assert len(gone) == len(told.promotions)


def test_none_of_the_first_k_candidates_is_a_promotion_and_the_larger_share_goes_first():
    for rungs in RUNGS:
        told = Told(PROMOTING.changed({"search.rungs": rungs, "search.promote": 1.0}), [0.5] * 60)
        assert not any(plan.promotes for plan in told.plans[:INITIAL])
        assert told.plans[INITIAL].promotes
    # The largest share goes first: what has a score at 0.3 is trained whole at the first chance.
    shares = [plan.fidelity for plan in told.plans[INITIAL:]]
    assert shares[: LAG + 1] == [0.3] * LAG + [1.0]


def test_losses_to_start_from_are_trained_whole_however_slowly_they_learn():
    scores = [0.2, None, 0.1, *[0.9] * 60]
    settings = {"search.promote": 0.001, "search.promote_start": 0.5}
    told = Told(PROMOTING.changed(settings), scores, start=["first", "diverges", "third"])
    assert [(plan.parent, plan.fidelity) for plan in told.promotions] == [(0, 1.0), (2, 1.0)]
    for number, plan in enumerate(told.promotions, 1):
        seen = range(plan.candidate - LAG + 1)
        assert number - 1 <= 0.5 * sum(told.shares[k] for k in seen if told.scores[k] is not None)
    assert not Told(PROMOTING.changed({**settings, "search.promote_start": 0}), scores, start=["first"]).promotions


def test_the_best_known_loss_so_far_is_trained_whole_before_others_are_drawn():
    start = ["first", "better", "third", "too late to see", "too late to see, too"]
    settings = {"search.promote_start": 0.5, "evolution.initial": 20, "evolution.start": start}
    told = Told(PROMOTING.changed(settings), [0.2, 0.4, 0.3, *[0.9] * 60], start=start)
    assert [(told.promotions[0].candidate, told.promotions[0].parent)] == [(len(start), 1)]


def test_scores_at_other_shares_do_not_count():
    told = Told(PROMOTING, [])
    for k in range(40):
        assert not told.tell(k, 0.5, fidelity=0.2).promotes


def test_a_promotion_is_the_parents_tree_on_every_branch():
    told = Told(PROMOTING, random_scores(60, 0))
    for plan in told.promotions:
        assert set(plan.kinds.values()) == {Kind.PROMOTION}
        assert (plan.pool, plan.drawn) == (1, [])


def searched(name: str, rungs: tuple[float, ...], evaluations: int = 12, promoted_lag: int = 0, **options) -> History:
    settings = {"search.proposer": name, "search.rungs": rungs, "search.promoted_lag": promoted_lag}
    return invented.run(PROMOTING.changed({**settings, "evaluations": evaluations}), **options)


def lines(history: History) -> list[str]:
    return list(as_text(history.finished()))


class TestHistory:
    @pytest.mark.parametrize("rungs", RUNGS, ids=str)
    @pytest.mark.parametrize("name", ["evolution", "guided"])
    def test_parents_come_from_the_first_rung_only(self, name, rungs):
        found = searched(name, rungs)
        bred = [one for one in found.candidates if one.parent is not None and "promoted" not in one.kinds.values()]
        assert bred
        assert {found.candidates[one.parent].fidelity for one in bred} == {rungs[0]}

    @pytest.mark.parametrize("rungs", RUNGS, ids=str)
    def test_a_promotion_has_the_loss_and_the_signature_of_the_rung_below(self, rungs):
        found = searched("evolution", rungs)
        promoted = [one for one in found.candidates if "promoted" in one.kinds.values()]
        assert {one.fidelity for one in promoted} == set(rungs[1:])
        for one in promoted:
            parent = found.candidates[one.parent]
            assert (one.loss, one.signature, one.attempts) == (parent.loss, parent.signature, {"main": None})
            assert parent.fidelity == rungs[rungs.index(one.fidelity) - 1]

    @pytest.mark.parametrize("rungs", RUNGS, ids=str)
    @pytest.mark.parametrize("name", PROPOSERS)
    def test_what_is_charged_is_the_sum_of_the_shares_and_never_above_the_budget(self, name, rungs):
        for losses in (30, 1000):
            found = searched(name, rungs, losses=losses, order=1)
            spent = [one.fidelity for one in invented.trained(found) if found.outcomes[one.id].score is not None]
            assert found.charged == pytest.approx(sum(spent), abs=1e-9)
            assert found.charged <= 12 + 1e-6
            assert len(found.finished()) == len(found.candidates)

    @LAGS
    @pytest.mark.parametrize("rungs", RUNGS, ids=str)
    @pytest.mark.parametrize("name", PROPOSERS)
    def test_the_order_in_which_trainings_end_makes_no_difference(self, name, rungs, promoted_lag):
        alone = lines(searched(name, rungs, 6, promoted_lag, losses=60))
        assert all(lines(searched(name, rungs, 6, promoted_lag, losses=60, order=seed)) == alone for seed in range(4))

    @LAGS
    @pytest.mark.parametrize("rungs", RUNGS, ids=str)
    @pytest.mark.parametrize("name", PROPOSERS)
    def test_a_smaller_budget_gives_the_beginning_of_a_larger_one(self, name, rungs, promoted_lag):
        longest = lines(searched(name, rungs, 9, promoted_lag))
        lengths = set()
        for budget in range(1, 9):
            shorter = lines(searched(name, rungs, budget, promoted_lag, order=budget))
            assert shorter == longest[: len(shorter)]
            lengths.add(len(shorter))
        assert len(lengths) == 8

    def test_a_budget_ends_where_the_next_promotion_does_not_fit(self):
        changed = PROMOTING.changed({"search.proposer": "random", "evaluations": 1, "search.promote": 1.0})
        found = invented.run(changed)
        # Five at an eighth; the next is a whole training, which would cost more than is left.
        assert [one.fidelity for one in found.candidates] == [0.125] * INITIAL
        assert found.end == "0.625 of 1 training equivalents are done"


def test_of_losses_that_noise_cannot_tell_apart_the_simpler_one_is_ahead():
    found = Ledger(["main"], PROMOTING.changed({"search.resolution": 0.1}))
    for number, (loss, score) in enumerate((("add(p, mul(p, y))", 0.55), ("neg(p)", 0.52), ("log(neg(p))", 0.64))):
        found.add(replace(candidate(number, fidelity=0.125), loss=loss))
        found.tell(number, Outcome(state=State.SCORED, score=score, fidelity=0.125))
    view = View(found, 2 + LAG)
    assert sorted(range(3), key=view.value, reverse=True) == [2, 1, 0]
    population = AgeingPopulation(size=3, tournament=1.0, fidelity=0.125)
    assert population.draw_parent(view, Random(0)) == 2


@pytest.mark.parametrize("name", ["evolution", "guided"])
def test_a_long_search_promotes_to_its_end(name):
    settings = {"search.proposer": name, "evolution.population": 30, "evaluations": 60}
    found = invented.run(PROMOTING.changed(settings), losses=10**6)
    promoted = [one for one in found.candidates if "promoted" in one.kinds.values()]
    assert len(found.candidates) > 4 * 30
    assert promoted[-1].id > len(found.candidates) - 30


def test_a_night_of_the_default_recipe_comes_to_its_end():
    """More short trainings than any part of the search keeps."""
    settings = recipes.get_search_settings("digits-seg")
    found = invented.run(Configuration().changed({**settings, "evaluations": 110}), losses=10**6)
    assert len(found.candidates) > settings["evolution.population"] + 100
    assert found.end is not None
    assert found.end.endswith("110 training equivalents are done")


class TestPromotedLag:
    """A whole training under way: how far the history goes on, and what it says then."""

    @staticmethod
    def until_blocked(configuration: Configuration) -> History:
        """A history in which every short training ends at once, and no whole one."""
        history = History(("main",), configuration)
        while history.can_begin:
            draft = history.begin()
            for branch in list(draft.open):
                while draft.is_open(branch):
                    draft.decide(branch, invented.invent_attempt(draft.plan, branch, draft.tried[branch], 1000))
            candidate = history.complete()
            if candidate.origin is Origin.TRAINED and candidate.fidelity < 1:
                history.tell(candidate.id, invented.train(candidate))
        return history

    @pytest.mark.parametrize(("promoted_lag", "expected"), [(0, LAG), (2, LAG), (PROMOTED_LAG, PROMOTED_LAG)])
    @pytest.mark.parametrize("name", PROPOSERS)
    def test_candidates_go_on_for_so_many_places_and_the_usual_lag_is_the_least(self, name, promoted_lag, expected):
        changed = PROMOTING.changed({"search.proposer": name, "search.promoted_lag": promoted_lag})
        blocked = self.until_blocked(changed)
        first = next(one.id for one in blocked.candidates if one.fidelity == 1)
        assert len(blocked.candidates) == first + expected

    def test_with_several_rungs_promotions_wait_for_it_too(self):
        promoted = []
        for lag in (0, PROMOTED_LAG):
            found = searched("random", RUNGS[1], promoted_lag=lag)
            promoted.append(next(one.id for one in found.candidates if one.fidelity == 1))
        assert promoted[1] - promoted[0] >= PROMOTED_LAG - LAG

    def test_a_negative_one_is_refused(self):
        with pytest.raises(RequestError, match=r"search\.promoted_lag is -1"):
            PROMOTING.changed({"search.promoted_lag": -1})


class Promotes(RandomSearch):
    """Trains one loss at a share, and twice at the next."""

    def needs_outcomes(self, k: int) -> bool:
        return k > 0

    def ask(self, k: int, visible: View) -> Plan:
        if k == 0:
            return super().ask(k, visible)
        return Plan(k, 0, dict.fromkeys(visible.branches, Kind.PROMOTION), 1.0)


def test_a_promotion_whose_loss_was_trained_at_that_share_before_is_its_twin():
    changed = PROMOTING.changed({"evaluations": 3, "evolution.lag": 1, "evolution.idle_children": 3})
    found = invented.run(changed, proposer=Promotes())
    assert [(one.origin, one.source) for one in found.candidates[:3]] == [
        (Origin.TRAINED, None),
        (Origin.TRAINED, None),
        (Origin.TWIN, 1),
    ]
    assert found.outcomes[2] == found.outcomes[1]
    assert found.outcomes[2].score != found.outcomes[0].score
    assert found.charged == 1.125


def test_the_best_of_a_run_is_that_of_the_largest_share():
    def train(candidate):
        # Longer trainings score less, as where a loss overfits.
        return Outcome(state=State.SCORED, score=1 - candidate.fidelity, fidelity=candidate.fidelity)

    found = searched("random", RUNGS[0], train=train)
    assert found.best is not None
    assert found.best.outcome.fidelity == 1


def test_copies_and_twins_of_a_loss_are_not_promoted_beside_it():
    for name in ("evolution", "guided"):
        found = searched(name, RUNGS[0], losses=30)
        promoted = [one for one in found.candidates if "promoted" in one.kinds.values()]
        assert promoted
        assert {one.origin for one in promoted} == {Origin.TRAINED}
