"""The metrics of tables give scikit-learn's and scipy's numbers, and NaN without a warning where there is none."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from autoloss.tasks.tabular.metrics import TABULAR_METRICS

SEEDS = range(20)


METRICS = {name: metric for metrics in TABULAR_METRICS.values() for name, metric in metrics.items()}


def measure(name: str, prediction, target) -> float:
    return METRICS[name](torch.as_tensor(prediction), torch.as_tensor(target))


def oracle(name: str, probabilities: np.ndarray, classes: np.ndarray) -> float:
    two = probabilities.shape[1] == 2
    predicted = probabilities.argmax(1)
    present = np.unique(classes)
    one_vs_rest = [(classes == one, probabilities[:, one]) for one in ([1] if two else present)]
    return {
        "f1": lambda: sk.f1_score(classes, predicted, average="binary" if two else "macro", zero_division=0.0),
        "auc": lambda: np.mean([sk.roc_auc_score(*pair) for pair in one_vs_rest]),
        "average_precision": lambda: np.mean([sk.average_precision_score(*pair) for pair in one_vs_rest]),
        "balanced_accuracy": lambda: sk.recall_score(
            classes, predicted, labels=present, average="macro", zero_division=0.0
        ),
        "mcc": lambda: sk.matthews_corrcoef(classes, predicted),
    }[name]()


def drawn(seed: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, with ties under every second seed, and classes, not all of which need to be present."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(5, 80))
    probabilities = rng.dirichlet(np.ones(channels), rows)
    if seed % 2:
        probabilities = probabilities.round(1)
    classes = rng.integers(0, channels, rows)
    classes[:2] = [0, 1]
    return probabilities, classes


@pytest.mark.parametrize("name", TABULAR_METRICS["classification"])
@pytest.mark.parametrize("channels", [2, 3, 10])
def test_metrics_of_classes_equal_scikit_learns(name: str, channels: int):
    for seed in SEEDS:
        probabilities, classes = drawn(seed, channels)
        assert measure(name, probabilities, classes) == pytest.approx(oracle(name, probabilities, classes), abs=1e-12)


def test_macro_auc_and_macro_balanced_accuracy_equal_scikit_learns_own_averages():
    rng = np.random.default_rng(0)
    probabilities, classes = rng.dirichlet(np.ones(4), 60), np.arange(60) % 4
    assert measure("auc", probabilities, classes) == pytest.approx(
        sk.roc_auc_score(classes, probabilities, multi_class="ovr", average="macro")
    )
    assert measure("balanced_accuracy", probabilities, classes) == pytest.approx(
        sk.balanced_accuracy_score(classes, probabilities.argmax(1))
    )


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_of_values_equal_those_of_scikit_learn_and_scipy(ties: bool):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        prediction, target = rng.normal(size=(2, int(rng.integers(5, 80))))
        if ties:
            prediction, target = prediction.round(), target.round()
        assert measure("r2", prediction[:, None], target) == pytest.approx(sk.r2_score(target, prediction))
        expected = stats.spearmanr(target, prediction).statistic
        assert measure("spearman", prediction, target[:, None]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", TABULAR_METRICS["classification"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_probability_of_the_positive_class_stands_for_two(name: str, shape: tuple[int, ...]):
    probabilities, classes = drawn(3, 2)
    assert measure(name, probabilities[:, 1].reshape(shape), classes) == measure(name, probabilities, classes)


@pytest.mark.parametrize("name", METRICS)
def test_the_target_itself_reaches_the_highest_value_and_nothing_falls_below_the_lowest(name: str):
    target = torch.arange(30) % 3
    classes = name in TABULAR_METRICS["classification"]
    one_hot = torch.eye(3)[target]
    assert measure(name, one_hot if classes else target.float(), target) == pytest.approx(1.0)
    for seed in SEEDS:
        prediction = torch.randn(30, 3 if classes else 1, generator=torch.Generator().manual_seed(seed))
        lowest = {"mcc": -1, "r2": -math.inf, "spearman": -1}.get(name, 0)
        assert lowest <= measure(name, prediction, target) <= 1


@pytest.mark.parametrize(
    ("name", "prediction", "target", "expected"),
    [
        ("mcc", [0.0, 0.0, 0.0], [0, 1, 1], 0.0),
        ("mcc", [1.0, 0.0, 0.0], [0, 1, 1], -1.0),
        ("f1", [0.0, 0.0, 0.0], [0, 1, 1], 0.0),
        ("auc", [0.5, 0.5, 0.5], [0, 1, 1], 0.5),
        ("average_precision", [0.5, 0.5, 0.5], [0, 1, 1], 2 / 3),
        ("balanced_accuracy", [1.0, 1.0, 1.0], [0, 1, 1], 0.5),
        ("r2", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0.0),
        ("spearman", [3.0, 2.0, 1.0], [1.0, 2.0, 30.0], -1.0),
    ],
)
def test_constant_and_reversed_predictions_have_these_values(name, prediction, target, expected):
    assert measure(name, prediction, target) == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_nan_where_the_target_has_one_value_or_no_rows(name: str):
    for target in ([1, 1, 1], [0, 0, 0], []):
        of_kind = torch.tensor(target) if name in TABULAR_METRICS["classification"] else torch.tensor(target).float()
        assert math.isnan(measure(name, torch.linspace(0, 1, len(target)), of_kind.long()))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_metric_is_nan_for_a_prediction_that_is_not_finite(name: str, wrong: float):
    assert math.isnan(measure(name, [0.2, wrong, 0.4], [0, 1, 1]))


def test_spearman_of_a_constant_prediction_and_an_overflowing_r2_are_nan():
    assert math.isnan(measure("spearman", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]))
    assert math.isnan(measure("r2", torch.full((3,), 1e200, dtype=torch.float64), [1.0, 2.0, 3.0]))
