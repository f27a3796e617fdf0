"""Trees of all branches as one value, and the two reductions."""

import copy
import math
import pickle

import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss import Loss, bind, mean_over_positions, plain_sum
from autoloss.space.loss_text import split_branches
from autoloss.space.parsing import FormulaError, parse

CE = parse("-y * log(p)")


def test_the_plain_sum_adds_all_elements():
    assert plain_sum(torch.arange(24.0).reshape(2, 3, 2, 2), None).item() == 276


def test_training_sums_channels_and_averages_over_positions():
    output = torch.arange(24.0).reshape(2, 3, 2, 2)
    # N·H·W = 2·2·2, whatever C is.
    assert mean_over_positions(output, None, 8.0).item() == 276 / 8


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
def test_masked_positions_leave_by_selection_even_when_not_finite(hole):
    output = torch.tensor([1.0, 2, hole, 4, 5, hole, 7, 8]).reshape(1, 2, 1, 4).clone().requires_grad_(True)
    mask = torch.tensor([True, True, False, True]).reshape(1, 1, 1, 4)
    # Channel 0 is 1 2 hole 4, channel 1 is 5 hole 7 8: the third column goes, the second channel's hole stays.
    assert not plain_sum(output, mask).isfinite()
    finite = output.detach().clone()
    finite[0, 1, 0, 1] = 6
    finite.requires_grad_(True)
    total = plain_sum(finite, mask)
    assert total.item() == 1 + 2 + 4 + 5 + 6 + 8
    assert mean_over_positions(finite, mask, 4).item() == 26 / 4
    total.backward()
    assert finite.grad is not None
    assert finite.grad.flatten().tolist() == [1, 1, 0, 1, 1, 1, 0, 1]


def test_means_and_pools_see_masked_positions_but_their_output_does_not_count():
    branch = ActivatedBranch(activation="none", ignore_index=9)
    prediction = torch.tensor([1.0, 2, 6]).reshape(1, 1, 1, 3)
    context = {"target": torch.tensor([[[0, 0, 9]]])}
    criterion = bind({"main": parse("mean_nhw(p) * y + mean_nhw(p)")}, {"main": branch})["main"]
    # mean_nhw is (1+2+6)/3 = 3; y is 1, 1 and 0; the third position is taken out; the divisor stays 3.
    assert criterion(prediction, context).item() == (3 + 3 + 3 + 3) / 3


class TestText:
    def test_one_branch_is_a_bare_formula(self):
        assert str(Loss(CE)) == "neg(mul(y, log(p)))"
        assert Loss.parse("-y * log(p)") == Loss(CE) == Loss({"main": CE}) == Loss("-y * log(p)")

    @pytest.mark.parametrize(
        "trees",
        [
            {"main": "y * p"},
            {"heat": "y * p"},
            {"rpn_cls": "exp(tanh(y)) / p", "rpn_reg": "e / (i + u)"},
            {"main": "y + p", "aux": "y - p"},
        ],
    )
    def test_text_parses_back(self, trees):
        loss = Loss(trees)
        assert Loss.parse(str(loss)) == loss
        assert split_branches(str(loss)) == {name: str(tree) for name, tree in loss.items()}

    def test_spaces_lines_and_a_last_semicolon_do_not_matter(self):
        assert Loss.parse(" a : y*p ;\n b: y ; ") == Loss({"a": "y * p", "b": "y"})

    @pytest.mark.parametrize(
        ("text", "position", "problem"),
        [
            ("a: y; p", 6, "expected 'branch: formula'"),
            ("a: y; : p", 6, "expected 'branch: formula'"),
            ("a: y; b c: p", 6, "expected 'branch: formula'"),
            ("a:y;a:y", 4, "branch 'a' is given twice"),
            ("a: y; b: q", 1, "no leaf named 'q'"),
            ("a:", 0, "found nothing"),
        ],
    )
    def test_a_fault_is_named(self, text, position, problem):
        with pytest.raises(FormulaError, match=problem) as caught:
            Loss.parse(text)
        assert caught.value.position == position

    def test_each_branch_may_have_leaves_of_its_own(self):
        leaves = {"a": ["depth", "y"], "b": ["p"]}
        assert str(Loss.parse("a: depth - y; b: p", leaves)) == "a: add(depth, neg(y)); b: p"
        with pytest.raises(FormulaError, match=r"no leaf named 'y'.*Known: p, 1"):
            Loss.parse("a: depth; b: y", leaves)


