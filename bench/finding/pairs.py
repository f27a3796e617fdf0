"""Losses found for rankings and survival against tuned specialists, on held-out rows of real tables, over several splits.

python bench/finding/pairs.py --work DIR --out bench/results/pairs.json        the same command goes on where it stopped

Of each split of a table a third of the training rows (of queries, where there are such) is held back: the audit, which no search
sees. A search recommends a loss. It and the specialists (RankNet, LambdaRank, ListNet, AUC losses, LibAUC's margin, Cox's partial
likelihood, the cross entropy of single items) are then trained alike: the same network and steps, the step rule that the search
recommends, and the rate of each is the best of one grid on the valid split. Where a search ends at once, since its standard loss is
not ahead of an untrained network on the valid split, the standard loss takes the place of the recommendation. A row of the result
is one loss on one split, with its audit scores over training seeds. On tables of survival, CoxPH of lifelines is a further row, its
penalty chosen on the valid split.

The recommendation is compared with the specialist whose mean on the audit is highest, which nobody knows beforehand (`gain`), and
with the one that is best on the valid split, which somebody who tunes specialists would take (`gain_over_choice`). Intervals (95 %)
count the noise of training seeds and of the rows of the audit, by `compare_paired` on each split; splits count as independent,
though they share rows. The best of k specialists on the audit is in part the luckiest there: the interval of `gain` therefore has
the level 1 − 0.05/k (Bonferroni), and `plain_verdict` is what the one without this correction says.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Any

import torch

import autoloss
from autoloss.comparison.entrant import Measurements, compare_paired
from autoloss.comparison.record import LEARNING_RATES
from autoloss.errors import RequestError, RunError
from autoloss.tasks.metric import measure_resamples
from autoloss.training.training import Replicates, Scored, Training
from autoloss.zoo import resolve
from output import Figure, emit, make_parser, parse_arguments
from searches import search_or_resume, tell

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
PENALTIES = (0.001, 0.01, 0.1, 1.0)
SEARCH_SEED = 0
FIRST_SPLIT = 10
"""Seed of the first split. Rows held back of this split and the next chose no default of the tasks."""
FINALE = {"final.confirm": 5, "final.finalists": 3, "final.compare_seeds": 4}
"""Settings of the end of each search, which is shorter than by default."""
SIGNIFICANT = 0.05
DIGITS = 5
"""Digits of the scores on resamples that are kept."""
HELD = 3
"""One of so many training examples is held back for the audit."""
FIGURES = {
    f"{name}, {label}": Figure(("sets", {"set": name}, key), digits=3)
    for name in TABLES
    for label, key in {
        "recommendation": "recommendation",
        "best specialist": "specialist",
        "difference": "gain",
        "difference from the choice on the valid split": "gain_over_choice",
    }.items()
} | {
    "sets at or above": Figure(("at_or_above",)),
    "sets at or above the choice on the valid split": Figure(("at_or_above_choice",)),
    "sets significantly below": Figure(("below",)),
    "sets below without the correction": Figure(("plain_below",)),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, evaluations=25, splits=2, seeds=3, steps=0)
    # Of the steps, 0 stands for those of the task.
    parser.add_argument("--sets", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--work", type=Path, help="folder of the searches and of the rows that are done")
    parser.add_argument("--kept", action="store_true", help="only the splits that are done")
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
        "at_or_above_choice": sum(one["gain_over_choice"] >= 0 for one in sets),
        "below": sum(one["verdict"] == "below" for one in sets),
        "plain_below": sum(one["plain_verdict"] == "below" for one in sets),
        "below_choice": sum(one["verdict_over_choice"] == "below" for one in sets),
    }


def make_task(name: str, split: int, arguments: argparse.Namespace, *, audit: bool = False) -> Any:
    """Make a task without the examples of the audit, or with them in place of the test split."""
    table = TABLES[name]
    options = {"steps": arguments.steps} if arguments.steps else {}
    task = autoloss.tasks.get(table.task, table.metric, data=name, split_seed=split, **options)
    for splits in (folds[0] for folds in task._splits.values()):
        train = splits["train"]
        order = torch.randperm(len(train.dataset), generator=torch.Generator().manual_seed(split))
        held = len(order) // HELD
        if audit:
            splits["test"] = copy.copy(train)
            splits["test"].indices = order[:held].sort().values
        # Both schedules may share a split.
        splits["train"] = copy.copy(train)
        splits["train"].indices = order[held:].sort().values
    return task


def recommend(name: str, split: int, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Search on a split, or read what an earlier run of this script found."""
    kept = work / f"{name}-{split}-found.json"
    if not kept.exists():
        task = make_task(name, split, arguments)
        (loss,) = task.standard.values()
        chosen = {"loss": loss, "origin": "refused", "step_rule": "recipe", "length": 1.0, "best": loss}
        try:
            found = search_or_resume(task, FINALE, SEARCH_SEED, work / f"{name}-{split}", arguments)
        except RunError as error:
            tell(f"{name}, split {split}: {error}")
        else:
            # Where nothing learned, nothing is compared and the standard loss stays.
            if (advised := found.recommendation) is not None:
                chosen = {
                    "loss": advised.loss,
                    "origin": advised.origin,
                    "step_rule": advised.recipe.get("step_rule", "recipe"),
                    "length": advised.recipe.get("length", 1.0),
                    "best": str(found.best.loss),
                }
        kept.write_text(json.dumps(chosen))
    return json.loads(kept.read_text())


