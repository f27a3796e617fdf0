"""What any Proposer and any Archive must satisfy: claims about one, as functions, so that a user's own can be held to them too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from autoloss.proposing.evolution import Archive
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.proposing.view import Ledger, View
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


def ledger(configuration: Configuration | None = None, found: Sequence[Outcome] | None = None) -> Ledger:
    """A run of so many candidates with these outcomes."""
    made = Ledger(BRANCHES, configuration or CONFIGURATION)
    for k, one in enumerate(outcomes() if found is None else found):
        signature = dict.fromkeys(BRANCHES, (f"{1 + k % 5}e0", f"{k % 3}e-1", "1e0", f"-{k % 2}e-1"))
        made.add(candidate(k, signature=signature, fidelity=one.fidelity))
        made.tell(k, one)
    return made


def candidate(k: int, **more: Any) -> Candidate:
    facts = {"parent": None, "kinds": dict.fromkeys(BRANCHES, "fresh"), "attempts": {}, "loss": f"loss{k}"}
    return Candidate(**{"id": k, **facts, "origin": Origin.TRAINED, "source": None, "signature": {}, **more})


def plan(proposer: Proposer, k: int, configuration: Configuration | None = None) -> Plan:
    """The plan of a candidate where what it may know is there, and no more."""
    return proposer.ask(k, View(ledger(configuration, outcomes()[: max(0, k - LAG + 1)]), k))


def shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    return Random(seed).sample(numbers, len(numbers))


MakeProposer = Callable[[Configuration], Proposer]


def plans_name_every_branch_in_order(make: MakeProposer) -> None:
    for k in range(COUNT):
        found = plan(make(CONFIGURATION), k)
        assert found.candidate == k
        assert tuple(found.kinds) == BRANCHES


def parents_are_among_the_candidates_that_may_be_seen(make: MakeProposer) -> None:
    for k in range(COUNT):
        found = plan(make(CONFIGURATION), k)
        if found.parent is None:
            assert not {Kind.COPY, Kind.MUTATION} & set(found.kinds.values())
        else:
            assert 0 <= found.parent <= k - LAG


def equal_views_give_equal_plans(make: MakeProposer) -> None:
    everything = ledger()
    for k in range(COUNT):
        assert make(CONFIGURATION).ask(k, View(everything, k)) == plan(make(CONFIGURATION), k)


def what_was_asked_before_makes_no_difference(make: MakeProposer) -> None:
    proposer, everything = make(CONFIGURATION), ledger()
    expected = [plan(make(CONFIGURATION), k) for k in range(COUNT)]
    for order in (range(COUNT), reversed(range(COUNT)), shuffled(range(COUNT), 1), shuffled(range(COUNT), 2)):
        for k in order:
            assert proposer.ask(k, View(everything, k)) == expected[k]


def one_object_serves_several_runs(make: MakeProposer) -> None:
    proposer, other = make(CONFIGURATION), ledger(found=outcomes(seed=1))
    for k in range(COUNT):
        proposer.ask(k, View(other, k))
        assert proposer.ask(k, View(ledger(), k)) == plan(make(CONFIGURATION), k)


def a_plan_that_needs_no_outcomes_looks_at_none(make: MakeProposer) -> None:
    for k in range(COUNT):
        if not make(CONFIGURATION).needs_outcomes(k):
            assert make(CONFIGURATION).ask(k, View(Ledger(BRANCHES, CONFIGURATION), k)) == plan(make(CONFIGURATION), k)


def no_global_randomness_is_drawn(make: MakeProposer) -> None:
    import random

    state = random.getstate()
    for k in range(COUNT):
        plan(make(CONFIGURATION), k)
    assert random.getstate() == state


PROPOSER_CLAIMS: tuple[Callable[[MakeProposer], None], ...] = (
    plans_name_every_branch_in_order,
    parents_are_among_the_candidates_that_may_be_seen,
    equal_views_give_equal_plans,
    what_was_asked_before_makes_no_difference,
    one_object_serves_several_runs,
    a_plan_that_needs_no_outcomes_looks_at_none,
    no_global_randomness_is_drawn,
)


def parents_have_a_score_and_may_be_seen(archive: Archive) -> None:
    found, everything = outcomes(), ledger()
    for k in range(COUNT):
        scored = {earlier for earlier in range(max(0, k - LAG + 1)) if found[earlier].score is not None}
        drawn = {archive.draw_parent(View(everything, k), Random(seed)) for seed in range(30)}
        assert drawn <= scored if scored else drawn == {None}


def an_archive_without_scores_has_no_parent(archive: Archive) -> None:
    assert archive.draw_parent(View(Ledger(BRANCHES, CONFIGURATION), 0), Random(0)) is None
    assert archive.draw_parent(View(ledger(found=[outcome(None)] * 9), 9), Random(0)) is None


def parents_follow_from_generator_and_view(archive: Archive) -> None:
    everything = ledger()
    for k in shuffled(range(LAG, COUNT), 0):
        expected = archive.draw_parent(View(ledger(found=outcomes()[: k - LAG + 1]), k), Random(k))
        assert archive.draw_parent(View(everything, k), Random(k)) == expected


ARCHIVE_CLAIMS: tuple[Callable[[Archive], None], ...] = (
    parents_have_a_score_and_may_be_seen,
    an_archive_without_scores_has_no_parent,
    parents_follow_from_generator_and_view,
)
