"""Searches with the defaults, and what each recommends beside an expert's baselines under three optimisers, on the test split.

python bench/finding/audit.py --out bench/results/audit.json                        searches and trains; goes on where it stopped
python bench/finding/audit.py --tasks worst-digit tabular:f1:data=wine --seeds 1    some tasks
python bench/finding/audit.py --minutes 0 --out bench/results/audit.json            the table of what is done

For each task, searches with several seeds end as they do for anybody: with a recommendation. In three columns, the recipe's
own optimiser, one norm of the gradient and AdamW (plain SGD where the recipe has Adam), the recommended loss, the loss found,
the standard loss (with several branches also with more weight on the classes), the baselines that fit
(`comparison/baselines.py`) and the losses of the shelf are trained at the best learning rate of one grid there; the best
`RIVALS` on the valid split go to the test split, with new training seeds.
`standing` compares the recommended loss with the best of the others but the found one, `standard_standing` with the standard
loss: above or below where p < 0.05 over seeds and examples, with Holm's correction for the number of losses in the first, else
equal. `any_standing` compares it, as it is recommended, with the best of the known ones under any of the optimisers, over seeds
alone. A gain over the standard loss counts as a loss's where it holds in all three columns. `gain` is the share of what the best
rival lacks of 1; its interquartile mean over searches has a bootstrap interval, stratified by task. What is finished is kept in a
work folder, where the searches of a task share the trainings of its rivals, and a search that the file of `--out` holds is not run
again.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import csv
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import trim_mean

import autoloss
from autoloss import zoo
from autoloss.comparison.baselines import baselines, enter_loss, fits
from autoloss.comparison.climbing import WEIGHT
from autoloss.comparison.entrant import TEST, Entrant, Measurements, Row, compare_paired, sort_by_mean, training_seeds
from autoloss.comparison.judgement import SIGNIFICANT, correct_by_holm
from autoloss.comparison.record import Record, tune_learning_rates
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Dispatcher, Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.records import Outcome, Train
from autoloss.run.results import Search
from autoloss.settings import Configuration, StepRule
from autoloss.store.store import Store, lock_run
from digits import FEW
from output import Figure, emit, parse_arguments
from problems import FEW_OF_DETECTION, FEW_OF_POSES, SGD, make_worst_digit
from searches import EVOLUTION, make_search_parser, searched, tell

QUICK: Mapping[str, Mapping[str, Any]] = {
    "digits-seg": FEW,
    "figures-pose": FEW_OF_POSES,
    "digits-det": FEW_OF_DETECTION,
    "digits-ins": FEW_OF_DETECTION,
    "tabular": {"steps": 20},
}
SEARCH = {"final.confirm": 5, "final.compare_seeds": 5}
QUICK_SEARCH = {
    "final.confirm": 2,
    "final.confirm_seeds": 1,
    "final.compare_seeds": 2,
    "evolution.initial": 12,
    "ladder.share": 0.0,
}
RIVALS = 4
"""Known losses besides the standard one that are measured on the test split."""
COLUMNS: Sequence[StepRule] = ("recipe", "one_norm", "adamw")
ADAM = ("figures-pose", "digits-det", "digits-ins")
"""Tasks whose recipe has Adam, of which no other step rule follows."""
SGD_COLUMNS: Mapping[str, StepRule] = {"sgd": "recipe", "one_norm": "one_norm"}
"""Further columns of these tasks, and their step rules with SGD."""
TABLES = (
    "data=breast_cancer_hard",
    "data=breast_cancer:label_noise=0.3:train_rows=150",
    "data=wine:input_noise=2.0:train_rows=60",
)
TASKS = (
    "worst-digit",
    *(f"tabular:{metric}:{data}" for data in TABLES for metric in ("f1", "auc", "mcc")),
    *(f"digits-seg:{metric}" for metric in ("miou", "bf1", "biou", "macc", "fwiou", "gacc")),
    "figures-pose",
    "digits-det",
    "digits-ins",
)
"""name[:metric[:option=value…]], the cheap ones first."""
CSV_COLUMNS = (
    "task",
    "search_seed",
    "column",
    "role",
    "loss",
    "learning_rate",
    "mean",
    "interval",
    "n",
    "scores",
    "reasons",
)
Part = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Rows and standings of one search."""
FIGURES = {
    "searches": Figure(("counts", "searches")),
    "a found loss is recommended": Figure(("counts", "found")),
    "standing above, recommended recipe": Figure(("counts", "above")),
    "standing below, recommended recipe": Figure(("counts", "below")),
    "standing below the best under any optimiser": Figure(("counts", "below_any")),
    "gains over the standard loss under all three optimisers": Figure(("counts", "gain_everywhere")),
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_search_parser(__doc__, evaluations=40, seeds=5)
    asked.add_argument("--tasks", nargs="+", default=TASKS, help="name[:metric[:option=value…]]")
    asked.add_argument("--test-seeds", type=int, default=5, help="trainings of each loss on the test split")
    asked.add_argument("--work", type=Path, help="the folder that keeps what is finished; runs/audit by default")
    asked.add_argument(
        "--minutes", type=float, default=1e6, help="begin no search after this time; what is done is reported"
    )
    # Without workers: starting them would take most of the time.
    arguments = parse_arguments(
        asked, argv, tasks=["tabular:f1:data=wine"], evaluations=4, seeds=1, test_seeds=2, workers=0
    )
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        # A quick run starts anew: it shall say whether the script works now.
        work = arguments.work or (Path(folder) if arguments.quick else Path("runs") / "audit")
        plan = [(spec, seed) for seed in range(arguments.seeds) for spec in arguments.tasks]
        done = _read_done(arguments)
        for spec, seed in plan:
            folder = work / spec.replace(":", "-").replace("=", "-") / f"seed{seed}"
            in_time = time.monotonic() <= end or (folder / "done").exists()
            if (spec, seed) not in done and in_time:
                done[spec, seed] = _audit(spec, seed, folder, arguments)
    rows = [row for part, _ in done.values() for row in part]
    standings = [standing for _, part in done.values() for standing in part]
    sizes = {name: vars(arguments)[name] for name in ("evaluations", "seeds", "test_seeds")}
    missing = [f"{spec}, seed {seed}" for spec, seed in plan if (spec, seed) not in done]
    result = {**sizes, "counts": _count(standings), "standings": standings, "missing": missing, "rows": rows}
    if arguments.out and arguments.out.suffix == ".csv":
        arguments.out.write_text(_write_table(rows))
        arguments.out = None
    emit(result, arguments, _print)


def _read_done(arguments: argparse.Namespace) -> dict[tuple[str, int], Part]:
    """Return the rows and standings of the searches that the file of `--out` holds, by task and seed."""
    if arguments.quick or not (arguments.out and arguments.out.suffix == ".json" and arguments.out.exists()):
        return {}
    kept = json.loads(arguments.out.read_text(encoding="utf-8"))
    keys = dict.fromkeys((one["task"], one["search_seed"]) for one in kept["standings"])

    def select(part: str, key: tuple[str, int]) -> list[dict[str, Any]]:
        return [one for one in kept[part] if (one["task"], one["search_seed"]) == key]

    return {key: (select("rows", key), select("standings", key)) for key in keys}


def _audit(spec: str, seed: int, folder: Path, arguments: argparse.Namespace) -> Part:
    """Search once and measure what is recommended."""
    task = _make_task(spec, arguments.quick)
    settings = {**SEARCH, **(QUICK_SEARCH if arguments.quick else {})}
    search = searched(task, EVOLUTION, seed, folder / "search", arguments, settings=settings)
    measured = _measure(spec, task, search, folder.with_name("test"), arguments)
    (folder / "done").touch()
    rows = [_describe(spec, seed, column, role, row) for column, found in measured.items() for role, row in found]
    standings = [_stand(spec, seed, column, search, found) for column, found in measured.items()]
    return rows, [one | _compare_any(one, rows) for one in standings]


def _make_task(spec: str, quick: bool, **changes: Any) -> autoloss.Task:
    name, *rest = spec.split(":")
    if any("=" not in option for option in rest[1:]):
        raise RequestError(f"--tasks takes name[:metric[:option=value…]], like digits-seg:miou; found {spec!r}.")
    if name == "worst-digit":
        return make_worst_digit(quick)
    options = dict(option.split("=", 1) for option in rest[1:])
    metric = {"metric": rest[0]} if rest else {}
    return autoloss.tasks.get(name, **metric, **{**(QUICK.get(name, {}) if quick else {}), **options, **changes})


class Told(Record):
    """A record whose trainings are printed as they end."""

    def __init__(self, dispatcher: Dispatcher, store: Store, name: str) -> None:
        super().__init__(dispatcher, store)
        self._name = name

    def add(self, job: Train, outcome: Outcome) -> None:
        super().add(job, outcome)
        result = outcome.state.value if outcome.score is None else f"{outcome.score:.4f}"
        tell(f"{self._name}, {job.training.split}, {job.training.step_rule}, {job.loss[:40]}: {result}")


def _measure(
    spec: str, task: autoloss.Task, search: Search, folder: Path, arguments: argparse.Namespace
) -> dict[str, list[tuple[str, Row]]]:
    """Train what is recommended, what was found and the baselines in each column; return column → (role, row)."""
    columns = {rule: rule for rule in COLUMNS if rule in task.step_rules}
    measured = _measure_columns(task, search, columns, folder, arguments)
    if spec.partition(":")[0] not in ADAM:
        return measured
    sgd = _make_task(spec, arguments.quick, **SGD)
    # A store of its own: the jobs are the same.
    return measured | _measure_columns(sgd, search, SGD_COLUMNS, folder.with_name("test-sgd"), arguments)


def _measure_columns(
    task: autoloss.Task,
    search: Search,
    columns: Mapping[str, StepRule],
    folder: Path,
    arguments: argparse.Namespace,
) -> dict[str, list[tuple[str, Row]]]:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        lock_run(folder),
        Store(folder, write=True) as store,
        start_workers(Evaluator(task, {}, Configuration()), Machines(workers=arguments.workers)) as dispatcher,
    ):
        record = Told(dispatcher, store, task.name)
        return {
            column: _measure_column(task, search, rule, record, arguments.test_seeds)
            for column, rule in columns.items()
        }


