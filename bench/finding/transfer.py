"""Losses used elsewhere without searching again: another set, a wider network, a longer schedule, another optimiser.

python bench/finding/transfer.py --work /tmp/transfer.sqlite --out bench/results/transfer.json      keeps each training; goes on
python bench/finding/transfer.py --kinds detection instances --work …                                of detectors: hours

The paper's generalisation tables in small: its losses (Appendix B), those that our searches found on the home set (their scripts'
documents in bench/results/), and the hand-made ones. Each is trained in every place at the best of three learning rates there,
chosen on the valid split by a quarter of the schedule, and measured on the test split with the same training seeds. The second
table asks whether the proxy orders losses as a schedule four times as long does: losses of bench/results/lossbench.csv.gz, spread
evenly over their scores, each trained on both; Spearman's rank correlation with the 95 % interval of a bootstrap over losses.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import csv
import functools
import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import autoloss
from autoloss.comparison.entrant import training_seeds
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.records import Outcome, Train
from autoloss.settings import Configuration, StepRule
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import add_factor
from autoloss.tasks.segmentation.digits import CLASSES, DigitsOptions, SmallSegmenter, compose_scenes
from autoloss.tasks.segmentation.metrics import make_metrics
from autoloss.training.training import Training
from output import Figure, emit, make_parser, parse_arguments
from problems import FEW, FEW_OF_DETECTION, FEW_OF_POSES, SGD
from searches import tell
from sharing import Cache, OutOfTime, SharedRunner

RESULTS = Path(__file__).parents[1] / "results"
FACTORS = (0.3, 1.0, 3.0)
SHORT = 0.25
LONGER = 4.0
HOME = "home"


def _make_segmentation(few: bool, **options: Any) -> autoloss.Task:
    return autoloss.tasks.get("digits-seg", metric="miou", **{**options, **(FEW if few else {})})


def _make_wide(few: bool) -> autoloss.Task:
    """Return digits-seg with twice the channels."""
    chosen = dict(FEW) if few else {}
    epochs = chosen.pop("epochs", DigitsOptions().recipe.epochs)
    options = DigitsOptions(**chosen)
    return autoloss.SupervisedTask(
        functools.partial(SmallSegmenter, CLASSES, width=32),
        **options.compose(functools.partial(compose_scenes, size=options.size, tail=options.tail)),
        metric=make_metrics(tolerance=1, left_out=0)["miou"],
        recipe=replace(options.recipe, epochs=epochs),
        branch=ActivatedBranch(),
        name="digits-seg, wide",
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where losses are trained.

    Args:
        make: Returns the task, with few steps if told so.
    """

    make: Callable[[bool], autoloss.Task]
    step_rule: StepRule = "recipe"
    length: float = 1.0


def _vary(make: Callable[[bool], autoloss.Task]) -> dict[str, Place]:
    return {HOME: Place(make), "AdamW": Place(make, "adamw"), "four times longer": Place(make, length=LONGER)}


def _vary_adam(name: str, few: Mapping[str, int]) -> dict[str, Place]:
    """Return the places of a task whose optimizer is Adam."""

    def make(is_few: bool, **options: Any) -> autoloss.Task:
        return autoloss.tasks.get(name, **options, **(few if is_few else {}))

    return {
        HOME: Place(make),
        "one norm": Place(functools.partial(make, **SGD), "one_norm"),
        "four times longer": Place(make, length=LONGER),
    }


def _make_table(few: bool, **options: Any) -> autoloss.Task:
    chosen = {"data": "breast_cancer_hard", **options, **({"steps": 20} if few else {})}
    return autoloss.tasks.get("tabular", metric="f1", **chosen)


