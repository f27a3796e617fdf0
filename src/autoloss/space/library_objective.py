"""An objective of a tree for one of the boosting libraries, which has to be installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.space.boosting import OBJECTIVES, CatBoostObjective, LightGBMObjective, XGBoostObjective
from autoloss.space.derivatives import differentiate
from autoloss.space.expression import Expression
from autoloss.space.objective import choose_link, prepare_objective
from autoloss.space.options import ACTIVATIONS

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
        raise RequestError(
            f"{library} is not installed. Install it with: pip install 'autoloss[boosting]', or pip install {library}"
        ) from None
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST[library]:
        raise RequestError(
            f"{library} {found} is installed, which does not take such objectives; expected {oldest} or later. "
            f"Install it with: pip install -U {library}"
        )
