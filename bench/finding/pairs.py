"""Losses found for rankings and survival against tuned specialists, on held-out rows of real tables, over several splits.

python bench/finding/pairs.py --work DIR --out bench/results/pairs.json        the same command goes on where it stopped

A search on each split of each table recommends a loss. It and the specialists (RankNet, LambdaRank, ListNet, AUC losses,
LibAUC's margin, Cox's partial likelihood, the cross entropy of single items) are then trained alike: the same network and
steps, with the step rule that the search recommends, and the rate of each is the best of one grid on the valid split. A row of
the result is one loss on one split, with its test scores over training seeds. On tables of survival, CoxPH of lifelines is a
further row, its penalty chosen on the valid split. The recommendation is compared with the specialist whose mean on the test
splits is highest, over all pairs of split and seed, by the 95 % confidence interval of the mean difference; seeds of one split
share its rows, so that it is rather too narrow.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import autoloss
from autoloss.errors import RequestError
from autoloss.training.training import Scored, Training
from autoloss.zoo import resolve
from output import Figure, emit, make_parser, parse_arguments
from searches import tell

PAIRWISE = ("baseline/ranknet", "baseline/auc_hinge", "baseline/auc_square", "baseline/auc_exponential")


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its metric, and the specialists of its kind."""

    task: str
    metric: str
    specialists: Sequence[str]


LISTWISE = ("baseline/lambdarank", "baseline/listnet", "baseline/pointwise")
TABLES = {
    "rossi": Table("survival", "c_index", (*PAIRWISE, "baseline/cox")),
    "gbsg2": Table("survival", "c_index", (*PAIRWISE, "baseline/cox")),
    "kidney_transplant": Table("survival", "c_index", (*PAIRWISE, "baseline/cox")),
    "regimes": Table("survival", "uno_c", (*PAIRWISE, "baseline/lambdarank", "baseline/cox")),
    "modechoice": Table("ranking", "ndcg", (*PAIRWISE, *LISTWISE)),
    "fair": Table("ranking", "auc", (*PAIRWISE, *LISTWISE[1:], "baseline/auc_margin")),
}
RATES = (0.3, 1.0, 3.0, 10.0)
PENALTIES = (0.001, 0.01, 0.1, 1.0)
SEARCH_SEED = 0
MEASURED = ("rossi", "gbsg2", "kidney_transplant", "modechoice", "fair")
"""The tables of which the results hold figures."""
FIGURES = {
    f"{name}, {label}": Figure(("sets", {"set": name}, key), digits=3)
    for name in MEASURED
    for label, key in {
        "recommendation": "recommendation",
        "best specialist": "specialist",
        "difference": "gain",
    }.items()
} | {"sets at or above": Figure(("at_or_above",)), "sets significantly below": Figure(("below",))}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, evaluations=16, splits=3, seeds=2, steps=100)
    parser.add_argument("--sets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--work", type=Path, help="folder of the searches and of the rows that are done")
    parser.add_argument("--workers", type=int, default=0, help="processes of a search")
    arguments = parse_arguments(parser, argv, evaluations=2, splits=1, seeds=1, steps=10, sets=["rossi", "modechoice"])
    if arguments.work is not None:
        emit(measure(arguments.work, arguments), arguments, show)
        return
    with tempfile.TemporaryDirectory() as folder:
        emit(measure(Path(folder), arguments), arguments, show)


