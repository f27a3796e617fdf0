"""The task `tabular`: bundled data sets and CSV files can be searched on, and wrong options say what is right."""

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.rejection.engines import correlation_score
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.loss import Loss, bind
from autoloss.space.parsing import parse
from autoloss.tasks import catalogue
from autoloss.tasks.tabular.metrics import TABULAR_METRICS
from autoloss.tasks.tabular.rows import build_table
from autoloss.tasks.tabular.task import BUNDLED, tabular
from autoloss.training.training import Scored, Training
from tests.tasks import conformance

CROSS_ENTROPY = "-y * log(p)"
SQUARED_ERROR = "(p - y) ** 2"
KINDS = {data: "regression" if data == "diabetes" else "classification" for data in BUNDLED}


def standard(metric: str) -> str:
    return CROSS_ENTROPY if metric in TABULAR_METRICS["classification"] else SQUARED_ERROR


def default_metric(data: str) -> str:
    return "r2" if KINDS[data] == "regression" else "f1"


def trained(task, formula: str, seed: int = 0, **training: Any) -> Scored:
    outcome = task.train(bind(Loss(formula), task.branches), Training(seed=seed, **training))
    assert isinstance(outcome, Scored)
    return outcome


@pytest.fixture(scope="module", params=["auc", "r2"])
def short_task(request: pytest.FixtureRequest):
    return tabular(request.param, data="breast_cancer_hard" if request.param == "auc" else "diabetes", steps=20)


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_a_table_of_classes_and_one_of_values_are_tasks(claim, short_task):
    claim(short_task)


@pytest.mark.parametrize("metric", [name for metrics in TABULAR_METRICS.values() for name in metrics])
def test_the_protocol_accepts_the_standard_loss_on_every_metric_and_rejects_its_negation(metric: str):
    classification = metric in TABULAR_METRICS["classification"]
    task = tabular(metric, data="breast_cancer_hard" if classification else "diabetes")
    branch, samples = task.branches["main"], task.samples(3, seed=0)["main"]
    score = correlation_score(parse(standard(metric)), branch, samples)
    assert score is not None
    assert score >= 0.9
    settings = ProtocolSettings(samples=3, steps=100)
    assert not simulate(parse(f"-({standard(metric)})"), branch, measure_reference(branch, samples), settings).passed


@pytest.mark.parametrize("data", BUNDLED)
def test_the_protocol_accepts_the_standard_loss_on_every_bundled_data_set(data: str):
    task = tabular(default_metric(data), data=data)
    score = correlation_score(
        parse(standard(default_metric(data))), task.branches["main"], task.samples(1, seed=1)["main"]
    )
    assert score is not None
    assert score >= 0.9


def test_auc_needs_the_relative_threshold():
    task = tabular("auc", data="breast_cancer_hard")
    branch, samples = task.branches["main"], task.samples(3, seed=1)["main"]
    reference = measure_reference(branch, samples)
    absolute = simulate(parse(CROSS_ENTROPY), branch, reference, ProtocolSettings(samples=3, unit="absolute"))
    assert absolute.reason is Reason.LOW_GAIN
    assert reference.score(absolute.gains, "relative") >= 0.9


@pytest.mark.parametrize("data", BUNDLED)
def test_the_standard_loss_learns_every_bundled_data_set(data: str):
    outcome = trained(tabular(default_metric(data), data=data), standard(default_metric(data)))
    assert outcome.score >= {"diabetes": 0.25, "breast_cancer_hard": 0.65}.get(data, 0.85)
    assert set(outcome.also) == TABULAR_METRICS[KINDS[data]].keys() - {default_metric(data)}


def test_the_hard_task_tells_losses_apart_by_more_than_the_seed():
    task = tabular("f1", data="breast_cancer_hard")
    cross_entropy = [trained(task, CROSS_ENTROPY, seed).score for seed in range(3)]
    balanced = [trained(task, "-y * log(p) / mean_nhw(y)", seed, learning_rate=0.1).score for seed in range(3)]
    assert max(cross_entropy) < 0.83
    assert sum(balanced) / 3 > sum(cross_entropy) / 3 + 0.02


def test_the_data_are_fixed_and_the_splits_are_disjoint():
    def rows(task) -> dict[str, torch.Tensor]:
        return {name: next(split.in_order(10_000))[0] for name, split in task._splits["proxy"][0].items()}

    first, second = rows(tabular(data="breast_cancer_hard")), rows(tabular("auc", data="breast_cancer_hard"))
    assert all(torch.equal(first[name], second[name]) for name in ("train", "valid", "test"))
    seen = [tuple(row) for split in first.values() for row in split.tolist()]
    assert len(seen) == len(set(seen)) == 228 + 113 + 113


