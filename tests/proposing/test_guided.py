"""Guided search: what is chosen among passing mutations, and the model of the scores that it is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from autoloss.proposing.guided import LEAST_OBSERVED, MOST_OBSERVED, Guided
from autoloss.proposing.jobs import Attempt
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.proposing.score_model import BOUND, ScoreModel, describe_signature
from autoloss.settings import Configuration

from . import invented

LAG = 3
POOL = 4
CONFIGURATION = Configuration().changed(
    {"search.proposer": "guided", "search.pool": POOL, "evolution.initial": 5, "evolution.lag": LAG, "seed": 7}
)
COUNT = 40
MAIN = ("main",)


def signature(value: float) -> tuple[str, ...]:
    """Norm and product where the network starts, and at partly right predictions, of one sample."""
    return (f"{value:.1e}", f"{0.3 * value:.1e}", f"{1 / value:.1e}", f"{-0.2 / value:.1e}")


def candidate(k: int, branches: Sequence[str], found: Mapping[str, tuple[str, ...]]) -> Candidate:
    return Candidate(
        id=k,
        parent=None,
        kinds=dict.fromkeys(branches, "fresh"),
        attempts=dict.fromkeys(branches, 0),
        loss="p",
        origin=Origin.TRAINED,
        source=None,
        signature=found,
    )


def value_of(k: int) -> float:
    """From 0.1 to 10, in no order."""
    return 10 ** (((k * 7) % COUNT) / COUNT * 2 - 1)


def outcome(k: int, best: float = 1.0) -> Outcome:
    """The best score has the loss whose norm is `best`; every ninth diverges."""
    if k % 9 == 8:
        return Outcome(state=State.DIVERGED)
    return Outcome(state=State.SCORED, score=-abs(math.log(value_of(k) / best)))


def told(order: Sequence[int], branches: Sequence[str] = MAIN, outcomes=outcome) -> Guided:
    """A proposer that knows how all candidates up to the last were made, and was told what some came to."""
    proposer = Guided(branches, CONFIGURATION)
    for k in range(max(order, default=-1) + 1):
        proposer.add(candidate(k, branches, dict.fromkeys(branches, signature(value_of(k)))))
    for k in order:
        proposer.tell(k, outcomes(k))
    return proposer


def pool(*values: float) -> list[Attempt]:
    return [Attempt(number, f"loss{number}", signature=signature(value)) for number, value in enumerate(values)]


def choose(proposer: Guided, k: int, *values: float) -> int:
    plan = Plan(k, 0, {"main": Kind.MUTATION}, 1.0, POOL)
    return proposer.choose(plan, {"main": pool(*values)}, {"main": signature(1.0)})["main"].number


VALUES = (9.0, 0.15, 1.1, 4.0)


def test_what_resembles_high_scores_is_chosen():
    proposer = told(range(COUNT))
    assert choose(proposer, COUNT + LAG, *VALUES) == 2
    other = told(range(COUNT), outcomes=lambda k: outcome(k, best=0.15))
    assert choose(other, COUNT + LAG, *VALUES) == 1


def test_the_order_in_which_outcomes_were_told_makes_no_difference():
    k = COUNT - 1
    expected = choose(told(range(k - LAG + 1)), k, *VALUES)
    for seed in range(5):
        assert choose(told(Random(seed).sample(range(k - LAG + 1), k - LAG + 1)), k, *VALUES) == expected


def test_outcomes_after_k_minus_lag_make_no_difference():
    proposer = told(range(COUNT))
    rng = Random(0)
    for k in range(LEAST_OBSERVED, COUNT):
        values = [10 ** rng.uniform(-1, 1) for _ in range(POOL)]
        assert choose(proposer, k, *values) == choose(told(range(k - LAG + 1)), k, *values)


def test_what_was_chosen_before_makes_no_difference():
    proposer = told(range(COUNT))
    first = [choose(proposer, k, *VALUES) for k in range(COUNT)]
    assert [choose(proposer, k, *VALUES) for k in reversed(range(COUNT))] == first[::-1]


def test_the_first_is_trained_while_fewer_than_the_least_have_a_score():
    enough = 0
    for k in range(COUNT):
        scored = sum(outcome(earlier).score is not None for earlier in range(k - LAG + 1))
        if scored < LEAST_OBSERVED:
            assert choose(told(range(COUNT)), k, *VALUES) == 0
        else:
            enough += choose(told(range(COUNT)), k, *VALUES) != 0
    assert enough > 10


def test_scores_at_another_share_are_not_observed():
    def whole(k: int) -> Outcome:
        found = outcome(k)
        return Outcome(state=found.state, score=found.score, fidelity=0.5)

    assert choose(told(range(COUNT), outcomes=whole), COUNT + LAG, *VALUES) == 0


def test_of_equal_attempts_the_first_is_chosen():
    assert choose(told(range(COUNT)), COUNT + LAG, 1.1, 1.1, 1.1) == 0
    assert choose(told(range(COUNT)), COUNT + LAG, 9.0, 1.1, 1.1) == 1


def test_the_latest_observations_are_those_that_are_used():
    many = MOST_OBSERVED + 60
    proposer = Guided(MAIN, CONFIGURATION)
    for k in range(many):
        # The first ones say the opposite of the later.
        value = value_of(k)
        proposer.add(candidate(k, MAIN, {"main": signature(value)}))
        proposer.tell(k, Outcome(state=State.SCORED, score=math.log(value) * (-1 if k < 60 else 1)))
    late = Guided(MAIN, CONFIGURATION)
    for k in range(many):
        late.add(candidate(k, MAIN, {"main": signature(value_of(k))}))
        scored = Outcome(state=State.SCORED, score=math.log(value_of(k)))
        late.tell(k, scored if k >= 60 else Outcome(state=State.DIVERGED))
    for values in (VALUES, VALUES[::-1]):
        assert choose(proposer, many + LAG, *values) == choose(late, many + LAG, *values)


class TestBranches:
    BRANCHES = ("cls", "reg")

    def test_each_branch_has_its_choice_and_copied_ones_keep_the_parents(self):
        proposer, rng = Guided(self.BRANCHES, CONFIGURATION), Random(0)
        for k in range(4 * COUNT):
            values = {branch: 10 ** rng.uniform(-1, 1) for branch in self.BRANCHES}
            proposer.add(candidate(k, self.BRANCHES, {branch: signature(value) for branch, value in values.items()}))
            score = -math.hypot(*map(math.log, values.values()))
            proposer.tell(k, Outcome(state=State.SCORED, score=score))
        kinds = {"cls": Kind.MUTATION, "reg": Kind.MUTATION}
        parent = dict.fromkeys(self.BRANCHES, signature(1.0))
        pools = {"cls": pool(*VALUES), "reg": pool(*VALUES[::-1])}
        found = proposer.choose(Plan(4 * COUNT + LAG, 0, kinds, 1.0, POOL), pools, parent)
        assert {branch: attempt.number for branch, attempt in found.items()} == {"cls": 2, "reg": 1}
        one = {"cls": Kind.COPY, "reg": Kind.MUTATION}
        found = proposer.choose(Plan(4 * COUNT + LAG, 0, one, 1.0, POOL), {"reg": pool(*VALUES)}, parent)
        assert {branch: attempt.number for branch, attempt in found.items()} == {"reg": 2}

    def test_only_plans_with_a_mutation_have_a_pool(self):
        proposer = told(range(COUNT), self.BRANCHES)
        for k in range(COUNT):
            plan = proposer.ask(k)
            assert plan.pool == (POOL if Kind.MUTATION in plan.kinds.values() else 1)

    @pytest.mark.parametrize(("share", "guided"), [(0.0, 0), (0.25, 10), (0.5, 20), (0.9, 36), (1.0, 40)])
    def test_a_share_of_the_candidates_has_a_pool_spread_evenly(self, share, guided):
        only_mutations = {"offspring.fresh": 0.0, "offspring.copy": 0.0}
        proposer = Guided(MAIN, CONFIGURATION.changed({"search.guided_share": share, **only_mutations}))
        pools = []
        for k in range(5 + 40):
            pools.append(proposer.ask(k).pool)
            proposer.add(candidate(k, MAIN, {"main": signature(1.0 + k)}))
            proposer.tell(k, Outcome(state=State.SCORED, score=float(k)))
        assert pools[5:].count(POOL) == guided
        for begin in range(5, 45, 10):
            assert abs(pools[begin : begin + 10].count(POOL) - 10 * share) <= 1


class TestModel:
    def test_it_prefers_what_is_like_high_scores_on_a_function_of_two_features(self):
        rng = Random(3)
        rows = [[rng.uniform(-2, 2), rng.uniform(-2, 2)] for _ in range(60)]
        model = ScoreModel(rows, [-((a - 1) ** 2) - (b + 0.5) ** 2 for a, b in rows])
        better = 0
        for _ in range(50):
            offered = [[rng.uniform(-2, 2), rng.uniform(-2, 2)] for _ in range(4)]
            away = [(a - 1) ** 2 + (b + 0.5) ** 2 for a, b in offered]
            better += away[model.find_most_promising(offered)] <= sorted(away)[1]
        assert better >= 45

    def test_only_the_ranks_of_scores_count(self):
        rng = Random(4)
        rows = [[rng.uniform(-2, 2)] for _ in range(30)]
        offered = [[-1.5], [0.0], [0.9], [1.7]]
        plain = ScoreModel(rows, [-abs(a - 1) for (a,) in rows])
        bent = ScoreModel(rows, [-(abs(a - 1) ** 9) * 1e12 for (a,) in rows])
        assert plain.find_most_promising(offered) == bent.find_most_promising(offered) == 2

    def test_equal_scores_and_equal_features_are_no_error(self):
        for rows, scores in (([[1.0, 2.0]] * 15, list(range(15))), ([[float(k)] for k in range(15)], [0.5] * 15)):
            assert ScoreModel(rows, scores).find_most_promising([rows[0], rows[1]]) in (0, 1)

    def test_what_is_far_outside_is_as_far_as_the_bound(self):
        rows = [[float(k)] for k in range(20)]
        model = ScoreModel(rows, [float(k) for k in range(20)])
        edge = 9.5 + BOUND * 6
        assert model.find_most_promising([[edge], [1e30]]) == model.find_most_promising([[1e30], [edge]]) == 0


class TestSignatures:
    @pytest.mark.parametrize("odd", ["nan", "inf", "-inf", "0", "1e300", "-1e300", "1e-320"])
    def test_odd_numbers_have_finite_features(self, odd):
        for place in range(8):
            texts = ["1.0e+00", "2.0e+00", "5.0e-01", "-5.0e-01"] * 2
            texts[place] = odd
            found = describe_signature(texts)
            assert len(found) == 8
            assert all(map(math.isfinite, found))

    @pytest.mark.parametrize("odd", ["nan", "inf", "0"])
    def test_a_pool_with_odd_signatures_is_chosen_from(self, odd):
        proposer = told(range(COUNT))
        proposer.add(candidate(COUNT, MAIN, {"main": (odd,) * 4}))
        proposer.tell(COUNT, Outcome(state=State.SCORED, score=-5.0))
        plan = Plan(COUNT + LAG, 0, {"main": Kind.MUTATION}, 1.0, POOL)
        offered = [Attempt(0, "a", signature=(odd,) * 4), Attempt(1, "b", signature=signature(1.1))]
        assert proposer.choose(plan, {"main": offered}, {"main": (odd,) * 4})["main"].number == 1

    def test_without_the_standard_scale_norms_alone_are_described(self):
        assert describe_signature(("1e0", "1e1", "1e2")) == pytest.approx([0, math.log(10), math.log(100)])
        assert describe_signature(()) == []

    def test_norms_are_logarithms_and_products_are_shares_of_them(self):
        found = describe_signature(("2e0", "4e0", "1e0", "-4e0", "1e-1", "0", "5e-2", "0"))
        half = [0.5, -1.0]
        assert found[2:4] == half
        assert found[6:] == [0.5, 0.0]
        assert found[:2] == pytest.approx([math.log(2), math.log(4)])


class TestPools:
    """In a history."""

    def test_pools_leave_out_losses_that_were_trained_before(self):
        offered: list[tuple[set[str], set[str]]] = []

        class Watched(Guided):
            def choose(self, plan, pools, parent):
                known = {one["main"] for k, one in self._signatures.items() if k < plan.candidate}
                offered.append(({attempt.signature for attempt in pools["main"]}, known))
                return super().choose(plan, pools, parent)

        changed = CONFIGURATION.changed({"evaluations": 60, "offspring.copy": 0.0, "offspring.fresh": 0.2})
        invented.run(changed, proposer=Watched(MAIN, changed), losses=150)
        assert len(offered) > 20
        repeated = [found & known for found, known in offered]
        # Only where nothing is new is an earlier loss among them.
        assert all(not again or again == found for again, (found, _) in zip(repeated, offered, strict=True))
        assert any(len(found) < POOL for found, _ in offered)

    def test_a_candidate_keeps_what_it_was_chosen_among(self):
        changed = CONFIGURATION.changed({"evaluations": 40})
        found = invented.run(changed)
        chosen = [one for one in found.candidates if one.pool]
        assert chosen
        for one in chosen:
            pooled = dict(one.pool["main"])
            assert len(pooled) == POOL
            assert pooled[one.attempts["main"]] == one.signature["main"]
        assert any(one.attempts["main"] > min(dict(one.pool["main"])) for one in chosen)
        assert all("mutated" in one.kinds.values() for one in chosen)
