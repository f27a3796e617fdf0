"""What LightGBM, XGBoost and CatBoost take as an objective; needs NumPy alone, also in an exported file.

Every library starts a custom objective at 0, or at a number of its own, and forgets the link from scores to predictions. So
gradients are taken at the score plus the start, and the trained model is told both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from autoloss.errors import RequestError, unknown
from autoloss.space.derivatives import differentiate
from autoloss.space.expression import Expression
from autoloss.space.form import ACTIVATIONS
from autoloss.space.objective import Objective, choose_link, prepare_objective


def to_columns(scores: Any) -> Any:
    """Return scores as (N, K)."""
    scores = np.asarray(scores, dtype=float)
    return scores[:, None] if scores.ndim == 1 else scores


def find_gradients(
    objective: Objective, scores: Any, begin: Any, advice: str, labels: Any, weight: Any, defaults: Any = None
) -> list[Any]:
    """Return gradients and Hessians in the shape of a library's scores.

    Args:
        begin: The scores before the first tree, (K,), by which constant ones are told apart from others.
        defaults: The scores that a training begins at where it was not told; None where trees without a split move none, so that
            constant ones are those of the beginning.
    """
    columns = to_columns(scores)
    if columns.shape[1] != len(begin):
        advice = f"Give num_class={len(begin)}" if len(begin) > 1 else "Leave num_class out"
        raise RequestError(
            f"The library has {columns.shape[1]} scores for each row; the labels of this objective need {len(begin)}. {advice}."
        )
    first = columns[0]
    is_first = (columns == first).all() and (defaults is None or any((first == score).all() for score in defaults))
    if is_first and not np.allclose(first, begin, rtol=1e-4, atol=1e-4):
        raise RequestError(f"Boosting starts at the score {first}, not at {np.round(begin, 4)}. {advice}")
    found = objective.differentiate(columns + (objective.start - begin), np.asarray(labels, dtype=float), weight)
    return [values[:, 0] if np.ndim(scores) == 1 else values for values in found]


def find_mean(objective: Objective, columns: Any, labels: Any, weight: Any) -> float:
    """Return the mean loss at scores with the start, (N, K)."""
    return float(np.average(objective.measure(columns, np.asarray(labels, dtype=float)), weights=weight))


@dataclass(frozen=True)
class LightGBMObjective:
    """An objective of LightGBM: `lightgbm.train({"objective": objective, …}, dataset)`, then `finish(booster)`.

    A Dataset needs no `init_score`. Several classes need `num_class` among the parameters.
    """

    objective: Objective

    def __call__(self, scores: Any, dataset: Any) -> Any:
        """Return gradients and Hessians for `lightgbm.train`."""
        if dataset.get_init_score() is not None:
            raise RequestError("Remove init_score and init_model: the objective adds the start itself.")
        return self.sklearn(dataset.get_label(), scores, dataset.get_weight())

    def sklearn(self, labels: Any, scores: Any, weight: Any) -> Any:
        """Return gradients and Hessians: `LGBMClassifier(objective=objective.sklearn)`."""
        advice = "Leave out init_score; the objective adds the start."
        return find_gradients(self.objective, scores, np.zeros(len(self.objective.start)), advice, labels, weight)

    def metric(self, scores: Any, dataset: Any) -> Any:
        """Return the mean loss for `feval`, as early stopping needs it."""
        columns = to_columns(scores) + self.objective.start
        return "loss", find_mean(self.objective, columns, dataset.get_label(), dataset.get_weight()), False

    def finish(self, booster: Any) -> Any:
        """Return a Booster that predicts as one of a built-in objective does: with the start, and probabilities of classes.

        It can be saved and loaded anywhere; nothing of this objective is needed to predict. Give it the Booster of
        `lightgbm.train`, or `model.booster_`, once.

        Raises:
            RequestError: The Booster has no such form.
        """
        start, link = self.objective.start, self.objective.link
        text = booster.model_to_string()
        head, rest = text.split("\nTree=0\n", 1)
        if "objective=" in head or "average_output" in head or "is_linear=1" in rest:
            raise RequestError(
                "This Booster cannot take a start: it is finished already, has a built-in objective or linear trees, or is a "
                "random forest."
            )
        names = {
            "logistic": "binary sigmoid:1",
            "softmax": f"multiclass num_class:{len(start)}",
            "sigmoid": f"multiclassova num_class:{len(start)} sigmoid:1",
            "none": "regression",
        }
        lines = head.split("\n")
        lines.insert([line.startswith("feature_names=") for line in lines].index(True), f"objective={names[link]}")
        finished = type(booster)(model_str="\n".join(lines) + "\nTree=0\n" + rest)
        for tree, score in enumerate(start):
            for leaf in range(finished.dump_model(num_iteration=1)["tree_info"][tree]["num_leaves"]):
                finished.set_leaf_output(tree, leaf, finished.get_leaf_output(tree, leaf) + score)
        finished.best_iteration = booster.best_iteration
        return finished


@dataclass(frozen=True)
class XGBoostObjective:
    """An objective of XGBoost: `xgboost.train({**parameters, **objective.parameters}, matrix, obj=objective)`.

    The parameters hold the start and the link, so the model predicts as one of a built-in objective does.
    """

    objective: Objective

    @property
    def parameters(self) -> Any:
        """`objective` and `base_score`, and `num_class` of several classes."""
        start, link = self.objective.start, self.objective.link
        if link == "softmax":
            return {"objective": "multi:softprob", "num_class": len(start), "base_score": start.tolist()}
        name = {"logistic": "binary:logistic", "none": "reg:squarederror"}[link]
        return {"objective": name, "base_score": float(self.objective.predict(start)[0])}

    def __call__(self, scores: Any, matrix: Any) -> Any:
        """Return gradients and Hessians for `xgboost.train`."""
        weight = matrix.get_weight()
        return self.sklearn(matrix.get_label(), scores, weight if len(weight) else None)

    def sklearn(self, labels: Any, scores: Any, sample_weight: Any = None) -> Any:
        """Return gradients and Hessians: `XGBClassifier(objective=objective.sklearn, base_score=…)`."""
        advice = (
            "Train with the parameters {**parameters, **objective.parameters}; with the scikit-learn API, give "
            "base_score=objective.parameters['base_score']."
        )
        start = self.objective.start
        return find_gradients(self.objective, scores, start, advice, labels, sample_weight, defaults=(0.0, 0.5))

    def metric(self, scores: Any, matrix: Any) -> Any:
        """Return the mean loss for `custom_metric`, which is called with raw scores where `obj` is given."""
        weight = matrix.get_weight()
        weight = weight if len(weight) else None
        return "loss", find_mean(self.objective, to_columns(scores), matrix.get_label(), weight)


# CatBoost writes attributes of its own on these two.
@dataclass(eq=False)
class CatBoostObjective:
    """An objective of CatBoost: `CatBoostClassifier(loss_function=objective, eval_metric=objective.metric, …)`.

    CatBoost wants the derivatives of what it maximises, so both signs are turned. Call `finish(model)` after training. With two
    classes, `predict` and metrics of classes also need `class_names=[0, 1]`: CatBoost does not infer them from an own objective.
    """

    objective: Objective
    no_jit = True
    """CatBoost would compile the methods by numba, which knows no objects."""

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> Any:
        """Return both derivatives of minus the loss for some rows, (N, 2)."""
        if len(self.objective.start) > 1:
            raise RequestError("CatBoost has one score per row; for several classes, set eval_metric=objective.metric.")
        columns = to_columns(approxes) + self.objective.start
        weight = None if weights is None else np.asarray(weights, dtype=float)
        first, second = self.objective.differentiate(columns, np.asarray(targets, dtype=float), weight)
        return np.concatenate([-first, -second], axis=1)

    def calc_ders_multi(self, approxes: Any, target: Any, weight: Any) -> Any:
        """Return gradient and diagonal Hessian of minus the loss for one row of several classes."""
        row = np.asarray(approxes, dtype=float)[None] + self.objective.start
        first, second = self.objective.differentiate(row, np.array([float(target)]), np.array([float(weight)]))
        return (-first[0]).tolist(), np.diag(-second[0]).tolist()

    @property
    def metric(self) -> Any:
        """The mean loss for `eval_metric`; of several classes `MultiClass`, without the start, as CatBoost takes no other there."""
        return CatBoostMetric(self.objective) if len(self.objective.start) == 1 else "MultiClass"

    def finish(self, model: Any) -> Any:
        """Add the start to the model, which then predicts as one of a built-in objective does; to be called once.

        Raises:
            RequestError: The model has a start already.
        """
        scale, bias = model.get_scale_and_bias()
        if scale != 1 or np.any(bias):
            raise RequestError(f"The model has the start {bias} and the scale {scale} already; call finish once.")
        start = self.objective.start.tolist()
        model.set_scale_and_bias(1.0, start[0] if len(start) == 1 else start)
        return model


@dataclass(eq=False)
class CatBoostMetric:
    """The mean loss as a metric of CatBoost; lower is better."""

    objective: Objective
    no_jit = True

    def is_max_optimal(self) -> bool:
        return False

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> Any:
        """Return the sum of the losses and that of the weights."""
        columns = np.stack([np.asarray(each, dtype=float) for each in approxes], axis=1) + self.objective.start
        losses = self.objective.measure(columns, np.asarray(target, dtype=float))
        weights = np.ones(len(losses)) if weight is None else np.asarray(weight, dtype=float)
        return float(losses @ weights), float(weights.sum())

    def get_final_error(self, error: Any, weight: Any) -> Any:
        return error / weight


OBJECTIVES = {"lightgbm": LightGBMObjective, "xgboost": XGBoostObjective, "catboost": CatBoostObjective}

OLDEST = {"lightgbm": (4, 0), "xgboost": (3, 1), "catboost": (1, 2)}
"""Releases that take these objectives: a function in LightGBM, the start of each class in XGBoost, NumPy arrays in CatBoost."""


def make_library_objective(
    library: str,
    tree: Expression,
    labels: Any,
    weight: Any,
    activation: str,
    classes: int | None,
    options: Mapping[str, Any],
) -> LightGBMObjective | XGBoostObjective | CatBoostObjective:
    """Return the objective that `Loss.objective` describes."""
    if library not in OBJECTIVES:
        raise unknown("boosting library", library, OBJECTIVES)
    check_release(library)
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    if strange := sorted(set(options) - {"hessian", "floor", "scale", "start", "standardise"}):
        raise unknown("option of an objective", strange[0], ("hessian", "floor", "scale", "start", "standardise"))
    link = choose_link(library, activation, labels, classes)
    objective = prepare_objective(differentiate(tree), link, labels, weight, classes=classes, **options)
    return OBJECTIVES[library](objective)


def check_release(library: str) -> None:
    """Raise RequestError where the library is not installed, or is too old for these objectives."""
    oldest = ".".join(map(str, OLDEST[library]))
    try:
        found = version(library)
    except PackageNotFoundError:
        raise RequestError(f"{library} is not installed: pip install 'autoloss[boosting]'") from None
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST[library]:
        raise RequestError(
            f"{library} {found} is installed, which does not take such objectives; expected {oldest} or later. "
            f"Install it with: pip install -U {library}"
        )
