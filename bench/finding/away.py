"""Searches on tasks that the package does not contain: at or above what an expert would try first?

python bench/finding/away.py --known --arms gate              is any loss of the shelf ahead of the ladder's best?
python bench/finding/away.py --known --arms default ladder --seeds 3
python bench/finding/away.py --exam 3 --arms default --seeds 3     counted in bench/results/away_exam.json: at most three times
python bench/finding/away.py --known --arms default --set ladder.share=0 --label "no ladder"      with other settings
python bench/finding/away.py --minutes 0 --out bench/results/away.json     figures of what is kept, without training

Tasks, metrics and splits are in `awaytasks.py`. Each arm has 40 training equivalents; a search has its ladder, confirmation and
comparison beside them. What an arm recommends is trained with five new seeds and judged on the audit split, which it never saw,
as are the standard loss at its best learning rate, the ladder's best, and the best losses of the shelf at their best rates (the
gate; the loss of the shelf that counts is chosen on the valid split). Differences are paired over seeds and items. Rows are
appended to `--work` as they come, and what is there is not done again; a later row takes the place of an earlier one.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from autoloss.comparison.entrant import Entrant, Measurements, compare_paired
from autoloss.comparison.noise import estimate_mean
from awayarms import ARMS, BUDGET, GATE, LADDER, STANDARD, Work, perform
from awayaudit import find_p, read_audit
from awaytasks import BY_NAME, TASKS
from output import Figure, emit, make_parser, make_pool, parse_arguments
from searches import tell

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROWS, COUNTER = RESULTS / "away.jsonl", RESULTS / "away_exam.json"
EXAMS = ("exam", "second exam", "third exam")
MOST_EXAMS = 3
SIGNIFICANT = 0.05
QUICK_TASK = "titanic"
SHARES = ("at_or_above_standard", "at_or_above_ladder", "below_standard", "gain_in_errors")
MEASURED = ("known", *EXAMS)
"""Parts whose figures docs/results.md repeats."""
FIGURES = {
    **{
        f"{part} tasks on which a loss of the shelf is significantly ahead of the ladder's best": Figure(
            ("gate_summary", {"part": part}, "shelf_ahead")
        )
        for part in MEASURED
    },
    **{
        f"{part} tasks, default: {name}": Figure(("summary", {"part": part, "arm": "default"}, key), digits, percent)
        for part in MEASURED
        for name, key, digits, percent in (
            ("at or above the tuned standard loss", "at_or_above_standard", 0, True),
            ("at or above the ladder's best less one standard error", "at_or_above_ladder", 0, True),
            ("significantly below the tuned standard loss", "below_standard", 0, True),
            ("median gain over it, in standard errors", "gain_in_errors", 1, False),
        )
    },
}
Row = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, processes=1, seeds=1, first_seed=0, budget=BUDGET)
    which = asked.add_mutually_exclusive_group()
    which.add_argument("--known", action="store_true", help="the tasks by which settings may be chosen; the default")
    which.add_argument(
        "--exam",
        type=int,
        choices=range(1, len(EXAMS) + 1),
        help="those of the first, second or third exam; each run is counted",
    )
    asked.add_argument("--tasks", nargs="+", choices=BY_NAME, help="these alone")
    asked.add_argument("--arms", nargs="+", choices=(GATE, *ARMS), default=[GATE, *ARMS])
    asked.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="further settings of the searches")
    asked.add_argument("--label", default="", help="added to the name of the searches, where --set changes them")
    asked.add_argument("--again", action="store_true", help="also what was done before, with today's code")
    asked.add_argument(
        "--minutes", type=float, default=1e6, help="begin nothing after this time; 0 prints what is kept"
    )
    asked.add_argument("--work", type=Path, help="file of the rows; bench/results/away.jsonl by default")
    quick = {"tasks": [QUICK_TASK], "arms": [GATE, STANDARD, LADDER, "default"], "budget": 3, "processes": 0}
    arguments = parse_arguments(asked, argv, **quick)
    with TemporaryDirectory() as folder:
        # A quick run starts anew: it shall say whether the script works now.
        path = arguments.work or (Path(folder) / "rows.jsonl" if arguments.quick else ROWS)
        works = list(_list_work(arguments)) if arguments.minutes else []
        for part in EXAMS:
            if any(BY_NAME[work.task].part == part and work.arm != GATE for work in works):
                count_exam(COUNTER, arguments.arms, part)
        _run(works, arguments, path)
        rows = read_rows(path)
    found = list(judge(rows))
    result = {"rows": found, "gate": list(describe_gates(rows)), "summary": summarise(found)}
    for part in MEASURED:
        if not any((row["part"], row["arm"]) == (part, "default") for row in result["summary"]):
            result["summary"].append({"part": part, "arm": "default", "searches": 0, **dict.fromkeys(SHARES)})
    emit({**result, "gate_summary": summarise_gates(result["gate"])}, arguments, _print)


def count_exam(path: Path, arms: Sequence[str], part: str = EXAMS[0]) -> None:
    """Write down that an exam is run.

    Raises:
        SystemExit: It was run often enough.
    """
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    today = datetime.date.today().isoformat()
    # What is resumed on the same day is one run.
    own = [run for run in runs if run["part"] == part]
    if not any(run["date"] == today for run in own):
        if len(own) >= MOST_EXAMS:
            raise SystemExit(f"{path.name} counts {len(own)} runs of the {part}, the most that it takes. Use --known.")
        runs.append({"date": today, "part": part, "arms": list(arms)})
        path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


def read_rows(path: Path) -> dict[tuple[str, str, str, int], Row]:
    """Return the rows by task, arm, role and seed; the last of each."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(row["task"], row["arm"], row["role"], row["seed"]): row for row in rows}


