"""The metric on resamples of a split."""

import math

import pytest
import torch
from torch import nn

from autoloss import SupervisedTask, bind
from autoloss.space.loss import Loss
from autoloss.tasks.data import Data
from autoloss.tasks.metric import ELEMENTS, RESAMPLES, SplitMetrics, draw_resamples
from autoloss.tasks.segmentation.metrics import SegmentationMetric
from autoloss.training.recipe import Recipe
from autoloss.training.training import Training


class MeanOfAll:
    """A streamed metric: the mean of the targets."""

    def __init__(self):
        self.reset()

    def update(self, prediction, target):
        self.values += target.tolist()

    def compute(self):
        return sum(self.values) / len(self.values)

    def reset(self):
        self.values = []


def mean_target(prediction, target):
    return target.double().mean()


def replicate(metric, *batches):
    replicator = SplitMetrics([metric], resampled=True)
    for batch in batches:
        replicator.add(*batch)
    return replicator.replicates()


def make_rows(count, width=2):
    return torch.zeros(count, width), torch.arange(count).float()


def test_resamples_are_those_of_the_number_of_examples():
    target = make_rows(10)[1].double()
    found = replicate(mean_target, make_rows(10))
    assert found.examples == 10
    expected = tuple(target[indices].mean().item() for indices in draw_resamples(10, RESAMPLES))
    assert found.scores == pytest.approx(expected)


class Spoiling(MeanOfAll):
    """A streamed metric that changes what it gets, as metrics do that leave labels out."""

    def update(self, prediction, target):
        super().update(prediction, target)
        target.zero_()
        prediction.zero_()


def spoil(prediction, target):
    value = mean_target(prediction, target) + prediction.mean()
    target.zero_()
    prediction.zero_()
    return value


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("metrics", [(mean_target, Spoiling()), (Spoiling(), spoil, mean_target), (spoil, mean_target)])
def test_a_metric_that_changes_what_it_gets_changes_no_other_one(metrics, ragged: bool):
    batches = [(torch.ones(4, 2), torch.arange(4.0)), (torch.ones(3, 3 if ragged else 2), torch.arange(3.0))]

    def measure(*chosen):
        measured = SplitMetrics(chosen, resampled=True)
        for batch in batches:
            measured.add(*(part.clone() for part in batch))
        return measured.values(), measured.replicates()

    alone = [measure(metric) for metric in metrics]
    assert measure(*metrics) == ([values[0] for values, _ in alone], alone[0][1])


def test_a_metric_that_changes_what_it_gets_leaves_the_samples_as_they_are():
    inputs, target = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2

    def accuracy(prediction, target):
        value = (prediction.argmax(1) == target).double().mean().item()
        target.zero_()
        return value

    pair, reading = (inputs, target), Data(rows_per_sample=16)
    made = SupervisedTask(lambda: nn.Linear(3, 2), pair, pair, "softmax", accuracy, data=reading)
    (sample,) = made.samples(1, seed=0)["main"]
    assert set(sample.context["target"].tolist()) == {0, 1}


def test_batches_make_no_difference():
    prediction, target = make_rows(10)
    parts = [(prediction[:7], target[:7]), (prediction[7:], target[7:])]
    assert replicate(mean_target, *parts) == replicate(mean_target, (prediction, target))


def test_a_metric_that_streams_has_the_resamples_of_a_function():
    found = replicate(MeanOfAll(), make_rows(10))
    assert found.scores == pytest.approx(replicate(mean_target, make_rows(10)).scores)


def test_examples_of_several_sizes_are_measured_each_for_itself():
    small, large = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3, 3)
    found = replicate(lambda prediction, target: target.mean(), (small, small), (large, large + 1))
    chosen = [indices.double().mean().item() for indices in draw_resamples(2, RESAMPLES)]
    assert found.scores == pytest.approx(tuple(chosen))


def test_undefined_resamples_have_no_score():
    found = replicate(lambda prediction, target: math.nan if target.min() > 0 else 1.0, make_rows(5))
    assert None in found.scores
    assert 1.0 in found.scores


@pytest.mark.parametrize("name", ["miou", "bf1", "biou"])
def test_counts_of_images_are_resampled_as_images_are(name):
    generator = torch.Generator().manual_seed(0)
    prediction = torch.rand(6, 3, 8, 8, generator=generator)
    target = torch.randint(3, (6, 8, 8), generator=generator)
    metric = SegmentationMetric(name, tolerance=1)
    found = replicate(metric, (prediction, target))
    for indices, score in zip(draw_resamples(6, 3), found.scores, strict=False):
        assert score == pytest.approx(metric.evaluate(metric.count(prediction[indices], target[indices])))


def test_a_large_split_is_not_resampled():
    wide = torch.zeros(2, 1).expand(2, ELEMENTS // 16)
    assert replicate(mean_target, (wide, torch.zeros(2)), (wide, torch.zeros(2))) is None


def make_task(**options):
    inputs = torch.linspace(-1, 1, 40)[:, None]
    pair = inputs, (inputs[:, 0] + 0.5 * torch.sin(37 * inputs[:, 0]) > 0).long()

    def accuracy(prediction, target):
        return (prediction.argmax(dim=1) == target).float().mean().item()

    recipe = Recipe(epochs=2, batch_size=8, learning_rate=0.1)
    return SupervisedTask(
        lambda: nn.Linear(1, 2),
        pair,
        pair,
        "softmax",
        accuracy,
        recipe=recipe,
        data=Data(rows_per_sample=16),
        **options,
    )


def train(task, **training):
    criterion = bind(Loss.parse("-y * log(p)"), task.branches)
    return task.train(criterion, Training(seed=1, **training))


def test_a_training_is_the_same_with_and_without_resamples():
    task = make_task()
    plain, resampled = train(task), train(task, resampled=True)
    assert plain.replicates is None
    assert resampled.replicates.examples == 40
    assert (plain.score, plain.curve) == (resampled.score, resampled.curve)
    assert Training(seed=1) == Training(seed=1, resampled=True)
    assert hash(Training(seed=1)) == hash(Training(seed=1, resampled=True))


def test_a_resample_on_which_a_metric_raises_has_no_score():
    def rarest_recall(prediction, target):
        if not (target == 1).any():
            raise ValueError("class 1 is absent")
        return 1.0

    target = (torch.arange(20) == 0).long()
    found = replicate(rarest_recall, (torch.zeros(20, 2), target))
    expected = [1.0 if (indices == 0).any() else None for indices in draw_resamples(20, RESAMPLES)]
    assert None in expected
    assert list(found.scores) == expected


def test_a_tuned_threshold_leaves_examples_in_their_order():
    task = make_task()
    # A metric of the targets alone is the same at every threshold, as long as the examples are in the same order.
    task = task.with_metric("mean", mean_target)
    tuned, plain = (train(task, resampled=True, tuned_threshold=tuned) for tuned in (True, False))
    assert tuned.replicates == plain.replicates
