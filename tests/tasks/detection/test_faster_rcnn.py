"""Faster R-CNN with losses from a criterion is torchvision's: same losses from the same batch, same use."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from autoloss.space.boxes import BoxClassification, BoxRegression, decode
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.zoo.written import SmoothL1

faster_rcnn = pytest.importorskip("autoloss.tasks.detection.faster_rcnn")
BRANCHES = ("rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg")
FasterRCNN, DetectorSettings = faster_rcnn.FasterRCNN, faster_rcnn.DetectorSettings

CLASSES = 4
SHAPE = DetectorSettings(
    short_side=96, long_side=128, anchor_sizes=(16, 32, 64), head_width=32, rpn_sampled=64, rcnn_sampled=64
)


class Small(nn.Module):
    """Two levels and a pooled one."""

    out_channels = 16

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU())

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        fine = self.fine(image)
        coarse = self.coarse(fine)
        return {"0": fine, "1": coarse, "pool": nn.functional.max_pool2d(coarse, 1, 2)}


def built(seed: int = 0) -> FasterRCNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FasterRCNN(Small(), CLASSES, SHAPE).train()


def batch() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    images = [torch.rand(3, 96, 96, generator=generator) for _ in range(3)]
    boxes = [[[10.0, 12, 30, 40], [50, 50, 90, 80]], [[5.0, 5, 60, 60]], []]
    targets = [{"boxes": torch.tensor(rows).reshape(-1, 4), "labels": torch.arange(1, len(rows) + 1)} for rows in boxes]
    return images, targets


BRANCH_OBJECTS = {name: BoxClassification() if name.endswith("cls") else BoxRegression(weight=1.0) for name in BRANCHES}
STANDARD = bind(
    {name: parse("-y * log(p)") if name.endswith("cls") else SmoothL1(BoxRegression()) for name in BRANCHES},
    BRANCH_OBJECTS,
)


def torchvisions(network: FasterRCNN) -> nn.Module:
    """Return the same network with torchvision's own losses."""
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.models.detection.rpn import RegionProposalNetwork

    other = copy.deepcopy(network)
    other.rpn.__class__, other.roi_heads.__class__ = RegionProposalNetwork, RoIHeads
    return other


def test_cross_entropy_and_smooth_l1_give_torchvisions_total():
    network, (images, targets) = built(), batch()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = sum(torchvisions(network)(images, targets).values())
        torch.manual_seed(5)
        found = network.loss(images, targets, STANDARD)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_its_gradients_are_torchvisions_too():
    network, (images, targets) = built(), batch()
    other = torchvisions(network)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        sum(other(images, targets).values()).backward()
        torch.manual_seed(5)
        network.loss(images, targets, STANDARD).backward()
    for (name, mine), theirs in zip(network.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_in_use_it_is_torchvisions():
    network, (images, _) = built().eval(), batch()
    with torch.no_grad():
        found, expected = network(images), torchvisions(network)(images)
    for one, other in zip(found, expected, strict=True):
        assert {name: part.tolist() for name, part in one.items()} == {
            name: part.tolist() for name, part in other.items()
        }


def contexts(seed: int = 5) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
    seen = {}

    def recording(name: str):
        def record(prediction: Tensor, context: dict[str, Tensor]) -> Tensor:
            seen[name] = prediction, context
            return prediction.sum()

        return record

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built().loss(*batch(), {name: recording(name) for name in BRANCHES})
    return seen


def test_each_branch_gets_all_sampled_boxes():
    seen = contexts()
    assert tuple(seen) == BRANCHES
    for name, channels in zip(BRANCHES, (1, 4, CLASSES + 1, 4), strict=True):
        prediction, context = seen[name]
        assert prediction.shape[1:] == (channels, 1, 1)
        assert len(prediction) == len(context["target"]) == len(context["box"])
        assert len(context["truth"]) == 3
    assert set(seen["rpn_cls"][1]["target"].tolist()) == {0, 1}
    assert seen["rpn_cls"][1]["truth_target"].tolist() == [1, 1, 1]
    assert seen["rcnn_cls"][1]["truth_target"].tolist() == [1, 2, 1]


@pytest.mark.parametrize("branch", ["rpn_reg", "rcnn_reg"])
def test_negatives_stay_where_they_are_and_positives_aim_at_the_ground_truth(branch):
    _, context = contexts()[branch]
    positive = context["target"] > 0
    assert positive.any()
    assert (~positive).any()
    torch.testing.assert_close(context["box"][~positive], context["reference"][~positive])
    known = {tuple(box) for box in context["truth"].tolist()}
    assert {tuple(box) for box in context["box"][positive].tolist()} <= known
    expected = {"rpn_reg": [1.0] * 4, "rcnn_reg": [0.1, 0.1, 0.2, 0.2]}[branch]
    assert context["deviations"][0].tolist() == pytest.approx(expected)


def test_regions_learn_the_deltas_of_their_true_class():
    """A classifier's deltas differ by class; those of the target class are the branch's prediction."""
    network = built()
    with torch.no_grad():
        network.roi_heads.box_predictor.bbox_pred.weight.zero_()
        network.roi_heads.box_predictor.bbox_pred.bias.copy_(torch.arange(4 * (CLASSES + 1)))
    seen = {}
    criterion = {name: lambda p, c, name=name: seen.update({name: (p, c)}) or p.sum() for name in BRANCHES}
    network.loss(*batch(), criterion)
    prediction, context = seen["rcnn_reg"]
    expected = 4 * context["target"][:, None] + torch.arange(4)
    assert prediction.flatten(1).tolist() == expected.tolist()


def test_the_overlap_is_that_of_the_predicted_box_and_detached():
    seen = contexts()
    for classes, boxes in (("rpn_cls", "rpn_reg"), ("rcnn_cls", "rcnn_reg")):
        overlap = seen[classes][1]["overlap"]
        deltas, context = seen[boxes]
        predicted = decode(deltas.flatten(1).detach(), context["reference"], context["deviations"])
        positive = context["target"] > 0
        assert not overlap.requires_grad
        assert (overlap[~positive] == 1).all()
        from torchvision.ops import box_iou

        expected = box_iou(predicted, context["box"]).diagonal()[positive]
        torch.testing.assert_close(overlap[positive], expected)


def test_a_criterion_leaves_no_trace():
    network = built()
    network.loss(*batch(), STANDARD)
    assert not hasattr(network.rpn, "report")
    assert not hasattr(network.roi_heads, "report")
    assert not hasattr(network.rpn, "_assigned")


@pytest.mark.parametrize(
    ("stages", "expected", "stride"),
    [((3, 4), ["0", "1", "pool"], 16), ((1, 2, 3, 4), ["0", "1", "2", "3", "pool"], 4)],
)
def test_the_pyramid_of_a_resnet(stages, expected, stride):
    backbone = faster_rcnn.build_pyramid("resnet18", channels=8, stages=stages).eval()
    with torch.no_grad():
        maps = backbone(torch.zeros(1, 3, 64, 64))
    assert list(maps) == expected
    coarsest = 64 // maps["pool"].shape[-1]
    assert coarsest == 64
    assert 64 // maps["0"].shape[-1] == stride
