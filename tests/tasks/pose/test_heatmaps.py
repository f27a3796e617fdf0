"""Heatmaps: targets are Gaussians, decoding inverts them within a quarter of a cell, and unlabelled joints count nowhere."""

from __future__ import annotations

import math

import pytest
import torch

import autoloss
from autoloss.errors import RequestError
from autoloss.space.loss import bind
from autoloss.tasks.pose.heatmaps import HeatmapBranch, decode_heatmaps, draw_heatmaps

BRANCH = HeatmapBranch(measure=lambda prediction, context: 0.0)
EVERY = torch.ones(1, 17, dtype=torch.bool)


def test_a_target_is_the_papers_gaussian_and_ends_at_three_deviations():
    drawn = draw_heatmaps(torch.tensor([[20.5, 30.5]]), torch.tensor([True]), (64, 48), 2.0)[0]
    assert drawn.shape == (64, 48)
    for row, column in ((30, 20), (31, 20), (33, 22), (36, 14), (30, 26)):
        distance = (row - 30) ** 2 + (column - 20) ** 2
        assert float(drawn[row, column]) == pytest.approx(math.exp(-distance / 8), rel=1e-5)
    assert float(drawn[30, 27]) == float(drawn[37, 20]) == 0
    assert int((drawn > 0).sum()) == 13 * 13


def test_an_unlabelled_joint_has_no_target_and_one_outside_is_cut():
    joints = torch.tensor([[5.0, 5.0], [-1.0, 4.0], [100.0, 4.0]])
    drawn = draw_heatmaps(joints, torch.tensor([False, True, True]), (8, 8), 1.0)
    assert drawn[0].abs().max() == drawn[2].abs().max() == 0
    assert 0 < float(drawn[1].max()) < 1


def test_decoding_a_target_returns_the_joint_to_a_quarter_of_a_cell():
    joints = torch.rand(200, 17, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([46.0, 62.0]) + 1
    positions, values = decode_heatmaps(draw_heatmaps(joints, EVERY.expand(200, 17), (64, 48), 2.0))
    assert float((positions - joints).abs().max()) <= 0.25 + 1e-5
    assert float(values.min()) > 0.9


@pytest.mark.parametrize(
    ("row", "expected"),
    [([0, 0, 1, 0, 0], 2.5), ([0, 0.1, 1, 0, 0], 2.25), ([0, 0, 1, 0.5, 0], 2.75), ([1, 0.5, 0, 0, 0], 0.5)],
)
def test_the_shift_goes_to_the_higher_neighbour_and_not_at_the_edge(row, expected):
    for shape, axis in (((1, 1, 1, 5), 0), ((1, 1, 5, 1), 1)):
        positions, _ = decode_heatmaps(torch.tensor(row, dtype=torch.float32).reshape(shape))
        assert float(positions[0, 0, axis]) == expected


def test_decoding_needs_no_positive_values():
    heatmaps = torch.full((1, 1, 4, 4), -3.0)
    heatmaps[0, 0, 2, 1] = -1.0
    positions, values = decode_heatmaps(heatmaps)
    assert positions[0, 0].tolist() == [1.5, 2.5]
    assert float(values) == -1.0


def test_the_loss_is_on_labelled_joints_alone():
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(2, 3, 4, 5, generator=generator, requires_grad=True)
    labelled = torch.tensor([[True, False, True], [False, True, False]])
    target = torch.rand(2, 3, 4, 5, generator=generator) * labelled[..., None, None]
    context = {"target": target, "labelled": labelled}
    loss = bind({"main": autoloss.parse("(p - y)**2")}, {"main": BRANCH})["main"](prediction, context)
    expected = ((prediction - target) ** 2)[labelled].sum() / (2 * 4 * 5)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    (slope,) = torch.autograd.grad(loss, prediction)
    assert bool((slope[~labelled] == 0).all())
    assert bool((slope[labelled] != 0).all())


def test_heatmaps_of_another_shape_are_refused():
    context = {"target": torch.zeros(1, 17, 8, 6), "labelled": EVERY}
    with pytest.raises(RequestError, match=r"\(1, 17, 4, 3\); the targets have the shape \(1, 17, 8, 6\)"):
        BRANCH.leaves(torch.zeros(1, 17, 4, 3), context)
