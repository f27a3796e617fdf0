"""A fifth head with layers of its own, which predicts masks, is one class; and the four heads are as they were."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss import bind
from autoloss.tasks import get
from autoloss.training.loop import one_thread, seed_generators
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training
from autoloss.zoo import resolve
from tests.tasks import conformance

torchvision = pytest.importorskip("torchvision")
detection = pytest.importorskip("autoloss.tasks.detection.task")
examples = pytest.importorskip("autoloss.tasks.detection.samples")
digits = pytest.importorskip("autoloss.tasks.detection.digits")
faster_rcnn = pytest.importorskip("autoloss.tasks.detection.faster_rcnn")
heads = pytest.importorskip("autoloss.tasks.detection.heads")
head = pytest.importorskip("autoloss.tasks.detection.heads.head")

SIDE, CELLS = 64, 8
SHAPE = faster_rcnn.DetectorSettings(
    short_side=SIDE,
    long_side=SIDE,
    anchor_sizes=(16, 24, 36),
    head_width=32,
    roi_size=4,
    rpn_sampled=32,
    rcnn_sampled=16,
    proposals=(32, 16),
    least_score=0.0,
    mean=(0.1,),
    deviation=(0.25,),
)


def overlap(prediction: Tensor, target: Tensor) -> float:
    """Return the IoU of soft masks."""
    return (torch.minimum(prediction, target).sum() / torch.maximum(prediction, target).sum()).item()


def mask_layers(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))


class MaskHead(head.Head):
    """The mask of each region's object, whatever its class."""

    name = "mask"
    stage = head.Stage.RCNN
    standard = "baseline/bce"
    layers = head.RegionLayers(build=mask_layers, roi_size=CELLS, roi_points=1)
    targets = (head.ObjectTarget("masks", lambda masks, width: masks.flip(-1)),)

    def branch(self, classes, unit):
        return ActivatedBranch(activation="sigmoid", channels=1, measure=overlap)

    def inputs(self, boxes):
        own = boxes.own
        assert own is not None
        targets = [self._cut(own, image) for image in range(len(own.objects))]
        return own.prediction, {"target": torch.cat(targets)}

    def _cut(self, own, image):
        """Return the part of each object's mask that its region holds, (N, 1, CELLS, CELLS)."""
        here = own.image == image
        masks = own.objects[image]["masks"].to(own.region.dtype)[:, None]
        boxes = torch.cat([own.assigned[here, None].to(own.region.dtype), own.region[here]], dim=1)
        return (torchvision.ops.roi_align(masks, boxes, (CELLS, CELLS), aligned=True) > 0.5).float()


FIVE = (*heads.HEADS, MaskHead())


class WithMasks(Sequence):
    """Scenes of digits with the mask of each digit."""

    def __init__(self, scenes):
        self._scenes = scenes

    def __len__(self):
        return len(self._scenes)

    def __getitem__(self, index):
        image, target = self._scenes[index]
        masks = torch.zeros(len(target["boxes"]), *image.shape[1:], dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, target["boxes"].round().int().tolist(), strict=True):
            mask[top:bottom, left:right] = image[0, top:bottom, left:right] > 0.3
        return image, {**target, "masks": masks}


def network(own=FIVE):
    return faster_rcnn.FasterRCNN(faster_rcnn.small_levels(16, 8), 10, SHAPE, own)


def built(own):
    with seed_generators(0):
        return network(own)


@functools.cache
def scenes():
    return get("digits-det", train=8, valid=2, test=2, size=SIDE)._data


@functools.cache
def five():
    data = {split: WithMasks(found) for split, found in scenes().items()}
    recipe = Recipe(epochs=2, batch_size=4, optimizer="adam", learning_rate=0.003)
    return detection.DetectionTask(network, **data, classes=10, recipe=recipe, heads=FIVE, flip=0.5, name="five")


def standard(task):
    return bind(resolve(task.standard, task.branches)[1], task.branches)


def test_the_head_is_a_branch_with_samples_of_its_own():
    task = five()
    assert list(task.branches) == [*(one.name for one in heads.HEADS), "mask"]
    assert task.standard["mask"] == "baseline/bce"
    for sample in task.samples(2, seed=0)["mask"]:
        assert sample.prediction.shape == sample.context["target"].shape
        assert sample.prediction.shape[1:] == (1, CELLS, CELLS)
        assert not sample.prediction.requires_grad
        assert 0.1 < sample.context["target"].mean() < 0.7
        ideal = task.branches["mask"].metric(task.branches["mask"].ideal(sample.context), sample.context)
        assert task.branches["mask"].metric(sample.prediction, sample.context) < 0.99 < ideal


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_the_task_is_all_that_a_task_must_be(claim):
    claim(five())


