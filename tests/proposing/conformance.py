"""What any Proposer and any Archive must satisfy: claims about one, as functions, so that a user's own can be held to them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from autoloss.proposing.archive import Archive
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.proposers import MakeProposer
from autoloss.proposing.records import Outcome, State
from autoloss.settings import Configuration

BRANCHES = ("cls", "reg")
COUNT = 40
SETTINGS = {
    "evolution.initial": 5,
    "evolution.lag": 3,
    "evolution.tournament": 0.3,
    "evolution.population": 12,
    "seed": 7,
}
CONFIGURATION = Configuration().changed(SETTINGS)
LAG = CONFIGURATION.evolution.lag


def outcome(score: float | None) -> Outcome:
    return Outcome(state=State.DIVERGED if score is None else State.SCORED, score=score)


def outcomes(count: int = COUNT, seed: int = 0) -> list[Outcome]:
    """Scores with ties, and none for every sixth candidate or so."""
    rng = Random(seed)
    return [outcome(None if rng.random() < 1 / 6 else rng.randrange(8) / 8) for _ in range(count)]


def told(make: MakeProposer, order: Iterable[int], configuration: Configuration = CONFIGURATION) -> Proposer:
    """A new proposer that was told the outcomes of some candidates, in an order."""
    proposer, found = make(BRANCHES, configuration), outcomes()
    for k in order:
        proposer.tell(k, found[k])
    return proposer


def shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    return Random(seed).sample(numbers, len(numbers))


def plan(make: MakeProposer, k: int, configuration: Configuration = CONFIGURATION) -> Plan:
    """The plan of a candidate by a proposer that was told what it needs and no more."""
    return told(make, range(max(0, k - LAG + 1)), configuration).ask(k)


def plans_name_every_branch_in_order(make: MakeProposer) -> None:
    for k in range(COUNT):
        found = plan(make, k)
        assert found.candidate == k
        assert tuple(found.kinds) == BRANCHES


def parents_are_among_the_candidates_that_may_be_seen(make: MakeProposer) -> None:
    for k in range(COUNT):
        found = plan(make, k)
        if found.parent is None:
            assert not {Kind.COPY, Kind.MUTATION} & set(found.kinds.values())
        else:
            assert 0 <= found.parent <= k - LAG


def losses_to_start_from_are_left_to_the_history(make: MakeProposer) -> None:
    assert all(Kind.START not in plan(make, k).kinds.values() for k in range(COUNT))


def equal_settings_seed_and_outcomes_give_equal_plans(make: MakeProposer) -> None:
    assert [plan(make, k) for k in range(COUNT)] == [plan(make, k) for k in range(COUNT)]


def the_order_of_outcomes_makes_no_difference(make: MakeProposer) -> None:
    for seed in range(20):
        assert told(make, shuffled(range(COUNT - LAG), seed)).ask(COUNT - 1) == plan(make, COUNT - 1)


def outcomes_after_k_minus_lag_make_no_difference(make: MakeProposer) -> None:
    everything = told(make, range(COUNT))
    assert [everything.ask(k) for k in range(COUNT)] == [plan(make, k) for k in range(COUNT)]


def what_was_asked_before_makes_no_difference(make: MakeProposer) -> None:
    proposer, found = make(BRANCHES, CONFIGURATION), outcomes()
    plans = []
    for k in range(COUNT):
        if k >= LAG:
            proposer.tell(k - LAG, found[k - LAG])
        proposer.ask(k)
        plans.append(proposer.ask(k))
    assert plans == [plan(make, k) for k in range(COUNT)]


def a_candidate_is_plannable_once_all_up_to_k_minus_lag_are_told_and_stays_so(make: MakeProposer) -> None:
    for seed in range(10):
        proposer, seen, plannable = make(BRANCHES, CONFIGURATION), set[int](), set[int]()
        for k in shuffled(range(COUNT), seed):
            proposer.tell(k, outcomes()[k])
            seen.add(k)
            now = {k for k in range(COUNT) if proposer.plannable(k)}
            assert plannable <= now
            assert now >= {k for k in range(COUNT) if seen.issuperset(range(k - LAG + 1))}
            plannable = now


def a_plan_that_is_known_early_is_the_final_one(make: MakeProposer) -> None:
    proposer = make(BRANCHES, CONFIGURATION)
    early = {k: proposer.ask(k) for k in range(COUNT) if proposer.plannable(k)}
    for seed in range(5):
        proposer = make(BRANCHES, CONFIGURATION)
        for told_now in shuffled(range(COUNT), seed):
            proposer.tell(told_now, outcomes()[told_now])
            early |= {k: proposer.ask(k) for k in range(COUNT) if k not in early and proposer.plannable(k)}
        assert early == {k: plan(make, k) for k in range(COUNT)}


def no_global_randomness_is_drawn(make: MakeProposer) -> None:
    import random

    state = random.getstate()
    for k in range(COUNT):
        plan(make, k)
    assert random.getstate() == state


PROPOSER_CLAIMS: tuple[Callable[[MakeProposer], None], ...] = (
    plans_name_every_branch_in_order,
    parents_are_among_the_candidates_that_may_be_seen,
    losses_to_start_from_are_left_to_the_history,
    equal_settings_seed_and_outcomes_give_equal_plans,
    the_order_of_outcomes_makes_no_difference,
    outcomes_after_k_minus_lag_make_no_difference,
    what_was_asked_before_makes_no_difference,
    a_candidate_is_plannable_once_all_up_to_k_minus_lag_are_told_and_stays_so,
    a_plan_that_is_known_early_is_the_final_one,
    no_global_randomness_is_drawn,
)

MakeArchive = Callable[[int], Archive]
"""Makes an archive for a lag."""


def holding(make: MakeArchive, order: Iterable[int]) -> Archive:
    archive, found = make(LAG), outcomes()
    for k in order:
        archive.add(k, found[k])
    return archive


def parents_have_a_score_and_may_be_seen(make: MakeArchive) -> None:
    found = outcomes()
    for k in range(COUNT):
        scored = {earlier for earlier in range(max(0, k - LAG + 1)) if found[earlier].score is not None}
        drawn = {holding(make, range(COUNT)).draw_parent(k, Random(seed)) for seed in range(30)}
        assert drawn <= scored if scored else drawn == {None}


def an_archive_without_scores_has_no_parent(make: MakeArchive) -> None:
    archive = make(LAG)
    assert archive.draw_parent(LAG, Random(0)) is None
    for k in range(9):
        archive.add(k, outcome(None))
    assert archive.draw_parent(9, Random(0)) is None


def parents_follow_from_generator_and_visible_outcomes(make: MakeArchive) -> None:
    for k in range(LAG, COUNT):
        expected = holding(make, range(k - LAG + 1)).draw_parent(k, Random(k))
        assert holding(make, range(COUNT)).draw_parent(k, Random(k)) == expected
        assert holding(make, shuffled(range(COUNT), k)).draw_parent(k, Random(k)) == expected


ARCHIVE_CLAIMS: tuple[Callable[[MakeArchive], None], ...] = (
    parents_have_a_score_and_may_be_seen,
    an_archive_without_scores_has_no_parent,
    parents_follow_from_generator_and_visible_outcomes,
)
