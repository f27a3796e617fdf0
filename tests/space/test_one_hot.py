"""Class indices: what a loss leaves out there changes neither its value nor its gradient."""

import copy
import math
import pickle
from random import Random

import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.formulas.statements import write_line
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Role
from autoloss.space.derivatives import ELEMENTWISE
from autoloss.space.expression import Alphabet, build, leaf
from autoloss.space.loss import Loss, TreeLoss, bind
from autoloss.space.one_hot import OneHotTree, SeparateSoftmax, find_others, shorten
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse

ALPHABET = Alphabet(
    {"y": Role.TARGET, "p": Role.PREDICTION}, tuple(row for row in OPERATORS.values() if row.name in ELEMENTWISE)
)
CHANNELS, IGNORED = 4, 255
BRANCHES = {
    "softmax": ActivatedBranch(),
    "sigmoid": ActivatedBranch(activation="sigmoid"),
    "ignored": ActivatedBranch(ignore_index=IGNORED),
    "valid": ActivatedBranch(ignore_index=IGNORED, divide_by="valid", weight=0.3),
    "sigmoid, valid": ActivatedBranch(activation="sigmoid", ignore_index=IGNORED, divide_by="valid"),
}


def grow(seed):
    """Return an element-wise tree with p and y, as evolution makes them."""
    rng = Random(seed)
    while True:
        tree = initial_expression(ALPHABET, rng.choice((2, 3, 3, 4)), rng)
        for _ in range(rng.randrange(5)):
            tree = mutate(tree, ALPHABET, rng)
        if tree.holds(ALPHABET.leaves_and_roles):
            return tree if seed % 5 else tree.scaled(0.25)


TREES = [grow(seed) for seed in range(80)]
PUBLISHED = {
    name: zoo.get(name)["main"] for name in ("seg/miou", "seg/fwiou", "seg/gacc", "baseline/ce", "baseline/bce")
}


def draw(kind, branch, seed, dtype=torch.float64, logits=CHANNELS):
    """Return a prediction and classes; `kind` says what is strange about them."""
    generator = torch.Generator().manual_seed(seed)
    prediction = 2 * torch.randn(2, logits, 4, 5, generator=generator, dtype=dtype)
    target = torch.randint(max(logits, 2), (2, 4, 5), generator=generator)
    if kind == "extreme":
        prediction = torch.where(prediction > 1, 80.0, torch.where(prediction < -1, -80.0, prediction)).to(dtype)
    if kind == "a class is absent":
        target[target == 1] = 0
    if branch.ignore_index is not None:
        target[:, 1] = IGNORED
        if kind == "all ignored":
            target[:] = IGNORED
    return prediction, target


def measure(loss, prediction, target):
    prediction = prediction.clone().requires_grad_()
    value = loss(prediction, {"target": target})
    return value.detach(), torch.autograd.grad(value, prediction)[0]


def check(tree, branch, batch, relative, absolute):
    """Compare the loss of class indices with the tree's, which evaluates all channels."""
    short = shorten(tree, branch)
    assert short is not None
    found, wanted = (measure(TreeLoss(tree, branch, way, 0), *batch) for way in (short, None))
    for one, other in zip(found, wanted, strict=True):
        scale = max(1.0, float(other.nan_to_num(0, 0, 0).abs().max()))
        torch.testing.assert_close(
            one, other, rtol=relative, atol=absolute * scale, equal_nan=True, msg=lambda text: f"{tree}: {text}"
        )


@pytest.mark.parametrize("kind", ["usual", "extreme", "a class is absent", "all ignored"])
@pytest.mark.parametrize("name", BRANCHES)
def test_value_and_gradient_are_those_of_all_channels(name, kind):
    branch, compared = BRANCHES[name], 0
    for seed, tree in enumerate([*PUBLISHED.values(), *TREES]):
        if shorten(tree, branch) is not None:
            check(tree, branch, draw(kind, branch, seed), 1e-10, 1e-12)
            check(tree, branch, draw(kind, branch, seed, torch.float32), 2e-5, 2e-6)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_one_logit_is_the_second_of_two_channels(name):
    for tree in PUBLISHED.values():
        check(tree, BRANCHES[name], draw("usual", BRANCHES[name], 0, logits=1), 1e-10, 1e-12)