def measure_table(name: str, work: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for split in range(FIRST_SPLIT, FIRST_SPLIT + arguments.splits):
        done = work / f"{name}-{split}.json"
        if not done.exists() and arguments.kept:
            continue
        if not done.exists():
            chosen = recommend(name, split, work, arguments)
            entrants = {"recommendation": chosen["loss"], "best found": chosen["best"]}
            entrants |= {loss: loss for loss in TABLES[name].specialists}
            task = make_task(name, split, arguments, audit=True)
            trained = {loss: train(task, loss, chosen, arguments) for loss in dict.fromkeys(entrants.values())}
            found = [
                {"set": name, "split": split, "entrant": label, **trained[loss]} for label, loss in entrants.items()
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

    def run(split: str, seed: int, rate: float) -> Scored | None:
        way = Training(seed=seed, split=split, learning_rate=rate, resampled=split == "test")
        outcome = task.train(criterion, replace(way, step_rule=chosen["step_rule"], length=chosen["length"]))
        return outcome if isinstance(outcome, Scored) else None

    valid = {rate: -math.inf if (found := run("valid", 0, rate)) is None else found.score for rate in LEARNING_RATES}
    rate = max(LEARNING_RATES, key=lambda one: (valid[one], -abs(math.log(one))))
    trained = [run("test", 1 + seed, rate) for seed in range(arguments.seeds)]
    known = [one.replicates for one in trained if one is not None and one.replicates is not None]
    columns = zip(*(one.scores for one in known), strict=True) if len(known) == len(trained) else ()
    return {
        "loss": loss,
        "rate": rate,
        "valid": _finite(valid[rate]),
        "test": [None if one is None else one.score for one in trained],
        "resampled": [None if None in column else round(fmean(column), DIGITS) for column in columns],
        "examples": known[0].examples if known else None,
    }


def fit_cox(task: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit CoxPH of lifelines, which has no seed, with the penalty that is best on the valid split."""
    import pandas
    from lifelines import CoxPHFitter

    splits = task._splits["proxy"][0]
    data = {label: [part[split.indices] for part in split.whole()] for label, split in splits.items()}

    def frame(label: str) -> Any:
        inputs, target = data[label]
        return pandas.DataFrame(
            {**{f"x{n}": inputs[:, n] for n in range(inputs.shape[1])}, "t": target[:, 0], "e": target[:, 1]}
        )

    def score(label: str, fitter: Any, rows: Any = slice(None)) -> float:
        risk = torch.tensor(fitter.predict_log_partial_hazard(frame(label)).to_numpy())
        return task.branches["main"].metric(risk[rows], {"target": data[label][1][rows]})

    fitters = {penalty: CoxPHFitter(penalizer=penalty).fit(frame("train"), "t", "e") for penalty in PENALTIES}
    valid = {penalty: score("valid", fitter) for penalty, fitter in fitters.items()}
    best = max(PENALTIES, key=valid.__getitem__)
    measured = measure_resamples(len(data["test"][1]), lambda rows: score("test", fitters[best], rows))
    return {
        "loss": "CoxPH",
        "rate": best,
        "valid": valid[best],
        "test": [score("test", fitters[best])] * arguments.seeds,
        "resampled": measured.scores,
        "examples": measured.examples,
    }


def summarise(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the recommendation with the specialist of the highest mean, paired by split and seed."""
    scores = {
        label: [one for row in rows if row["entrant"] == label for one in row["test"]]
        for label in dict.fromkeys(row["entrant"] for row in rows)
    }
    count = len(scores["recommendation"])
    others = {
        label: values
        for label, values in scores.items()
        if label not in ("recommendation", "best found") and len(values) == count and None not in values
    }
    best = max(others, key=lambda label: fmean(others[label]))
    own, rivals = ([row for row in rows if row["entrant"] == label] for label in ("recommendation", best))
    # What a person would take who tunes on the valid split.
    chosen = [
        max(
            (row for row in rows if row["split"] == one["split"] and row["entrant"] in others),
            key=lambda row: row["valid"],
        )
        for one in own
    ]
    gain, low, high, verdict = compare(own, rivals, len(others))
    gain_over_choice, low_over_choice, high_over_choice, verdict_over_choice = compare(own, chosen)
    return {
        "set": name,
        "metric": TABLES[name].metric,
        "splits": len(own),
        "losses": [row["loss"] for row in rows if row["entrant"] == "recommendation"],
        "recommendation": fmean(scores["recommendation"]),
        "best_found": fmean(scores["best found"]),
        "specialist": fmean(others[best]),
        "specialist_name": best,
        "tuned_on_valid": fmean(one for row in chosen for one in row["test"]),
        "gain": gain,
        "low": low,
        "high": high,
        "verdict": verdict,
        "plain_verdict": compare(own, rivals)[3],
        "specialists": len(others),
        "rank": 1 + sum(fmean(values) > fmean(scores["recommendation"]) for values in others.values()),
        "gain_over_choice": gain_over_choice,
        "low_over_choice": low_over_choice,
        "high_over_choice": high_over_choice,
        "verdict_over_choice": verdict_over_choice,
    }


def compare(
    own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], count: int = 1
) -> tuple[float, float | None, float | None, str]:
    """Return the mean difference over the splits, the ends of its interval, and what they say.

    Args:
        count: Number of losses of which the other one is the best.
    """
    pairs = [compare_paired(read(one), read(other)) for one, other in zip(own, others, strict=True)]
    found = [one for one in pairs if one is not None]
    if len(found) < len(pairs):
        return -math.inf, None, None, "below"
    gain = fmean(one.value for one in found)
    half = (
        NormalDist().inv_cdf(1 - SIGNIFICANT / (2 * count))
        * math.hypot(*(one.least_error for one in found))
        / len(found)
    )
    low, high = gain - half, gain + half
    return gain, low, high, "above" if low > 0 else "below" if high < 0 else "level"


def read(row: Mapping[str, Any]) -> Measurements:
    """Return the audit of a row; differences of two have the same noise as with the resamples of each seed."""
    replicates = (Replicates(row["examples"], tuple(row["resampled"])),) if row.get("resampled") else ()
    return Measurements(tuple(row["test"]), replicates)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show(result: Mapping[str, Any]) -> None:
    for one in result["sets"]:
        ends = "" if one["low"] is None else f" [{one['low']:+.3f}, {one['high']:+.3f}]"
        print(
            f"{one['set']:18} {one['metric']:8} {one['recommendation']:.3f} | {one['specialist']:.3f} {one['specialist_name']:24} "
            f"{one['gain']:+.3f}{ends} {one['verdict']}: {'; '.join(one['losses'])}"
        )
        over = f"{one['gain_over_choice']:+.3f} {one['verdict_over_choice']}"
        rank = f"rank {one['rank']} of {one['specialists'] + 1}"
        print(f"{'':28}{rank}; choice on the valid split {one['tuned_on_valid']:.3f} {over}")
    print(
        f"at or above the best specialist on {result['at_or_above']} of {len(result['sets'])}, the choice on the valid split on "
        f"{result['at_or_above_choice']}; significantly below on {result['below']}"
    )


if __name__ == "__main__":
    main()