PLACES: Mapping[str, Mapping[str, Place]] = {
    "table": {
        HOME: Place(_make_table),
        "another set": Place(lambda few: _make_table(few, data="breast_cancer", label_noise=0.3, train_rows=100)),
        "wider network": Place(lambda few: _make_table(few, hidden=128)),
        **_vary(_make_table),
        "one norm": Place(_make_table, "one_norm"),
    },
    "segmentation": {
        HOME: Place(_make_segmentation),
        "another set": Place(lambda few: _make_segmentation(few, tail=2.0, seed=1)),
        "wider network": Place(_make_wide),
        **_vary(_make_segmentation),
        "one norm": Place(_make_segmentation, "one_norm"),
    },
    "poses": _vary_adam("figures-pose", FEW_OF_POSES),
    "detection": _vary_adam("digits-det", FEW_OF_DETECTION),
    "instances": _vary_adam("digits-ins", FEW_OF_DETECTION),
}
PUBLISHED: Mapping[str, Sequence[str]] = {
    "table": ("seg/miou", "seg/fwiou", "seg/gacc", "seg/macc", "seg/biou", "seg/bf1"),
    "segmentation": ("seg/miou", "seg/fwiou", "seg/gacc", "seg/macc", "seg/biou", "seg/bf1"),
    "poses": ("pose/oks",),
    "detection": ("det",),
    "instances": ("ins",),
}
"""Kind → the sixteen losses of the paper, those of the branches of a detector together."""
BY_HAND: Mapping[str, Sequence[str]] = {
    "table": ("baseline/dice", "shelf/root_balanced_ce", "shelf/effective_ce", "baseline/focal"),
    "segmentation": ("baseline/dice", "shelf/root_balanced_ce", "shelf/effective_ce", "baseline/asl_miou"),
    "poses": ("baseline/huber", "shelf/absolute_error", "shelf/pseudo_huber", "shelf/cauchy", "shelf/weighted_squares"),
    "detection": (
        "rpn_cls: baseline/ce; rpn_reg: baseline/l1; rcnn_cls: 3 * neg(mul(y, log(p))); rcnn_reg: baseline/l1",
    ),
    "instances": (
        "rpn_cls: 3 * neg(mul(y, log(p))); rpn_reg: baseline/l1; rcnn_cls: 3 * neg(mul(y, log(p))); rcnn_reg: baseline/l1; "
        "mask: 3 * neg(mul(y, log(p)))",
    ),
}
HOMES = {
    "table": "tabular:f1:data=breast_cancer_hard",
    "segmentation": "digits-seg:miou",
    "poses": "figures-pose",
    "detection": "digits-det",
    "instances": "digits-ins",
}
"""Kind → the row of the audit whose searches found losses on the home set."""
TABLES = {"table": "tabular-f1", "segmentation": "worst-digit"}
"""Kind → the task of the table of trained losses whose losses are trained under two schedules."""
FIGURES = {
    "losses whose proxy and longer schedule are compared": Figure(("order", {"kind": "table"}, "losses")),
    "rank correlation of proxy and four times longer": Figure(("order", {"kind": "table"}, "correlation")),
    **{
        f"{place}: rank correlation with home": Figure(("agreement", {"kind": "table", "place": place}, "correlation"))
        for place in ("another set", "wider network", "AdamW")
    },
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, seeds=3, losses=36)
    asked.add_argument("--kinds", nargs="+", choices=PLACES, default=["table", "segmentation", "poses"])
    asked.add_argument("--found", type=int, default=100, help="found losses at most")
    asked.add_argument("--work", type=Path, help="the SQLite file that keeps trainings; without it nothing is kept")
    asked.add_argument("--minutes", type=float, default=1e6, help="begin no training after this time")
    arguments = parse_arguments(asked, argv, kinds=["table"], seeds=1, losses=4, found=1)
    end = time.time() + 60 * arguments.minutes
    with TemporaryDirectory() as folder:
        path = arguments.work or Path(folder) / "trainings.sqlite"
        order = [_compare_schedules(kind, path, end, arguments) for kind in arguments.kinds if kind in TABLES]
        rows = [row for kind in arguments.kinds for row in _measure_kind(kind, path, end, arguments)]
    agreement = [
        {"kind": kind, "place": place, **_correlate(rows, kind, place)}
        for kind in arguments.kinds
        for place in PLACES[kind]
        if place != HOME
    ]
    emit({"seeds": arguments.seeds, "rows": rows, "agreement": agreement, "order": order}, arguments, _print)


def list_found(kind: str) -> list[str]:
    """Return the losses that searches found on the home set, from the documents of the audits."""
    found: list[str] = []
    for name, row_of in (("audit.json", {"role": "found"}), ("audit_before.json", {"method": "evolution"})):
        if (RESULTS / name).exists():
            rows = json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]
            wanted = {"task": HOMES[kind], **row_of}
            found += [row["loss"] for row in rows if row["loss"] and wanted.items() <= row.items()]
    return list(dict.fromkeys(found))


def _measure_kind(kind: str, path: Path, end: float, arguments: Any) -> Iterator[dict[str, Any]]:
    for name, place in PLACES[kind].items():
        task = place.make(arguments.quick)
        shared = _share(task, path, f"{kind}, {name}", end, arguments.quick)
        standard = "; ".join(task.standard.values()) if len(task.branches) == 1 else _join(task)
        losses = {standard: "standard", **dict.fromkeys(PUBLISHED[kind], "paper")}
        losses |= dict.fromkeys(BY_HAND[kind], "by hand")
        losses |= dict.fromkeys(list_found(kind)[: arguments.found], "found")
        for loss, origin in losses.items():
            try:
                yield _measure(loss, origin, kind, name, place, shared, arguments.seeds)
            except OutOfTime:
                tell(f"{kind}, {name}: out of time at {loss}")
                return


def _join(task: autoloss.Task) -> str:
    return "; ".join(f"{branch}: {loss}" for branch, loss in task.standard.items())


def _share(task: autoloss.Task, path: Path, name: str, end: float, few: bool) -> SharedRunner:
    return SharedRunner(
        Evaluator(task, {}, Configuration()), Cache(path, f"transfer, {name}{', few' if few else ''}"), end
    )


