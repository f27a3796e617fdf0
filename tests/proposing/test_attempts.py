"""Section 3.2, "repeated until it passes": the tree of attempt j, and what is not drawn in vain."""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chi2_contingency

from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.proposing.mutation import SMALL_STEPS, Kind, draw_attempt, mutate, resolve_kind
from autoloss.settings import Configuration, EvolutionSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.branch import Role, Sample
from autoloss.space.expression import Alphabet
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse

ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
VALID = EvolutionSettings(valid_draws=True, mutation_attempts=50)
PARENT = parse("y * log(p)")


def attempts(kind: Kind, settings: EvolutionSettings, count: int, parent=PARENT, alphabet=ALPHABET):
    return [draw_attempt(7, "main", kind, number, parent, alphabet, settings, 0) for number in range(count)]


@pytest.mark.parametrize("kind", [Kind.FRESH, Kind.MUTATION])
def test_each_attempt_depends_on_prediction_and_target(kind):
    drawn = attempts(kind, VALID, 100)
    assert all(tree.holds(ALPHABET.leaves_and_roles) for tree in drawn)
    assert not all(tree.holds(ALPHABET.leaves_and_roles) for tree in attempts(kind, EvolutionSettings(), 100))
    assert len(set(drawn)) > 50


def test_a_mutation_gives_way_to_a_fresh_tree_and_a_loss_to_start_from_stays_as_it_is():
    assert all(tree.depth == 3 for tree in attempts(Kind.MUTATION, VALID, 60)[50:])
    start = parse("p")
    drawn = attempts(Kind.START, VALID, 3, parent=start)
    assert drawn[0] == start
    assert all(tree.depth == 3 for tree in drawn[1:])


def test_a_fresh_tree_gives_way_to_a_mutation_where_there_is_a_parent():
    settings = EvolutionSettings(valid_draws=True, fresh_attempts=30, mutation_attempts=60)
    without = attempts(Kind.FRESH, settings, 80, parent=None)
    assert all(tree.depth == 3 for tree in without)
    drawn = attempts(Kind.FRESH, settings, 80)
    assert drawn[:30] == without[:30]
    assert drawn[30:60] == attempts(Kind.MUTATION, settings, 60)[30:]
    assert drawn[60:] == without[60:]
    # So does a loss to start from that was rejected; the paper's search has no such limit.
    assert attempts(Kind.START, settings, 80)[1:] == drawn[1:]
    assert all(tree.depth == 3 for tree in attempts(Kind.FRESH, EvolutionSettings(), 80))
    resolved = [resolve_kind(Kind.FRESH, at, settings, has_parent=True) for at in (29, 30, 59, 60)]
    assert resolved == [Kind.FRESH, Kind.MUTATION, Kind.MUTATION, Kind.FRESH]
    assert resolve_kind(Kind.FRESH, 30, settings, has_parent=False) is Kind.FRESH
    assert resolve_kind(Kind.SUM, SMALL_STEPS, settings, has_parent=True) is Kind.MUTATION
    assert resolve_kind(Kind.COPY, None, settings, has_parent=True) is Kind.COPY


def test_valid_mutations_are_as_likely_as_among_all_mutations():
    alphabet = Alphabet(ALPHABET.leaves_and_roles, tuple(OPERATORS[name] for name in ("neg", "mul")))
    parent, rng = parse("y * p"), Random(3)
    every = (mutate(parent, alphabet, rng) for _ in range(12_000))
    kept = Counter(str(tree) for tree in every if tree.holds(alphabet.leaves_and_roles))
    settings = EvolutionSettings(valid_draws=True)
    drawn = Counter(str(tree) for tree in attempts(Kind.MUTATION, settings, kept.total(), parent, alphabet))
    rows = [[kept[text], drawn[text]] for text in kept | drawn if kept[text] + drawn[text] >= 20]
    assert len(rows) > 50
    assert chi2_contingency(rows).pvalue > 0.01


def sample(*shape: int, target: torch.Tensor) -> Sample:
    return Sample(torch.zeros(shape), {"target": target})


@pytest.mark.parametrize(
    ("branch", "samples", "idle"),
    [
        (
            ActivatedBranch(activation="none"),
            [sample(8, 1, 1, 1, target=torch.zeros(8, 1))],
            "max_pool min_pool mean_c",
        ),
        (ActivatedBranch(activation="sigmoid"), [sample(8, 10, 1, 1, target=torch.zeros(8, 10))], "max_pool min_pool"),
        # One logit is two channels.
        (ActivatedBranch(), [sample(8, 1, 1, 1, target=torch.zeros(8, dtype=torch.long))], "max_pool min_pool"),
        (ActivatedBranch(activation="none"), [sample(2, 1, 4, 4, target=torch.zeros(2, 1, 4, 4))], "mean_c"),
        (ActivatedBranch(), [sample(2, 3, 4, 4, target=torch.zeros(2, 4, 4, dtype=torch.long))], ""),
        (ActivatedBranch(), [], ""),
    ],
)
def test_operators_that_change_nothing_on_a_branchs_shape_are_idle(branch, samples, idle):
    found = branch.find_idle_operators(samples)
    assert found == set(idle.split())
    for name in found:
        for value in branch.leaves(
            samples[0].prediction + torch.randn(samples[0].prediction.shape), samples[0].context
        ).values():
            assert torch.equal(OPERATORS[name].function(value), value)
    configuration = Configuration().changed({"space.without": "exp", "evolution.valid_draws": True})
    engine = SimpleNamespace(branch=branch, reference=SimpleNamespace(samples=samples), allows_early_stops=True)
    names = {operator.name for operator in RejectionTester(engine, configuration).alphabet.operators}
    assert names == OPERATORS.keys() - found - {"exp"}


def test_the_areas_of_boxes_have_one_number_for_each_box():
    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    context = {"target": torch.ones(1), "box": box, "reference": box + 1, "deviations": torch.ones(4)}
    boxes = Sample(torch.zeros(1, 4, 1, 1), context)
    assert BoxRegression().find_idle_operators([boxes]) == {"max_pool", "min_pool", "mean_c"}
