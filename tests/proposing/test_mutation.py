"""Section 3.2, Mutation: what each one reaches is exactly what the paper allows."""

from collections import Counter
from itertools import product
from random import Random

import pytest

from autoloss.errors import RequestError
from autoloss.proposing import mutation
from autoloss.proposing.mutation import (
    MUTATIONS,
    Kind,
    delete,
    draw_kind,
    draw_tree,
    insert,
    mutate,
    offspring,
    refine,
    replace,
    reweigh,
)
from autoloss.settings import OffspringSettings
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse

ALPHABET = Alphabet({"y": Role.TARGET}, (OPERATORS["neg"], OPERATORS["add"]))
"""Operators neg and add, leaves y and 1."""
LEAVES = ("y", "1")


def outcomes(change, count=2000):
    return {str(change(Random(seed))) for seed in range(count)}


def test_insert_reaches_every_place_operator_and_leaf_and_nothing_else():
    tree = parse("neg(y)")
    assert outcomes(lambda rng: insert(tree, ALPHABET, rng)) == {
        # Above the topmost operator, the root's child.
        "neg(neg(y))",
        "add(neg(y), y)",
        "add(neg(y), 1)",
        # Above the leaf.
        "neg(add(y, y))",
        "neg(add(y, 1))",
    }


def test_insert_reaches_every_node_of_a_larger_tree():
    tree = parse("add(neg(y), 1)")
    binary = {
        text
        for leaf in LEAVES
        for text in (
            f"add(add(neg(y), 1), {leaf})",
            f"add(add(neg(y), {leaf}), 1)",
            f"add(neg(add(y, {leaf})), 1)",
            f"add(neg(y), add(1, {leaf}))",
        )
    }
    unary = {"neg(add(neg(y), 1))", "add(neg(neg(y)), 1)", "add(neg(y), neg(1))"}
    assert outcomes(lambda rng: insert(tree, ALPHABET, rng)) == binary | unary


def test_delete_reaches_every_operator_and_nothing_else():
    tree = parse("log(neg(y))")
    assert outcomes(lambda rng: delete(tree, ALPHABET, rng)) == {"neg(y)", "log(y)"}


def test_delete_keeps_either_child_of_an_operator_with_two():
    tree = parse("neg(add(y, log(p)))")
    assert outcomes(lambda rng: delete(tree, ALPHABET, rng)) == {
        "add(y, log(p))",
        "neg(y)",
        "neg(log(p))",
        "neg(add(y, p))",
    }


def test_delete_changes_nothing_where_there_is_no_operator():
    assert outcomes(lambda rng: delete(parse("y"), ALPHABET, rng), 50) == {"y"}


def test_replace_reaches_every_node_operator_subset_and_leaf_and_nothing_else():
    tree = parse("add(neg(y), 1)")
    new = {f"neg({leaf})" for leaf in LEAVES} | {f"add({one}, {other})" for one, other in product(LEAVES, repeat=2)}
    assert outcomes(lambda rng: replace(tree, ALPHABET, rng), 4000) == (
        # The topmost operator: either child stays below neg, both below add.
        {"neg(neg(y))", "neg(1)", "add(neg(y), 1)"}
        # The operator below: its child stays, a random leaf fills up.
        | {f"add(add(y, {leaf}), 1)" for leaf in LEAVES}
        # A leaf has no children, so all are random leaves.
        | {f"add(neg({leaf}), 1)" for leaf in new}
        | {f"add(neg(y), {leaf})" for leaf in new}
    )


def test_replace_keeps_the_order_of_children_that_stay():
    alphabet = Alphabet({"y": Role.TARGET}, (OPERATORS["mul"],))
    found = outcomes(lambda rng: replace(parse("add(neg(y), 1)"), alphabet, rng))
    assert "mul(neg(y), 1)" in found
    assert "mul(1, neg(y))" not in found


@pytest.mark.parametrize("change", [insert, replace])
def test_nodes_and_operators_are_equally_likely(change):
    alphabet = Alphabet({"y": Role.TARGET}, (OPERATORS["neg"], OPERATORS["exp"]))
    tree = parse("log(tanh(y))")
    rng = Random(0)
    counts = Counter(str(change(tree, alphabet, rng)) for _ in range(12_000))
    if change is insert:
        expected = {f"{op}(log(tanh(y)))": 1 / 6 for op in ("neg", "exp")}
        expected |= {f"log({op}(tanh(y)))": 1 / 6 for op in ("neg", "exp")}
        expected |= {f"log(tanh({op}(y)))": 1 / 6 for op in ("neg", "exp")}
    else:
        expected = {f"{op}(tanh(y))": 1 / 6 for op in ("neg", "exp")}
        expected |= {f"log({op}(y))": 1 / 6 for op in ("neg", "exp")}
        expected |= {f"log(tanh({op}({leaf})))": 1 / 12 for op in ("neg", "exp") for leaf in LEAVES}
    # Four standard errors of a share of 1/6 in 12,000 draws.
    assert {text: count / 12_000 for text, count in counts.items()} == pytest.approx(expected, abs=0.0137)


def test_mutations_do_not_touch_their_tree():
    tree = parse("-y * log(p)")
    text = str(tree)
    for seed in range(100):
        mutate(tree, ALPHABET, Random(seed))
    assert str(tree) == text


