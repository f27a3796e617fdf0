"""The factor of a found loss: part of its text, value and gradient wherever the loss goes, and of no tree that is bred from it."""

from __future__ import annotations

import math
import runpy
from random import Random
from tempfile import NamedTemporaryFile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoloss.formulas.python_file import to_python
from autoloss.formulas.simplify import simplify
from autoloss.formulas.statements import write_line
from autoloss.formulas.terms import to_term
from autoloss.proposing.history import History
from autoloss.proposing.mutation import Kind, draw_attempt, mutate, offspring
from autoloss.proposing.proposer import Plan
from autoloss.run.export import to_json, to_latex
from autoloss.settings import Configuration, EvolutionSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss, bind
from autoloss.space.loss_text import LARGEST_FACTOR, LEAST_FACTOR, add_factor, round_factor, split_factor
from autoloss.space.parsing import FormulaError, parse
from tests.proposing import invented
from tests.space.test_expression import ALPHABET, ROLES, derandomized, trees

factors = st.builds(round_factor, st.floats(math.log(LEAST_FACTOR), math.log(LARGEST_FACTOR)).map(math.exp))
called = trees.filter(lambda tree: tree.operators)
"""A bare leaf is no loss."""


def leaves() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.rand(1, 2, 3, 3, generator=generator, dtype=torch.float64) for name in ROLES}


class TestText:
    @derandomized
    @given(called, factors)
    def test_the_text_parses_back_to_an_equal_tree(self, tree, factor):
        scaled = tree.scaled(factor)
        assert parse(str(scaled)) == scaled
        assert hash(parse(str(scaled))) == hash(scaled)
        assert (scaled == tree) is (factor == 1)
        assert Loss.parse(f"cls: {scaled}; reg: {tree}") == Loss({"cls": scaled, "reg": tree})

    @derandomized
    @given(called, factors)
    def test_splitting_is_the_inverse_of_adding(self, tree, factor):
        assert split_factor(add_factor(str(tree), factor)) == (factor, str(tree))
        assert split_factor(str(tree)) == (1.0, str(tree))

    @derandomized
    @given(st.floats(0, allow_nan=False))
    def test_any_positive_number_is_written_as_the_factor_that_it_is_rounded_to(self, number):
        rounded = round_factor(number)
        assert LEAST_FACTOR <= rounded <= LARGEST_FACTOR
        assert round_factor(rounded) == rounded
        assert split_factor(add_factor("log(p)", number)) == (rounded, "log(p)")
        if 1e-3 <= number <= LARGEST_FACTOR:
            assert rounded == pytest.approx(number, rel=5.1e-3)

    @pytest.mark.parametrize(
        ("text", "factor"),
        [
            ("0.250 * log(p)", 0.25),
            ("1.50 * mul(y, log(p))", 1.5),
            ("1230.0 * mul(y, p)", 1230.0),
            ("0.000001 * mul(y, p)", 1e-6),
        ],
    )
    def test_the_exact_form_is_a_factor_also_between_spaces(self, text, factor):
        found = parse(text)
        assert parse(f" {text}\n") == found
        assert found.factor == factor
        assert str(found) == text
        assert found.scaled(1) == parse(text.split(" * ")[1])

    @pytest.mark.parametrize(
        ("text", "tree"),
        [
            ("0.25 * log(p)", "mul(inv(square(add(1, 1))), log(p))"),
            ("0.250 * log(p) + y", "add(mul(inv(square(add(1, 1))), log(p)), y)"),
            ("0.250 * log(p) * y", "mul(mul(inv(square(add(1, 1))), log(p)), y)"),
            ("0.250 * log(-p)", "mul(inv(square(add(1, 1))), log(neg(p)))"),
            ("0.250 *  log(p)", "mul(inv(square(add(1, 1))), log(p))"),
            ("0.250*log(p)", "mul(inv(square(add(1, 1))), log(p))"),
            ("(0.250 * log(p))", "mul(inv(square(add(1, 1))), log(p))"),
            ("-0.250 * log(p)", "neg(mul(inv(square(add(1, 1))), log(p)))"),
            ("0.250 * y", "mul(inv(square(add(1, 1))), y)"),
            ("1.00 * log(p)", "log(p)"),
            ("2 * y", "add(y, y)"),
            ("2 * log(p)", "mul(add(1, 1), log(p))"),
            ("0.250 * 0.250 * log(p)", "mul(inv(square(square(add(1, 1)))), log(p))"),
        ],
    )
    def test_anything_else_is_the_tree_that_it_always_was(self, text, tree):
        found = parse(text)
        assert (str(found), found.factor) == (tree, 1.0)

    def test_an_error_behind_a_factor_is_shown_where_it_is(self):
        with pytest.raises(FormulaError, match="no operator named 'lgo'") as raised:
            parse("0.250 * lgo(p)")
        shown, caret = str(raised.value).splitlines()[1:3]
        assert shown[caret.index("^") :].startswith("lgo(p)")

    @pytest.mark.parametrize("factor", [0.12345, 0.0, -1.0, 1e7, math.inf])
    def test_a_factor_that_does_not_fit_its_text_is_refused(self, factor):
        with pytest.raises(ValueError, match="does not fit its text"):
            parse("y * p").scaled(factor)


