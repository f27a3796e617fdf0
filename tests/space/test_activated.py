"""The activated branch and the criterion: the published arithmetic is that of torch's own losses where they coincide."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch, activate, activate_for_metric, dilate, inner_band
from autoloss.space.branch import Role
from autoloss.space.loss import Loss

CE = Loss("-y * log(p)")
BCE = Loss("-(y * log(p) + (1 - y) * log(1 - p))")


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_(True)


def labels(*shape, classes, seed=1):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def same(found, expected, prediction):
    """Claim that two losses have one value and one gradient."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    one, other = (torch.autograd.grad(loss, prediction, retain_graph=True)[0] for loss in (found, expected))
    assert other.any()
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


SHAPES = [(7, 5), (3, 5, 4), (2, 5, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy_is_torchs(shape):
    prediction = draw(*shape)
    target = labels(shape[0], *shape[2:], classes=5)
    same(CE.criterion()(prediction, target), F.cross_entropy(prediction, target), prediction)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("divisor", ["all", "valid"])
def test_ignored_positions_count_in_the_divisor_all_and_not_in_valid(shape, divisor):
    prediction = draw(*shape)
    target = labels(shape[0], *shape[2:], classes=5)
    target.view(-1)[::3] = 255
    expected = F.cross_entropy(prediction, target, ignore_index=255, reduction="sum")
    count = target.numel() if divisor == "all" else int((target != 255).sum())
    same(CE.criterion(ignore_index=255, divisor=divisor)(prediction, target), expected / count, prediction)


@pytest.mark.parametrize("shape", [(7, 4), (7, 1), (7,), (2, 4, 3, 4)])
@pytest.mark.parametrize("divisor", ["all", "valid"])
def test_missing_labels_among_several_are_left_out_one_by_one(shape, divisor):
    prediction, target = draw(*shape), labels(*shape, classes=2).double()
    target.view(-1)[::3] = -1
    known = target != -1
    expected = F.binary_cross_entropy_with_logits(prediction[known], target[known], reduction="sum")
    count = (target.numel() if divisor == "all" else int(known.sum())) / (shape[1] if len(shape) > 1 else 1)
    criterion = BCE.criterion(activation="sigmoid", ignore_index=-1, divisor=divisor)
    # One logit becomes two channels, which have the same cross entropy.
    channels = 2 if shape[1:] in ((1,), ()) else 1
    same(criterion(prediction, target), channels * expected / count, prediction)


def test_a_negative_index_may_be_the_ignored_one():
    prediction = draw(6, 5)
    target = labels(6, classes=5)
    target[:2] = -100
    same(
        CE.criterion(ignore_index=-100, divisor="valid")(prediction, target),
        F.cross_entropy(prediction, target),
        prediction,
    )


def test_where_everything_is_ignored_the_loss_is_zero():
    prediction = draw(2, 5)
    loss = CE.criterion(ignore_index=9, divisor="valid")(prediction, torch.full((2,), 9))
    loss.backward()
    assert loss.item() == 0
    assert prediction.grad is not None
    assert not prediction.grad.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_one_hot_targets_mean_the_same_as_class_indices(shape):
    prediction = draw(*shape)
    target = labels(shape[0], *shape[2:], classes=5)
    one_hot = F.one_hot(target, 5).movedim(-1, 1)
    for values in (one_hot.double(), one_hot.float(), one_hot, one_hot.bool()):
        same(CE.criterion()(prediction, values), F.cross_entropy(prediction, target), prediction)


def test_soft_targets_are_used_as_they_are():
    prediction, target = draw(4, 5), draw(4, 5, seed=3).detach().softmax(dim=1)
    same(CE.criterion()(prediction, target), F.cross_entropy(prediction, target), prediction)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 1, 3, 4)])
def test_one_logit_is_two_channels_so_cross_entropy_is_binary_cross_entropy(activation, shape):
    prediction = draw(*shape)
    truth = labels(*shape, classes=2)
    expected = F.binary_cross_entropy_with_logits(prediction, truth.double())
    criterion = CE.criterion(activation)
    for target in (truth.double(), truth.bool(), truth):
        same(criterion(prediction, target), expected, prediction)


def test_one_logit_takes_class_indices_too():
    prediction, truth = draw(2, 1, 3, 4), labels(2, 3, 4, classes=2)
    expected = F.binary_cross_entropy_with_logits(prediction[:, 0], truth.double())
    same(CE.criterion()(prediction, truth), expected, prediction)