def test_mutate_reaches_what_two_mutations_in_sequence_reach_and_nothing_else():
    alphabet = Alphabet({"y": Role.TARGET}, (OPERATORS["neg"],))

    def one_step(text):
        return set().union(*(outcomes(lambda rng, m=m: m(parse(text), alphabet, rng), 60) for m in MUTATIONS))

    expected = set().union(*(one_step(text) for text in one_step("neg(y)")))
    assert outcomes(lambda rng: mutate(parse("neg(y)"), alphabet, rng), 4000) == expected


def test_mutate_draws_each_of_its_two_mutations_uniformly(monkeypatch):
    drawn: list[str] = []

    def recorder(change):
        def recording(tree, alphabet, rng):
            drawn.append(change.__name__)
            return change(tree, alphabet, rng)

        return recording

    monkeypatch.setattr(mutation, "MUTATIONS", tuple(recorder(change) for change in MUTATIONS))
    rng = Random(1)
    for _ in range(9000):
        mutate(parse("neg(y)"), ALPHABET, rng)
    assert len(drawn) == 18_000
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    names = ("insert", "delete", "replace")
    expected = dict.fromkeys(product(names, repeat=2), 1 / 9)
    # Four standard errors of a share of 1/9 in 9,000 draws.
    assert {pair: count / 9000 for pair, count in pairs.items()} == pytest.approx(expected, abs=0.0133)


def test_kinds_are_copied_fresh_and_mutated_in_10_45_45_of_100():
    rng = Random(2)
    counts = Counter(draw_kind(OffspringSettings(), rng) for _ in range(40_000))
    shares = {kind.value: count / 40_000 for kind, count in counts.items()}
    # Four standard errors of a share of 0.45 in 40,000 draws.
    assert shares == pytest.approx({"copied": 0.1, "fresh": 0.45, "mutated": 0.45}, abs=0.01)


def test_over_a_thousand_candidates_the_kinds_are_within_their_error():
    rng = Random(3)
    counts = Counter(draw_kind(OffspringSettings(), rng) for _ in range(1000))
    for kind, share in ((Kind.COPY, 0.1), (Kind.FRESH, 0.45), (Kind.MUTATION, 0.45)):
        assert abs(counts[kind] - 1000 * share) < 3 * (1000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("copy", "fresh", "reached"),
    [(1, 0.5, {Kind.COPY}), (0, 1, {Kind.FRESH}), (0, 0, {Kind.MUTATION}), (0, 0.5, {Kind.FRESH, Kind.MUTATION})],
)
def test_probabilities_are_settings(copy, fresh, reached):
    settings = OffspringSettings(copy=copy, fresh=fresh)
    assert {draw_kind(settings, Random(seed)) for seed in range(200)} == reached


@pytest.mark.parametrize(("name", "value"), [("copy", -0.1), ("copy", 1.1), ("fresh", 2.0)])
def test_a_probability_outside_its_range_is_refused(name, value):
    with pytest.raises(RequestError, match=rf"offspring\.{name} is {value}"):
        OffspringSettings(**{name: value})


def test_each_kind_is_made_as_its_name_says():
    parent = parse("neg(y)")
    assert draw_tree(Kind.COPY, parent, ALPHABET, 3, Random(0)) is parent
    fresh = {str(draw_tree(Kind.FRESH, parent, ALPHABET, 0, Random(seed))) for seed in range(50)}
    assert fresh == set(LEAVES)
    for seed in range(50):
        assert draw_tree(Kind.MUTATION, parent, ALPHABET, 3, Random(seed)) == mutate(parent, ALPHABET, Random(seed))


def test_offspring_is_a_copy_a_fresh_tree_or_two_mutations():
    alphabet = Alphabet({"y": Role.TARGET}, (OPERATORS["neg"],))
    parent = parse("log(log(log(log(y))))")
    rng = Random(4)
    children = Counter(str(offspring(parent, alphabet, 1, rng)) for _ in range(4000))
    fresh = children["neg(y)"] + children["neg(1)"]
    assert fresh / 4000 == pytest.approx(0.45, abs=0.032)
    # Four logarithms can neither be drawn afresh nor come back after two changes that only know neg.
    assert children[str(parent)] / 4000 == pytest.approx(0.1, abs=0.02)


def test_a_sum_multiplies_its_second_operand_by_one_of_the_weights():
    tree = parse("add(y, p)")
    found = {str(reweigh(tree, Random(seed))) for seed in range(100)}
    assert found == {
        str(parse(text)) for text in ("y + p", "y + mul(2, p)", "y + mul(4, p)", "y + mul(1/2, p)", "y + mul(1/4, p)")
    }


def test_a_refinement_changes_one_factor_or_power():
    alphabet = Alphabet({"p": Role.PREDICTION})
    found = {str(refine(parse("exp(p)"), alphabet, Random(seed))) for seed in range(200)}
    inner = [f"exp({change})" for change in ("mul(add(1, 1), p)", "mul(inv(add(1, 1)), p)", "square(p)", "sqrt(p)")]
    outer = ["mul(add(1, 1), exp(p))", "mul(inv(add(1, 1)), exp(p))", "square(exp(p))", "sqrt(exp(p))"]
    assert found == {*inner, *outer}


def test_sums_and_refinements_are_drawn_in_their_shares_of_the_mutations():
    settings = OffspringSettings(copy=0.1, fresh=0.5, sum=0.2, refine=0.3)
    rng = Random(0)
    drawn = Counter(draw_kind(settings, rng).value for _ in range(20_000))
    shares = {kind: count / 20_000 for kind, count in drawn.items()}
    assert shares == pytest.approx(
        {"copied": 0.1, "fresh": 0.45, "summed": 0.09, "refined": 0.135, "mutated": 0.225}, abs=0.01
    )