class TestValue:
    @derandomized
    @given(called, factors)
    def test_the_value_is_so_many_times_the_trees(self, tree, factor):
        plain, scaled = tree.evaluate(leaves()), tree.scaled(factor).evaluate(leaves())
        torch.testing.assert_close(scaled, factor * plain, rtol=0, atol=0, equal_nan=True)

    @derandomized
    @given(called, factors)
    def test_the_canonical_form_and_edits_keep_it(self, tree, factor):
        scaled = tree.scaled(factor)
        assert scaled.canonical() == tree.canonical().scaled(factor)
        assert scaled.replace(0, tree).factor == factor
        assert scaled.subtree(0) == tree

    @pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
    def test_a_bound_tree_and_a_criterion_have_it_in_value_and_gradient(self, activation):
        branch = ActivatedBranch(activation=activation, weight=3.0)
        tree = parse("(p - y) ** 2 + y * p")
        prediction = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        target = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

        def bound(tree: Expression, raw: torch.Tensor) -> torch.Tensor:
            return bind({"main": tree}, {"main": branch})["main"](raw, {"target": target})

        def module(tree: Expression, raw: torch.Tensor) -> torch.Tensor:
            return Loss(tree).criterion(activation)(raw, target)

        for compute in (bound, module):
            found = []
            for one in (tree, tree.scaled(0.125)):
                raw = prediction.clone().requires_grad_()
                value = compute(one, raw)
                found.append((value.detach(), *torch.autograd.grad(value, raw)))
            for plain, scaled in zip(*found, strict=True):
                torch.testing.assert_close(scaled, 0.125 * plain)


class TestFormulas:
    @derandomized
    @given(called, factors)
    def test_simplified_it_has_the_same_value(self, tree, factor):
        scaled = tree.scaled(factor)
        term = simplify(scaled, "none")
        found, expected = parse(str(term)).evaluate(leaves()), scaled.evaluate(leaves())
        sane = expected.isfinite() & (expected.abs() < 1e6) & (expected.abs() > 1e-6)
        torch.testing.assert_close(found[sane], expected[sane], rtol=1e-5, atol=1e-9)

    @derandomized
    @given(called, factors)
    def test_an_exported_module_has_the_same_value_and_gradient(self, tree, factor):
        for one in (tree, tree.scaled(factor)):
            loss = Loss(one)
            text = to_python(loss, {"main": BranchForm()}, title="found", facts={})
            with NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                found = runpy.run_path(file.name)
            (module,) = (value() for name, value in found.items() if name.endswith("Loss"))
            results = []
            target = torch.arange(18).reshape(2, 3, 3) % 3
            for criterion in (module, loss.criterion()):
                raw = torch.linspace(-1, 1, 54, dtype=torch.float64).reshape(2, 3, 3, 3).sin().requires_grad_()
                value = criterion(raw, target)
                slope = torch.autograd.grad(value, raw)[0] if value.requires_grad else torch.zeros_like(raw)
                results.append((value.detach(), slope))
            for found, expected in zip(*results, strict=True):
                scale = max(1e-6, float(expected.nan_to_num(0, 0, 0).abs().max()))
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)

    def test_people_read_it_before_the_formula(self):
        loss = Loss("0.123 * neg(mul(y, log(p)))")
        forms = {"main": BranchForm()}
        assert write_line(loss["main"]) == "0.123·(-y·log(p))"
        assert str(to_term(loss["main"])) == "0.123 * (-y * log(p))"
        assert simplify(loss["main"]).latex == r"-0.123 \cdot y \cdot \log\left(p\right)"
        assert "0.123" in to_latex(loss, forms, title="found", facts={})
        found = to_json(loss, forms, id=3, score=0.5, facts={})
        assert found["formula"] == "0.123 * neg(mul(y, log(p)))"
        assert parse(found["formula"]) == loss["main"]
        simplified = parse(found["branches"]["main"]["simplified"])
        torch.testing.assert_close(simplified.evaluate(leaves()), loss["main"].evaluate(leaves()))


class TestSearch:
    @derandomized
    @given(called, factors, st.integers(0, 2**32))
    def test_offspring_of_a_tree_without_its_factor_have_none(self, tree, factor, seed):
        text = split_factor(str(tree.scaled(factor)))[1]
        parent = parse(text)
        assert parent == tree
        assert mutate(parent, ALPHABET, Random(seed)).factor == 1
        assert offspring(parent, ALPHABET, 3, Random(seed)).factor == 1

    def test_offspring_drawn_by_hand_from_a_scaled_tree_have_none_either(self):
        parent = parse("0.250 * neg(mul(y, log(p)))")
        for seed in range(60):
            assert mutate(parent, ALPHABET, Random(seed)).factor == 1

    def test_a_history_hands_on_the_tree_without_the_factor(self):
        changed = Configuration().changed({"evaluations": 30, "evolution.initial": 5, "offspring.copy": 0.0})
        plan = Plan(0, None, {"main": Kind.START}, start="0.500 * log(p)")
        assert History(("main",), changed).parent_tree(plan, "main") == "log(p)"
        started = changed.changed({"evolution.start": ("0.500 * log(p)", "mul(y, p)")})
        fresh = [Plan(k, None, {"main": Kind.FRESH}) for k in (2, 3)]
        assert [History(("main",), started).parent_tree(one, "main") for one in fresh] == ["log(p)", "mul(y, p)"]
        found = invented.run(changed)
        for k, parent in ((one.id, one.parent) for one in found.candidates if one.parent is not None):
            text = found.parent_tree(Plan(k, parent, {"main": Kind.MUTATION}), "main")
            assert text == split_factor(found.candidates[parent].loss)[1]

    def test_an_attempt_at_a_loss_to_start_from_has_no_factor(self):
        drawn = draw_attempt(0, "main", Kind.START, 0, parse("mul(y, p)"), ALPHABET, EvolutionSettings(), 0)
        assert isinstance(drawn, Expression)
        assert drawn.factor == 1
