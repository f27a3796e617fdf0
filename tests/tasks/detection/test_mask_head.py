"""Mask R-CNN with losses from a criterion is torchvision's; the mask branch has targets, a metric and masks of whole images."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autoloss.space.loss import bind
from autoloss.tasks import get
from autoloss.training.training import Scored, Training
from autoloss.zoo import resolve

torchvision = pytest.importorskip("torchvision")
examples = pytest.importorskip("autoloss.tasks.detection.samples")
faster_rcnn = pytest.importorskip("autoloss.tasks.detection.faster_rcnn")
heads = pytest.importorskip("autoloss.tasks.detection.heads")
mask_head = pytest.importorskip("autoloss.tasks.detection.heads.mask")
masks_module = pytest.importorskip("autoloss.tasks.detection.masks")
regions = pytest.importorskip("autoloss.tasks.detection.average_precision")

from tests.tasks.detection.test_faster_rcnn import SHAPE, Small  # noqa: E402

CLASSES = 4
FIVE = heads.INSTANCE_HEADS


def built(seed: int = 0) -> faster_rcnn.FasterRCNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return faster_rcnn.FasterRCNN(Small(), CLASSES, SHAPE, FIVE).train()


def ellipse(box: list[float], side: int = 96) -> Tensor:
    left, top, right, bottom = box
    rows, columns = torch.meshgrid(torch.arange(side) + 0.5, torch.arange(side) + 0.5, indexing="ij")
    middle, centre = (top + bottom) / 2, (left + right) / 2
    inside = ((rows - middle) / (bottom - top)) ** 2 + ((columns - centre) / (right - left)) ** 2 <= 0.25
    return inside.to(torch.uint8)


def batch(*, empty: bool = True) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    images = [torch.rand(3, 96, 96, generator=generator) for _ in range(3)]
    rows = [[[10.0, 12, 30, 40], [50, 50, 90, 80]], [[5.0, 5, 60, 60]], [] if empty else [[20.0, 30, 70, 75]]]
    targets = [
        {
            "boxes": torch.tensor(boxes).reshape(-1, 4),
            "labels": torch.arange(1, len(boxes) + 1),
            "masks": torch.stack([ellipse(box) for box in boxes])
            if boxes
            else torch.zeros(0, 96, 96, dtype=torch.uint8),
        }
        for boxes in rows
    ]
    return images, targets


def standard() -> dict[str, nn.Module]:
    branches = {one.name: one.branch(CLASSES, "pixels") for one in FIVE}
    return bind(resolve({one.name: one.standard for one in FIVE}, branches)[1], branches)


def torchvisions(network: faster_rcnn.FasterRCNN) -> nn.Module:
    """Return the same network as torchvision's own Mask R-CNN."""
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.models.detection.rpn import RegionProposalNetwork

    other = copy.deepcopy(network)
    other.rpn.__class__, other.roi_heads.__class__ = RegionProposalNetwork, RoIHeads
    own = other.roi_heads.own["mask"]
    other.roi_heads.mask_roi_pool, (other.roi_heads.mask_head, other.roi_heads.mask_predictor) = own.pool, own.layers
    return other


@pytest.mark.parametrize("empty", [False, True])
def test_five_standard_losses_give_torchvisions_total_and_gradients(empty):
    network, (images, targets) = built(), batch(empty=empty)
    other = torchvisions(network)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        losses = other(images, targets)
        assert "loss_mask" in losses
        expected = sum(losses.values())
        torch.manual_seed(5)
        found = network.loss(images, targets, standard(), FIVE)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    found.backward()
    theirs = dict(other.named_parameters())
    for name, mine in network.named_parameters():
        torch.testing.assert_close(mine.grad, theirs[name].grad, rtol=1e-4, atol=1e-6, msg=name)


def test_its_masks_are_torchvisions_pixel_for_pixel():
    network, (images, _) = built().eval(), batch()
    images[1] = images[1][:, :80, :64]
    with torch.no_grad():
        found, expected = network(images), torchvisions(network)(images)
    pixels = 0
    for image, one, other in zip(images, found, expected, strict=True):
        size = image.shape[-2:]
        (encoded,) = mask_head.MASK.detect(one, tuple(size)).values()
        decoded = masks_module.decode_masks(encoded, tuple(size))
        assert torch.equal(one["boxes"], other["boxes"])
        assert np.array_equal(decoded, (other["masks"][:, 0] > 0.5).numpy())
        pixels += decoded.sum()
    assert pixels


