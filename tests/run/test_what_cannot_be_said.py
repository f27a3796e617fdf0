"""A verdict on poor data says what cannot be said: few rows, a class that is missing, equal seeds, more baselines than seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import autoloss
from autoloss.cli import main
from autoloss.comparison.judgement import Standing
from autoloss.report.summary import summarize
from autoloss.zoo import region_losses

from .quick import SETTINGS

QUICK = {
    **SETTINGS,
    "rejection.threshold": 0.01,
    "rejection.unit": "relative",
    "final.confirm": 2,
    "final.confirm_seeds": 1,
    "final.compare_seeds": 3,
}


def measure_accuracy(prediction: torch.Tensor, target: torch.Tensor) -> float:
    return float((prediction.argmax(dim=1) == target).float().mean())


def measure_recall_of_ones(prediction: torch.Tensor, target: torch.Tensor) -> float:
    ones = target == 1
    return float((prediction.argmax(dim=1)[ones] == 1).float().mean()) if bool(ones.any()) else math.nan


def make_task(
    test_rows: int = 60, keep: Any = None, metric: Any = measure_accuracy, ones: int | None = None
) -> autoloss.Task:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 4, generator=draw)
    target = (inputs[:, 0] + 0.5 * torch.randn(300, generator=draw) > 0).long()
    test = torch.arange(200, 200 + test_rows)
    if keep is not None:
        test = test[target[test] == keep]
    if ones is not None:
        test = torch.cat([test[target[test] == 0], test[target[test] == 1][:ones]])
    return autoloss.SupervisedTask(
        lambda: nn.Linear(4, 2),
        train=(inputs[:120], target[:120]),
        valid=(inputs[120:200], target[120:200]),
        test=(inputs[test], target[test]),
        activation="softmax",
        metric=metric,
        recipe=autoloss.Recipe(epochs=3, batch_size=20, learning_rate=0.1),
    )


def search(task: autoloss.Task, directory: Any, said: list[str] | None = None, **settings: Any) -> autoloss.Search:
    chosen = {**QUICK, **settings}
    return autoloss.search(
        task,
        evaluations=3,
        workers=0,
        directory=directory,
        settings=chosen,
        say=([] if said is None else said).append,
    )


def test_three_rows_of_test_data_tell_nothing_and_the_verdict_says_how_little(tmp_path):
    found = search(make_task(3), tmp_path / "run")
    assert not found.judgement.is_win
    assert found.recommendation.origin == "standard"
    told = " ".join(summarize(found).verdict.text)
    assert "cannot be detected on these 3 examples, however many training seeds there are" in told
    # Three seeds cannot say much beside several baselines, either.
    assert "too few seeds to tell smaller ones" in told


def test_one_test_row_of_a_class_tells_nothing_of_others(tmp_path):
    def measure(prediction: torch.Tensor, target: torch.Tensor) -> float:
        zeros = float((prediction.argmax(dim=1)[target == 0] == 0).float().mean())
        return (measure_recall_of_ones(prediction, target) + zeros) / 2

    found = search(make_task(100, metric=measure, ones=1), tmp_path / "run")
    assert not found.judgement.is_win
    told = " ".join(summarize(found).verdict.text)
    assert "Without a few of them, such as those of a rare class, the metric is undefined: give more of these." in told
    # Metrics are at most 1.
    assert found.judgement.paired.resolution > 1
    enough = search(make_task(100, metric=measure), tmp_path / "enough")
    assert "Without a few of them" not in " ".join(summarize(enough).verdict.text)
    assert enough.judgement.paired.resolution < 0.5


def test_equal_scores_on_all_resamples_of_the_test_data_say_so(tmp_path):
    def measure(prediction: torch.Tensor, target: torch.Tensor) -> float:
        return 1.0 if len(target) == 3 else measure_accuracy(prediction, target)

    found = search(make_task(3, metric=measure), tmp_path / "run")
    assert found.judgement.standing is Standing.EQUAL
    told = " ".join(summarize(found).verdict.text)
    assert "equal on all resamples of these 3 examples: the test split cannot tell the losses apart" in told


def test_a_class_that_the_test_split_lacks_is_named_before_the_search_and_an_undefined_metric_after_it(tmp_path):
    said: list[str] = []
    found = search(make_task(60, keep=0, metric=measure_recall_of_ones), tmp_path / "run", said)
    assert any("class 1 is in the train data and not in the test data" in text for text in said)
    assert found.judgement.standing is Standing.NO_SCORE
    assert "the metric is not finite" in " ".join(summarize(found).verdict.text)


def test_a_baseline_without_a_score_at_any_rate_is_named_and_left_out(tmp_path, monkeypatch):
    dice = region_losses.soft_dice
    monkeypatch.setattr(region_losses, "soft_dice", lambda regions: dice(regions) * math.nan)
    said: list[str] = []
    found = search(make_task(), tmp_path / "run", said)
    assert any("Left out: Dice" in text and "no score at any learning rate: diverged: " in text for text in said)
    assert "baseline/dice" not in {row.entrant.loss for row in found.comparison}
    assert "no score at any learning rate" in " ".join(summarize(found).verdict.text)


def test_all_trainings_that_fail_end_the_command_with_1_and_the_reason(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text(
        "from tests.run.quick import QuickTask\n"
        "class Broken(QuickTask):\n"
        "    def train(self, *arguments, **named):\n"
        "        raise ValueError('no data today')\n"
        "task = Broken()\n"
    )
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={write(value)}")]
    with pytest.raises(SystemExit) as ended:
        main(["search", f"{tmp_path}/broken.py:task", "--workers", "0", "--out", str(tmp_path / "run"), *settings])
    assert ended.value.code == 1
    assert "no data today" in capsys.readouterr().err


def write(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


@pytest.mark.parametrize(("seeds", "baselines", "is_told"), [(2, 1, True), (3, 2, True), (3, 1, False), (8, 6, False)])
def test_more_hypotheses_than_seeds_can_tell_apart_are_said(seeds, baselines, is_told):
    from autoloss.report.verdict import _describe_hypotheses

    assert bool(_describe_hypotheses(baselines, seeds)) == is_told