@pytest.mark.parametrize("shape", SHAPES)
def test_many_labels_on_sigmoids_are_binary_cross_entropy_summed_over_channels(shape):
    prediction = draw(*shape)
    truth = labels(*shape, classes=2)
    positions = truth.numel() // 5
    expected = F.binary_cross_entropy_with_logits(prediction, truth.double(), reduction="sum") / positions
    same(BCE.criterion("sigmoid")(prediction, truth), expected, prediction)
    same(BCE.criterion("sigmoid")(prediction, truth.double()), expected, prediction)


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (2, 3, 4, 5)])
def test_squared_error_needs_no_activation(shape):
    prediction, target = draw(*shape), draw(*shape, seed=5).detach()
    positions = target.numel() // (shape[1] if len(shape) > 1 else 1)
    expected = F.mse_loss(prediction, target, reduction="sum") / positions
    same(Loss("(p - y) ** 2").criterion("none")(prediction, target), expected, prediction)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_predictions_give_a_float32_loss(dtype):
    prediction = draw(2, 5, 3, 3, dtype=torch.float32).detach().to(dtype)
    target = labels(2, 3, 3, classes=5)
    found = CE.criterion()(prediction, target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, F.cross_entropy(prediction.float(), target))


@pytest.mark.parametrize("text", ["-y * log(p)", "exp(mean_nhw(max_pool(y) * tanh(p))) / p", "(y - sqrt(p)) ** 2"])
def test_autocast_does_not_reach_the_loss(text):
    criterion = Loss(text).criterion()
    weight = draw(5, 4, dtype=torch.float32)
    rows, target = draw(6, 4, seed=2, dtype=torch.float32).detach(), labels(6, classes=5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = F.linear(rows, weight)
        found = criterion(prediction, target)
    assert prediction.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, criterion(prediction.float(), target), rtol=0, atol=0)
    found.backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("target", [labels(4, classes=5), F.one_hot(labels(4, classes=5), 5).float()])
def test_double_precision_stays(target):
    assert CE.criterion()(draw(4, 5), target).dtype == torch.float64


