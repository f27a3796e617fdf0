"""Beside the losses of a table stands what somebody would use instead, measured as they are."""

from __future__ import annotations

import re

import pytest
import torch

import autoloss
from autoloss.tasks.tabular.task import describe_boosting


@pytest.mark.parametrize(("data", "metric"), [("iris", "auc"), ("breast_cancer_hard", "f1"), ("diabetes", "r2")])
def test_a_table_has_gradient_boosting_for_reference(data, metric):
    told = autoloss.tasks.get("tabular", data=data, metric=metric).describe_reference("test")
    assert "gradient boosting with its defaults" in told
    assert float(re.search(r"has (\d\.\d+) on the test split", told)[1]) > 0.3


def test_a_class_that_training_lacks_is_never_predicted():
    inputs, target = torch.arange(60.0).view(-1, 1), torch.arange(60) // 30 * 2
    seen = []
    splits = {"train": (inputs, target), "test": (inputs, target)}

    def measure(prediction, truth):
        seen.append(prediction)
        return float((prediction.argmax(dim=1) == truth).float().mean())

    assert "has 1.0000 on the test split" in describe_boosting(splits, measure, 3, "test")
    assert seen[0].shape == (60, 3)
    assert not (seen[0].argmax(dim=1) == 1).any()


def test_it_is_measured_by_the_metric_that_was_chosen():
    def accuracy(prediction, target):
        assert prediction.sum(dim=1).allclose(torch.ones(len(prediction)))
        return (prediction.argmax(dim=1) == target).double().mean().item()

    task = autoloss.tasks.get("tabular", data="wine", metric="auc")
    own, further = task.with_metric("accuracy", accuracy), task.with_metric("mcc")
    told = [one.describe_reference("test") for one in (task, own, further)]
    assert len(set(told)) == 3
    assert told[2] == autoloss.tasks.get("tabular", data="wine", metric="mcc").describe_reference("test")
    task.describe_reference = str
    assert task.with_metric("mcc").describe_reference is str


def test_other_tasks_have_none():
    assert autoloss.tasks.get("digits-seg", train=16, valid=4, test=4).describe_reference is None