def _measure_column(
    task: autoloss.Task, search: Search, rule: StepRule, record: Record, seeds: int
) -> list[tuple[str, Row]]:
    recommended = search.recommendation
    roles = {one.loss: "standard" if place == 0 else "baseline" for place, one in enumerate(_list_known(task))}
    if search.top(1):
        roles[search.best.formula] = "found"
    threshold = recommended is not None and bool(recommended.recipe.get("tuned_threshold"))
    entrants = [
        Entrant(loss, loss, baseline=role != "found", step_rule=rule, tuned_threshold=threshold)
        for loss, role in roles.items()
    ]
    classes = tuple((name, WEIGHT) for name, one in task.branches.items() if one.predicts_probabilities)
    if classes and len(task.branches) > 1:
        entrants.append(replace(entrants[0], weights=classes))
    if recommended is not None and not any(_is_recommended(one, search) for one in entrants):
        loss, weights = recommended.loss, _read_weights(search)
        entrants.append(Entrant(loss, loss, step_rule=rule, tuned_threshold=threshold, weights=weights))
    tuned = tune_learning_rates(entrants, task, 0, record)
    others = sort_by_mean([row for row in tuned if roles.get(row.entrant.loss) == "baseline"])[RIVALS:]
    left = {row.entrant for row in others if not _is_recommended(row.entrant, search)}
    kept = [row.entrant for row in tuned if row.entrant not in left]
    rows = record.compare_losses(kept, training_seeds(0, "audit", seeds), TEST)
    return [(roles.get(row.entrant.loss, "recommended"), row) for row in rows]


