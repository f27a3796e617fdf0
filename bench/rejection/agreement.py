"""Agreement of screened decisions with the engine's full run on every metric, and of the engine with the reference.

Two measurements. *Metrics*: on each place of `places.py`, the screened decision and the engine's own full run decide the same trees
until enough passed, for several sample seeds; some of those that passed are decided by the reference as well. Each place is stored
in `results/agreement_metrics.jsonl` when it is done; `--measure` goes on with those that are missing.

*Reference*: whether the engine, with screen and cache, decides as the reference does on at least 600 of its accepts. The reference
takes hours, so its decisions are made once and stored: `--decide` adds to `results/reference_decisions.jsonl`, one line per tree,
and can be interrupted and resumed. Without it the engine decides the same trees, and the table says at which stage it differs.

Trees are new ones and, as in a search, mutations of accepted ones. Trees whose gradient vanishes or was met before are included in
the second, so that these stages are tested too.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch

from autoloss import zoo
from autoloss.proposing.mutation import mutate
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.engine import Engine
from autoloss.rejection.protocol import Verdict, conclude, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceDescent, simulate
from autoloss.rejection.screen import LARGE_PREDICTION, bound_gains, screen_losses
from autoloss.settings import ProtocolSettings
from autoloss.space.expression import CONSTANT, Alphabet, Expression
from autoloss.space.parsing import parse
from output import Figure, emit, make_parser, parse_arguments
from places import PLACES
from rejection import Memory, draws, scenes

MEASURED = Path(__file__).parents[1] / "results" / "agreement_metrics.jsonl"
SEEDS = (11, 12)
"""Seed of the samples; other ones than those on which the screen's rule was chosen."""
CHECKED = 2
"""Losses that passed, at each place and seed, which the reference decides as well."""
QUICK_PLACES = ("scenes from one class, worst IoU", "one-channel masks, F2", "rows, Kendall's τ")
DECISIONS = Path(__file__).parents[1] / "results" / "reference_decisions.jsonl"
MUTATED = 0.5
"""Share of mutations of accepted losses."""
FIGURES = {
    "reference accepts": Figure(("reference_accepts",)),
    "false accepts": Figure(("false_accepts",)),
    "false rejects": Figure(("false_rejects",)),
    "places": Figure(("places",)),
    "largest share lost at a place": Figure(("largest_share_lost",), digits=1, percent=True),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--decide", type=int, metavar="ACCEPTS", help="run the reference until it accepted this many")
    parser.add_argument("--stream", type=int, default=0, help="the sequence of trees that --decide continues")
    parser.add_argument("--decisions", type=Path, default=DECISIONS, help="the file of the reference's decisions")
    parser.add_argument("--trees", type=int, help="only the first so many trees")
    parser.add_argument("--measure", action="store_true", help="measure the places that are missing, and store them")
    parser.add_argument(
        "--accepts", type=int, default=150, help="losses that pass, for each place and seed; rows: twice as many"
    )
    parser.add_argument("--places", nargs="*", choices=list(PLACES), help="only these, measured now and not stored")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="the file of the places")
    arguments = parse_arguments(parser, argv, trees=150, accepts=15, places=list(QUICK_PLACES))
    torch.set_num_threads(1)
    if arguments.measure:
        measure_missing(arguments.measured, arguments.accepts)
    if arguments.decide:
        decide(arguments.decisions, arguments.stream, arguments.decide)
        return
    if arguments.places is None:
        rows = _read(arguments.measured)
    else:
        rows = [measure_place(name, SEEDS[0], arguments.accepts) for name in arguments.places]
    result = agreement(_read(arguments.decisions), arguments.trees)
    emit({**result, **summarise(rows)}, arguments, _print)


def _print(result: dict[str, Any]) -> None:
    print(f"{result['candidates']} trees; the reference accepts {result['reference_accepts']}")
    print(f"false accepts {result['false_accepts']}, false rejects {result['false_rejects']}")
    for stage, row in result["stages"].items():
        print(f"  {stage:<28} decided {row['decided']}, of which the reference accepts {row['reference_accepts']}")
    for row in result["differences"]:
        print(f"  {row}")
    for name, row in result["metrics"].items():
        print(f"  {name:<38}" + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.items()))


