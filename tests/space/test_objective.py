"""Objectives of gradient boosting: derivatives by the scores, the start, the policies of the Hessian, and what is refused."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.space.derivatives import differentiate
from autoloss.space.loss import Loss
from autoloss.space.objective import Objective, prepare_objective
from autoloss.space.parsing import parse

CROSS_ENTROPY = "-y * log(p)"
BINARY = "-y*log(p) - (1-y)*log(1-p)"
FORMULAS = (
    CROSS_ENTROPY,
    BINARY,
    "-(1 - p)**2 * y * log(p)",
    "(p - y)**2",
    "tanh(-y * log(p))",
    "y * (1 - sqrt(p)) + exp(p)",
    "-sqrt(y * p)",
    "y / (p + 1)",
)
NUMBERS = ("(p - y)**2", "sqrt(1 + (p - y)**2)", "log(1 + (p - y)**2)", "-exp(-(p - y)**2)", "tanh(p - y)**2 + exp(p)")
LINKS = {"logistic": 1, "softmax": 4, "sigmoid": 3, "none": 1}


def draw(link, rows=60, seed=0):
    """Scores and labels."""
    rng = np.random.default_rng(seed)
    columns = LINKS[link]
    labels = rng.normal(5, 3, rows) if link == "none" else rng.integers(0, max(columns, 2), rows).astype(float)
    return (labels[:, None] if link == "none" else 0) + rng.normal(0, 2, (rows, columns)), labels


def prepare(formula, link, labels, weight=None, **options):
    return prepare_objective(differentiate(parse(formula)), link, labels, weight, **options)


def bare(formula, link):
    """An objective as it is written, without a start or a factor."""
    center, unit = (4.0, 2.5) if link == "none" else (0.0, 1.0)
    return Objective(differentiate(parse(formula)), link, np.zeros(LINKS[link]), center=center, unit=unit)


@pytest.mark.parametrize("link", LINKS)
def test_derivatives_by_the_scores_are_those_of_finite_differences(link):
    scores, labels = draw(link)
    for formula in NUMBERS if link == "none" else FORMULAS:
        objective, step = bare(formula, link), 1e-5
        first, second, _ = objective.slope_scores(scores, labels)
        for column in range(scores.shape[1]):
            move = np.zeros_like(scores)
            move[:, column] = step
            rise = (objective.measure(scores + move, labels) - objective.measure(scores - move, labels)) / (2 * step)
            ahead, behind = (objective.slope_scores(scores + sign * move, labels)[0] for sign in (1, -1))
            bend = ((ahead - behind) / (2 * step))[:, column]
            np.testing.assert_allclose(first[:, column], rise, rtol=1e-6, atol=1e-7, err_msg=formula)
            np.testing.assert_allclose(second[:, column], bend, rtol=1e-6, atol=1e-7, err_msg=formula)


@pytest.mark.parametrize(
    ("link", "activation"), [("logistic", "softmax"), ("softmax", "softmax"), ("sigmoid", "sigmoid")]
)
def test_a_row_has_the_loss_of_the_criterion(link, activation):
    scores, labels = draw(link)
    for formula in FORMULAS:
        criterion = Loss(formula).criterion(activation)
        expected = [
            float(criterion(torch.tensor(score)[None], torch.tensor([int(label)])))
            for score, label in zip(scores, labels, strict=True)
        ]
        np.testing.assert_allclose(bare(formula, link).measure(scores, labels), expected, rtol=1e-9)


@pytest.mark.parametrize("gap", [10, 19, 24])
def test_the_hessian_of_a_row_that_is_sure_of_a_wrong_class_is_exact(gap: int):
    scores, own = [Decimal(gap), Decimal("0.3"), Decimal("-0.5"), Decimal(1)], 1

    def measure(at: int, step: Decimal) -> Decimal:
        powers = [(score + step * (index == at)).exp() for index, score in enumerate(scores)]
        shares = [power / sum(powers) for power in powers]
        return -sum(
            ((share if index == own else 1 - share) + Decimal("1e-12")).ln() for index, share in enumerate(shares)
        )

    with localcontext() as context:
        context.prec = 60
        step = Decimal("1e-15")
        exact = [(measure(at, step) - 2 * measure(at, Decimal(0)) + measure(at, -step)) / step**2 for at in range(4)]
    objective = bare("-y*log(p) - (1 - y)*log(1 - p)", "softmax")
    _, second, _ = objective.slope_scores(np.array([list(map(float, scores))]), np.array([float(own)]))
    np.testing.assert_allclose(second[0], list(map(float, exact)), rtol=1e-3)


def test_blocks_change_nothing():
    scores, labels = draw("softmax", rows=20_000)
    objective = prepare(CROSS_ENTROPY, "softmax", labels)
    first, second = objective.differentiate(scores, labels)
    few = objective.differentiate(scores[9_000:9_100], labels[9_000:9_100])
    assert (first[9_000:9_100] == few[0]).all()
    assert (second[9_000:9_100] == few[1]).all()


def test_the_start_of_cross_entropy_is_that_of_the_classes_shares():
    labels = np.repeat([0.0, 1.0, 2.0], [20, 50, 30])
    np.testing.assert_allclose(prepare(CROSS_ENTROPY, "softmax", labels).start, np.log([0.2, 0.5, 0.3]), atol=1e-6)
    np.testing.assert_allclose(prepare(BINARY, "sigmoid", labels).start, np.log([0.25, 1, 3 / 7]), atol=1e-6)
    two = (labels > 0).astype(float)
    for formula in (CROSS_ENTROPY, BINARY):
        np.testing.assert_allclose(prepare(formula, "logistic", two).start, [np.log(4)], atol=1e-9)
        weighted = prepare(formula, "logistic", two, np.where(two > 0, 1.0, 4.0))
        np.testing.assert_allclose(weighted.start, [0.0], atol=1e-9)


def test_the_start_minimises_the_loss_of_numbers():
    labels = np.append(np.random.default_rng(0).normal(50, 2, 200), [500.0, 700.0])
    np.testing.assert_allclose(prepare("(p - y)**2", "none", labels).start, [labels.mean()])
    absolute = prepare("abs(p - y)", "none", labels, hessian="ones")
    assert np.sort(labels)[99] <= absolute.start[0] <= np.sort(labels)[102]
    # The second local minimum is that of the outliers.
    assert prepare("-exp(-((p - y) * 4)**2)", "none", labels, hessian="abs").start[0] < 60
    assert prepare("(p - y)**2", "none", labels, start=3).start.tolist() == [3.0]


def test_the_start_of_several_classes_minimises_the_loss():
    labels = np.repeat([0.0, 1.0, 2.0], [20, 50, 30])
    objective = prepare("-(1 - p)**2 * y * log(p)", "softmax", labels)
    scores = np.tile(objective.start, (100, 1))
    assert np.abs(objective.slope_scores(scores, labels)[0].mean(axis=0)).max() < 1e-6


def test_gradients_at_the_start_are_as_large_as_those_of_the_standard_loss():
    _, labels = draw("logistic")
    for formula in ("-(y*log(p) + (1-y)*log(1-p)) * 100", CROSS_ENTROPY):
        objective = prepare(formula, "logistic", labels)
        first, second = objective.differentiate(objective.start + np.zeros((60, 1)), labels)
        share = labels.mean()
        np.testing.assert_allclose(first[:, 0], share - labels, atol=1e-9)
        np.testing.assert_allclose(second, share * (1 - share), atol=1e-9)
    plain = prepare(BINARY, "logistic", labels, scale="none")
    # The formula is summed over both classes.
    np.testing.assert_allclose(plain.differentiate(np.zeros((60, 1)), labels)[1], 0.5, atol=1e-9)


def test_policies_of_the_hessian():
    scores, labels = draw("none")
    true = prepare("log(1 + (p - y)**2)", "none", labels, floor=0.0).slope_scores(scores, labels)[1]
    assert (true < 0).any()
    assert (true > 0.05).any()
    found = {
        name: prepare("log(1 + (p - y)**2)", "none", labels, hessian=name).differentiate(scores, labels)[1]
        for name in ("true", "abs", "standard", "ones")
    }
    np.testing.assert_array_equal(found["true"], np.maximum(true, 0.05))
    np.testing.assert_array_equal(found["abs"], np.maximum(np.abs(true), 0.05))
    assert (found["standard"] == 1).all()
    assert (found["ones"] == 1).all()


def test_the_floor_leaves_cross_entropy_as_it_is():
    scores, labels = draw("logistic")
    free, held = (prepare(BINARY, "logistic", labels, floor=floor).differentiate(scores, labels) for floor in (0, 0.05))
    np.testing.assert_array_equal(free, held)


def test_mean_scale_and_weights():
    scores, labels = draw("logistic")
    weight = np.linspace(0, 2, len(labels))
    objective = prepare(BINARY, "logistic", labels, weight, scale="mean")
    first, second = objective.differentiate(scores, labels, weight)
    plain = prepare(BINARY, "logistic", labels, weight, scale="none").differentiate(scores, labels, weight)
    assert second.mean() == pytest.approx(1)
    np.testing.assert_allclose(first * plain[1].mean(), plain[0])
    assert first[0] == second[0] == 0


@pytest.mark.parametrize(
    ("formula", "link", "change", "message"),
    [
        (BINARY, "logistic", {"labels": np.ones(9)}, "All labels of positive weight are 1"),
        (BINARY, "logistic", {"labels": [0, 1, 2]}, "labels go from 0 to 2; expected 0 to 1"),
        (BINARY, "logistic", {"labels": ["no", "yes"]}, "The labels are no numbers .* Number the classes from 0"),
        (BINARY, "softmax", {"labels": [7, 8.0]}, "has the class 0, 1, 2, 3, 4 … of the 9 classes"),
        (BINARY, "logistic", {"labels": [0, 1, np.nan]}, "expected one finite number for each row"),
        (BINARY, "softmax", {"labels": [0, 1, 3]}, "No row of positive weight has the class 2 of the 4 classes"),
        (BINARY, "softmax", {"labels": [0, 1, 1], "classes": 3}, "has the class 2 of the 3 classes"),
        (
            BINARY,
            "softmax",
            {"labels": [0, 1.5, 3]},
            "fractions from 0 to 3; expected classes 0 to 3, or .*activation='none'",
        ),
        (BINARY, "logistic", {"weight": "balanced"}, "The weights are no numbers"),
        (BINARY, "logistic", {"start": ["x"]}, "The numbers of start are no numbers"),
        (BINARY, "logistic", {"weight": np.zeros(60)}, "none negative and not all 0"),
        (BINARY, "logistic", {"weight": np.ones(3)}, r"The weights have the shape \(3,\)"),
        (
            "abs(p - y)",
            "none",
            {},
            "The Hessian of the loss is 0 for every row .* Use hessian='standard' or hessian='ones'",
        ),
        ("1 / (y + 2) + 0 * p", "logistic", {"start": 0}, "The loss has gradient 0 for every row"),
        # The probabilities of all classes add up to 1: its slopes are rounding.
        (
            "p + y",
            "softmax",
            {"labels": np.random.default_rng(1).integers(0, 4, 300)},
            "The loss has gradient 0 for every row",
        ),
        ("y * log(p)", "logistic", {}, "No constant score minimises the loss: .* Check its sign"),
        ("-(p - y)**2", "none", {}, "No constant score minimises the loss"),
        ("(y + 1) * (p - y)**2", "none", {}, "% of the labels, .* lower far from the label .* standardise=False"),
        ("y * log(p)", "softmax", {"labels": [0, 1, 2, 2]}, "No constant score minimises the loss"),
        ("-(p - y)**2", "none", {"start": "standard"}, "Hessian of the loss is 0 or negative .* or hessian='abs'"),
        ("exp(exp(1 / (1 - y))) * p", "logistic", {"start": 0}, "not finite at the start"),
        (BINARY, "logistic", {"hessian": "newton"}, "hessian is 'newton'; expected one of true, abs, standard, ones"),
        (BINARY, "logistic", {"scale": "max"}, "scale is 'max'; expected one of standard, mean, none"),
        (BINARY, "logistic", {"start": "best"}, "start is 'best'; expected one of loss, standard, or 1 numbers"),
        (BINARY, "logistic", {"start": [0, 1]}, "expected 1 finite numbers"),
        (BINARY, "logistic", {"floor": -1}, "floor is -1; expected a share"),
    ],
)
def test_what_cannot_be_learnt_is_refused(formula, link, change, message):
    options = {"labels": draw(link)[1], **change}
    with pytest.raises(RequestError, match=message):
        prepare(formula, link, **options)


def test_infinite_gradients_are_counted():
    _, labels = draw("none")
    objective = prepare("exp((p - y)**2)", "none", labels, hessian="standard")
    with pytest.raises(RequestError, match=r"not finite, with scores from 1e\+04 to 1e\+04. Use a lower learning rate"):
        objective.differentiate(np.full((60, 1), 1e4), labels)