def _name(entrant: Entrant) -> str:
    return entrant.label if entrant.weights else entrant.loss


def _is_recommended(entrant: Entrant, search: Search) -> bool:
    """Return whether an entrant is what a search recommends, apart from its learning rate and step rule."""
    recommended = search.recommendation
    return recommended is not None and (entrant.loss, entrant.weights) == (recommended.loss, _read_weights(search))


def _read_weights(search: Search) -> tuple[tuple[str, float], ...]:
    """Return the factors on single branches that a search recommends."""
    recommended = search.recommendation
    return () if recommended is None else tuple(recommended.recipe.get("weights", {}).items())


def _list_known(task: autoloss.Task) -> list[Entrant]:
    """Return the standard loss, the baselines that fit the task and, where it has one branch, the losses of the shelf that do."""
    alone = list(task.branches) if len(task.branches) == 1 else []
    fitting = [one.name for branch in alone for one in zoo.SHELF if fits(one, branch, task)]
    known = [*baselines(task), *map(enter_loss, fitting)]
    return list({one.loss: one for one in known}.values())


def _describe(spec: str, seed: int, column: str, role: str, row: Row) -> dict[str, Any]:
    entrant, score = row.entrant, row.score
    values = (
        spec,
        seed,
        column,
        role,
        _name(entrant),
        entrant.learning_rate * entrant.scale,
        score.mean,
        score.interval,
    )
    return dict(zip(CSV_COLUMNS, (*values, len(score.values), score.values, row.reasons), strict=True))


