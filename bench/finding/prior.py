"""The prior that comes with the package: made from trained losses of known tasks, and tried on each task without that task.

python bench/finding/prior.py --out bench/results/prior.json           tries it
python bench/finding/prior.py --write --out bench/results/prior.json   also writes src/autoloss/proposing/prior.npz
python bench/finding/prior.py --without titanic --write --path P       writes that of the other tasks, for searches of titanic

The losses are those of the table (lossbench.py), so that the prior can be made again from the repository alone. Each task in turn
is left out. Of its losses the prior of the others orders a hundred random pools of 4 and of 12, and all of them. `early`: after 0,
12, 25, 50 and 100 losses of the task itself have been trained at an eighth, the rank correlation with the whole score of (a) the
prior with the weights that these give it, (b) the model of a guided search alone, and (c) both. `unlike` is the same on the task
whose scores have the other sign: what the prior likes best is worst there, so it shows what a prior that is wrong costs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from autoloss.proposing import memory
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.evolution import CAUTION
from autoloss.proposing.memory import Forest, Memory, grow_forest, write_prior
from autoloss.proposing.portrait import describe_tree, find_kind
from autoloss.proposing.score_model import ScoreModel
from autoloss.space.form import BranchForm
from autoloss.space.loss_text import MAIN
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse
from autoloss.training.loop import one_thread
from lossbench import make_task
from losschoices import correlate, describe_rows
from losstable import TABLE, LossRow, read_rows
from output import Figure, emit, make_parser, parse_arguments

OBSERVED = (0, 12, 25, 50, 100)
POOLS, SIZES = 100, (4, 12)
COLUMNS = ("eighth_1", "whole_1", "whole_2")
HELD_OUT = 15
"""Losses that have to be left for a correlation."""
LEAST = 20
"""Losses that a task has to have in the table."""
FIGURES = {
    "rank correlation of the prior with scores of a task that it does not know": Figure(("mean", "correlation")),
    "share of pools of 4 in which its choice beats a random one": Figure(("mean", "better")),
}
Table = Mapping[str, Sequence[LossRow]]


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, repeats=10)
    asked.add_argument("--table", type=Path, default=TABLE)
    asked.add_argument("--without", nargs="*", default=[], help="tasks that are left out of what is written")
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--path", type=Path, default=Path(memory.__file__).with_name("prior.npz"))
    arguments = parse_arguments(asked, argv, repeats=2)
    table = read_table(arguments.table)
    forests = [learn_task(name, rows) for name, rows in table.items()]
    kept = [one for one in forests if one.source not in arguments.without]
    digest = write_prior(kept, arguments.path) if arguments.write else None
    tasks = (
        [] if arguments.without else [try_task(name, rows, forests, arguments.repeats) for name, rows in table.items()]
    )
    means: dict[str, Any] = (
        {key: _mean([one[key] for one in tasks]) for key in ("correlation", "better")} if tasks else {}
    )
    for part, observed in itertools.product(("early", "unlike"), OBSERVED):
        rows = [row for one in tasks for row in one.get(part, ()) if row["observed"] == observed]
        if len(rows) == len(tasks) > 0:
            columns = {name: _mean([row[name] for row in rows]) for name in ("prior", "model", "both")}
            means[part] = [*means.get(part, []), {"observed": observed, **columns}]
    sources = [{"source": one.source, "kind": one.kind, "losses": one.losses} for one in kept]
    emit({"digest": digest, "sources": sources, "tasks": tasks, "mean": means}, arguments, _print)


def read_table(path: Path) -> Table:
    """Return the losses with a whole score of each task that has enough of them."""
    rows = [row for row in read_rows(path) if row.whole_1 is not None and row.eighth_1 is not None]
    names = dict.fromkeys(row.task for row in rows)
    found = {name: [row for row in rows if row.task == name] for name in names}
    return {name: of for name, of in found.items() if len(of) >= LEAST}


@cache
def find_form(task: str) -> BranchForm:
    return make_task(task, False).branches[MAIN].form()


@cache
def portray(formula: str, kind: Any) -> Any:
    with one_thread():
        return describe_tree(parse(formula), kind)


def learn_task(name: str, rows: Sequence[LossRow]) -> Forest:
    """Return what the losses of one task teach."""
    kind = find_kind(find_form(name))
    assert kind is not None
    return grow_forest(name, kind, [portray(row.formula, kind) for row in rows], list(map(_score, rows)))


def try_task(name: str, rows: Sequence[LossRow], forests: Sequence[Forest], repeats: int) -> dict[str, Any]:
    """Order the losses of a task by what the others teach."""
    others = [one for one in forests if one.source != name]
    known = Memory(others, {MAIN: find_form(name)}, OPERATORS)
    found: dict[str, Any] = {"task": name, "losses": len(rows), "known": known.knows(MAIN)}
    if not known.knows(MAIN):
        return found | {"correlation": None, "better": None}
    order = _expect(known, rows, ())
    best = np.argsort(-order)[: max(3, len(rows) // 20)]
    scores = np.array(list(map(_score, rows)))
    found |= {
        "correlation": correlate(list(order), list(scores)),
        "best_twentieth": float(scores[best].mean()),
        "all": float(scores.mean()),
        "sources": {
            forest.source: correlate(list(column), list(scores))
            for forest, column in zip(
                [one for one in others if one.kind == find_kind(find_form(name))],
                known.predict(MAIN, [row.formula for row in rows]).T,
                strict=True,
            )
        },
    }
    for size in SIZES:
        wins = list(_draw_pools(name, order, scores, size))
        found |= {f"better_{size}": fmean(wins)}
    found["better"] = found["better_4"]
    counts = [observed for observed in OBSERVED if len(rows) >= observed + HELD_OUT]
    opposite = [replace(row, **{column: -(getattr(row, column) or 0.0) for column in COLUMNS}) for row in rows]
    found["early"] = [_try_early(known, rows, observed, repeats) for observed in counts]
    found["unlike"] = [_try_early(known, opposite, observed, repeats) for observed in counts]
    return found


def _try_early(known: Memory, rows: Sequence[LossRow], observed: int, repeats: int) -> dict[str, Any]:
    tried: dict[str, list[float | None]] = {"prior": [], "model": [], "both": []}
    for repeat in range(repeats):
        order = derive_generator(repeat, "prior", observed).sample(list(rows), len(rows))
        seen, held = order[:observed], order[observed:]
        scores = list(map(_score, held))
        prior = _expect(known, held, seen)
        tried["prior"].append(correlate(list(prior), scores))
        if observed:
            signatures, seen_signatures = describe_rows(held), describe_rows(seen)
            eighths = [row.eighth_1 or 0 for row in seen]
            alone = ScoreModel(seen_signatures, eighths).predict(signatures)[0]
            beside = ScoreModel(seen_signatures, eighths, expected=_expect(known, seen, seen))
            both = prior + CAUTION * beside.predict(signatures)[0]
            tried["model"].append(correlate(list(alone), scores))
            tried["both"].append(correlate(list(both), scores))
    return {"observed": observed, **{name: _mean(values) for name, values in tried.items()}}


def _expect(known: Memory, rows: Sequence[LossRow], seen: Sequence[LossRow]) -> Any:
    weights = known.weigh(MAIN, [row.formula for row in seen], [row.eighth_1 or 0 for row in seen])
    return (known.predict(MAIN, [row.formula for row in rows]) * weights).sum(axis=1)


def _draw_pools(name: str, order: Any, scores: Any, size: int) -> Iterator[float]:
    """Yield 1 where the loss that comes first in a pool is better than another of the pool, 1/2 where it is as good."""
    rng = derive_generator(0, "pools", name, size)
    for _ in range(POOLS):
        pool = rng.sample(range(len(scores)), size)
        chosen = max(pool, key=lambda one: order[one])
        other = rng.choice([one for one in pool if one != chosen])
        yield float(scores[chosen] > scores[other]) + 0.5 * float(scores[chosen] == scores[other])


def _score(row: LossRow) -> float:
    whole = [value for value in (row.whole_1, row.whole_2) if value is not None]
    return fmean(whole)


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def _print(result: Mapping[str, Any]) -> None:
    for one in result["tasks"]:
        if not one["known"]:
            print(f"{one['task']}: no other task has such leaves")
            continue
        print(
            f"{one['task']}: {one['losses']} losses; ρ {one['correlation']:.2f}; best twentieth {one['best_twentieth']:.3f}, all "
            f"{one['all']:.3f}; choice of 4 better in {one['better_4']:.2f}, of 12 in {one['better_12']:.2f}"
        )
        for row in one["early"]:
            print(
                f"  after {row['observed']:>3}: "
                + "  ".join(f"{name} {_format(row[name])}" for name in ("prior", "model", "both"))
            )
    print({key: value for key, value in result["mean"].items() if not isinstance(value, list)}, result["digest"])
    for part in ("early", "unlike"):
        for row in result["mean"].get(part, ()):
            texts = (f"{name} {_format(row[name])}" for name in ("prior", "model", "both"))
            print(f"{part}, mean over tasks after {row['observed']:>3}: {'  '.join(texts)}")


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