@pytest.mark.parametrize("name", ["baseline/ce", "seg/miou"])
def test_where_other_channels_add_nothing_the_gradient_is_the_same_to_the_last_bit(name):
    """So a training of such a loss is the same too; a search keeps its history."""
    tree, branch = PUBLISHED[name], BRANCHES["ignored"]
    batch = draw("usual", branch, 0, torch.float32)
    (_, found), (_, wanted) = (measure(TreeLoss(tree, branch, way, 0), *batch) for way in (shorten(tree, branch), None))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PUBLISHED)
def test_sixteen_bit_predictions_under_autocast(name, dtype):
    branch = BRANCHES["valid"]
    prediction, target = draw("usual", branch, 0, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(PUBLISHED[name], branch, (prediction.to(dtype), target), 1e-2, 1e-3)
        found = TreeLoss(PUBLISHED[name], branch, shorten(PUBLISHED[name], branch), 0)(
            prediction.to(dtype), {"target": target}
        )
    assert found.dtype == torch.float32


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 7), (2, 4, 3, 2, 3)])
def test_rows_series_and_volumes(shape):
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(4, (shape[0], *shape[2:]), generator=generator)
    for tree in PUBLISHED.values():
        check(tree, BRANCHES["softmax"], (prediction, target), 1e-10, 1e-12)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
@pytest.mark.parametrize("formula", ["-y * log(p)", "(p - y)**2"])
def test_nan_at_any_channel_is_nan(name, formula):
    prediction, target = draw("usual", BRANCHES[name], 0)
    prediction[0, (int(target[0, 0, 0]) + 1) % CHANNELS, 0, 0] = math.nan
    loss = TreeLoss(parse(formula), BRANCHES[name], shorten(parse(formula), BRANCHES[name]), 0)
    assert loss(prediction, {"target": target}).isnan()


@pytest.mark.parametrize(
    ("formula", "others"),
    [
        ("-y * log(p)", "y"),
        (PUBLISHED["seg/miou"], "y"),
        (PUBLISHED["seg/gacc"], "exp(p)"),
        ("exp(tanh(y)) / p", "1 / p"),
        ("(p - 16 * y**4)**2 + p**4", "p² + (p²)²"),
        ("(2 * p - y)**2 * (1 + y * p)", "(p + p)²"),
        ("y * p + exp(2)", "exp(2)"),
        # ε: log(1) is 0 in single and 1e-12 in double precision.
        ("y * p + log(log(1)) * p", "log(log(1))·p"),
        # ε may be left out where that displaces little, not below a logarithm.
        ("sqrt(p)**2 + y", "p"),
        ("log(sqrt(p)**2) + y", "log((√p)²)"),
        # 0·x is no 0 where x overflows, or its gradient.
        ("y * exp(1 / p)", None),
        ("y / (p - 0.5)", "y"),
        ("y * exp(exp(exp(2 * p + 1)))", None),
        ("y * p / (1 - 1 / (1 + p - p))**4 / p", "y"),
        ("y * mean_c(p)", None),
        ("max_pool(y) * p", None),
        ("p**2", None),
        ("y**2", None),
    ],
)
def test_the_formula_of_other_channels(formula, others):
    found = find_others(parse(formula) if isinstance(formula, str) else formula)
    assert (found and write_line(found)) == others


def test_an_operator_of_ones_own_may_look_at_other_elements():
    own = build(Operator("log", 1, lambda x: x.cumsum(1)), leaf("p"))
    assert find_others(build("mul", leaf("y"), own)) is None