def _run(works: Sequence[Work], arguments: Any, path: Path) -> None:
    """Do what is missing, and append each piece's rows when it is done."""
    end = time.time() + 60 * arguments.minutes
    done = {(task, arm, seed) for task, arm, _, seed in read_rows(path)}
    missing = [work for work in works if arguments.again or (work.task, work.name, work.seed) not in done]
    with make_pool(arguments.processes) as pool:
        waiting, running = iter(missing), {}

        def begin() -> None:
            if time.time() < end and (work := next(waiting, None)) is not None:
                running[pool.submit(perform, work)] = work

        for _ in range(max(1, arguments.processes)):
            begin()
        while running:
            future = next(as_completed(running))
            work = running.pop(future)
            _keep(path, future.result())
            tell(f"{work.task}, {work.name}, seed {work.seed}: done")
            begin()


def _keep(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _list_work(arguments: Any) -> Iterator[Work]:
    """Return the gates first, then one seed of all tasks and arms after the other."""
    part = EXAMS[arguments.exam - 1] if arguments.exam else MEASURED[0]
    tasks = arguments.tasks or [task.name for task in TASKS if task.part == part]
    settings = tuple(tuple(text.split("=", 1)) for text in arguments.set)
    plain = Work(tasks[0], GATE, budget=arguments.budget, quick=arguments.quick, label=arguments.label)
    if GATE in arguments.arms:
        yield from (replace(plain, task=task) for task in tasks)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for arm in arguments.arms:
            if arm != GATE:
                yield from (replace(plain, task=task, arm=arm, seed=seed, settings=settings) for task in tasks)


def _find_gate(rows: Mapping[tuple[str, str, str, int], Row], task: str, role: str) -> Measurements | None:
    row = rows.get((task, GATE, role, 0))
    return None if row is None else read_audit(row)


def judge(rows: Mapping[tuple[str, str, str, int], Row]) -> Iterator[dict[str, Any]]:
    """Compare each arm with the gate of its task.

    `audit`, `standard`, `ladder` and `shelf` are means on the audit split; `headroom` is what the shelf is ahead of the ladder's
    best, `p_headroom` belongs to it; `p` to the difference from the tuned standard loss.
    """
    for (task, arm, role, seed), row in rows.items():
        standard, ladder, shelf = (_find_gate(rows, task, name) for name in (STANDARD, LADDER, "shelf"))
        if arm == GATE or standard is None or ladder is None or shelf is None:
            continue
        audit = read_audit(row)
        against, behind, ahead = (
            compare_paired(*pair) for pair in ((audit, standard), (audit, ladder), (shelf, ladder))
        )
        yield {
            "task": task,
            "part": BY_NAME[task].part,
            "arm": role,
            "seed": seed,
            "loss": row["entrant"]["loss"],
            "origin": row["entrant"]["label"],
            "training": _describe(row["entrant"]),
            "audit": audit.mean,
            "standard": standard.mean,
            "ladder": ladder.mean,
            "shelf": shelf.mean,
            "headroom": _subtract(shelf.mean, ladder.mean),
            "p_headroom": find_p(ahead),
            "ladder_error": None if ladder.mean is None else estimate_mean(ladder.finite, ladder.replicates).error,
            "difference": None if against is None else against.value,
            "error": None if against is None else against.error,
            # A recommendation of which a training fails is as bad as one that is surely worse; a search that stops has none.
            "p": 1.0 if "stopped" in row else find_p(against),
            "p_ladder": 1.0 if "stopped" in row else find_p(behind),
            "seconds": row["seconds"],
        }


def _describe(values: Row) -> str:
    """Describe in short how an entrant is trained."""
    return replace(Entrant(**values), label=values["loss"]).spell_out().label


def _subtract(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def describe_gates(rows: Mapping[tuple[str, str, str, int], Row]) -> Iterator[dict[str, Any]]:
    """Say for each task whether a loss of the shelf is ahead of the ladder's best."""
    for task in TASKS:
        given, standard, ladder, shelf = (
            _find_gate(rows, task.name, role) for role in ("given", STANDARD, LADDER, "shelf")
        )
        if given is None or standard is None or ladder is None or shelf is None:
            continue
        ahead = compare_paired(shelf, ladder)
        found = {role: rows[task.name, GATE, role, 0]["entrant"] for role in (LADDER, "shelf")}
        yield {
            "task": task.name,
            "part": task.part,
            "metric": task.metric,
            "given": given.mean,
            "standard": standard.mean,
            "ladder": ladder.mean,
            "ladder_rung": _describe(found[LADDER]),
            "shelf": shelf.mean,
            "shelf_loss": _describe(found["shelf"]),
            "headroom": None if ahead is None else ahead.value,
            "error": None if ahead is None else ahead.error,
            "in_errors": None if ahead is None or not ahead.error else ahead.value / ahead.error,
            "p": find_p(ahead),
            "ladder_over_standard": _subtract(ladder.mean, standard.mean),
        }


def summarise_gates(gates: Sequence[Row]) -> list[dict[str, Any]]:
    """Count the tasks of each part on which a loss of the shelf is significantly ahead of the ladder's best."""

    def count(part: str, fits: Callable[[Row], bool]) -> int:
        return sum(gate["part"] == part and fits(gate) for gate in gates)

    return [
        {
            "part": part,
            "tasks": count(part, lambda gate: True),
            "shelf_ahead": count(part, lambda gate: _is_ahead(gate["headroom"], gate["p"])),
        }
        for part in MEASURED
    ]


def _is_ahead(difference: float | None, p: float | None) -> bool:
    return difference is not None and p is not None and difference > 0 and p < SIGNIFICANT


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the shares of the searches of each arm, its gain over the tuned standard in standard errors, and in the median the
    share that it has of the headroom where the gate is significant."""
    found = []
    for part, arm in dict.fromkeys((row["part"], row["arm"]) for row in rows):
        own = [row for row in rows if (row["part"], row["arm"]) == (part, arm)]
        gains = [
            row["difference"] / row["error"] if row["error"] else 0.0 for row in own if row["difference"] is not None
        ]
        open_tasks = [row for row in own if row["audit"] is not None and _is_ahead(row["headroom"], row["p_headroom"])]
        shares = [(row["audit"] - row["ladder"]) / row["headroom"] for row in open_tasks]
        found.append(
            {
                "part": part,
                "arm": arm,
                "searches": len(own),
                "at_or_above_standard": fmean(
                    (row["difference"] or 0) >= 0 and row["audit"] is not None for row in own
                ),
                "at_or_above_ladder": fmean(
                    row["audit"] is not None and row["audit"] >= row["ladder"] - row["ladder_error"] for row in own
                ),
                "below_standard": fmean(row["p"] < SIGNIFICANT and (row["difference"] or -1) < 0 for row in own),
                "below_ladder": fmean(
                    row["p_ladder"] < SIGNIFICANT and (row["audit"] is None or row["audit"] < row["ladder"])
                    for row in own
                ),
                "ahead_of_ladder": fmean(
                    row["p_ladder"] < SIGNIFICANT and row["audit"] is not None and row["audit"] > row["ladder"]
                    for row in own
                ),
                "gain_in_errors": median(gains) if gains else None,
                "share_of_headroom": median(shares) if shares else None,
            }
        )
    return found


def _print(result: dict[str, Any]) -> None:
    for gate in result["gate"]:
        errors = "" if gate["in_errors"] is None else f" ({gate['in_errors']:+.1f} SE)"
        scores = ", ".join(f"{name} {_figure(gate[name])}" for name in ("given", STANDARD, LADDER, "shelf"))
        print(f"{gate['part']:<12}{gate['task']:<13}{gate['metric']:<15} {scores}{errors}")
        print(f"{'':<25}{gate['ladder_rung']} | {gate['shelf_loss']}")
    for row in result["rows"]:
        print(
            f"{row['task']:<13}{row['arm']:<28} seed {row['seed']}  {_figure(row['audit'])}  tuned {_figure(row['standard'])}, "
            f"ladder {_figure(row['ladder'])}, p = {row['p']:.3f}  {row['origin']}: {row['training']}"
        )
    for arm in (one for one in result["summary"] if one["searches"]):
        shares = [f"{100 * arm[key]:.0f} %" for key in ("at_or_above_standard", "at_or_above_ladder", "below_standard")]
        print(
            f"{arm['part']:<12}{arm['arm']:<34} n = {arm['searches']}: {', '.join(shares)}; gain {_figure(arm['gain_in_errors'])}"
        )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
