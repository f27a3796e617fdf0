"""The tasks away from home are what their table says, and their losses are judged as it says."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import gmean, spearmanr
from sklearn import metrics

import away
from autoloss.comparison.entrant import Entrant, Measurements, compare_paired
from autoloss.comparison.judgement import Recommendation
from awayarms import GATE, take_best_rates
from awayaudit import Trainer, describe_entrant, drop_names, find_p, make_entrant, read_audit, write_audit
from awaydata import Items
from awaymetrics import METRICS
from awaytasks import BY_NAME, TASKS, spoil

pytest.importorskip("pandas")


def test_tasks_are_split_into_known_ones_and_three_exams_with_many_metrics():
    parts = [task.part for task in TASKS]
    assert [parts.count(part) for part in away.MEASURED] == [8, 8, 8, 6]
    assert len(BY_NAME) == len(TASKS)
    assert {task.metric for task in TASKS} == METRICS.keys()
    assert {task.optimizer for task in TASKS if task.part == "exam"} == {"sgd", "adam"}


@pytest.mark.parametrize("name", ["titanic", "long-tail", "credit", "party"])
def test_no_item_is_in_two_splits_and_the_audit_split_is_the_largest(name):
    task = BY_NAME[name]
    splits = task.split()
    assert [len(splits[part].target) for part in ("train", "valid", "test")] == [task.train, task.held, task.held]
    assert len(splits["audit"].target) == max(len(split.target) for split in splits.values())
    assert sum(len(split.target) for split in splits.values()) <= len(task.read().target)
    assert torch.equal(task.split()["audit"].inputs, splits["audit"].inputs)


def test_an_audit_takes_the_place_of_the_test_split_alone():
    task = BY_NAME["titanic"]
    plain, audited = task.make(), task.make(audit=True)
    sizes = [len(one._splits["proxy"][0][part]) for one in (plain, audited) for part in ("train", "valid", "test")]
    assert sizes == [250, 200, 200, 250, 200, 1557]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_the_asked_share_of_training_targets_is_spoilt(activation):
    rng = torch.Generator().manual_seed(0)
    target = torch.arange(4).repeat(500) if activation == "softmax" else torch.arange(2000).float()[:, None] % 2
    found = spoil(Items(target, target), 0.2, activation, rng)
    assert (found.target != target).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert spoil(Items(target, target), 0.0, activation, rng).target is target
    if activation != "none":
        assert set(found.target.unique().tolist()) == set(target.unique().tolist())


def _draw(count: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    prediction = torch.rand(count, classes, generator=generator)
    return prediction / prediction.sum(dim=1, keepdim=True), torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("F1", lambda y, p: metrics.f1_score(y, p.argmax(1))),
        ("F2", lambda y, p: metrics.fbeta_score(y, p.argmax(1), beta=2)),
        ("MCC", lambda y, p: metrics.matthews_corrcoef(y, p.argmax(1))),
        ("AUC", lambda y, p: metrics.roc_auc_score(y, p[:, 1])),
        ("IoU", lambda y, p: metrics.jaccard_score(y, p.argmax(1))),
        ("F0.5", lambda y, p: metrics.fbeta_score(y, p.argmax(1), beta=0.5)),
    ],
)
def test_a_metric_of_two_classes_is_that_of_scikit_learn(name, reference):
    prediction, target = _draw(60, 2)
    assert METRICS[name](prediction, target) == pytest.approx(reference(target.numpy(), prediction.numpy()))
    one_channel = METRICS[name](prediction[:, 1:], target[:, None].float())
    assert one_channel == pytest.approx(METRICS[name](prediction, target))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("macro-F1", lambda y, p: metrics.f1_score(y, p.argmax(1), average="macro")),
        ("worst recall", lambda y, p: metrics.recall_score(y, p.argmax(1), average=None).min()),
        ("kappa", lambda y, p: metrics.cohen_kappa_score(y, p.argmax(1), weights="quadratic")),
        ("top-2 accuracy", lambda y, p: metrics.top_k_accuracy_score(y, p, k=2)),
        ("geometric mean", lambda y, p: gmean(metrics.recall_score(y, p.argmax(1), average=None))),
        ("several MCC", lambda y, p: metrics.matthews_corrcoef(y, p.argmax(1))),
        ("minus grade error", lambda y, p: -metrics.mean_absolute_error(y, p.argmax(1))),
        ("accuracy", lambda y, p: metrics.accuracy_score(y, p.argmax(1))),
    ],
)
def test_a_metric_of_several_classes_is_that_of_scikit_learn(name, reference):
    prediction, target = _draw(80, 4)
    assert METRICS[name](prediction, target) == pytest.approx(reference(target.numpy(), prediction.numpy()))


def test_a_metric_of_values_is_that_of_its_reference():
    prediction, target = torch.tensor([[1.0], [2.0], [2.0], [5.0]]), torch.tensor([[1.5], [1.0], [4.0], [4.5]])
    names = ("Spearman", "minus MAE", "minus 0.9-quantile loss", "minus RMSE", "share within 0.2")
    found = {name: METRICS[name](prediction, target) for name in names}
    assert found["Spearman"] == pytest.approx(spearmanr(prediction[:, 0], target[:, 0]).statistic)
    assert found["minus MAE"] == pytest.approx(-metrics.mean_absolute_error(target, prediction))
    assert found["minus RMSE"] == pytest.approx(-metrics.root_mean_squared_error(target, prediction))
    assert (found["share within 0.2"], METRICS["share within 0.2"](target + 0.1, target)) == (0.0, 1.0)
    assert found["minus 0.9-quantile loss"] == pytest.approx(-metrics.mean_pinball_loss(target, prediction, alpha=0.9))
    relative = {
        name: METRICS[name](prediction, target) for name in ("minus MAPE", "minus RMSLE", "minus relative RMSE")
    }
    assert relative["minus MAPE"] == pytest.approx(-metrics.mean_absolute_percentage_error(target, prediction))
    assert relative["minus RMSLE"] == pytest.approx(-metrics.root_mean_squared_log_error(target, prediction))
    expected = metrics.root_mean_squared_error(target / target, prediction / target)
    assert relative["minus relative RMSE"] == pytest.approx(-expected)
    cost = metrics.mean_pinball_loss(target, prediction, alpha=0.75)
    assert METRICS["minus cost of 3 to 1"](prediction, target) == pytest.approx(-cost)
    assert METRICS["share within a quarter"](prediction, target) == 0.25


def test_a_metric_of_masks_counts_each_picture():
    target = torch.zeros(2, 8, 8, dtype=torch.long)
    target[:, 2:5, 2:5] = 1
    right = torch.stack([1 - target, target], dim=1).float()
    empty = right.clone()
    empty[1] = torch.tensor([1.0, 0.0])[:, None, None]
    assert [METRICS[name](right, target) for name in ("Dice", "BF1", "IoU")] == [1.0, 1.0, 1.0]
    assert [METRICS[name](empty, target) for name in ("Dice", "BF1", "IoU")] == [0.5, 0.5, 0.5]


def test_an_audit_is_read_as_it_was_written_and_counts_items():
    task = BY_NAME["titanic"].make(audit=True, steps_share=0.05)
    audit = Trainer(task, "test").measure(Entrant("", "baseline/bce"), (1, 2))
    row = json.loads(json.dumps(write_audit(audit)))
    assert row["examples"] == 1557
    assert read_audit(row).mean == audit.mean
    other = Trainer(task, "test").measure(Entrant("", "baseline/bce", learning_rate=3.0), (1, 2))
    exact, kept = compare_paired(audit, other), compare_paired(read_audit(row), read_audit(write_audit(other)))
    assert (kept.value, kept.examples) == (exact.value, exact.examples)
    assert kept.error == pytest.approx(exact.error, rel=1e-3)


def test_a_failed_training_is_as_bad_as_can_be_and_an_equal_one_no_different():
    whole, failed = Measurements((0.5, 0.6)), Measurements((0.5, None))
    assert find_p(compare_paired(failed, whole)) == 0
    assert find_p(compare_paired(whole, whole)) == 1


def test_equal_trainings_are_one_whatever_their_label():
    assert drop_names(Entrant("a", "baseline/ce", baseline=True)) == drop_names(Entrant("b", "baseline/ce", known=True))
    assert describe_entrant(Entrant("a", "baseline/ce", step_rule="one_norm")) == {
        "label": "a",
        "loss": "baseline/ce",
        "step_rule": "one_norm",
    }


def test_each_loss_counts_at_its_best_rate():
    ranked = [Entrant("", "b", 3.0), Entrant("", "a", 1.0), Entrant("", "b", 1.0)]
    assert [(one.loss, one.learning_rate) for one in take_best_rates(ranked)] == [("b", 3.0), ("a", 1.0)]


def test_a_recommendation_is_trained_as_it_says():
    recipe = {"step_rule": "one_norm", "tuned_threshold": True, "weights": {"main": 3.0}}
    chosen = Recommendation("baseline/ce", 3.0, "standard", "Nothing is better.", recipe)
    found = make_entrant(SimpleNamespace(recommendation=chosen))
    assert found is not None
    assert (
        found.spell_out().label
        == "standard (steps of one norm, 3 × the learning rate, 3 × the loss of main, tuned threshold)"
    )
    assert make_entrant(SimpleNamespace(recommendation=None)) is None


def test_the_exam_is_counted_once_a_day_and_refused_after_the_third(tmp_path):
    path = tmp_path / "exam.json"
    away.count_exam(path, ["default"])
    away.count_exam(path, ["default"])
    assert len(json.loads(path.read_text())) == 1
    path.write_text(json.dumps([{"date": f"2026-01-0{day}", "part": "exam", "arms": []} for day in (1, 2, 3)]))
    with pytest.raises(SystemExit, match="3 runs of the exam"):
        away.count_exam(path, ["default"])
    away.count_exam(path, ["default"], "second exam")
    assert [run["part"] for run in json.loads(path.read_text())] == ["exam"] * 3 + ["second exam"]


def test_the_exam_is_counted_however_its_tasks_are_named(monkeypatch, tmp_path):
    counted = []
    monkeypatch.setattr(away, "count_exam", lambda path, arms, part: counted.append((part, arms)))
    monkeypatch.setattr(away, "perform", lambda work: [])
    for options in (
        ["--tasks", "credit", "--arms", "default"],
        ["--exam", "1", "--arms", "gate"],
        ["--arms", "default"],
    ):
        away.main(["--json", "--processes", "0", "--work", str(tmp_path / "rows.jsonl"), *options])
    assert counted == [("exam", ["default"])]


def _row(arm: str, role: str, *scores: float | None) -> dict:
    entrant = {"label": role, "loss": "baseline/ce"}
    return {
        "task": "titanic", "arm": arm, "role": role, "seed": 0, "entrant": entrant,
        "scores": scores, "examples": None, "resampled": [], "seconds": 1.0,
    }  # fmt: skip


def test_an_arm_is_compared_with_the_gate_of_its_task(tmp_path):
    path = tmp_path / "rows.jsonl"
    gate = {"given": (0.4, 0.42), "standard": (0.5, 0.52), "ladder": (0.6, 0.62), "shelf": (0.7, 0.721)}
    rows = [_row(GATE, role, *scores) for role, scores in gate.items()]
    rows += [
        _row("default", "default", 0.65, 0.68),
        _row("random", "random", 0.3, None),
        _row("random", "random", 0.3, 0.33),
    ]
    rows += [_row("failing", "failing", 0.9, None)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {row["arm"]: row for row in away.judge(away.read_rows(path))}
    assert {"task", "arm", "seed", "audit", "standard", "shelf", "headroom", "p"} <= found["default"].keys()
    assert found["default"]["headroom"] == pytest.approx(0.1005)
    assert found["default"]["difference"] == pytest.approx(0.155)
    summary = {row["arm"]: row for row in away.summarise(list(found.values()))}
    assert [summary[arm]["at_or_above_standard"] for arm in ("default", "random", "failing")] == [1, 0, 0]
    assert [summary[arm]["below_standard"] for arm in ("default", "failing")] == [0, 1]
    assert summary["default"]["share_of_headroom"] == pytest.approx(0.055 / 0.1005)
    # A gain of known losses that may be chance is not to be reached.
    unsure = [{**row, "p_headroom": 0.2} for row in found.values()]
    assert [row["share_of_headroom"] for row in away.summarise(unsure)] == [None, None, None]
