"""Speed of rejection: the compiled engine with its screen, and the reference, on the same candidates.

Three measurements, each process on one thread. *Simulated*: random trees that hold both roles, have a gradient and a new
direction-aware key are decided by the reference and by the engine, one after the other, so that other load affects both; with
all processes at work, and for a third of the trees with one alone, since processes share caches and memory.
*Explored*: all that is drawn, from a cold cache that the processes share, as in a search. *Screen*: the screened decision
and the engine's own full run, on several branches and on new and mutated trees; `agreement.py` compares with the reference.

Rates are losses per minute of processor time, times the number of processes; for the explored losses also by the wall clock.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autoloss
from autoloss.proposing.mutation import Kind, draw_attempt, mutate
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.protocol import Verdict, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.rejection.screen import screen_losses
from autoloss.settings import EvolutionSettings, ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.parsing import parse
from output import Figure, emit, make_parser, make_pool, parse_arguments

CLASSES, SIDE, SAMPLES, DISCS = 21, 32, 5, 8
SEED = 0
KEY_BYTES = 8
"""Size of a direction-aware key."""
MUTATED = 0.5
"""Share of mutations of accepted losses among the candidates of the screen's measurement."""
BRANCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "scenes, mIoU": ("", {}),
    "digits-seg, mIoU": ("digits-seg", {"metric": "miou", "size": 16, "train": 64, "valid": 16, "test": 16}),
    "digits-seg, BF1": ("digits-seg", {"metric": "bf1", "size": 16, "train": 64, "valid": 16, "test": 16}),
    "digits-seg, gAcc": ("digits-seg", {"metric": "gacc", "size": 16, "train": 64, "valid": 16, "test": 16}),
    "tabular, F1": ("tabular", {"metric": "f1", "data": "breast_cancer_hard"}),
    "tabular, AUC": ("tabular", {"metric": "auc", "data": "breast_cancer"}),
    "tabular, balanced accuracy": ("tabular", {"metric": "balanced_accuracy", "data": "wine"}),
    "tabular, R²": ("tabular", {"metric": "r2", "data": "diabetes"}),
}


