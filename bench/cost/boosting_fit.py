"""Time of a fit with an objective of this package, beside that with the built-in objective; processor time, in pairs.

python bench/cost/boosting_fit.py --out results/boosting_fit.json

Both learn the same model: cross entropy of two classes, 20 columns, one thread. The objective is made anew in each fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

import numpy as np

from autoloss import Loss
from output import NOT_RUN, Figure, emit, make_parser, parse_arguments

LOSSES = {"cross entropy": "-y*log(p) - (1-y)*log(1-p)", "focal": "-(1 - p)**2 * y * log(p)"}
FIGURES = {
    f"{library}, {loss}": Figure(("rows", {"library": library, "loss": loss}, "ratio"))
    for library in ("lightgbm", "xgboost", "catboost")
    for loss in LOSSES
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, table_rows=50_000, rounds=100, pairs=7)
    arguments = parse_arguments(parser, argv, table_rows=10_000, rounds=20, pairs=3)
    try:
        rows = [
            measure_pairs(library, loss, arguments.table_rows, arguments.rounds, arguments.pairs)
            for library in FITS
            for loss in LOSSES
        ]
    except ImportError as error:
        emit({NOT_RUN: f"{error.name} is not installed: pip install 'autoloss[boosting]'"}, arguments, print)
        return
    result = {"table_rows": arguments.table_rows, "rounds": arguments.rounds, "pairs": arguments.pairs, "rows": rows}
    emit(result, arguments, show)


def measure_pairs(library: str, loss: str, rows: int, rounds: int, pairs: int) -> dict[str, Any]:
    """Return the median ratio of pairs of fits, and its middle half."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(rows, 20))
    labels = (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] + rng.normal(size=rows) > 1).astype(float)
    fit, ratios, builtin = FITS[library], [], []
    fit(inputs, labels, 2, None)
    for _ in range(pairs):
        standard = measure_seconds(lambda: fit(inputs, labels, rounds, None))
        own = measure_seconds(lambda: fit(inputs, labels, rounds, Loss(LOSSES[loss])))
        ratios.append(own / standard)
        builtin.append(standard)
    low, _, high = quantiles(ratios, n=4)
    return {
        "library": library,
        "loss": loss,
        "ratio": median(ratios),
        "middle_half": [low, high],
        "builtin_seconds": median(builtin),
    }


def measure_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def fit_lightgbm(inputs: Any, labels: Any, rounds: int, loss: Loss | None) -> None:
    import lightgbm

    options = {"verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(inputs, labels)
    if loss is None:
        lightgbm.train({**options, "objective": "binary"}, data, rounds)
    else:
        objective = loss.objective("lightgbm", labels)
        objective.finish(lightgbm.train({**options, "objective": objective}, data, rounds))


def fit_xgboost(inputs: Any, labels: Any, rounds: int, loss: Loss | None) -> None:
    import xgboost

    matrix = xgboost.DMatrix(inputs, labels, nthread=1)
    if loss is None:
        xgboost.train({"objective": "binary:logistic", "nthread": 1}, matrix, rounds)
    else:
        objective = loss.objective("xgboost", labels)
        xgboost.train({**objective.parameters, "nthread": 1}, matrix, rounds, obj=objective)


def fit_catboost(inputs: Any, labels: Any, rounds: int, loss: Loss | None) -> None:
    import catboost

    objective = None if loss is None else loss.objective("catboost", labels)
    model = catboost.CatBoostClassifier(
        iterations=rounds,
        thread_count=1,
        verbose=0,
        allow_writing_files=False,
        learning_rate=0.1,
        leaf_estimation_method="Newton",
        leaf_estimation_iterations=1,
        loss_function="Logloss" if objective is None else objective,
        eval_metric="Logloss",
    )
    model.fit(inputs, labels.astype(int))
    if objective is not None:
        objective.finish(model)


FITS: Mapping[str, Callable[[Any, Any, int, Loss | None], None]] = {
    "lightgbm": fit_lightgbm,
    "xgboost": fit_xgboost,
    "catboost": fit_catboost,
}


def show(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        low, high = row["middle_half"]
        print(
            f"{row['library']:<9} {row['loss']:<14} {row['ratio']:.2f} × the built-in's {row['builtin_seconds']:.2f} s "
            f"({low:.2f} to {high:.2f} in the middle half of {result['pairs']} pairs)"
        )


if __name__ == "__main__":
    main()