def test_values_are_standardised_so_that_the_target_has_deviation_1():
    (sample, *_) = tabular("r2", data="diabetes").samples(2, seed=0)["main"]
    assert 0.7 < sample.context["target"].std() < 1.3


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    lines = [f"{x},{'red' if x % 3 else 'blue'},{x % 5},{'yes' if x % 5 > 2 else 'no'}" for x in range(100)]
    path.write_text("\n".join(["id,color,rank,answer", *lines]))
    return path


def test_a_csv_file_becomes_a_task_through_the_catalogue_with_options_as_text(csv_file: Path):
    options = {"steps": "60", "drop": "id, color", "positive": "no", "learning_rate": "0.1"}
    task = catalogue.get("tabular", metric="auc", data=str(csv_file), target="answer", **options)
    assert task.samples(2, seed=0)["main"][0].prediction.shape == (60, 2, 1, 1)
    assert trained(task, CROSS_ENTROPY).score == 1.0
    assert 0 <= trained(task, CROSS_ENTROPY, split="test").score <= 1


def test_a_class_that_is_a_number_is_named_in_any_form_of_it():
    labels = [float(row % 2) for row in range(40)]
    for name in ("0", "0.0", "00"):
        table = build_table(np.arange(40.0)[:, None], ["x"], labels, "classification", positive=name)
        assert table.classes == ("1", "0")
        assert table.target.tolist() == [1 - label for label in labels]


def test_a_target_is_not_dropped(csv_file: Path):
    with pytest.raises(RequestError, match=r"The column 'answer' of people\.csv has a use, and is to be dropped"):
        tabular(data=csv_file, target="answer", drop="id,answer")


def test_a_task_survives_a_trip_to_another_process_with_its_outcome(csv_file: Path):
    task = tabular("spearman", data=csv_file, target="rank", steps=20)
    other = cloudpickle.loads(cloudpickle.dumps(task))
    assert trained(other, SQUARED_ERROR) == trained(task, SQUARED_ERROR)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"metric": "acu"}, "There is no metric of the task tabular named 'acu'. Did you mean 'auc'?"),
        ({"stepz": 3}, "There is no option of the task tabular named 'stepz'. Did you mean 'steps'?"),
        ({"data": "breast_cancr"}, "No data set 'breast_cancr'. Did you mean 'breast_cancer'?"),
        ({"data": "none.csv", "target": "y"}, "none.csv cannot be read: No such file"),
        ({"data": "diabetes"}, "Found 214 different numbers in the data set 'diabetes': this is a quantity"),
        ({"data": "wine", "metric": "r2"}, "Found text (class_0, class_1, class_2) in the data set 'wine'"),
        ({"target": "y"}, "has a fixed target and inputs"),
        ({"positive": "bening"}, "named 'bening'. Did you mean 'benign'? Known: benign, malignant."),
        ({"data": "diabetes", "metric": "r2", "positive": "1"}, "holds values. Remove it"),
        ({"data": "diabetes", "metric": "r2", "imbalance": 3}, "this target has no classes; leave it at 1"),
        ({"train_rows": 1000}, "The option train_rows is 1000; there are 343 rows"),
        ({"steps": "many"}, "steps is 'many'; expected a whole number"),
        ({"steps": 2.5}, "steps is 2.5; expected a whole number"),
        ({"hidden": True}, "hidden is 'True'; expected a whole number"),
        ({"label_noise": 1.0}, "label_noise is 1.0; expected a number, at least 0 and below 1"),
        ({"learning_rate": 0}, "learning_rate is 0; expected a number, above 0"),
        ({"folds": 3, "label_noise": 0.1}, "folds is 3 with label_noise or imbalance"),
        ({"data": "breast_cancer_hard", "folds": 3}, "folds is 3 with label_noise or imbalance"),
        ({"rows_per_sample": 1}, "rows_per_sample is 1; expected a whole number, at least 4"),
    ],
)
def test_a_wrong_request_says_what_was_found_and_what_exists(request_: dict, expected: str):
    with pytest.raises(RequestError) as caught:
        tabular(**request_)
    assert expected in str(caught.value)


def test_folds_hold_out_every_row_outside_the_test_split_once():
    task = tabular(data="iris", steps=4, folds=3)
    plain = tabular(data="iris", steps=4)
    assert (task.folds, plain.folds) == (3, 1)
    held = [row for fold in task._splits["proxy"] for row in fold["valid"].indices.tolist()]
    assert sorted(held) == list(range(120))
    assert len(task._splits["proxy"][0]["test"]) == len(plain._splits["proxy"][0]["test"]) == 30