def _measure(
    loss: str, origin: str, kind: str, name: str, place: Place, shared: SharedRunner, seeds: int
) -> dict[str, Any]:
    plain = Training(seed=training_seeds(0, "transfer", 1)[0], step_rule=place.step_rule, length=place.length)
    tried = {rate: _train(shared, loss, replace(plain, learning_rate=rate, fidelity=SHORT)) for rate in FACTORS}
    rate = max(tried, key=lambda one: -1e9 if (score := tried[one]) is None else score)
    chosen = replace(plain, learning_rate=rate, split="test")
    scores = [_train(shared, loss, replace(chosen, seed=seed)) for seed in training_seeds(0, "transfer test", seeds)]
    finite = [score for score in scores if score is not None]
    mean = fmean(finite) if len(finite) == seeds else None
    deviation = stdev(finite) if mean is not None and seeds > 1 else None
    tell(f"{kind}, {name}, {loss} × {rate:g}: {mean}")
    values = {"mean": mean, "sd": deviation, "scores": scores}
    return {"kind": kind, "place": name, "loss": loss, "origin": origin, "learning_rate": rate, **values}


def _train(shared: SharedRunner, loss: str, training: Training) -> float | None:
    outcome = shared(Train(loss, training))
    assert isinstance(outcome, Outcome)
    return outcome.score


def _correlate(rows: Sequence[Mapping[str, Any]], kind: str, place: str) -> dict[str, Any]:
    """Return the rank correlation of the means at home and elsewhere over the losses that have both, and their number."""
    home, there = (
        {
            row["loss"]: row["mean"]
            for row in rows
            if (row["kind"], row["place"]) == (kind, name) and row["mean"] is not None
        }
        for name in (HOME, place)
    )
    both = sorted(home.keys() & there.keys())
    if len(both) < 3:
        return {"losses": len(both), "correlation": None}
    found = float(spearmanr([home[one] for one in both], [there[one] for one in both])[0])
    return {"losses": len(both), "correlation": None if found != found else found}


def _compare_schedules(kind: str, path: Path, end: float, arguments: Any) -> dict[str, Any]:
    with gzip.open(RESULTS / "lossbench.csv.gz", "rt", encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["task"] == TABLES[kind] and row["whole_1"]]
    table.sort(key=lambda row: float(row["whole_1"]))
    # Half of the table learns nothing; the places are spread evenly over the rest.
    table = table[len(table) // 2 :]
    chosen = [table[place] for place in np.linspace(0, len(table) - 1, arguments.losses).round().astype(int)]
    shared = _share(PLACES[kind][HOME].make(arguments.quick), path, f"schedules, {kind}", end, arguments.quick)
    rows: list[dict[str, Any]] = []
    for row in chosen:
        loss, plain = (
            add_factor(row["formula"], float(row["factor"])),
            Training(seed=training_seeds(0, "transfer", 1)[0]),
        )
        try:
            proxy, full = (_train(shared, loss, replace(plain, length=length)) for length in (1.0, LONGER))
        except (OutOfTime, RequestError) as error:
            tell(f"schedules: {loss}: {error}")
            continue
        rows.append({"loss": loss, "proxy": proxy, "full": full})
    pairs = np.array([(row["proxy"], row["full"]) for row in rows if None not in (row["proxy"], row["full"])])
    low, high = _bootstrap(pairs) if len(pairs) > 3 else (None, None)
    correlation = _correlate_ranks(pairs) if len(pairs) > 2 else None
    return {"kind": kind, "losses": len(pairs), "correlation": correlation, "low": low, "high": high, "rows": rows}


def _correlate_ranks(pairs: np.ndarray) -> float | None:
    """Return the rank correlation; None where one schedule gives the same score to all."""
    return float(spearmanr(*pairs.T)[0]) if np.ptp(pairs, axis=0).all() else None


def _bootstrap(pairs: np.ndarray, count: int = 2000) -> tuple[float | None, float | None]:
    rng = np.random.default_rng(0)
    drawn = [_correlate_ranks(pairs[rng.integers(len(pairs), size=len(pairs))]) for _ in range(count)]
    known = [one for one in drawn if one is not None]
    if not known:
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def _print(result: Mapping[str, Any]) -> None:
    places = list(dict.fromkeys(row["place"] for row in result["rows"]))
    print(f"{'loss':<50} " + " ".join(f"{place[:17]:>17}" for place in places))
    for kind, loss in dict.fromkeys((row["kind"], row["loss"]) for row in result["rows"]):
        found = {row["place"]: row["mean"] for row in result["rows"] if (row["kind"], row["loss"]) == (kind, loss)}
        print(f"{loss[:50]:<50} " + " ".join(f"{_format(found.get(place)):>17}" for place in places))
    for one in result["agreement"]:
        print(f"rank correlation of home and {one['place']} ({one['kind']}): {_format(one['correlation'])}")
    for one in result["order"]:
        interval = f"[{_format(one['low'])}, {_format(one['high'])}]"
        print(
            f"{one['kind']}, proxy and four times longer, {one['losses']} losses: {_format(one['correlation'])} {interval}"
        )


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
