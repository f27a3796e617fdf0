"""The search space of Section 3.1, claim by claim; what single operators do is in tests/space."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.proposing.initialization import initial_expression
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch, activate
from autoloss.space.branch import Branch, Role
from autoloss.space.expression import Alphabet
from autoloss.space.loss import Loss, bind
from autoloss.space.operators import EPSILON, OPERATORS
from autoloss.space.parsing import parse
from tests.rejection.scenes import descend, samples

ARITIES = {
    "add": 2,
    "mul": 2,
    "neg": 1,
    "abs": 1,
    "inv": 1,
    "log": 1,
    "exp": 1,
    "tanh": 1,
    "square": 1,
    "sqrt": 1,
    "mean_nhw": 1,
    "mean_c": 1,
    "max_pool": 1,
    "min_pool": 1,
}


def test_table_1_has_14_operators_with_these_operands():
    assert {name: row.arity for name, row in OPERATORS.items()} == ARITIES
    assert all(name == row.name for name, row in OPERATORS.items())


def test_epsilon_is_1e_minus_12_and_would_be_nothing_in_float16():
    assert EPSILON == 1e-12
    assert torch.tensor(EPSILON).half().item() == 0


def test_leaves_are_target_prediction_and_one_or_three_areas_and_one():
    assert Alphabet(ActivatedBranch().leaves_and_roles).leaves == ("y", "p", "1")
    assert Alphabet(AreaBranch().leaves_and_roles).leaves == ("i", "u", "e", "1")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_keeps_the_shape(name):
    for shape in ((2, 3, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1)):
        assert OPERATORS[name].function(*[torch.ones(shape)] * OPERATORS[name].arity).shape == shape


def test_the_loss_is_the_sum_over_all_elements_divided_by_n_h_w():
    prediction = torch.arange(2 * 3 * 4 * 5, dtype=torch.float64).reshape(2, 3, 4, 5)
    loss = Loss("p").criterion("none")(prediction, torch.zeros(2, 3, 4, 5))
    assert loss.item() == prediction.sum().item() / (2 * 4 * 5)


def test_branches_are_summed_with_their_weights():
    branches = {
        name: ActivatedBranch(activation="none", weight=weight) for name, weight in (("cls", 1.0), ("reg", 10.0))
    }
    criterion = bind(Loss({"cls": "(p - y)**2", "reg": "(p - y)**2"}), branches)
    prediction, context = torch.tensor([[3.0, 1.0]]), {"target": torch.zeros(1, 2)}
    total = sum(loss(prediction, context).item() for loss in criterion.values())
    assert total == 1 * 10 + 10 * 10


class AreaBranch(Branch):
    """Boxes on a line, of which only the positive ones have areas; the divisor counts all that were sampled."""

    leaves_and_roles = {"i": Role.BOTH, "u": Role.BOTH, "e": Role.BOTH}
    weight = 10.0

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        first, second = prediction[:, :1], context["target"][:, :1]
        return {
            "i": torch.minimum(first, second).reshape(-1, 1, 1, 1),
            "u": torch.maximum(first, second).reshape(-1, 1, 1, 1),
            "e": torch.maximum(first, second).reshape(-1, 1, 1, 1),
        }

    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        return None

    def divisor(self, context: Mapping[str, Tensor]) -> float | Tensor:
        return float(context["sampled"])

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return 0.0

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["target"]


def test_box_losses_divide_by_all_sampled_boxes_positive_and_negative():
    branch = AreaBranch()
    context = {"target": torch.tensor([[4.0], [8.0]]), "sampled": torch.tensor(512)}
    loss = bind(Loss({"reg": "i / e"}), {"reg": branch})["reg"](torch.tensor([[2.0], [8.0]]), context)
    assert loss.item() == pytest.approx(10 * (2 / 4 + 8 / 8) / 512)


@pytest.mark.parametrize("text", ["log(y * log(y + (y + p) / p))", "-log(p**3 * y)", "-y * log(p)", "abs(log(y * p))"])
def test_pixels_with_target_zero_stay_silent(text):
    p = torch.full((1, 2, 1, 2), 0.3, requires_grad=True)
    y = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2).expand(1, 2, 1, 2)
    output = parse(text).evaluate({"y": y, "p": p})
    output.sum().backward()
    assert p.grad is not None
    assert not output[..., 0].any()
    assert not p.grad[..., 0].any()
    assert p.grad[..., 1].all()


def exact_share(depth):
    """The share of random trees that hold both roles, by recursion over the sets of leaves that a tree can have."""
    shares = {frozenset(leaf): 1 / 3 for leaf in ("y", "p", "1")}
    binary = sum(arity == 2 for arity in ARITIES.values()) / len(ARITIES)
    for _ in range(depth):
        deeper = {leaves: (1 - binary) * share for leaves, share in shares.items()}
        for one, first in shares.items():
            for other, second in shares.items():
                deeper[one | other] = deeper.get(one | other, 0) + binary * first * second
        shares = deeper
    return sum(share for leaves, share in shares.items() if leaves >= {"y", "p"})


def test_about_11_percent_of_random_trees_hold_both_roles():
    from random import Random

    alphabet, rng = Alphabet(ActivatedBranch().leaves_and_roles), Random(0)
    drawn = [initial_expression(alphabet, 3, rng).holds(alphabet.leaves_and_roles) for _ in range(20_000)]
    assert exact_share(3) == pytest.approx(0.11, abs=0.01)
    # Four standard errors.
    assert sum(drawn) / 20_000 == pytest.approx(exact_share(3), abs=0.009)


@pytest.mark.parametrize("role", ["y * 1", "log(p)", "1 + 1"])
def test_a_tree_without_prediction_or_without_target_is_no_loss(role):
    assert not parse(role).holds({"y": Role.TARGET, "p": Role.PREDICTION})


def test_an_area_is_prediction_and_target_at_once():
    assert all(parse(area).holds(AreaBranch.leaves_and_roles) for area in ("i", "u", "e"))


def test_at_ignored_positions_the_target_is_zero_and_the_output_is_gone_though_the_divisor_stays():
    prediction = torch.zeros(1, 2, 1, 2)
    target = torch.tensor([[[1, 255]]])
    branch = ActivatedBranch(ignore_index=255)
    assert not branch.leaves(prediction, {"target": target})["y"][..., 1].any()
    assert Loss("p").criterion(ignore_index=255)(prediction, target).item() == (0.5 + 0.5) / 2
    assert Loss("p").criterion(ignore_index=255, divisor="valid")(prediction, target).item() == 1


def test_one_logit_stands_as_the_second_of_two_channels():
    z = torch.tensor([[-1.0], [2.0]]).reshape(2, 1, 1, 1)
    expected = torch.cat([torch.zeros_like(z), z], dim=1).softmax(dim=1)
    assert torch.equal(activate(z, "softmax"), expected)
    torch.testing.assert_close(expected[:, 1:], z.sigmoid())


def test_on_one_sigmoid_channel_cross_entropy_would_be_degenerate():
    z = torch.zeros(1, 1, 1, 1, requires_grad=True)
    parse("-y * log(p)").evaluate({"p": z.sigmoid(), "y": torch.zeros(1, 1, 1, 1)}).sum().backward()
    assert z.grad is not None
    assert z.grad.item() == 0
    stood_in = torch.zeros(1, 1, 1, 1, requires_grad=True)
    Loss("-y * log(p)").criterion()(stood_in, torch.zeros(1, 1, 1, 1)).backward()
    assert stood_in.grad is not None
    assert stood_in.grad.item() == 0.5


def test_the_protocol_sums_and_training_divides():
    """The two reductions differ by N·H·W: 256 positions of a scene."""
    sample = samples()[0]
    one_step = ProtocolSettings(steps=1, learning_rate=1.0, momentum=0.0)
    found = descend(parse("-y * log(p)"), ActivatedBranch(), sample, one_step)
    prediction = sample.prediction.clone().requires_grad_(True)
    (mean,) = torch.autograd.grad(F.cross_entropy(prediction, sample.context["target"]), prediction)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(sample.prediction - found, mean * 256, rtol=1e-4, atol=1e-5)
