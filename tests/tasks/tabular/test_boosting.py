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


def test_other_tasks_have_none():
    assert autoloss.tasks.get("digits-seg", train=16, valid=4, test=4).describe_reference is None
