"""Guided search: what is chosen among passing mutations, and the model of the scores that it is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from autoloss.proposing.evolution import LEAST_OBSERVED, MOST_OBSERVED, AgeingPopulation, Guided
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import Attempt, Outcome, State
from autoloss.proposing.score_model import BOUND, ScoreModel, describe_signature
from autoloss.proposing.view import Ledger, View
from autoloss.settings import Configuration

from . import invented
from .conformance import candidate

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


def value_of(k: int) -> float:
    """From 0.1 to 10, in no order."""
    return 10 ** (((k * 7) % COUNT) / COUNT * 2 - 1)


def outcome(k: int, best: float = 1.0) -> Outcome:
    """The best score has the loss whose norm is `best`; every ninth diverges."""
    if k % 9 == 8:
        return Outcome(state=State.DIVERGED)
    return Outcome(state=State.SCORED, score=-abs(math.log(value_of(k) / best)))


Told = tuple[Mapping[str, tuple[str, ...]], Outcome]
"""Signature and outcome of a candidate."""


def run(found: Sequence[Told], branches: Sequence[str] = MAIN) -> Ledger:
    made = Ledger(branches, CONFIGURATION)
    for k, (signatures, told) in enumerate(found):
        made.add(candidate(k, signature=signatures, fidelity=told.fidelity))
        made.tell(k, told)
    return made


def usual(count: int = COUNT, branches: Sequence[str] = MAIN, outcomes=outcome) -> Ledger:
    return run([(dict.fromkeys(branches, signature(value_of(k))), outcomes(k)) for k in range(count)], branches)


def guided(configuration: Configuration = CONFIGURATION) -> Guided:
    return Guided(AgeingPopulation.of(configuration), configuration)


def pool(*values: float) -> list[Attempt]:
    return [Attempt(number, f"loss{number}", signature=signature(value)) for number, value in enumerate(values)]


def choose(made: Ledger, k: int, *values: float, proposer: Guided | None = None) -> int:
    plan = Plan(k, 0, {"main": Kind.MUTATION}, 1.0, POOL)
    found = (proposer or guided()).choose(plan, {"main": pool(*values)}, {"main": signature(1.0)}, View(made, k))
    return found["main"].number


VALUES = (9.0, 0.15, 1.1, 4.0)


AFTER = COUNT - 1 + LAG
"""The candidate that sees them all."""


def test_what_resembles_high_scores_is_chosen():
    assert choose(usual(), AFTER, *VALUES) == 2
    assert choose(usual(outcomes=lambda k: outcome(k, best=0.15)), AFTER, *VALUES) == 1


def test_outcomes_after_k_minus_lag_make_no_difference():
    everything, proposer = usual(), guided()
    rng = Random(0)
    for k in range(LEAST_OBSERVED, COUNT):
        values = [10 ** rng.uniform(-1, 1) for _ in range(POOL)]
        assert choose(everything, k, *values, proposer=proposer) == choose(usual(k - LAG + 1), k, *values)


def test_what_was_chosen_before_makes_no_difference():
    everything, proposer = usual(), guided()
    first = [choose(everything, k, *VALUES, proposer=proposer) for k in range(COUNT)]
    assert [choose(everything, k, *VALUES, proposer=proposer) for k in reversed(range(COUNT))] == first[::-1]


def test_the_first_is_trained_while_fewer_than_the_least_have_a_score():
    enough = 0
    for k in range(COUNT):
        scored = sum(outcome(earlier).score is not None for earlier in range(k - LAG + 1))
        if scored < LEAST_OBSERVED:
            assert choose(usual(), k, *VALUES) == 0
        else:
            enough += choose(usual(), k, *VALUES) != 0
    assert enough > 10


def test_scores_at_another_share_are_not_observed():
    assert choose(usual(outcomes=lambda k: replace(outcome(k), fidelity=0.5)), AFTER, *VALUES) == 0


def test_of_equal_attempts_the_first_is_chosen():
    assert choose(usual(), AFTER, 1.1, 1.1, 1.1) == 0
    assert choose(usual(), AFTER, 9.0, 1.1, 1.1) == 1


def test_the_latest_observations_are_those_that_are_used():
    many = MOST_OBSERVED + 60
    signatures = [{"main": signature(value_of(k))} for k in range(many)]
    scores = [math.log(value_of(k)) for k in range(many)]
    # The first ones say the opposite of the later.
    turned = [Outcome(state=State.SCORED, score=score * (-1 if k < 60 else 1)) for k, score in enumerate(scores)]
    late = [outcome(8) if k < 60 else one for k, one in enumerate(turned)]
    for values in (VALUES, VALUES[::-1]):
        chosen = [
            choose(run(list(zip(signatures, told, strict=True))), many - 1 + LAG, *values) for told in (turned, late)
        ]
        assert chosen[0] == chosen[1]


class TestBranches:
    BRANCHES = ("cls", "reg")

    def test_each_branch_has_its_choice_and_copied_ones_keep_the_parents(self):
        rng, found = Random(0), []
        for _ in range(4 * COUNT):
            values = {branch: 10 ** rng.uniform(-1, 1) for branch in self.BRANCHES}
            score = -math.hypot(*map(math.log, values.values()))
            signatures = {branch: signature(value) for branch, value in values.items()}
            found.append((signatures, Outcome(state=State.SCORED, score=score)))
        view = View(run(found, self.BRANCHES), 4 * COUNT - 1 + LAG)
        parent = dict.fromkeys(self.BRANCHES, signature(1.0))
        pools = {"cls": pool(*VALUES), "reg": pool(*VALUES[::-1])}
        kinds = {"cls": Kind.MUTATION, "reg": Kind.MUTATION}
        chosen = guided().choose(Plan(view.k, 0, kinds, 1.0, POOL), pools, parent, view)
        assert {branch: attempt.number for branch, attempt in chosen.items()} == {"cls": 2, "reg": 1}
        one = {"cls": Kind.COPY, "reg": Kind.MUTATION}
        chosen = guided().choose(Plan(view.k, 0, one, 1.0, POOL), {"reg": pool(*VALUES)}, parent, view)
        assert {branch: attempt.number for branch, attempt in chosen.items()} == {"reg": 2}

    def test_only_plans_with_a_mutation_have_a_pool(self):
        everything = usual(branches=self.BRANCHES)
        for k in range(COUNT):
            plan = guided().ask(k, View(everything, k))
            assert plan.pool == (POOL if Kind.MUTATION in plan.kinds.values() else 1)

    @pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.25, 10), (0.5, 20), (0.9, 36), (1.0, 40)])
    def test_a_share_of_the_candidates_has_a_pool_spread_evenly(self, share, expected):
        only_mutations = {"offspring.fresh": 0.0, "offspring.copy": 0.0}
        proposer = guided(CONFIGURATION.changed({"search.guided_share": share, **only_mutations}))
        everything = usual(5 + COUNT)
        pools = [proposer.ask(k, View(everything, k)).pool for k in range(5 + COUNT)]
        assert pools[5:].count(POOL) == expected
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
            better += away[model.find_bounds(offered).round(9).argmax()] <= sorted(away)[1]
        assert better >= 45

    def test_only_the_ranks_of_scores_count(self):
        rng = Random(4)
        rows = [[rng.uniform(-2, 2)] for _ in range(30)]
        offered = [[-1.5], [0.0], [0.9], [1.7]]
        plain = ScoreModel(rows, [-abs(a - 1) for (a,) in rows])
        bent = ScoreModel(rows, [-(abs(a - 1) ** 9) * 1e12 for (a,) in rows])
        assert plain.find_bounds(offered).round(9).argmax() == bent.find_bounds(offered).round(9).argmax() == 2

    def test_equal_scores_and_equal_features_are_no_error(self):
        for rows, scores in (([[1.0, 2.0]] * 15, list(range(15))), ([[float(k)] for k in range(15)], [0.5] * 15)):
            assert ScoreModel(rows, scores).find_bounds([rows[0], rows[1]]).round(9).argmax() in (0, 1)

    def test_what_is_far_outside_is_as_far_as_the_bound(self):
        rows = [[float(k)] for k in range(20)]
        model = ScoreModel(rows, [float(k) for k in range(20)])
        edge = 9.5 + BOUND * 6
        assert (
            model.find_bounds([[edge], [1e30]]).round(9).argmax()
            == model.find_bounds([[1e30], [edge]]).round(9).argmax()
            == 0
        )


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
        told = [({"main": signature(value_of(k))}, outcome(k)) for k in range(COUNT)]
        view = View(run([*told, ({"main": (odd,) * 4}, Outcome(state=State.SCORED, score=-5.0))]), COUNT + LAG)
        plan = Plan(COUNT + LAG, 0, {"main": Kind.MUTATION}, 1.0, POOL)
        offered = [Attempt(0, "a", signature=(odd,) * 4), Attempt(1, "b", signature=signature(1.1))]
        assert guided().choose(plan, {"main": offered}, {"main": (odd,) * 4}, view)["main"].number == 1

    def test_without_the_standard_scale_norms_alone_are_described(self):
        assert describe_signature(("1e0", "1e1", "1e2")) == pytest.approx([0, math.log(10), math.log(100)])
        assert describe_signature(()) == []

    def test_directions_count_alike_whatever_the_number_of_elements(self):
        # Cosines to a random direction: of a thousand elements each is about a thirtieth.
        few, many = (
            describe_signature(("6e-1", "-8e-1"), direction=True),
            describe_signature(("6e-3", "-8e-3"), direction=True),
        )
        assert few == pytest.approx(many)
        assert few == pytest.approx([0.6 * math.sqrt(2), -0.8 * math.sqrt(2)])
        assert describe_signature(("0", "0"), direction=True) == [0, 0]

    def test_norms_are_logarithms_and_products_are_shares_of_them(self):
        found = describe_signature(("2e0", "4e0", "1e0", "-4e0", "1e-1", "0", "5e-2", "0"))
        half = [0.5, -1.0]
        assert found[2:4] == half
        assert found[6:] == [0.5, 0.0]
        assert found[:2] == pytest.approx([math.log(2), math.log(4)])


class TestPools:
    """In a history."""

    def test_pools_leave_out_losses_that_were_trained_before(self):
        offered: list[tuple[int, set[tuple[str, ...]]]] = []

        class Watched(Guided):
            def choose(self, plan, pools, parent, visible):
                offered.append((plan.candidate, {attempt.signature for attempt in pools["main"]}))
                return super().choose(plan, pools, parent, visible)

        changed = CONFIGURATION.changed({"evaluations": 60, "offspring.copy": 0.0, "offspring.fresh": 0.2})
        watched = Watched(AgeingPopulation.of(changed), changed)
        candidates = invented.run(changed, proposer=watched, losses=150).candidates
        assert len(offered) > 20
        for k, found in offered:
            again = found & {one.signature["main"] for one in candidates[:k]}
            # Only where nothing is new is an earlier loss among them.
            assert not again or again == found
        assert any(len(found) < POOL for _, found in offered)

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
