"""The search algorithm of Section 3.2 and Appendix A, claim by claim; operators of change are tested in tests/proposing."""

from collections import Counter

import pytest

from autoloss.proposing.evolution import AgeingPopulation, Evolution
from autoloss.proposing.mutation import MUTATIONS, Kind, draw_attempt
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import Outcome, State
from autoloss.proposing.view import Ledger, View
from autoloss.rejection.engine import NORM_DIGITS, PRODUCT_DIGITS
from autoloss.rejection.reasons import Reason
from autoloss.settings import Configuration, EvolutionSettings, OffspringSettings, ProtocolSettings
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.parsing import parse
from tests.proposing.conformance import candidate

ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})


def test_the_papers_values_are_the_defaults():
    evolution, rejection = EvolutionSettings(), ProtocolSettings()
    assert (evolution.initial, evolution.depth, evolution.tournament, evolution.population) == (20, 3, 0.05, 2500)
    assert (rejection.samples, rejection.threshold) == (5, 0.6)
    assert (rejection.steps, rejection.learning_rate, rejection.momentum) == (500, 0.001, 0.9)
    assert (OffspringSettings().copy, OffspringSettings().fresh) == (0.1, 0.5)
    assert Configuration().evaluations == 500


def test_what_the_paper_leaves_open_has_the_defaults_of_the_specification():
    settings = EvolutionSettings()
    assert settings.maximum_operators == 64
    assert settings.mutation_attempts == 10_000
    assert settings.attempts == 1_000_000
    assert settings.idle_children == 1_000
    assert not settings.one_branch
    assert ProtocolSettings().unit == "relative"
    assert (NORM_DIGITS, PRODUCT_DIGITS) == (2, 3)
    assert not Configuration().limits.charge_diverged


def test_mutations_are_insertion_deletion_and_replacement():
    assert [change.__name__ for change in MUTATIONS] == ["insert", "delete", "replace"]


class Evolved:
    """The paper's evolution, told the scores of the first candidates; None for one that diverged, as later ones do."""

    def __init__(self, branches, scores, seed, evolution=None, offspring=None) -> None:
        settings = Configuration(
            seed=seed, evolution=evolution or EvolutionSettings(), offspring=offspring or OffspringSettings()
        )
        self.proposer = Evolution(AgeingPopulation.of(settings), settings)
        self.ledger = Ledger(branches, settings)
        for score in scores:
            self.tell(score)

    def tell(self, score) -> None:
        k = len(self.ledger.candidates)
        self.ledger.add(candidate(k))
        self.ledger.tell(k, Outcome(state=State.DIVERGED if score is None else State.SCORED, score=score))

    def ask(self, k) -> Plan:
        while not self.ledger.covers(k):
            self.tell(None)
        return self.proposer.ask(k, View(self.ledger, k))


def population(scores, seed=0, **settings):
    return Evolved(("main",), scores, seed, EvolutionSettings(**settings))


def parents(scores, number, **settings):
    """The parents that a candidate gets under many seeds."""
    found = [population(scores, seed, **settings).ask(number).parent for seed in range(600)]
    return Counter(parent for parent in found if parent is not None)


def test_the_first_k_candidates_are_drawn_from_nothing():
    evolution = population([0.5] * 19)
    for k in range(20):
        assert evolution.ask(k) == Plan(k, None, {"main": Kind.FRESH})


def test_with_20_losses_a_tournament_is_one_contestant_so_anyone_may_be_parent():
    found = parents(range(20), 23)
    assert set(found) == set(range(20))


def test_the_best_of_five_percent_is_parent():
    # Of 40 losses two meet: the worst never wins, the best whenever it takes part, one time in 20.
    found = parents(range(40), 43)
    assert 0 not in found
    assert found[39] / 600 == pytest.approx(0.05, abs=0.036)
    # Of 400 losses twenty meet, so one of the worst nineteen never wins.
    assert min(parents(range(400), 403)) >= 19


def test_ties_are_broken_at_random():
    assert set(parents([1.0, 1.0, 1.0], 24, tournament=1.0)) == {0, 1, 2}


def test_parents_are_among_the_most_recent_scored_losses():
    scores = [0.9, None, 0.1, 0.2, None, 0.3]
    settings = {"population": 3, "initial": 1}
    assert set(parents(scores, 9, **settings)) == {2, 3, 5}
    # Candidate 6 does not see those after 6 − 4.
    assert set(parents(scores, 6, **settings)) == {0, 2}


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_what_has_no_finite_score_is_never_selected(score):
    with pytest.raises(ValueError, match="cannot have the score"):
        population([score])


def test_without_a_scored_loss_candidates_are_drawn_from_nothing():
    assert population([None] * 30).ask(30) == Plan(30, None, {"main": Kind.FRESH})


def test_parent_and_kinds_are_drawn_once_for_a_candidate():
    evolution = population(range(30))
    assert evolution.ask(33) == evolution.ask(33)
    assert {evolution.ask(k).kinds["main"] for k in range(20, 34)} >= {Kind.FRESH, Kind.MUTATION}


def test_each_branch_draws_its_own_kind():
    branches = ("a", "b")
    kinds = Counter()
    for seed in range(2000):
        evolution = Evolved(branches, [1.0], seed, EvolutionSettings(initial=1, lag=1))
        kinds[tuple(evolution.ask(1).kinds[branch] for branch in branches)] += 1
    # Four standard errors of independent draws, 0.45² and 0.1².
    assert kinds[Kind.FRESH, Kind.MUTATION] / 2000 == pytest.approx(0.2025, abs=0.036)
    assert kinds[Kind.COPY, Kind.COPY] / 2000 == pytest.approx(0.01, abs=0.009)


def test_as_a_setting_one_random_branch_changes_and_the_others_are_copied():
    branches = ("a", "b", "c")
    changed = Counter()
    for seed in range(300):
        settings = EvolutionSettings(initial=1, lag=1, one_branch=True)
        evolution = Evolved(branches, [1.0], seed, settings, OffspringSettings(copy=0.0))
        found = [branch for branch, kind in evolution.ask(1).kinds.items() if kind is not Kind.COPY]
        assert len(found) == 1
        changed[found[0]] += 1
    assert set(changed) == set(branches)


def tried(kind, number, parent="-y * log(p)"):
    return draw_attempt(30, "main", kind, number, parse(parent), ALPHABET, EvolutionSettings(), 0)


def test_what_is_repeated_is_only_the_tree_or_the_mutations():
    assert len({tried(Kind.FRESH, number) for number in range(50)}) > 40
    assert len({tried(Kind.MUTATION, number) for number in range(50)}) > 20
    assert {tried(Kind.COPY, number) for number in range(50)} == {parse("-y * log(p)")}
    assert tried(Kind.FRESH, 7) == tried(Kind.FRESH, 7)


def test_after_10_000_attempts_a_mutation_becomes_a_fresh_tree():
    parent = "log(log(log(log(log(log(log(log(y * p))))))))"
    assert all(tried(Kind.MUTATION, number, parent).depth >= 7 for number in range(9_980, 10_000))
    assert {tried(Kind.MUTATION, number, parent).depth for number in range(10_000, 10_020)} == {3}


def test_structure_is_looked_at_before_the_key_and_the_key_before_the_protocol():
    order = [reason.name for reason in Reason]
    wanted = ["STRUCTURE", "KNOWN_KEY", "NO_GRADIENT", "LOW_GAIN", "KNOWN_DIVERGED"]
    assert [name for name in order if name in wanted] == wanted