def test_its_layers_are_trained_by_its_loss_alone():
    task, own = five(), built(FIVE).train()
    image, target = task._data["train"][0]
    losses = dict(standard(task))
    with seed_generators(1):
        own.loss([image], [target], losses, FIVE).backward()
    gradients = [parameter.grad.clone() for parameter in own.roi_heads.own.parameters()]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    own.zero_grad()
    with seed_generators(1):
        own.loss([image], [target], {**losses, "mask": lambda p, c: 3 * losses["mask"](p, c)}, FIVE).backward()
    for one, other in zip(gradients, own.roi_heads.own.parameters(), strict=True):
        torch.testing.assert_close(3 * one, other.grad)


def test_a_task_trains_it_and_its_loss_counts():
    task = five()
    outcome = task.train(standard(task), Training(seed=0))
    assert isinstance(outcome, Scored)
    losses = dict(standard(task))
    heavier = {**losses, "mask": lambda prediction, context: 5 * losses["mask"](prediction, context)}
    assert task.train(heavier, Training(seed=0)).curve != outcome.curve
    with pytest.raises(RequestError, match="loss for the branch named 'mask'"):
        task.train({name: loss for name, loss in losses.items() if name != "mask"}, Training(seed=0))


def test_detections_hold_what_it_predicts():
    own = built(FIVE).eval()
    with torch.no_grad():
        found = own([scenes()["valid"][index][0] for index in range(2)])
    for image in found:
        assert image["mask"].shape == (len(image["boxes"]), 1, CELLS, CELLS)
    assert sum(len(image["boxes"]) for image in found)


def test_images_without_objects_give_its_layers_no_gradient():
    own = built(FIVE).train()
    empty = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "masks": torch.zeros(0, SIDE, SIDE),
    }
    loss = own.loss([torch.rand(1, SIDE, SIDE)], [empty], standard(five()), FIVE)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.abs().sum() == 0 for parameter in own.roi_heads.own.parameters())


def test_what_it_needs_of_an_object_is_kept_chosen_and_mirrored():
    image, target = WithMasks(scenes()["train"])[0]
    count = len(target["boxes"])
    marked = {**target, "difficult": torch.arange(count) == 0}
    kept = examples.select_trainable(marked, MaskHead.targets)
    assert torch.equal(kept["masks"], target["masks"][1:])
    _, mirrored = examples.mirror(image, kept, MaskHead.targets)
    assert torch.equal(mirrored["masks"], kept["masks"].flip(-1))
    assert set(examples.select_trainable(marked)) == {"boxes", "labels"}
    with pytest.raises(RequestError, match="lack masks, which a head needs; found boxes, labels"):
        examples.select_trainable({name: target[name] for name in ("boxes", "labels")}, MaskHead.targets)


def test_a_network_without_the_layers_and_a_head_in_the_wrong_stage_are_refused():
    image, target = five()._data["train"][0]
    with pytest.raises(RequestError, match=r"no layers of the head 'mask'; build it with heads="):
        built(heads.HEADS).train().loss([image], [target], standard(five()), FIVE)

    class Early(MaskHead):
        stage = head.Stage.RPN

    with pytest.raises(RequestError, match="'mask' declares layers"):
        network((Early(),))


def test_the_other_weights_are_those_of_a_network_without_it():
    with_it, without = built(FIVE).state_dict(), built(heads.HEADS).state_dict()
    assert set(with_it) - set(without) == {name for name in with_it if name.startswith("roi_heads.own.mask.")}
    assert all(torch.equal(with_it[name], value) for name, value in without.items())


def test_the_four_heads_train_as_they_did_before_a_head_could_have_layers():
    """The figures are those of the release before, on one thread; another CPU rounds differently, which 24 steps make 5 % of."""
    task = get("digits-det", train=32, valid=8, test=8, epochs=3, batch_size=4, size=SIDE)
    with one_thread():
        outcome = task.train(standard(task), Training(seed=3))
    assert len(outcome.curve) == 24
    assert [loss for _, loss in outcome.curve[:3]] == pytest.approx([3.6727645, 3.6230941, 3.3711500], rel=1e-4)
    assert outcome.curve[-1][1] == pytest.approx(2.0675161, rel=0.1)
    assert outcome.score == pytest.approx(0.0158649, abs=0.02)
    assert len(digits.small_network(SIDE).state_dict()) == 58