@pytest.mark.parametrize(
    ("prediction", "target"),
    [
        ((4, 5), torch.zeros(5, dtype=torch.long)),
        ((4, 5), torch.zeros(4, 3)),
        ((2, 5, 4, 4), torch.zeros(2, 4, 5, dtype=torch.long)),
        ((2, 5, 4, 4), torch.zeros(2, 4, 4)),
        ((2, 5, 4, 4), torch.zeros(2, 1, 4, 4)),
        ((2, 5, 4, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)),
        ((2, 5, 4, 4, 4, 4), torch.zeros(2, 4, 4, 4, 4, dtype=torch.long)),
        ((), torch.zeros(())),
    ],
)
def test_shapes_that_do_not_fit_are_refused(prediction, target):
    with pytest.raises(RequestError, match="shape"):
        CE.criterion()(torch.zeros(prediction), target)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_class_indices_of_another_type_are_refused(dtype):
    with pytest.raises(RequestError, match=r"as integers: target\.long\(\)"):
        CE.criterion()(torch.zeros(4, 5), torch.zeros(4, dtype=dtype))
    # Of another number of rows, a cast does not help.
    with pytest.raises(RequestError, match=r"as integers\.$"):
        CE.criterion()(torch.zeros(4, 5), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("wrong", [5, 6, -1])
@pytest.mark.parametrize("ignore_index", [None, 2])
def test_a_class_that_is_no_channel_is_refused(wrong, ignore_index):
    with pytest.raises(RequestError, match=f"{min(0, wrong)} to {max(2, wrong)}.*channels 0 to 4.*ignore_index"):
        CE.criterion(ignore_index=ignore_index)(torch.zeros(3, 5), torch.tensor([0, wrong, 2]))


@pytest.mark.parametrize(
    "options", [{"activation": "relu"}, {"target": "edges"}, {"divisor": "none"}, {"target": "distance"}]
)
def test_an_unknown_option_is_refused_with_what_is_known(options):
    with pytest.raises(RequestError, match="; expected '"):
        CE.criterion(**options)


@pytest.mark.parametrize("target", [[0, 1], np.array([0, 1]), None], ids=["list", "array", "none"])
def test_a_criterion_is_called_with_tensors(target):
    with pytest.raises(RequestError, match=r"The target is .*; expected a tensor: torch\.as_tensor\(target\)"):
        CE.criterion()(torch.zeros(2, 3), target)
    with pytest.raises(RequestError, match="The prediction is a list"):
        CE.criterion()([[0.0, 1.0]], torch.zeros(1, dtype=torch.long))


def test_a_loss_of_several_branches_has_no_criterion_of_its_own():
    with pytest.raises(RequestError, match=r"the branches a, b; .*autoloss\.bind"):
        Loss({"a": "-y * log(p)", "b": "-y * log(p)"}).criterion()


# Hand-drawn label maps: letters are classes, '#' is ignored.
MAP = """
aaaaa
aabaa
aabba
aaaaa
aaaaa
"""
WIDE = """
aaaaabbbbb
aaaaabbbbb
aaaaabbbbb
"""
IGNORED = """
aaaaa
aa#aa
aaaaa
"""


def drawn(text):
    rows = text.split()
    return torch.tensor([[["abc".find(letter) if letter != "#" else 255 for letter in row] for row in rows]])


def picture(values):
    """One channel back as text: x where y is 1."""
    return ["".join("x" if value else "." for value in row) for row in values.tolist()]


def encoded(text, encoding, tolerance=5, classes=2):
    branch = ActivatedBranch(encoding=encoding, tolerance=tolerance, ignore_index=255)
    return branch.encode_target(drawn(text), classes)[0]


def test_one_hot_is_one_where_the_class_is():
    y = encoded(MAP, "one_hot")
    assert picture(y[1]) == [".....", "..x..", "..xx.", ".....", "....."]
    assert torch.equal(y.sum(dim=0), torch.ones(5, 5))


def test_the_edge_is_one_pixel_within_each_class_and_the_image_border_is_none():
    y = encoded(MAP, "edge")
    assert picture(y[0]) == [".xxx.", ".x.xx", ".x..x", ".xxxx", "....."]
    assert picture(y[1]) == [".....", "..x..", "..xx.", ".....", "....."]


def test_the_edge_of_a_straight_border_is_one_pixel_on_each_side():
    y = encoded(WIDE, "edge")
    assert picture(y[0]) == ["....x....."] * 3
    assert picture(y[1]) == [".....x...."] * 3


@pytest.mark.parametrize(
    ("tolerance", "left"), [(1, "....x....."), (2, "...xx....."), (3, "..xxx....."), (5, "xxxxx.....")]
)
def test_the_band_reaches_as_far_as_the_tolerance_on_both_sides(tolerance, left):
    y = encoded(WIDE, "band", tolerance)
    assert picture(y[0]) == [left] * 3
    assert picture(y[1]) == [left[::-1]] * 3


def test_ignored_positions_are_zero_and_outside_every_class():
    assert picture(encoded(IGNORED, "one_hot")[0]) == ["xxxxx", "xx.xx", "xxxxx"]
    assert picture(encoded(IGNORED, "edge")[0]) == [".xxx.", ".x.x.", ".xxx."]
    assert not encoded(IGNORED, "one_hot")[1].any()


@pytest.mark.parametrize(("encoding", "width"), [("edge", 1), ("band", 2)])
def test_soft_targets_count_once_near_a_border(encoding, width):
    generator = torch.Generator().manual_seed(0)
    soft = torch.rand(1, 3, 6, 6, generator=generator)
    window = -F.max_pool2d(-soft, 2 * width + 1, stride=1, padding=width)
    branch = ActivatedBranch(activation="sigmoid", encoding=encoding, tolerance=2)
    torch.testing.assert_close(branch.encode_target(soft, 3), soft * (1 - window))
    labels = soft.round()
    assert set(branch.encode_target(labels, 3).unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("encoding", ["edge", "band"])
def test_a_single_class_has_no_border(encoding):
    assert not encoded("aaaa\naaaa", encoding).any()


def test_the_band_agrees_with_a_search_of_every_window():
    target = labels(1, 9, 11, classes=3, seed=4)
    target[:, :, :6] = target[:, 4:5, 5:6]
    for width in (1, 2, 4, 5, 7, 12):
        found = inner_band(F.one_hot(target, 3).movedim(-1, 1).float(), width)[0].numpy()
        array = target[0].numpy()
        for (row, column), label in np.ndenumerate(array):
            window = array[max(0, row - width) : row + width + 1, max(0, column - width) : column + width + 1]
            expected = [float(k == label and (window != label).any()) for k in range(3)]
            assert found[:, row, column].tolist() == expected


@pytest.mark.parametrize("width", [1, 2, 5, 12])
def test_dilation_is_a_maximum_over_windows_with_and_without_a_gradient(width: int):
    edges = torch.rand(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    expected = torch.stack(
        [
            edges[:, :, max(0, row - width) : row + width + 1, max(0, column - width) : column + width + 1].amax((2, 3))
            for row in range(7)
            for column in range(9)
        ],
        dim=2,
    ).reshape(edges.shape)
    assert torch.equal(dilate(edges, width), expected)
    tracked = edges.clone().requires_grad_()
    found = dilate(tracked, width)
    assert torch.equal(found, expected)
    # Each window's gradient goes to its largest value.
    found.sum().backward()
    assert tracked.grad is not None
    assert tracked.grad.sum() == edges.numel()
    assert (tracked.grad * edges).sum() == pytest.approx(expected.sum().item(), rel=1e-5)


def test_the_criterion_trains_on_the_encoding_asked_for():
    prediction = draw(1, 2, 3, 10)
    target = drawn(WIDE)
    log_p = F.log_softmax(prediction, dim=1)
    expected = -(log_p[0, 0, :, 4].sum() + log_p[0, 1, :, 5].sum()) / 30
    same(CE.criterion(target="edge")(prediction, target), expected, prediction)


def test_the_leaves_are_prediction_and_target():
    assert ActivatedBranch().leaves_and_roles == {"y": Role.TARGET, "p": Role.PREDICTION}


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        ((4, 3), torch.zeros(4, dtype=torch.long), (4, 3)),
        ((4, 1), torch.zeros(4, dtype=torch.long), (4,)),
        ((4,), torch.zeros(4, dtype=torch.long), (4,)),
        ((4, 3), torch.zeros(4, 3), (4, 3)),
        ((1, 3, 5, 6), torch.zeros(1, 5, 6, dtype=torch.long), (1, 3, 5, 6)),
        ((1, 1, 5, 6), torch.zeros(1, 5, 6, dtype=torch.long), (1, 5, 6)),
    ],
)
def test_a_metric_sees_the_networks_own_channels_in_the_targets_shape(shape, target, expected):
    assert tuple(activate_for_metric(torch.zeros(shape), target, "softmax").shape) == expected


def test_a_metric_sees_the_probability_of_the_second_channel_of_one_logit():
    assert activate_for_metric(torch.tensor([0.0, 50.0]), torch.tensor([0, 1]), "softmax").tolist() == [0.5, 1.0]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_the_ideal_prediction_activates_to_the_target(activation, channels):
    branch = ActivatedBranch(activation=activation, channels=channels)
    target = labels(2, 3, 4, classes=max(channels, 2))
    ideal = branch.ideal({"target": target})
    assert tuple(ideal.shape) == (2, channels, 3, 4)
    expected = F.one_hot(target, max(channels, 2)).movedim(-1, 1).float()
    torch.testing.assert_close(activate(ideal, activation), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("activation", "channels"), [("softmax", 3), ("sigmoid", 3), ("sigmoid", 1), ("softmax", 1)])
def test_the_ideal_prediction_activates_to_shares_of_classes(activation, channels):
    target = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.9, 0.0, 0.1]])[:, :channels]
    ideal = ActivatedBranch(activation=activation, channels=channels).ideal({"target": target})
    found = activate_for_metric(ideal, target, activation)
    torch.testing.assert_close(found, target, rtol=0, atol=1e-6)


def test_the_ideal_of_values_is_the_values():
    target = draw(4, 2).detach()
    assert torch.equal(ActivatedBranch(activation="none", channels=2).ideal({"target": target}).flatten(1), target)


@pytest.mark.parametrize("question", ["metric", "ideal"])
def test_what_only_a_search_needs_is_asked_for_when_it_is_missing(question):
    branch = ActivatedBranch()
    context: Mapping[str, torch.Tensor] = {"target": torch.zeros(2, dtype=torch.long)}
    with pytest.raises(RequestError, match=r"measure=|channels="):
        branch.metric(torch.zeros(2, 2), context) if question == "metric" else branch.ideal(context)


def test_an_ignored_index_among_integers_of_the_predictions_shape_is_left_out():
    masks = torch.tensor([0, 1, 255, 1], dtype=torch.uint8).reshape(1, 1, 2, 2)
    criterion = Loss("-y * log(p)").criterion("softmax", ignore_index=255)
    for given in (masks, masks[:, 0], masks.float()):
        assert criterion(torch.zeros(1, 1, 2, 2), given).item() == pytest.approx(0.75 * math.log(2))