FIGURES = {
    "simulated per minute, reference": Figure(("simulated_per_minute", "reference"), digits=0),
    "simulated per minute, engine": Figure(("simulated_per_minute", "engine"), digits=0),
    "ratio": Figure(("ratio",), digits=0),
    "ratio with one process at work": Figure(("ratio_one_process",), digits=0),
    "explored per minute of processor time": Figure(("explored_per_minute",), digits=-3),
    "explored per minute by the wall clock": Figure(("explored_per_minute_wall",), digits=-3),
    "seconds per accepted loss": Figure(("seconds_per_accept",)),
    "accepted by the reference": Figure(("reference_accepts",)),
}
ROUND = 500
"""Draws of one process before it learns the keys that others met."""
Explored = tuple[Counter[str], dict[str, float], list[bytes]]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    processes, streams = arguments.processes, max(1, arguments.processes)
    began = time.monotonic()
    result: dict[str, Any] = {"processes": processes, "steps": ProtocolSettings().steps}
    result["shape"] = [SAMPLES, CLASSES, SIDE, SIDE]
    with make_pool(processes, start) as pool:
        alone = _compared(pool, max(1, arguments.compared // 3), 1)
        result |= {**_compared(pool, arguments.compared, streams), "ratio_one_process": alone["ratio"]}
        result |= measure_explored(pool, arguments.drawn, streams)
        names = arguments.branches
        tables = pool.map(screen, names, [arguments.screen_seconds] * len(names))
        result["screen"] = dict(zip(names, tables, strict=True))
    result["seconds"] = round(time.monotonic() - began, 1)
    emit(result, arguments, _print)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--processes", type=int, default=2, help="0 works in this process")
    parser.add_argument("--compared", type=int, default=48, help="candidates that the reference decides as well")
    parser.add_argument("--drawn", type=int, default=100_000, help="draws from a cold cache, over all processes")
    parser.add_argument(
        "--screen-seconds", type=float, default=6.0, help="processor time for each branch of the screen"
    )
    parser.add_argument("--branches", nargs="*", choices=list(BRANCHES), default=list(BRANCHES), help="of the screen")
    return parse_arguments(parser, argv, compared=16, drawn=20_000, screen_seconds=1.0)


def start() -> None:
    """Make a process ready, so that neither compiling nor loading is measured."""
    torch.set_num_threads(1)
    engine, tree = scenes(), parse("-y * log(p)")
    engine.gradients([tree])
    screen_losses(engine, [tree])
    simulate(tree, engine.branch, engine.reference, ProtocolSettings(steps=1))


@cache
def scenes(side: int = SIDE, classes: int = CLASSES) -> CompiledEngine:
    """Return the engine on a background with discs of eight of the other classes, and coarse random logits."""
    generator = torch.Generator().manual_seed(SEED)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    samples: list[Sample] = []
    for _ in range(SAMPLES):
        target = torch.zeros(side, side, dtype=torch.long)
        for label in (torch.randperm(classes - 1, generator=generator)[:DISCS] + 1).tolist():
            row, column, radius = torch.randint(2, side - 2, (3,), generator=generator).tolist()
            target[(rows - row) ** 2 + (columns - column) ** 2 <= (3 + radius / 6) ** 2] = label
        coarse = torch.randn(1, classes, side // 4, side // 4, generator=generator)
        logits = 0.3 * F.interpolate(coarse, size=(side, side), mode="bilinear")
        samples.append(Sample(logits, {"target": target.unsqueeze(0)}))
    return make_engine(ActivatedBranch(measure=mean_iou, channels=classes), samples)


def mean_iou(prediction: Tensor, target: Tensor) -> float:
    """Average the intersection over union of the target's classes."""
    count = prediction.shape[1]
    # As the metrics of the package do, since argmax takes three times as long.
    pairs = (target * count + prediction.max(dim=1).indices).flatten().numpy()
    confusion = np.bincount(pairs, minlength=count * count).reshape(count, count)
    hit, wanted = confusion.diagonal(), confusion.sum(axis=1)
    there = wanted > 0
    return float((hit[there] / (wanted + confusion.sum(axis=0) - hit)[there]).mean())


def make_engine(branch: Branch, samples: list[Sample]) -> CompiledEngine:
    return CompiledEngine(branch, measure_reference(branch, samples), ProtocolSettings())


class Memory:
    """Losses met before, by canonical text and by direction-aware key, and the time of each stage."""

    def __init__(self, engine: CompiledEngine) -> None:
        self.engine = engine
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.fresh: list[bytes] = []
        """Keys that were new, in order."""
        self._texts: set[str] = set()
        self._keys: set[bytes] = set()
        self._last = time.process_time()

    def learn(self, keys: Iterable[bytes]) -> None:
        """Take over what others met, and begin to count and to time anew."""
        self._keys.update(keys)
        self.counts, self.seconds, self.fresh = Counter(), defaultdict(float), []
        self._last = time.process_time()

    def new(self, tree: Expression) -> Expression | None:
        """Return the tree to simulate, or None where it is decided without a simulation."""
        self.lap("drawing")
        self.counts["drawn"] += 1
        holds = tree.holds(self.engine.branch.leaves_and_roles)
        tree = tree.canonical() if holds else tree
        text = str(tree)
        known = text in self._texts
        self.lap("structure and text")
        if not holds:
            return self.counted("no prediction or no target")
        if known:
            return self.counted("text known")
        self._texts.add(text)
        (gradient,) = self.engine.gradients([tree])
        self.lap("gradient")
        if not gradient.finite or gradient.zero:
            return self.counted("gradient zero or not finite")
        key = gradient.key(text)
        if key in self._keys:
            return self.counted("key known")
        self._keys.add(key)
        self.fresh.append(key)
        self.counts["simulated"] += 1
        return tree

    def counted(self, reason: str) -> None:
        self.counts[reason] += 1

    def lap(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[stage] += now - self._last
        self._last = now


def draws(engine: CompiledEngine, stream: int, first: int = 0) -> Iterator[Expression]:
    """Draw fresh trees as the search does, from the attempt `first` on."""
    alphabet, settings = Alphabet(engine.branch.leaves_and_roles), EvolutionSettings()
    for number in itertools.count(first):
        yield draw_attempt(stream, "main", Kind.FRESH, number, None, alphabet, settings, SEED)


def _compared(pool: Executor, count: int, processes: int) -> dict[str, Any]:
    rows: list[tuple[bool, bool, float, float]] = []
    parts = [count // processes] * processes
    for found in pool.map(compare, range(processes), parts):
        rows += found
    table = Counter((reference, engine) for reference, engine, _, _ in rows)
    reference, engine = (sum(row[column] for row in rows) for column in (2, 3))
    rate = 60 * processes * len(rows)
    return {
        "candidates": len(rows),
        "simulated_per_minute": {"reference": rate / reference, "engine": rate / engine},
        "ratio": reference / engine,
        "reference_accepts": table[True, True] + table[True, False],
        "false_accepts": table[False, True],
        "false_rejects": table[True, False],
    }


def compare(stream: int, count: int) -> list[tuple[bool, bool, float, float]]:
    """Decide candidates twice; per candidate what reference and engine say and their processor time."""
    engine = scenes()
    memory = Memory(engine)
    rows: list[tuple[bool, bool, float, float]] = []
    for drawn in draws(engine, stream):
        tree = memory.new(drawn)
        if tree is None:
            continue
        found, engine_seconds = _timed(lambda tree=tree: screen_losses(engine, [tree])[0])
        expected, reference_seconds = _timed(
            lambda tree=tree: simulate(tree, engine.branch, engine.reference, engine.settings)
        )
        rows.append((expected.passed, found.passed, reference_seconds, engine_seconds))
        if len(rows) >= count:
            break
    return rows


def _timed(decide: Callable[[], Verdict]) -> tuple[Verdict, float]:
    began = time.process_time()
    verdict = decide()
    return verdict, time.process_time() - began


def measure_explored(pool: Executor, count: int, processes: int) -> dict[str, Any]:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    rounds = [(stream, first) for first in range(0, count // processes, ROUND) for stream in range(processes)]
    known = bytearray()
    running: set[Future[Explored]] = set()
    # As in a search, nobody waits for anybody: whoever has finished gets the next round and all keys of that time.
    while rounds or running:
        while rounds and len(running) < processes:
            running.add(pool.submit(explore, *rounds.pop(0), bytes(known)))
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for found, spent, fresh in (one.result() for one in done):
            counts += found
            seconds.update(spent)
            known += b"".join(fresh)
    wall = time.monotonic() - began
    busy = sum(seconds.values())
    return {
        "explored": counts["drawn"],
        "explored_per_minute": 60 * processes * counts["drawn"] / busy,
        "explored_per_minute_wall": 60 * counts["drawn"] / wall,
        "simulated_per_minute_while_exploring": 60 * processes * counts["simulated"] / busy,
        "seconds_per_accept": busy / counts["passed"] if counts["passed"] else None,
        "funnel": dict(counts.most_common()),
        "seconds_by_stage": {stage: round(spent, 3) for stage, spent in seconds.most_common()},
    }


@cache
def _memory() -> Memory:
    """Return the losses that this process has met."""
    return Memory(scenes())


def explore(stream: int, first: int, known: bytes) -> Explored:
    """Draw and decide one round of losses.

    Args:
        known: The keys that any process met before, one after the other.

    Returns:
        What became of the losses, the time of each stage, and the keys that were new.
    """
    memory = _memory()
    memory.learn(known[at : at + KEY_BYTES] for at in range(0, len(known), KEY_BYTES))
    for drawn in itertools.islice(draws(memory.engine, stream, first), ROUND):
        tree = memory.new(drawn)
        if tree is None:
            continue
        (verdict,) = screen_losses(memory.engine, [tree])
        if verdict.passed:
            memory.counts["passed"] += 1
            memory.lap("simulated: passed")
        elif verdict.score is None and verdict.reason is Reason.LOW_GAIN:
            memory.counts["dropped early"] += 1
            memory.lap("simulated: dropped early")
        else:
            memory.counts["rejected at the end"] += 1
            memory.lap("simulated: to the end in vain")
    return memory.counts, dict(memory.seconds), memory.fresh


def screen(name: str, seconds: float) -> dict[str, int]:
    """Compare the screened decision with the engine's full run, on fresh trees and on mutations of accepted ones."""
    engine = _branch(name)
    memory, rng = Memory(engine), Random(SEED)
    alphabet = Alphabet(engine.branch.leaves_and_roles)
    accepted: list[Expression] = []
    counts: Counter[str] = Counter(candidates=0, accepts=0, lost=0, gained=0, dropped_early=0)
    began = time.process_time()
    fresh = draws(engine, 0)
    while time.process_time() - began < seconds:
        mutated = bool(accepted) and rng.random() < MUTATED
        tree = memory.new(mutate(rng.choice(accepted), alphabet, rng) if mutated else next(fresh))
        if tree is None or len(tree.operators) > engine.operator_cap:
            continue
        (found,), (full,) = screen_losses(engine, [tree]), engine.verdicts([tree])
        counts["candidates"] += 1
        counts["accepts"] += full.passed
        counts["lost"] += full.passed and not found.passed
        counts["gained"] += found.passed and not full.passed
        counts["dropped_early"] += found.reason is Reason.LOW_GAIN and found.score is None
        if full.passed:
            accepted.append(tree)
    return dict(counts)


def _branch(name: str) -> CompiledEngine:
    task_name, options = BRANCHES[name]
    if not task_name:
        return scenes()
    task = autoloss.tasks.get(task_name, **options)
    return make_engine(task.branches["main"], list(task.samples(SAMPLES, SEED)["main"]))


def _print(result: dict[str, Any]) -> None:
    rates = result["simulated_per_minute"]
    print(f"{result['machine']['processor']}, {result['processes']} processes, {result['machine']['date']}")
    print(f"simulated per minute: reference {rates['reference']:.0f}, engine {rates['engine']:.0f}, ", end="")
    print(f"ratio {result['ratio']:.1f} on {result['candidates']} candidates, ", end="")
    print(f"{result['ratio_one_process']:.1f} with one process at work")
    print(f"  the reference accepts {result['reference_accepts']}; ", end="")
    print(f"false accepts {result['false_accepts']}, false rejects {result['false_rejects']}")
    print(f"explored per minute: {result['explored_per_minute']:.0f} of {result['explored']} draws ", end="")
    print(f"(wall clock here and now: {result['explored_per_minute_wall']:.0f})")
    for title in ("funnel", "seconds_by_stage"):
        print(f"  {title.replace('_', ' ')}: " + ", ".join(f"{name} {value}" for name, value in result[title].items()))
    print("screen against the engine's full run")
    for name, row in result["screen"].items():
        print(f"  {name:<28}" + ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