def _stand(spec: str, seed: int, column: str, search: Search, measured: Sequence[tuple[str, Row]]) -> dict[str, Any]:
    """Compare the recommended loss with the best of the others but the found one, and with the standard loss, as losses."""
    recommended = search.recommendation
    mine = next((row for _, row in measured if _is_recommended(row.entrant, search)), None)
    loss = None if mine is None else _name(mine.entrant)
    found = next((row for role, row in measured if role == "found"), None)
    rivals = [row for role, row in measured if role != "found" and row.mean is not None]
    # A known loss under another name shares its trainings.
    others = [row for row in rivals if mine is None or row.score.values != mine.score.values]
    chosen = recommended.recipe.get("step_rule", "recipe") if recommended else "recipe"
    asked = {
        "task": spec,
        "search_seed": seed,
        "column": column,
        "is_recommended_recipe": column == chosen,
        "loss": loss,
    }
    origin = None if recommended is None else recommended.origin
    standard = [row for role, row in measured if role == "standard"]
    over = _compare("standard", mine, [row for row in standard if row is not mine and row.mean is not None])
    known = {"origin": origin, **_compare("recommended", mine, others), **over}
    known_ones = [row for row in rivals if found is None or row.score.values != found.score.values]
    return {**asked, **known, **_compare("found", found, known_ones)}


def _compare(name: str, mine: Row | None, others: Sequence[Row]) -> dict[str, Any]:
    """Return standing, difference and gain of a loss beside the best of the others, under names that begin with the name."""
    prefix = "" if name == "recommended" else f"{name}_"
    if mine is None or mine.mean is None or not others:
        reason = "not trained on every seed" if mine is not None and mine.mean is None else "nothing to compare"
        return {
            f"{prefix}standing": None,
            f"{prefix}reason": reason,
            f"{prefix}difference": None,
            f"{prefix}gain": None,
        }
    best = sort_by_mean(others)[0]
    pairs = {row.entrant: compare_paired(mine.score, row.score) for row in others}
    p_values = correct_by_holm({one.label: pair and pair.p_value for one, pair in pairs.items()})
    pair, p_value = pairs[best.entrant], p_values.get(best.entrant.label)
    assert pair is not None
    assert best.mean is not None
    gain = pair.value / (1 - best.mean) if best.mean < 1 else 0.0
    values = {
        "standing": _place(pair.value, p_value),
        "rival": _name(best.entrant),
        "difference": pair.value,
        "gain": gain,
        "p_value": p_value,
    }
    return {f"{prefix}{key}": value for key, value in {**values, "interval": pair.half_width}.items()}