def measure_missing(path: Path, accepts: int) -> None:
    """Measure what the file does not hold yet; it can be interrupted and resumed."""
    known = {(row["place"], row["seed"]) for row in _read(path)}
    for seed in SEEDS:
        for name in PLACES:
            if (name, seed) not in known:
                row = measure_place(name, seed, accepts)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def measure_place(name: str, seed: int, accepts: int) -> dict[str, Any]:
    """Decide trees until so many passed, screened and in full, one after the other."""
    branch, samples = PLACES[name].make(seed)
    engine = CompiledEngine(branch, measure_reference(branch, samples), ProtocolSettings())
    alphabet, rng, memory, fresh = Alphabet(branch.leaves_and_roles), Random(seed), Memory(engine), draws(engine, seed)
    elements = samples[0].prediction.numel()
    wanted = accepts * (1 if elements >= LARGE_PREDICTION else 2)
    accepted: list[Expression] = []
    lost: list[str] = []
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    while len(accepted) < wanted:
        mutated = bool(accepted) and rng.random() < MUTATED
        tree = memory.new(mutate(rng.choice(accepted), alphabet, rng) if mutated else next(fresh))
        if tree is None or len(tree.operators) > engine.operator_cap:
            continue
        verdicts: dict[str, Verdict] = {}
        # In turn, so that neither always finds what the other left in the cache.
        for way in sorted(("screened", "full"), reverse=counts["candidates"] % 2 == 1):
            began = time.process_time()
            (verdicts[way],) = screen_losses(engine, [tree]) if way == "screened" else engine.verdicts([tree])
            seconds[way] += time.process_time() - began
        found, full = verdicts["screened"], verdicts["full"]
        counts["candidates"] += 1
        counts["false_accepts"] += found.passed and not full.passed
        counts["early"] += found.reason is Reason.LOW_GAIN and found.score is None
        if full.passed:
            accepted.append(tree)
            if not found.passed:
                lost.append(str(tree))
    checked = accepted[:: max(1, len(accepted) // CHECKED)][:CHECKED]
    refused = [tree for tree in checked if not simulate(tree, branch, engine.reference, engine.settings).passed]
    return {
        "place": name,
        "seed": seed,
        "elements": elements,
        "candidates": counts["candidates"],
        "accepted": len(accepted),
        "lost": lost,
        "false_accepts": counts["false_accepts"],
        "early": counts["early"],
        "milliseconds": {way: round(1e3 * spent / counts["candidates"], 2) for way, spent in seconds.items()},
        "reference_checked": len(checked),
        "reference_refused": [str(tree) for tree in refused],
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the seeds of each place."""
    table: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(row["place"] for row in rows):
        mine = [row for row in rows if row["place"] == name]
        candidates, accepted = (sum(row[key] for row in mine) for key in ("candidates", "accepted"))
        spent = {way: sum(row["milliseconds"][way] * row["candidates"] for row in mine) for way in ("full", "screened")}
        table[name] = {
            "elements": mine[0]["elements"],
            "candidates": candidates,
            "accepted": accepted,
            "lost": sum(len(row["lost"]) for row in mine),
            "false_accepts": sum(row["false_accepts"] + len(row["reference_refused"]) for row in mine),
            "rejected_early": round(sum(row["early"] for row in mine) / max(1, candidates - accepted), 3),
            "speed_ratio": round(spent["full"] / spent["screened"], 2),
        }
    shares = [row["lost"] / row["accepted"] for row in table.values()]
    return {"metrics": table, "places": len(table), "largest_share_lost": max(shares, default=None)}


def decide(path: Path, stream: int, accepts: int) -> None:
    """Go on with the reference's decisions of a stream until it accepted so many."""
    engine = scenes()
    known = [row for row in _read(path) if row["stream"] == stream]
    accepted = 0
    with path.open("a", encoding="utf-8") as file:
        for number, tree in enumerate(trees(engine, stream, known)):
            if number >= len(known):
                known.append(_row(stream, tree, reference_verdict(tree, engine)))
                file.write(json.dumps(known[-1]) + "\n")
                file.flush()
            accepted += known[number]["passed"]
            if accepted >= accepts:
                return


def reference_verdict(tree: Expression, engine: Engine) -> Verdict:
    """Decide as `simulate` does, but leave out samples that cannot save a loss: an exact bound, and two fifths of the time.

    Such a rejection has no score.
    """
    descent = ReferenceDescent(tree, engine.branch, engine.reference, engine.settings)
    return conclude(descent, engine.settings, bound_gains(engine.reference))


def trees(engine: Engine, stream: int, decided: list[dict[str, Any]]) -> Iterator[Expression]:
    """Draw trees that hold both roles, each text once; those of stream 0 begin with the zoo.

    Args:
        decided: The rows of the trees drawn so far, which the caller extends: the accepted ones are mutated.
    """
    alphabet, rng = Alphabet(engine.branch.leaves_and_roles), Random(stream)
    fresh = draws(engine, stream)
    texts: set[str] = set()
    published = [] if stream else [row.formula for row in zoo.entries.ENTRIES.values() if row.formula]
    accepted: list[str] = []
    seen = 0
    while True:
        accepted += [row["formula"] for row in decided[seen:] if row["passed"]]
        seen = len(decided)
        if published:
            tree = parse(published.pop(0))
        elif accepted and rng.random() < MUTATED:
            tree = mutate(parse(rng.choice(accepted)), alphabet, rng)
        else:
            tree = next(fresh)
        if not tree.leaves <= {*engine.branch.leaves_and_roles, CONSTANT}:
            continue
        if not tree.holds(engine.branch.leaves_and_roles) or len(tree.operators) > engine.operator_cap:
            continue
        tree = tree.canonical()
        if str(tree) not in texts:
            texts.add(str(tree))
            yield tree


def _row(stream: int, tree: Expression, verdict: Verdict) -> dict[str, Any]:
    reason = None if verdict.reason is None else verdict.reason.name
    score = None if verdict.score is None else round(verdict.score, 6)
    return {"stream": stream, "formula": str(tree), "passed": verdict.passed, "reason": reason, "score": score}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def agreement(rows: list[dict[str, Any]], count: int | None) -> dict[str, Any]:
    """Decide the same trees with the engine, each stream from a cold cache."""
    engine = scenes()
    began = time.process_time()
    verdicts: dict[tuple[int, bytes], Verdict] = {}
    decided: Counter[str] = Counter()
    accepts: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    for row in rows[:count]:
        tree = parse(row["formula"])
        (gradient,) = engine.gradients([tree])
        key = (row["stream"], gradient.key(str(tree)))
        if not gradient.finite or gradient.zero:
            stage, verdict = "gradient zero or not finite", Verdict(Reason.NO_GRADIENT)
        elif key in verdicts:
            stage, verdict = "key known", verdicts[key]
        else:
            (verdict,) = screen_losses(engine, [tree])
            verdicts[key] = verdict
            early = verdict.reason is Reason.LOW_GAIN and verdict.score is None
            stage = "dropped early" if early else "protocol to its end"
        decided[stage] += 1
        accepts[stage] += row["passed"]
        if verdict.passed != row["passed"]:
            found = {"stage": stage, "score": verdict.score, "reason": verdict.reason and verdict.reason.name}
            expected = {"passed": row["passed"], "score": row["score"]}
            differences.append({"formula": row["formula"], "reference": expected, "engine": found})
    false_rejects = sum(found["reference"]["passed"] for found in differences)
    return {
        "candidates": sum(decided.values()),
        "reference_accepts": sum(accepts.values()),
        "false_accepts": len(differences) - false_rejects,
        "false_rejects": false_rejects,
        "stages": {
            stage: {"decided": decided[stage], "reference_accepts": accepts[stage]} for stage in sorted(decided)
        },
        "differences": differences,
        "seconds": round(time.process_time() - began, 1),
    }


if __name__ == "__main__":
    main()