def test_the_layers_are_torchvisions():
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    theirs = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).roi_heads
    own = faster_rcnn.FasterRCNN(
        faster_rcnn.build_pyramid("resnet50", stages=(1, 2, 3, 4)), 90, heads=FIVE
    ).roi_heads.own["mask"]
    shapes = [tuple(part.shape) for part in own.layers.parameters()]
    expected = [*theirs.mask_head.parameters(), *theirs.mask_predictor.parameters()]
    assert shapes == [tuple(part.shape) for part in expected]
    assert (own.pool.output_size, own.pool.sampling_ratio) == (
        theirs.mask_roi_pool.output_size,
        theirs.mask_roi_pool.sampling_ratio,
    )


@functools.cache
def task():
    options = {"train": 16, "valid": 4, "test": 4, "epochs": 2, "batch_size": 4, "size": 64}
    return get("digits-ins", metric="ap50", **options)


def test_the_task_has_five_branches_and_measures_masks():
    made = task()
    assert list(made.branches) == ["rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg", "mask"]
    assert made.standard["mask"] == "baseline/ce"
    assert {name: branch.weight for name, branch in made.branches.items()} == {
        "rpn_cls": 1.0,
        "rpn_reg": 10.0,
        "rcnn_cls": 1.0,
        "rcnn_reg": 10.0,
        "mask": 1.0,
    }
    outcome = made.train(bind(resolve("ins", made.branches)[1], made.branches), Training(seed=0))
    assert isinstance(outcome, Scored)
    assert set(outcome.also) == {"map", "box_map", "box_ap50"} == set(made.also)


def test_samples_hold_the_part_of_the_mask_in_each_region():
    for sample in task().samples(3, seed=0)["mask"]:
        target = sample.context["target"]
        assert sample.prediction.shape == target.shape == (len(target), 1, 28, 28)
        assert 0 <= target.min() < target.max() <= 1
        # A digit fills a good part of regions that hold it.
        assert 0.1 < target.mean() < 0.8
        branch = task().branches["mask"]
        leaves = branch.leaves(sample.prediction, sample.context)
        torch.testing.assert_close(leaves["p"][:, 1:], sample.prediction.sigmoid())
        torch.testing.assert_close(leaves["y"], torch.cat([1 - target, target], dim=1))
        assert branch.divisor(sample.context) == len(target) * 28 * 28
        assert branch.metric(branch.ideal(sample.context), sample.context) == 1.0


def test_scenes_are_those_of_digits_det_with_exact_masks():
    boxes, masks = (get(name, train=12, valid=1, test=1)._data["train"] for name in ("digits-det", "digits-ins"))
    for (image, target), (same, own) in zip(boxes, masks, strict=True):
        assert torch.equal(image, same)
        assert set(target) == {"boxes", "labels"}
        assert all(torch.equal(target[name], own[name]) for name in target)
        assert own["masks"].shape == (len(target["boxes"]), 96, 96)
        for mask, box in zip(own["masks"], target["boxes"].int().tolist(), strict=True):
            rows, columns = (mask != 0).nonzero(as_tuple=True)
            assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box
            # Ink is brighter than 0.3, but for noise.
            assert image[0][mask != 0].mean() > 0.4


def shares(overlap: float) -> float:
    return sum(overlap >= threshold - 1e-12 for threshold in np.arange(0.5, 1.0, 0.05)) / 10


def test_the_metric_is_the_share_of_thresholds_that_each_mask_passes():
    target = torch.zeros(3, 1, 4, 5)
    target[0, :, :2], target[1, :, :4] = 1.0, 0.6
    found = torch.zeros_like(target)
    found[0, :, :3], found[1, :, :4] = 0.9, 0.51
    # 10 of 15 pixels; all; and an object of which the region holds nothing, which has no IoU.
    assert regions.measure_masks(found, target) == pytest.approx((shares(10 / 15) + 1) / 2)
    assert regions.measure_masks(torch.zeros_like(target), target) == 0.0
    assert np.isnan(regions.measure_masks(found, torch.zeros_like(target)))


def test_objects_without_a_pixel_are_not_trained_on():
    _, target = task()._data["train"][0]
    masks = target["masks"].clone()
    masks[0] = 0
    kept = examples.select_trainable({**target, "masks": masks}, mask_head.MaskHead().targets)
    assert torch.equal(kept["masks"], target["masks"][1:])
    assert torch.equal(kept["boxes"], target["boxes"][1:])
    assert len(examples.select_trainable({**target, "masks": masks})["boxes"]) == len(target["boxes"])


def test_run_lengths_give_back_what_was_encoded():
    generator = np.random.default_rng(0)
    for count in (0, 1, 5):
        masks = (generator.random((count, 13, 9)) < 0.4).astype(np.uint8)
        encoded = masks_module.encode_masks(masks)
        assert len(encoded) == count
        assert np.array_equal(masks_module.decode_masks(encoded, (13, 9)), masks)
        assert masks_module.mask_areas(encoded).tolist() == masks.sum(axis=(1, 2)).tolist()