def _compare_any(standing: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how the recommended loss stands beside the best known one under any optimiser; nothing where another is recommended.

    Args:
        standing: In one column.
        rows: Of the same search, in all columns.
    """
    here = [row for row in rows if (row["column"], row["loss"]) == (standing["column"], standing["loss"])]
    if not standing["is_recommended_recipe"] or not here or here[0]["mean"] is None:
        return {}
    others = [row for row in rows if row["role"] != "found" and row["mean"] is not None]
    others = [row for row in others if row["scores"] != here[0]["scores"]]
    mine, best = Measurements(tuple(here[0]["scores"])), max(others, key=lambda row: row["mean"])
    pairs = {(row["column"], row["loss"]): compare_paired(mine, Measurements(tuple(row["scores"]))) for row in others}
    p_values = correct_by_holm({key: pair and pair.p_value for key, pair in pairs.items()})
    key = best["column"], best["loss"]
    pair, p_value = pairs[key], p_values.get(key)
    assert pair is not None
    return {
        "any_standing": _place(pair.value, p_value),
        "any_rival": f"{best['loss']}, {best['column']}",
        "any_difference": pair.value,
        "any_p_value": p_value,
    }


def _place(difference: float, p_value: float | None) -> str:
    if p_value is None or p_value >= SIGNIFICANT:
        return "equal"
    return "above" if difference > 0 else "below"


def _count(standings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count searches by what they recommend, and where that stands beside the best of an expert's baselines."""
    searches = list(dict.fromkeys((one["task"], one["search_seed"]) for one in standings))
    chosen = [one for one in standings if one["is_recommended_recipe"]]
    by_search = {key: [one for one in standings if (one["task"], one["search_seed"]) == key] for key in searches}
    # A search with fewer columns, of an earlier form of this script, shows no gain of a loss.
    everywhere = [part for part in by_search.values() if len(part) == len(COLUMNS)]
    origins = Counter(one["origin"] for one in chosen)
    places = Counter(one["standing"] for one in chosen)
    anywhere = Counter(one.get("any_standing") for one in chosen)
    return {
        "searches": len(searches),
        **{origin: origins[origin] for origin in ("found", "shelf", "standard")},
        **{place: places[place] for place in ("above", "equal", "below")},
        **{f"{place}_any": anywhere[place] for place in ("above", "equal", "below")},
        "above_everywhere": sum(all(one["standing"] == "above" for one in part) for part in everywhere),
        "gain_everywhere": sum(all(one["standard_standing"] == "above" for one in part) for part in everywhere),
        "found_above_everywhere": sum(all(one["found_standing"] == "above" for one in part) for part in everywhere),
        "gain": _summarise([(one["task"], one["gain"]) for one in chosen if one["gain"] is not None]),
    }


def _summarise(gains: Sequence[tuple[str, float]], count: int = 2000) -> dict[str, float] | None:
    """Return the interquartile mean with the 95 % interval of a bootstrap that is stratified by task."""
    if not gains:
        return None
    groups = [np.array([gain for task, gain in gains if task == name]) for name in dict.fromkeys(t for t, _ in gains)]
    rng = np.random.default_rng(0)
    drawn = [trim_mean(np.concatenate([rng.choice(one, len(one)) for one in groups]), 0.25) for _ in range(count)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"mean": float(trim_mean(np.concatenate(groups), 0.25)), "low": float(low), "high": float(high)}


def _write_table(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_write_cells(row) for row in rows)
    return text.getvalue()


def _write_cells(row: Mapping[str, Any]) -> Iterator[Any]:
    for name in CSV_COLUMNS:
        value = row[name]
        yield "; ".join(map(str, value)) if isinstance(value, tuple | list) else value


def _print(result: dict[str, Any]) -> None:
    for one in result["standings"]:
        star = "*" if one["is_recommended_recipe"] else " "
        difference = "–" if one["difference"] is None else f"{one['difference']:+.4f}"
        place = f"{one['task']}, seed {one['search_seed']}, {one['column']}{star}"
        print(
            f"{place:<60} {one['origin'] or '–':<9} {one['standing'] or '–':<6} {difference:>8} against {one.get('rival')}"
        )
    print(result["counts"])
    if result["missing"]:
        print(f"Not done: {'; '.join(result['missing'])}")


if __name__ == "__main__":
    main()