class TestValue:
    def test_equal_by_structure_and_in_any_order(self):
        one = Loss({"a": "y * p", "b": "p"})
        other = Loss({"b": "p", "a": parse("mul(y, p)")})
        assert one == other
        assert hash(one) == hash(other)
        assert one != Loss({"a": "p * y", "b": "p"})
        assert one != Loss({"a": "y * p"})
        assert one == {"a": parse("y * p"), "b": parse("p")}

    def test_survives_pickling_and_copying(self):
        loss = Loss({"a": "y * p", "b": "p"})
        assert pickle.loads(pickle.dumps(loss)) == loss  # noqa: S301
        assert copy.deepcopy(loss) == loss

    def test_its_size_is_its_operators_over_all_branches(self):
        assert Loss({"a": "-y * log(p)", "b": "p + y"}).operators == 4

    def test_its_representation_is_its_text(self):
        assert repr(Loss("y * p")) == "Loss('mul(y, p)')"

    def test_a_loss_without_branches_is_refused(self):
        with pytest.raises(ValueError, match="at least one branch"):
            Loss({})


class TestBinding:
    branches = {"a": ActivatedBranch(activation="none"), "b": ActivatedBranch(activation="none", weight=10.0)}
    context = {"target": torch.tensor([[1.0], [3.0]])}

    def test_trees_get_their_branchs_weight_and_divisor(self):
        criterion = bind(Loss({"a": "(p - y) ** 2", "b": "(p - y) ** 2"}), self.branches)
        prediction = torch.tensor([[2.0], [5.0]])
        assert criterion["a"](prediction, self.context).item() == (1 + 4) / 2
        assert criterion["b"](prediction, self.context).item() == 10 * (1 + 4) / 2

    def test_a_hand_written_loss_is_used_as_it_is(self):
        def written(prediction, context):
            return prediction.sum()

        criterion = bind({"a": parse("p + y"), "b": written}, self.branches)
        assert criterion["b"] is written
        assert list(criterion) == ["a", "b"]

    def test_what_the_zoo_gives_is_bound(self):
        branches, logits = {"main": ActivatedBranch()}, torch.tensor([[0.5, -1.0, 2.0]])
        context = {"target": torch.tensor([2])}
        for name in ("baseline/ce", "baseline/dice"):
            expected = zoo.get(name).criterion()(logits, context["target"])
            _, resolved = zoo.resolve(name, branches)
            for given in (zoo.get(name), resolved["main"]):
                assert bind({"main": given}, branches)["main"](logits, context) == expected

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            (Loss({"a": CE, "b": CE}), "a Loss of the branches a, b"),
            (Loss(CE).criterion(), "a criterion, which takes a target"),
            (zoo.get("baseline/dice").criterion(), "a criterion, which takes a target"),
            ("-y * log(p)", "a str, '-y"),
            (None, "None; expected"),
        ],
    )
    def test_what_is_no_loss_of_a_branch_is_refused_at_once(self, given, found):
        with pytest.raises(RequestError, match=f"The loss of the branch main is {found}"):
            bind({"main": given}, {"main": ActivatedBranch()})

    def test_a_branch_without_a_loss_is_named(self):
        with pytest.raises(RequestError, match="no loss for the branch named 'b'"):
            bind({"a": CE}, self.branches)

    def test_a_loss_without_a_branch_is_named_with_the_nearest(self):
        with pytest.raises(RequestError, match=r"no branch named 'main'.*Known: a, b"):
            bind({"main": CE}, self.branches)


def test_the_module_names_its_formula_and_activation():
    module = Loss("y * p").criterion("sigmoid")
    assert repr(module) == "LossModule(mul(y, p), activation='sigmoid')"
    assert not list(module.parameters())
    assert pickle.loads(pickle.dumps(module)).name == str(parse("y * p"))  # noqa: S301


def test_the_module_can_be_copied_with_a_model():
    module = copy.deepcopy(torch.nn.ModuleDict({"loss": Loss("-y * log(p)").criterion()}))
    assert module["loss"](torch.zeros(2, 4), torch.tensor([0, 1])).item() == pytest.approx(math.log(4))