def measure(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = [row for name in arguments.sets for row in measure_table(name, work, arguments)]
    sets = [summarise(name, [row for row in rows if row["set"] == name]) for name in arguments.sets]
    return {
        "size": {name: vars(arguments)[name] for name in ("evaluations", "splits", "seeds", "steps")},
        "sets": sets,
        "rows": rows,
        "at_or_above": sum(one["gain"] >= 0 for one in sets),
        "below": sum(one["verdict"] == "below" for one in sets),
    }


def make_task(name: str, split: int, arguments: argparse.Namespace) -> Any:
    table = TABLES[name]
    return autoloss.tasks.get(table.task, table.metric, data=name, split_seed=split, steps=arguments.steps)


def recommend(name: str, split: int, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Search on a split, or read what an earlier run of this script found."""
    kept = work / f"{name}-{split}-found.json"
    if not kept.exists():
        found = autoloss.search(
            make_task(name, split, arguments),
            evaluations=arguments.evaluations,
            seed=SEARCH_SEED,
            workers=arguments.workers,
            directory=work / f"{name}-{split}",
        )
        chosen = found.recommendation
        assert chosen is not None
        kept.write_text(
            json.dumps(
                {
                    "loss": chosen.loss,
                    "origin": chosen.origin,
                    "step_rule": chosen.recipe.get("step_rule", "recipe"),
                    "length": chosen.recipe.get("length", 1.0),
                    "best": str(found.best.loss),
                }
            )
        )
    return json.loads(kept.read_text())


def measure_table(name: str, work: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for split in range(arguments.splits):
        done = work / f"{name}-{split}.json"
        if not done.exists():
            chosen = recommend(name, split, work, arguments)
            entrants = {"recommendation": chosen["loss"], "best found": chosen["best"]}
            entrants |= {loss: loss for loss in TABLES[name].specialists}
            task = make_task(name, split, arguments)
            found: list[dict[str, Any]] = [
                {"set": name, "split": split, "entrant": label, **train(task, loss, chosen, arguments)}
                for label, loss in entrants.items()
            ]
            if TABLES[name].task == "survival":
                found += [{"set": name, "split": split, "entrant": "lifelines CoxPH", **fit_cox(task, arguments)}]
            done.write_text(json.dumps(found))
            tell(f"{name}, split {split}: {len(found)} losses")
        rows += json.loads(done.read_text())
    return rows


def train(task: Any, loss: str, chosen: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose the rate on the valid split, and train with it on each seed."""
    try:
        criterion = autoloss.bind(resolve(loss, task.branches)[1], task.branches)
    except RequestError as error:
        return {"loss": loss, "why": str(error), "rate": None, "valid": None, "test": []}

    def score(split: str, seed: int, rate: float) -> float:
        outcome = task.train(
            criterion,
            Training(
                seed=seed, split=split, learning_rate=rate, step_rule=chosen["step_rule"], length=chosen["length"]
            ),
        )
        return outcome.score if isinstance(outcome, Scored) else -math.inf

    valid = {rate: score("valid", 0, rate) for rate in RATES}
    rate = max(RATES, key=lambda one: (valid[one], -abs(math.log(one))))
    test = [score("test", 1 + seed, rate) for seed in range(arguments.seeds)]
    return {"loss": loss, "rate": rate, "valid": _finite(valid[rate]), "test": [_finite(one) for one in test]}


def fit_cox(task: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit CoxPH of lifelines, which has no seed, with the penalty that is best on the valid split."""
    import pandas
    import torch
    from lifelines import CoxPHFitter

    splits = task._splits["proxy"][0]
    data = {label: split.whole() for label, split in splits.items()}

    def frame(label: str) -> Any:
        inputs, target = data[label]
        return pandas.DataFrame(
            {**{f"x{n}": inputs[:, n] for n in range(inputs.shape[1])}, "t": target[:, 0], "e": target[:, 1]}
        )

    def score(label: str, fitter: Any) -> float:
        risk = torch.tensor(fitter.predict_log_partial_hazard(frame(label)).to_numpy())
        return task.branches["main"].metric(risk, {"target": data[label][1]})

    best: tuple[float, Any, float] = (-math.inf, None, 0.0)
    for penalty in PENALTIES:
        fitter = CoxPHFitter(penalizer=penalty).fit(frame("train"), "t", "e")
        best = max(best, (score("valid", fitter), penalty, score("test", fitter)), key=lambda one: one[0])
    return {"loss": "CoxPH", "rate": best[1], "valid": best[0], "test": [best[2]] * arguments.seeds}


def summarise(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the recommendation with the specialist of the highest mean, paired by split and seed."""
    scores = {
        label: [one for row in rows if row["entrant"] == label for one in row["test"]]
        for label in dict.fromkeys(row["entrant"] for row in rows)
    }
    own = scores["recommendation"]
    others = {
        label: values
        for label, values in scores.items()
        if label not in ("recommendation", "best found") and len(values) == len(own) and None not in values
    }
    best = max(others, key=lambda label: fmean(others[label]))
    gains = [mine - theirs for mine, theirs in zip(own, others[best], strict=True)]
    half = measure_half_width(gains)
    low, high = (None, None) if half is None else (fmean(gains) - half, fmean(gains) + half)
    # What a person would take who tunes on the valid split.
    tuned = [
        score
        for split in dict.fromkeys(row["split"] for row in rows)
        for score in max(
            (row for row in rows if row["split"] == split and row["entrant"] in others), key=lambda row: row["valid"]
        )["test"]
    ]
    verdict = "level" if low is None or high is None or low <= 0 <= high else "above" if low > 0 else "below"
    return {
        "set": name,
        "metric": TABLES[name].metric,
        "losses": [row["loss"] for row in rows if row["entrant"] == "recommendation"],
        "recommendation": fmean(own),
        "best_found": fmean(scores["best found"]),
        "specialist": fmean(others[best]),
        "specialist_name": best,
        "tuned_on_valid": fmean(tuned),
        "gain": fmean(gains),
        "low": low,
        "high": high,
        "verdict": verdict,
    }


def measure_half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of a mean; None for one value."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(result: Mapping[str, Any]) -> None:
    for one in result["sets"]:
        ends = "" if one["low"] is None else f" [{one['low']:+.3f}, {one['high']:+.3f}]"
        print(
            f"{one['set']:18} {one['metric']:8} {one['recommendation']:.3f} | {one['specialist']:.3f} {one['specialist_name']:24} "
            f"{one['gain']:+.3f}{ends} {one['verdict']}: {'; '.join(one['losses'])}"
        )
    print(f"at or above on {result['at_or_above']} of {len(result['sets'])}, significantly below on {result['below']}")


if __name__ == "__main__":
    main()
