"""Trees with one key: have they one verdict?

python bench/rejection/keys.py --out bench/results/keys.json

A search looks up the verdict of a tree by the key of its gradient before it runs the protocol. Here every tree runs it, new ones
and mutations of losses that passed, on branches of several kinds: probabilities, numbers around 0, and numbers that all lie above
the first predictions, as prices and counts do. A key that has both verdicts would have given some of its trees the wrong one.
Keys of numbers also hold gradients on both sides of the target; those of the first predictions alone stand beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import time
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from autoloss import zoo
from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.proposing.mutation import mutate
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.scale import move_to_ideal
from autoloss.settings import Configuration, ProtocolSettings
from autoloss.space.branch import Sample
from autoloss.space.expression import Alphabet
from autoloss.space.parsing import parse
from output import Figure, emit, make_parser, parse_arguments
from places import PLACES, Place
from rejection import draws

FIGURES = {
    "trees": Figure(("trees",)),
    "keys of several trees": Figure(("shared",)),
    "of these with both verdicts": Figure(("mixed",)),
    "with both verdicts, by the first predictions alone": Figure(("mixed_first",)),
}
ROWS = 128
MOST = 6
"""Trees of one key that are counted."""
Verdicts = defaultdict[bytes, dict[str, bool]]
"""Key → canonical text → whether the tree passes."""


def _measure_logs(prediction: Tensor, target: Tensor) -> float:
    return -float((prediction.clamp(min=0).log1p() - target.log1p()).square().mean().sqrt())


def _draw_counts(generator: torch.Generator) -> Sample:
    count = torch.poisson(torch.randn(ROWS, 1, generator=generator).clamp(max=2).exp(), generator=generator)
    return Sample(0.1 * torch.randn(ROWS, 1, generator=generator), {"target": count})


def _draw_prices(generator: torch.Generator) -> Sample:
    price = (0.6 * torch.randn(ROWS, 1, generator=generator)).exp()
    return Sample(0.1 * torch.randn(ROWS, 1, generator=generator), {"target": price})


def _measure_proportion(prediction: Tensor, target: Tensor) -> float:
    return -float(((prediction - target).abs() / target).mean())


KINDS = {
    **{
        name: PLACES[name]
        for name in (
            "digits-seg, miou",
            "tabular, f1",
            "tabular, r2",
            "figures-pose",
            "rows, four labels, average precision",
        )
    },
    "counts, RMSLE": Place(own=_measure_logs, activation="none", draw=_draw_counts),
    "prices, MAPE": Place(own=_measure_proportion, activation="none", draw=_draw_prices),
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__)
    asked.add_argument("--seconds", type=float, default=40.0, help="processor time for each kind of branch")
    arguments = parse_arguments(asked, argv, seconds=2.0)
    rows = [{"kind": name, **count_keys(place, arguments.seconds)} for name, place in KINDS.items()]
    totals = {name: sum(row[name] for row in rows) for name in ("trees", "shared", "mixed", "mixed_first")}
    emit({**totals, "rows": rows}, arguments, _print)


def count_keys(place: Place, seconds: float) -> dict[str, int]:
    """Test trees, each by itself, and count keys: `mixed_first` is of those of the first predictions alone."""
    branch, samples = place.make(0)
    reference, configuration, rng = measure_reference(branch, samples), Configuration(), Random(0)
    engine = CompiledEngine(branch, reference, ProtocolSettings())
    partly = (
        CompiledEngine(branch, move_to_ideal(branch, reference, 0), ProtocolSettings()) if branch.overshoots else None
    )
    alphabet, fresh = Alphabet(branch.leaves_and_roles), draws(engine, 0)
    channels = samples[0].prediction.shape[1]
    passed = [parse(entry.formula) for entry in zoo.SHELF if branch.fits(entry.activation, channels)]
    found: tuple[Verdicts, Verdicts] = (defaultdict(dict), defaultdict(dict))
    end = time.process_time() + seconds
    while time.process_time() < end:
        tree = mutate(rng.choice(passed), alphabet, rng) if passed and rng.random() < 0.5 else next(fresh)
        # A tester of its own: it knows no verdict.
        (tested,) = RejectionTester(engine, configuration, partly=partly).test(0, [tree])
        if not tested.key:
            continue
        text = str(tree.canonical())
        for verdicts, key in zip(found, (tested.key, engine.gradients([tree])[0].key(text)), strict=True):
            if len(verdicts[key]) < MOST:
                verdicts[key][text] = tested.reason is None
        if tested.reason is None:
            passed.append(tree)
    (shared, mixed), (_, mixed_first) = map(_count_shared, found)
    return {"trees": sum(map(len, found[0].values())), "shared": shared, "mixed": mixed, "mixed_first": mixed_first}


def _count_shared(found: Verdicts) -> tuple[int, int]:
    """Count the keys of several trees, and those of them that have both verdicts."""
    shared = [verdicts for verdicts in found.values() if len(verdicts) > 1]
    return len(shared), sum(len(set(verdicts.values())) > 1 for verdicts in shared)


def _print(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        shown = f"{row['shared']:>6} keys of several trees, {row['mixed']:>4} with both verdicts"
        print(
            f"{row['kind']:<40} {row['trees']:>7} trees, {shown} ({row['mixed_first']} at the first predictions alone)"
        )


if __name__ == "__main__":
    main()