class Smoothed(ActivatedBranch):
    def encode_target(self, target, channels):
        return 0.9 * ActivatedBranch.encode_target(self, target, channels)


@pytest.mark.parametrize(
    "branch",
    [
        ActivatedBranch(activation="none"),
        ActivatedBranch(encoding="edge"),
        ActivatedBranch(encoding="band"),
        Smoothed(),
    ],
)
def test_other_targets_are_evaluated_at_all_channels(branch):
    assert shorten(parse("-y * log(p)"), branch) is None
    prediction, target = draw("usual", branch, 0)
    loss = bind({"main": parse("-y * log(p)")}, {"main": branch})["main"]
    wanted = parse("-y * log(p)").evaluate(branch.leaves(prediction, {"target": target})).sum() / target.numel()
    assert loss(prediction, {"target": target}) == wanted


def test_soft_targets_are_evaluated_at_all_channels():
    prediction, _ = draw("usual", BRANCHES["softmax"], 0)
    soft = prediction.flip(1).softmax(1)
    for name in ("seg/gacc", "baseline/ce"):
        criterion = Loss(PUBLISHED[name]).criterion()
        wanted = PUBLISHED[name].evaluate({"p": prediction.softmax(1), "y": soft}).sum() / 40
        assert criterion(prediction, soft) == wanted


def test_a_criterion_is_made_alike_whatever_modes_are_on():
    with torch.inference_mode():
        assert shorten(PUBLISHED["seg/gacc"], BRANCHES["softmax"]) is not None
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert shorten(PUBLISHED["seg/gacc"], BRANCHES["softmax"]) is not None


def test_the_separated_softmax_can_be_differentiated_twice():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 2, 1, generator=generator, dtype=torch.float64, requires_grad=True)
    classes = torch.randint(3, (2, 1, 2, 1), generator=generator)

    def weighted(logits):
        picked, p = SeparateSoftmax.apply(logits, classes, 0.1)
        return (picked.log() * torch.arange(4).view(2, 1, 2, 1)).sum() + p.square().sum(), picked.sqrt()

    assert torch.autograd.gradcheck(weighted, logits)
    assert torch.autograd.gradgradcheck(weighted, logits)


def test_a_module_can_be_pickled():
    prediction, target = torch.randn(2, 3, 60, 60), torch.zeros(2, 60, 60, dtype=torch.long)
    criterion = zoo.get("seg/gacc").criterion()
    for other in (pickle.loads(pickle.dumps(criterion)), copy.deepcopy(criterion)):  # noqa: S301
        assert other(prediction, target) == criterion(prediction, target)


def test_classes_that_do_not_fit_the_prediction_are_refused():
    criterion = Loss("-y * log(p)").criterion()
    with pytest.raises(RequestError, match=r"shape \(1, 64, 65\) do not fit the prediction's \(1, 4, 64, 64\)"):
        criterion(torch.zeros(1, 4, 64, 64), torch.zeros(1, 64, 65, dtype=torch.long))
    with pytest.raises(RequestError, match=r"class indices from 0 to 4; the prediction has the channels 0 to 3"):
        criterion(torch.zeros(1, 4, 64, 64), torch.arange(64).clamp(max=4).expand(1, 64, 64))


@pytest.mark.parametrize(("side", "is_short"), [(63, False), (64, True)])
def test_small_predictions_are_evaluated_at_all_channels(side, is_short, monkeypatch):
    used = []
    monkeypatch.setattr(OneHotTree, "evaluate", lambda self, *arguments: used.append(1) or torch.zeros(()))
    Loss("-y * log(p)").criterion()(torch.zeros(1, 4, side, side), torch.zeros(1, side, side, dtype=torch.long))
    assert bool(used) == is_short


def test_the_form_of_a_branch_says_as_before_what_it_is():
    assert not Smoothed().form().from_prediction
