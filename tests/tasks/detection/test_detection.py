"""Detection as a task: what each branch's samples hold, crowds, mirrors, the scenes of digits."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.rejection.engines import ENGINES
from autoloss.rejection.protocol import measure_reference
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.tasks import get
from autoloss.tasks.detection import digits
from autoloss.tasks.detection.digits import compose_box_scenes
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.checkpoints import NETWORK, Checkpoints
from autoloss.training.loop import Execution
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training

detection = pytest.importorskip("autoloss.tasks.detection.task")
examples = pytest.importorskip("autoloss.tasks.detection.samples")
heads = pytest.importorskip("autoloss.tasks.detection.heads")
head = pytest.importorskip("autoloss.tasks.detection.heads.head")
BRANCHES = ("rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg")
RECIPE = Recipe(epochs=1, batch_size=4, learning_rate=0.01)
FULL = Training(seed=5, split="test", schedule="full")


@functools.cache
def tiny(**options: object):
    given = {"train": 8, "valid": 4, "test": 4, "epochs": 1, "batch_size": 4, "size": 64, **options}
    return get("digits-det", **given)


@functools.cache
def drawn():
    return tiny().samples(2, seed=0)


def test_the_standard_losses_are_those_of_faster_rcnn():
    task = tiny()
    assert tuple(task.branches) == BRANCHES
    assert task.standard == {
        "rpn_cls": "baseline/ce",
        "rpn_reg": "baseline/l1",
        "rcnn_cls": "baseline/ce",
        "rcnn_reg": "baseline/l1",
    }
    assert [branch.weight for branch in task.branches.values()] == [1, 10, 1, 10]


class Foreground(head.Head):
    """A fifth head: whether a region holds any object, from the sum of its deltas."""

    name, stage, standard = "rcnn_any", head.Stage.RCNN, "baseline/bce"

    def branch(self, classes, settings):
        return ActivatedBranch(activation="sigmoid", channels=1, measure=lambda p, y: 1 - (p - y).abs().mean().item())

    def inputs(self, boxes):
        return boxes.deltas.sum(1)[:, None, None, None], {"target": (boxes.target > 0)[:, None].float()}


def test_a_further_head_is_one_more_entry_in_the_tuple_of_heads():
    whole = tiny()
    five = (*heads.HEADS, Foreground())
    task = detection.DetectionTask(
        whole._networks["proxy"], **whole._data, classes=10, recipe=RECIPE, heads=five, name="five"
    )
    assert list(task.branches) == [*BRANCHES, "rcnn_any"]
    assert task.standard == {**whole.standard, "rcnn_any": "baseline/bce"}
    samples = task.samples(2, seed=0)
    assert {name: len(found) for name, found in samples.items()} == dict.fromkeys(task.branches, 2)
    outcome = task.train(standard(task), Training(seed=0))
    assert isinstance(outcome, Scored)
    losses = dict(standard(task))
    weights = {**losses, "rcnn_any": lambda prediction, context: 2 * losses["rcnn_any"](prediction, context)}
    assert outcome.curve != task.train(weights, Training(seed=0)).curve
    with pytest.raises(RequestError, match="loss for the branch named 'rcnn_any'"):
        task.train(standard(whole), Training(seed=0))


def test_samples_hold_the_boxes_of_one_image():
    for name, samples in drawn().items():
        for sample in samples:
            context = sample.context
            count = len(sample.prediction)
            assert sample.prediction.shape == (count, {"rpn_cls": 1, "rcnn_cls": 11}.get(name, 4), 1, 1)
            assert len(context["target"]) == len(context["box"]) == count
            assert 1 <= len(context["truth"]) <= 7


def test_the_protocol_counts_deltas_without_the_coders_deviations():
    for name in ("rpn_reg", "rcnn_reg"):
        assert all(sample.context["deviations"].tolist() == [[1.0] * 4] for sample in drawn()[name])


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_published_loss_of_a_branch_passes_and_its_negation_fails(branch):
    task = tiny()
    reference = measure_reference(task.branches[branch], drawn()[branch][:1])
    formula = zoo.get_entry(f"det/{branch}").formula
    settings = ProtocolSettings(samples=1, steps=120, learning_rate=0.004)
    engine = ENGINES[settings.engine](task.branches[branch], reference, settings)
    assert [one.passed for one in engine.verdicts([parse(formula), parse(f"-({formula})")])] == [True, False]


def test_a_criterion_needs_every_searched_branch():
    with pytest.raises(RequestError, match="loss for the branch"):
        tiny().train({}, Training(seed=0))


def test_areas_may_be_counted_in_those_of_the_target():
    assert tiny(unit="target").branches["rcnn_reg"].unit == "target"


def test_crowds_and_difficult_objects_are_not_trained_on():
    boxes = torch.arange(12.0).reshape(3, 4)
    target = {"boxes": boxes, "labels": torch.tensor([1, 2, 3]), "crowd": torch.tensor([True, False, False])}
    kept = examples.select_trainable({**target, "difficult": torch.tensor([False, False, True])})
    assert kept["labels"].tolist() == [2]
    assert kept["boxes"].tolist() == boxes[1:2].tolist()


def test_boxes_that_have_no_height_or_lose_their_width_in_single_precision_are_not_trained_on():
    boxes = torch.tensor([[1.0, 1, 5, 1], [1, 1, 5, 5], [2, 1, 2 + 1e-6, 5]])
    kept = examples.select_trainable({"boxes": boxes, "labels": torch.tensor([1, 2, 3])})
    assert kept["labels"].tolist() == [2]
    mirrored = examples.mirror(torch.zeros(3, 64, 64), {"boxes": boxes, "labels": torch.tensor([1, 2, 3])})[1]["boxes"]
    assert float(mirrored[2, 2] - mirrored[2, 0]) == 0


def test_a_mirrored_image_has_mirrored_boxes():
    image = torch.zeros(1, 6, 10)
    image[0, 1:3, 2:5] = 1
    target = {"boxes": torch.tensor([[2.0, 1, 5, 3]]), "labels": torch.tensor([1])}
    turned, told = examples.mirror(image, target)
    left, top, right, bottom = (int(side) for side in told["boxes"][0])
    assert turned[0, top:bottom, left:right].min() == 1
    assert turned.sum() == image.sum()
    again, back = examples.mirror(turned, told)
    assert torch.equal(again, image)
    assert torch.equal(back["boxes"], target["boxes"])


def test_objects_that_no_image_has_are_no_samples():
    nothing = [(torch.zeros(1, 64, 64), {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)})]
    task = detection.DetectionTask(tiny()._networks["proxy"], nothing, nothing, classes=10)
    with pytest.raises(RequestError, match="too few can be used"):
        task.samples(1, seed=0)


def test_scenes_follow_from_split_and_seed():
    first, again, other = (compose_box_scenes("valid", 3, seed) for seed in (0, 0, 1))
    for (image, target), (same, told), (unlike, _) in zip(first, again, other, strict=True):
        assert torch.equal(image, same)
        assert torch.equal(target["boxes"], told["boxes"])
        assert not torch.equal(image, unlike)
    assert not torch.equal(first[0][0], compose_box_scenes("train", 1, 0)[0][0])


def test_every_box_holds_the_ink_of_its_digit(monkeypatch):
    for name in ("PIECES", "NOISE", "OVERLAP"):
        monkeypatch.setattr(digits, name, 0)
    for image, target in compose_box_scenes("train", 5, 0):
        ink = image[0].numpy()
        left_over = ink.copy()
        for left, top, right, bottom in target["boxes"].int().tolist():
            inside = ink[top:bottom, left:right]
            # The box is as small as it can be: ink touches all four sides.
            for side in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert side.max() > 0.3 * 0.7
            left_over[top:bottom, left:right] = 0
        assert np.quantile(left_over, 0.99) < 0.3
        assert target["labels"].min() >= 1
        assert target["labels"].max() <= 10


def test_squares_hardly_overlap(monkeypatch):
    monkeypatch.setattr(digits, "OVERLAP", 0)
    for _, target in compose_box_scenes("train", 10, 0):
        boxes = target["boxes"].numpy()
        inner = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(boxes[:, None, :2], boxes[:, :2])
        common = inner.clip(min=0).prod(axis=2)
        assert (common[~np.eye(len(boxes), dtype=bool)] == 0).all()


def test_the_other_metrics_of_detection_are_measured_beside_the_score():
    assert tiny().also == ("ap50", "voc07")
    assert tiny(metric="ap50").also == ("map", "voc07")


class Killed(Exception):
    """Stands in for a kill between two steps."""


def standard(task):
    return bind(zoo.resolve(task.standard, task.branches)[1], task.branches)


@functools.cache
def mirroring():
    """Return a task whose images are mirrored at random, with more to do on its full schedule."""
    task = tiny(epochs=2)
    full = FullSchedule(network=task._networks["proxy"], recipe=Recipe(epochs=3, batch_size=4, learning_rate=0.01))
    data = {split: task._data[split] for split in ("train", "valid", "test")}
    return detection.DetectionTask(
        task._networks["proxy"], **data, classes=10, recipe=task.recipes["proxy"], full=full, flip=0.5
    )


def test_a_schedule_that_trains_on_what_is_held_out_is_not_evaluated_on_it():
    task = tiny()
    data = {split: task._data[split] for split in ("train", "valid", "test")}
    whole = FullSchedule(recipe=task.recipes["proxy"], data={"train": [*data["train"], *data["valid"]], "valid": None})
    task = detection.DetectionTask(
        task._networks["proxy"], **data, classes=10, recipe=task.recipes["proxy"], full=whole
    )
    with pytest.raises(RequestError, match="no split of the schedule full named 'valid'"):
        task.train(standard(task), Training(seed=0, schedule="full"))
    assert isinstance(task.train(standard(task), Training(seed=0, schedule="full", split="test")), Scored)


def test_the_schedule_full_is_evaluated_on_data_of_its_own():
    data = {split: tiny()._data[split] for split in ("train", "valid", "test")}
    full = FullSchedule(data={"valid": data["test"]})
    task = detection.DetectionTask(tiny()._networks["proxy"], **data, classes=10, recipe=RECIPE, full=full)
    figures = [
        task.train(standard(task), Training(seed=0, schedule=schedule, split=split)).also
        for schedule, split in (("proxy", "test"), ("full", "valid"))
    ]
    assert figures[0] == figures[1]


@functools.cache
def trained():
    return mirroring().train(standard(mirroring()), FULL)


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_detector_killed_at_any_step_goes_on_to_the_same_bits(step, tmp_path):
    def observe(now: int, loss: float) -> None:
        if now == step:
            raise Killed

    task, criterion = mirroring(), standard(mirroring())
    execution = Execution(checkpoints=Checkpoints(directory=tmp_path, is_due=lambda step: step == 3))
    with pytest.raises(Killed):
        task.train(criterion, FULL, execution, observe)
    seen: list[int] = []
    found = task.train(criterion, FULL, execution, lambda now, loss: seen.append(now))
    assert found == trained()
    assert seen == list(range(4 if step > 2 else 1, 7)) or (step == 6 and seen == [])
    assert (tmp_path / NETWORK).is_file()


def test_half_of_the_images_are_mirrored_and_which_follows_from_the_seed():
    plain = tiny(epochs=2)
    assert trained().curve != plain.train(standard(plain), Training(seed=5)).curve
    assert trained() == mirroring().train(standard(mirroring()), FULL)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_detector_computes_in_16_bits_and_its_losses_do_not(precision):
    seen: dict[str, set[torch.dtype]] = {}

    def watched(name, loss):
        def of(prediction, context):
            reals = [part.dtype for part in (prediction, *context.values()) if part.is_floating_point()]
            value = loss(prediction, context)
            seen.setdefault(name, set()).update({*reals, value.dtype, (prediction @ prediction).dtype})
            return value

        return of

    task = copy.copy(tiny())
    convolved: set[torch.dtype] = set()
    network = task._networks["proxy"]

    def built():
        made = network()
        made.backbone.body.layer1[0].register_forward_hook(
            lambda module, given, found: convolved.add(found.dtype) if module.training else None
        )
        return made

    task._networks = {**task._networks, "proxy": built}
    criterion = {name: watched(name, loss) for name, loss in standard(task).items()}
    outcome = task.train(criterion, Training(seed=1), Execution(precision=precision))
    assert isinstance(outcome, Scored)
    assert convolved == {getattr(torch, precision)}
    assert seen == {name: {torch.float32} for name in BRANCHES}
    full = tiny().train(standard(tiny()), Training(seed=1))
    assert outcome.curve[0][1] == pytest.approx(full.curve[0][1], rel=0.05)


def test_the_score_before_training_is_that_of_a_training_without_a_step():
    task = tiny()
    without = task.train(standard(task), Training(seed=7, learning_rate=1e-30))
    assert isinstance(without, Scored)
    # Batch normalisation counts images in training all the same; weights stay.
    assert task.untrained(7) == pytest.approx(without.score, abs=0.02)
    assert task.untrained(7) == task.untrained(7)


def test_the_test_split_has_further_figures():
    task = tiny()
    final = detection.make_final_metrics("boxes")
    made = detection.DetectionTask(task._networks["proxy"], **task._data, classes=10, recipe=RECIPE, final=final)
    valid, test = (
        made.train(standard(made), Training(seed=1, split=split, resampled=True)) for split in ("valid", "test")
    )
    # Figures that are not defined, as without any large object, are left out.
    assert {"ap50", "voc07"} <= set(test.also) <= {"ap50", "voc07", *final}
    assert "ap75" in test.also
    assert set(valid.also) == {"ap50", "voc07"}
    assert valid.replicates is not None
    assert (valid.replicates.examples, len(valid.replicates.scores)) == (4, 64)
